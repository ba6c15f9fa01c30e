"""Lists of seeds as bytes: opened and decompressed, read in blocks, downloaded."""

from __future__ import annotations

import gzip
import lzma
import os
import urllib.request
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError

from backports import zstd

BLOCK = 64 << 10
"""Bytes of a list that are handed on at a time."""
MOST = 4 << 30
"""Bytes beyond which a list is not downloaded."""
_TIMEOUT = 60.0

READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, zstd.ZstdError)
"""What reading a list raises, whatever it is."""


class ListFile:
    """The list in *source*, open; its first bytes, not its name, say how it is compressed.

    *source* is a path, or a file that is open already and is closed with the list.

    Raises `READ_ERRORS`, as its methods do.
    """

    def __init__(self, source: Path | BufferedReader) -> None:
        self._raw = source.open("rb") if isinstance(source, Path) else source
        self._size = os.fstat(self._raw.fileno()).st_size
        self._file: IO[bytes] | Any = self._raw
        head = self._raw.peek(6)
        if head.startswith(b"\x1f\x8b"):
            self._file = gzip.GzipFile(fileobj=self._raw)
        elif head.startswith(b"\xfd7zXZ\0"):
            self._file = lzma.LZMAFile(self._raw)  # noqa: SIM115 - closed with the list
        elif head.startswith(b"\x28\xb5\x2f\xfd"):
            self._file = zstd.ZstdFile(self._raw)

    def __enter__(self) -> ListFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._raw.close()

    def skip(self, size: int) -> None:
        """Go on behind the first *size* bytes of the text; of a compressed list they are read."""
        if size:
            self._file.seek(size)

    def blocks(self) -> Iterator[tuple[bytes, float | None]]:
        """Yield the text in blocks of `BLOCK` bytes, with the share of the file that was read.

        The share is None for what has no size, such as a pipe.
        """
        while block := self._file.read(BLOCK):
            yield block, self._raw.tell() / self._size if self._size else None


def download(url: str, path: Path, user_agent: str) -> None:
    """Put what is at *url* into *path*, all of it or nothing. Blocks; for a thread.

    One request (and its redirects), which the operator asked for by name: it waits for no delay,
    and no robots.txt is asked. Proxies are those of the environment.

    Raises `OSError`: there was no such answer, it is too long, or there is no room.
    """
    new = path.with_suffix(".new")
    request = urllib.request.Request(url, headers={"User-Agent": user_agent})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer, new.open("wb") as file:
            left = MOST
            while block := answer.read(BLOCK):
                left -= len(block)
                if left < 0:
                    raise OSError(f"it is longer than {MOST} bytes")
                file.write(block)
            length = answer.headers.get("Content-Length")
            if length is not None and length.isdigit() and int(length) != MOST - left:
                raise OSError("it was cut short")
        os.replace(new, path)
    except HTTPError as error:
        with error:  # it holds its connection
            raise OSError(f"status {error.code}") from None
    except ValueError as error:  # of http.client, for what is no URL to it
        raise OSError(str(error)) from error
    finally:
        new.unlink(missing_ok=True)


def reason(error: BaseException) -> str:
    """Why a list could not be read, in a few words."""
    said = error.strerror if isinstance(error, OSError) else None
    return str(said or error) or repr(error)
