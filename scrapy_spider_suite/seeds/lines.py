"""Where a crawl begins: URLs, host names, lists of them, and what a line of such a list says.

A list has a URL or a host name a line, UTF-8, plain or compressed. White space and ``#`` begin a
comment; ``#tag=NAME`` is kept with the seed, or, on a line of its own, with all that follow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.seeds.lists import READ_ERRORS, ListFile, download, reason
from scrapy_spider_suite.urls.normalize import normalize
from scrapy_spider_suite.urls.normalizer import Normal

LONGEST = 64 << 10
"""Bytes of a line beyond which it is no seed, whatever it says."""
ORIGIN = "#!from "
"""Begins, where lines of several lists are handed on as one, those of the next: name, TAB, tag."""
_SHOWN = 300  # characters of a bad line that are kept

# Host, port, path: what begins with a rank or a name (CSV) is none, nor is mailto:.
_BARE = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?(?:[/?#].*)?", re.DOTALL)
_SCHEME = re.compile(r"https?://", re.I)
_COMMENT = re.compile(r"\s#")
_TAG = re.compile(r"#\s?tag=(\S{1,100})\s*")


class Kind(Enum):
    """What a source of seeds is."""

    SEED = "seed"
    FILE = "file"
    REMOTE = "remote"
    """A list that is downloaded first."""


class Source(NamedTuple):
    """One of the sources that a user names: a seed, or where a list of them is."""

    kind: Kind
    name: str
    """The seed, the path or the URL."""
    tag: str = ""

    @classmethod
    def of(cls, text: str) -> Source:
        """The source that *text* names: a URL, a host name, a file, or ``@`` and a file or a URL.

        A tag after it holds for all its seeds. Raises `SettingsError` for a file that is not there.
        """
        line = _Line.of(text.strip())
        name = line.text
        if name.startswith("@"):
            if _SCHEME.match(name, 1):
                return cls(Kind.REMOTE, name[1:], line.tag)
            if not _is_file(name[1:]):
                raise SettingsError(f"seeds: there is no file {name[1:]!r}")
            return cls(Kind.FILE, name[1:], line.tag)
        if "://" in name:
            return cls(Kind.SEED, name, line.tag)
        if _is_file(name):
            return cls(Kind.FILE, name, line.tag)
        if "/" in name or is_called_as_a_file(name):
            raise SettingsError(f"seeds: {name!r} is no URL, and there is no such file")
        return cls(Kind.SEED, name, line.tag)


_SUFFIXES = (".txt", ".csv", ".tsv", ".lst", ".gz", ".xz", ".zst")


def is_called_as_a_file(name: str) -> bool:
    """Whether *name*, which could be a host's, is rather that of a list: it ends as such do."""
    return name.endswith(_SUFFIXES)


def _is_file(name: str) -> bool:
    # Whatever can be read will do, a pipe too: not only regular files.
    return os.path.exists(name) and not os.path.isdir(name)


class _Line(NamedTuple):
    text: str
    tag: str

    @classmethod
    def of(cls, text: str) -> _Line:
        """*text* without its comment, and the tag in that."""
        if "#" not in text:
            return cls(text, "")
        comment = 0 if text[0] == "#" else -1
        if comment < 0 and (found := _COMMENT.search(text)):
            comment = found.end() - 1
        if comment < 0:
            return cls(text, "")
        tag = _TAG.match(text, comment)
        return cls(text[:comment].rstrip(), tag[1] if tag else "")


@dataclass(frozen=True, slots=True)
class Seed:
    """A seed: *url* is in normal form. *guessed*: its line had no scheme, so https is tried first,
    and http if that does not answer."""

    url: str
    tag: str = ""
    guessed: bool = False


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no seed, and why."""

    origin: str
    line: int
    text: str
    why: str

    def __str__(self) -> str:
        return f"{self.origin}:{self.line} {self.text[:100]!r}: {self.why}"


class SeedLines:
    """What the lines of one list say, one after the other, beginning after *line* lines.

    *origin* is what the list is called, *tag* what holds for seeds without a tag of their own,
    *normal* the normaliser of the crawl.
    """

    def __init__(
        self, origin: str, tag: str = "", line: int = 0, normal: Normal = normalize
    ) -> None:
        self._normal = normal
        self.origin = origin
        self.tag = tag
        self.line = line

    def read(self, raw: bytes) -> Seed | BadLine | None:
        """Read the next line; None if it says nothing."""
        self.line += 1
        if len(raw) > LONGEST:
            return self._bad(raw[:LONGEST], f"longer than {LONGEST} bytes")
        # At the beginning of the file, a byte order mark is none of the line's business.
        encoding = "utf-8-sig" if self.line == 1 else "utf-8"
        whole = raw.decode(encoding, "replace").strip()
        if not whole:
            return None
        text, tag = _Line.of(whole)
        if not text:
            self._directive(whole, tag)
            return None
        guessed = "://" not in text
        if guessed and not _BARE.fullmatch(text):
            return self._bad(raw, "neither a URL nor a host name")
        url = self._normal(f"https://{text}" if guessed else text)
        if url is None:
            return self._bad(raw, "no web address")
        return Seed(url, tag or self.tag, guessed)

    def _directive(self, text: str, tag: str) -> None:
        if tag:
            self.tag = tag
        elif text.startswith(ORIGIN):
            self.origin, _, self.tag = text.removeprefix(ORIGIN).partition("\t")
            self.line = 0

    def _bad(self, raw: bytes, why: str) -> BadLine:
        shown = raw.decode("utf-8", "replace").strip()[:_SHOWN]
        return BadLine(self.origin, self.line, shown, why)


def check_sources(sources: Iterable[str]) -> None:
    """See that the files that *sources* name are there, before a crawl begins.

    Raises `SettingsError` if one is not.
    """
    for source in sources:
        Source.of(source)


def lines_of(sources: Iterable[str], user_agent: str) -> Iterator[str]:
    """Yield the lines of all *sources*, to be handed on as one list with the names of its parts.

    Remote ones are downloaded, as *user_agent*. Raises `SettingsError` for a list that cannot be
    read.
    """
    for source in [Source.of(text) for text in sources]:
        yield f"{ORIGIN}{source.name}\t{source.tag}"
        if source.kind is Kind.SEED:
            yield source.name
        elif source.kind is Kind.FILE:
            yield from _text_lines(Path(source.name))
        else:
            with TemporaryDirectory() as folder:
                path = Path(folder) / "list"
                try:
                    download(source.name, path, user_agent)
                except OSError as error:
                    why = f"seeds: {source.name} cannot be had: {reason(error)}"
                    raise SettingsError(why) from error
                yield from _text_lines(path)


def _text_lines(path: Path) -> Iterator[str]:
    for raw in _raw_lines(path):
        yield raw.decode("utf-8", "replace").rstrip("\r")


def _raw_lines(path: Path) -> Iterator[bytes]:
    rest = b""
    try:
        with ListFile(path) as file:
            for block, _ in file.blocks():
                *lines, rest = (rest + block).split(b"\n")
                yield from lines
                rest = rest[: LONGEST + 1]
    except READ_ERRORS as error:
        raise SettingsError(f"seeds: {path} cannot be read: {reason(error)}") from error
    if rest:
        yield rest
