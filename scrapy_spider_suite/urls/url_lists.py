"""Lists of seeds: sources that a user names, opened, decompressed or downloaded, and read by line.

White space and ``#`` begin a comment; ``#tag=NAME`` tags the seed, or all seeds after its line.
"""

from __future__ import annotations

import gzip
import lzma
import os
import re
import urllib.request
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Literal, NamedTuple
from urllib.error import HTTPError

from backports import zstd

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.urls.normalize import normalize
from scrapy_spider_suite.urls.normalizer import Normal

BLOCK = 64 << 10  # bytes of a list that are handed on at a time
MOST = 4 << 30  # bytes beyond which a list is not downloaded
_TIMEOUT = 60.0

READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, zstd.ZstdError)
"""The exceptions of reading a list."""


class ListFile:
    """An open list; its first bytes, not its name, tell its compression. Raises `READ_ERRORS`."""

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
        if size:
            self._file.seek(size)

    def blocks(self) -> Iterator[tuple[bytes, float | None]]:
        """Yield blocks of `BLOCK` bytes, and the share of the file that was read (None: a pipe)."""
        while block := self._file.read(BLOCK):
            yield block, self._raw.tell() / self._size if self._size else None


def download(url: str, path: Path, user_agent: str) -> None:
    """Download *url* to *path*, all or nothing. Blocks. Raises `OSError`.

    The operator asked for it by name: no delay, no robots.txt. Uses the environment's proxies.
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


def describe_read_error(error: BaseException) -> str:
    said = error.strerror if isinstance(error, OSError) else None
    return str(said or error) or repr(error)


LONGEST = 64 << 10  # bytes of a line beyond which it is no seed, whatever it says
ORIGIN = "#!from "
"""Begins, where lines of several lists are handed on as one, those of the next: name, tag, and the
number of lines before them, with TABs between."""
_SHOWN = 300  # characters of a bad line that are kept

# Host, port, path: what begins with a rank or a name (CSV) is none, nor is mailto:.
_BARE = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?(?:[/?#].*)?", re.DOTALL)
_SCHEME = re.compile(r"https?://", re.I)
_COMMENT = re.compile(r"\s#")
_TAG = re.compile(r"#\s?tag=(\S{1,100})\s*")


class Source(NamedTuple):
    kind: Literal["seed", "file", "remote"]  # remote: a list that is downloaded first
    name: str  # the seed, the path or the URL
    tag: str = ""

    @classmethod
    def parse(cls, text: str) -> Source:
        """The source that *text* names. Raises `SettingsError` if a file is missing."""
        given, tag = _split_comment(text.strip())
        name = given.removeprefix("@")
        if name != given and _SCHEME.match(name):
            return cls("remote", name, tag)
        # Whatever can be read will do, a pipe too: not only regular files.
        is_file = os.path.exists(name) and not os.path.isdir(name)
        if is_file and (name != given or "://" not in name):
            return cls("file", name, tag)
        if name != given:
            raise SettingsError(f"seeds: there is no file {name!r}")
        if "://" not in name and ("/" in name or is_file_name(name)):
            raise SettingsError(f"seeds: {name!r} is no URL, and there is no such file")
        return cls("seed", name, tag)


_SUFFIXES = (".txt", ".csv", ".tsv", ".lst", ".gz", ".xz", ".zst")


def is_file_name(name: str) -> bool:
    return name.endswith(_SUFFIXES)


def _split_comment(text: str) -> tuple[str, str]:
    """The text before a comment, and the tag in the comment, or ""."""
    if "#" not in text:
        return text, ""
    found = _COMMENT.search(text)
    if text[0] != "#" and found is None:
        return text, ""
    comment = 0 if text[0] == "#" or found is None else found.end() - 1
    tag = _TAG.match(text, comment)
    return text[:comment].rstrip(), tag[1] if tag else ""


@dataclass(frozen=True, slots=True)
class Seed:
    """A seed in normal form; *guessed*: without scheme, so https is tried first, then http."""

    url: str
    tag: str = ""
    guessed: bool = False


@dataclass(frozen=True, slots=True)
class BadLine:
    origin: str
    line: int
    text: str
    why: str

    def __str__(self) -> str:
        return f"{self.origin}:{self.line} {self.text[:100]!r}: {self.why}"


@dataclass(slots=True)
class SeedLines:
    """Reads the lines of the list *origin*, from *line* on; *tag*: for seeds without one."""

    origin: str
    tag: str = ""
    line: int = 0
    normal: Normal = normalize

    def read(self, raw: bytes) -> Seed | BadLine | None:
        self.line += 1
        if len(raw) > LONGEST:
            return self._bad(raw[:LONGEST], f"longer than {LONGEST} bytes")
        # At the beginning of the file, a byte order mark is none of the line's business.
        encoding = "utf-8-sig" if self.line == 1 else "utf-8"
        whole = raw.decode(encoding, "replace").strip()
        if not whole:
            return None
        text, tag = _split_comment(whole)
        if not text:
            if tag:
                self.tag = tag
            elif whole.startswith(ORIGIN):
                place = f"{whole.removeprefix(ORIGIN)}\t\t".split("\t")
                self.origin, self.tag, before = place[:3]
                self.line = int(before) if before.isdecimal() else 0
            return None
        guessed = "://" not in text
        if guessed and not _BARE.fullmatch(text):
            return self._bad(raw, "neither a URL nor a host name")
        url = self.normal(f"https://{text}" if guessed else text)
        if url is None:
            return self._bad(raw, "no web address")
        return Seed(url, tag or self.tag, guessed)

    def _bad(self, raw: bytes, why: str) -> BadLine:
        shown = raw.decode("utf-8", "replace").strip()[:_SHOWN]
        return BadLine(self.origin, self.line, shown, why)


def check_sources(sources: Iterable[str]) -> None:
    for source in sources:
        Source.parse(source)


def read_lines(sources: Iterable[str], user_agent: str) -> Iterator[str]:
    """The lines of all *sources* as one list. Raises `SettingsError`."""
    for source in [Source.parse(text) for text in sources]:
        yield f"{ORIGIN}{source.name}\t{source.tag}"
        if source.kind == "seed":
            yield source.name
        elif source.kind == "file":
            yield from _text_lines(Path(source.name))
        else:
            with TemporaryDirectory() as folder:
                path = Path(folder) / "list"
                try:
                    download(source.name, path, user_agent)
                except OSError as error:
                    why = f"seeds: {source.name} cannot be had: {describe_read_error(error)}"
                    raise SettingsError(why) from error
                yield from _text_lines(path)


def _text_lines(path: Path) -> Iterator[str]:
    rest = b""
    try:
        with ListFile(path) as file:
            for block, _ in file.blocks():
                *lines, rest = (rest + block).split(b"\n")
                for raw in lines:
                    yield raw.decode("utf-8", "replace").rstrip("\r")
                rest = rest[: LONGEST + 1]
    except READ_ERRORS as error:
        why = describe_read_error(error)
        raise SettingsError(f"seeds: {path} cannot be read: {why}") from error
    if rest:
        yield rest.decode("utf-8", "replace").rstrip("\r")
