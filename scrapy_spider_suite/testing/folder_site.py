"""Serves a folder of files as one host."""

from __future__ import annotations

import contextlib
import mimetypes
import os
from functools import partial
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

from scrapy_spider_suite.testing.http import TEXT, AnswerWriter, Request, ServerReply, make_reply

INDEXES = ("index.html", "index.htm")

_LARGE = 1 << 20
_PIECE = 1 << 18
_OTHER_TYPE = "application/octet-stream"
_COMPRESSED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}


class FolderSite:
    """Answers with the files below *root*.

    ``/dir`` redirects to ``/dir/``, its ``index.html``; no listings. HTML has no charset, so that
    the file's own declaration counts. Links that lead out of *root* are 404s.
    """

    def __init__(self, root: Path | str, latency: float = 0.0) -> None:
        self._root = os.path.realpath(root)
        self._latency = latency
        # The built-in table only: the machine's own would make answers differ between machines.
        self._types = mimetypes.MimeTypes()

    def answer(self, request: Request) -> ServerReply:
        """Answer with a file, a redirect or 404; 403 if it is unreadable."""
        try:
            return self._answer(request)
        except OSError as error:
            return make_reply(403, f"{error.strerror}\n", delay=self._latency)

    def _answer(self, request: Request) -> ServerReply:
        found = self._find(request.path)
        if found is None:
            return make_reply(404, "no such file\n", delay=self._latency)
        if os.path.isdir(found):
            location = quote(unquote_to_bytes(request.path)) + "/"
            return make_reply(301, "", TEXT, f"Location: {location}", delay=self._latency)
        kind = self._kind(found)
        size = os.path.getsize(found)
        if size <= _LARGE:
            return make_reply(200, Path(found).read_bytes(), kind, delay=self._latency)
        return ServerReply(200, b"", script=partial(self._stream, found, kind))

    def _find(self, path: str) -> str | None:
        name = os.fsdecode(unquote_to_bytes(path))
        if "\0" in name or ".." in name.split("/"):
            return None
        candidates = [name + index for index in INDEXES] if name.endswith("/") else [name]
        for candidate in candidates:
            real = os.path.realpath(os.path.join(self._root, candidate.lstrip("/")))
            inside = os.path.commonpath((self._root, real)) == self._root
            folder = not name.endswith("/") and os.path.isdir(real)
            if inside and (folder or os.path.isfile(real)):
                return real
        return None

    def _kind(self, path: str) -> str:
        kind, encoding = self._types.guess_type(os.path.basename(path))
        if encoding is not None:
            return _COMPRESSED.get(encoding, _OTHER_TYPE)
        return kind or _OTHER_TYPE

    async def _stream(self, path: str, kind: str, wire: AnswerWriter) -> None:
        await wire.rest(self._latency)
        with contextlib.suppress(FileNotFoundError, PermissionError), open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = make_reply(200, b"", kind).data.replace(
                b"Content-Length: 0", b"Content-Length: %d" % size
            )
            await wire.send(head)
            while size and wire.request.method != "HEAD":
                piece = file.read(min(_PIECE, size))
                if not piece:
                    return
                size -= len(piece)
                await wire.send(piece)
            wire.keep = True
