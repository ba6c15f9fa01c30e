"""Link statistics: exact counts of the pages and links of a crawl while it runs.

Counts are rows of the store, written with the batch that completes their pages. Call
`LinkStats.page` as a page is settled, `LinkStats.save` before each flush. The tables are in
docs/links.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Annotated

import msgspec

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.settings.table import LINK_TABLES
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.urls.hosts import reverse_host
from scrapy_spider_suite.urls.normalize import host_of


class Sums:
    """Vectors of *width* integers by key, below *prefix* in *rows*; added to until `merge`."""

    def __init__(self, rows: KV, prefix: bytes, width: int) -> None:
        self._rows = rows
        self._prefix = prefix
        self._width = width
        self._decode = msgspec.msgpack.Decoder(
            Annotated[list[int], msgspec.Meta(min_length=width, max_length=width)]
        ).decode
        self._added: dict[bytes, list[int]] = {}

    def __len__(self) -> int:
        return len(self._added)

    def vector(self, key: bytes) -> list[int]:
        """The additions to *key*, to be changed in place."""
        vector = self._added.get(key)
        if vector is None:
            vector = self._added[key] = [0] * self._width
        return vector

    def merge(self) -> list[bytes]:
        """Add everything to the rows; return the new keys. Raises `JobDamagedError`."""
        new = []
        prefix, get, put = self._prefix, self._rows.get, self._rows.put
        for key, vector in self._added.items():
            row = prefix + key
            data = get(row)
            if data is None:
                new.append(key)
            else:
                for place, number in enumerate(self._numbers(data)):
                    vector[place] += number
            put(row, msgspec.msgpack.encode(vector))
        self._added.clear()
        return new

    def items(self, begin: bytes = b"") -> Iterator[tuple[bytes, list[int]]]:
        """The keys that begin with *begin*, in order, as of the last `merge`."""
        n = len(self._prefix)
        for key, data in self._rows.items(self._prefix + begin):
            yield key[n:], self._numbers(data)

    def get(self, key: bytes) -> list[int] | None:
        """The vector of *key* as of the last `merge`, or None."""
        data = self._rows.get(self._prefix + key)
        return None if data is None else self._numbers(data)

    def delete(self, key: bytes) -> None:
        self._rows.delete(self._prefix + key)

    def _numbers(self, data: bytes) -> list[int]:
        try:
            numbers: list[int] = self._decode(data)
        except ValueError as error:
            raise JobDamagedError(f"a row of the link statistics is damaged ({error})") from error
        return numbers


ROWS = "links"
DEFAULT = frozenset(LINK_TABLES) - {"anchors"}
ROWS_MAX = 4_096
NAME_MAX = 100  # bytes of a media type, language or word that count
TERMS_MAX = 2_000  # words of link texts counted of a page

_FIELDS = 7
_PAGES, _LINKS, _INTERNAL, _EXTERNAL, _IN_LINKS, _OUT_HOSTS, _IN_HOSTS = range(_FIELDS)
_TOTALS = (b"pages", b"links", b"internal", b"external")
_WORDS = re.compile(r"[^\W_]{2,}")


@dataclass(frozen=True, slots=True)
class PageFacts:
    """One fetch; URLs are normal. *links*: each once, None if not read. *again*: a refetch, whose
    links do not count. *anchors*: link texts.
    """

    url: str
    status: int
    media_type: str = ""
    size: int = 0
    language: str = ""
    links: Sequence[str] | None = None
    anchors: Sequence[str] = ()
    again: bool = False


@dataclass(frozen=True, slots=True)
class HostLinks:
    """The links of a host, or of all. *out_hosts*, *in_hosts*: degrees in the host graph."""

    pages: int = 0
    links: int = 0
    internal: int = 0
    external: int = 0
    in_links: int = 0
    out_hosts: int = 0
    in_hosts: int = 0


class LinkStats:
    def __init__(
        self, rows: KV, tables: Iterable[str] = DEFAULT, *, rows_max: int = ROWS_MAX
    ) -> None:
        self.tables = frozenset(tables)
        self._rows_max = rows_max
        self._hosts = Sums(rows, b"h", _FIELDS)
        self._edges = Sums(rows, b"e", 1)
        self._counts = Sums(rows, b"t", 1)

    def page(self, page: PageFacts) -> None:
        tables = self.tables
        if "statuses" in tables:
            self._count(b"statuses", str(page.status).encode())
        if "types" in tables:
            self._count(b"types", _name(page.media_type))
        if "languages" in tables:
            self._count(b"languages", _name(page.language))
        if "sizes" in tables:
            self._count(b"sizes", _number(page.size.bit_length()))
        if page.links is not None and not page.again:
            self._links(page.url, page.links)
        if page.anchors and not page.again and "anchors" in tables:
            found = (_WORDS.findall(text[: NAME_MAX * 10].casefold()) for text in page.anchors)
            for word in islice(chain.from_iterable(found), TERMS_MAX):
                self._count(b"anchors", _name(word))
        if len(self._hosts) + len(self._edges) + len(self._counts) >= self._rows_max:
            self.save()

    def save(self) -> None:
        """Put all counts into the store's next batch. Raises `JobDamagedError`."""
        for edge in self._edges.merge():
            source, _, target = edge.partition(b"\0")
            self._hosts.vector(source)[_OUT_HOSTS] += 1
            self._hosts.vector(target)[_IN_HOSTS] += 1
        self._hosts.merge()
        self._counts.merge()

    def forget(self, accepts: Callable[[str], bool]) -> int:
        """Remove hosts and the links from and to them; return the number of rows. Totals stay."""
        gone = {key for key, _ in self._hosts.items() if accepts(reverse_host(key.decode()))}
        pairs = []
        for edge, (number,) in self._edges.items():
            source, _, target = edge.partition(b"\0")
            if source in gone and target not in gone:
                self._hosts.vector(target)[_IN_HOSTS] -= 1
                self._hosts.vector(target)[_IN_LINKS] -= number
            elif target in gone and source not in gone:
                self._hosts.vector(source)[_OUT_HOSTS] -= 1
            if source in gone or target in gone:
                pairs.append(edge)
        self.save()
        for key in gone:
            self._hosts.delete(key)
        for edge in pairs:
            self._edges.delete(edge)
        return len(gone) + len(pairs)

    def _count(self, table: bytes, key: bytes, number: int = 1) -> None:
        self._counts.vector(table + b"\0" + key)[0] += number

    def _links(self, url: str, links: Sequence[str]) -> None:
        own = host_of(url)
        found: Counter[str] = Counter()
        for authority, number in Counter([link.split("/", 3)[2] for link in links]).items():
            found[host_of(f"//{authority}/") if ":" in authority else authority] += number
        total = len(links)
        internal = found.pop(own, 0)
        external = total - internal
        if "out" in self.tables:
            self._count(b"out", _number(total))
        if "external" in self.tables:
            self._count(b"external", _number(external))
        if "links" in self.tables:
            for name, number in zip(_TOTALS, (1, total, internal, external), strict=True):
                self._count(b"links", name, number)
        if "hosts" not in self.tables:
            return
        key = reverse_host(own).encode()
        vector = self._hosts.vector(key)
        for place, number in enumerate((1, total, internal, external)):
            vector[place] += number
        for host, number in found.items():
            other = reverse_host(host).encode()
            self._hosts.vector(other)[_IN_LINKS] += number
            self._edges.vector(key + b"\0" + other)[0] += number

    # Reading: what was saved

    def totals(self) -> HostLinks:
        """The sums over all hosts, without degrees."""
        rows = {key.partition(b"\0")[2]: n for key, (n,) in self._counts.items(b"links\0")}
        return HostLinks(*(rows.get(name, 0) for name in _TOTALS))

    def table(self, name: str) -> Iterator[tuple[str, int]]:
        """Yield the key and count of a table other than ``links`` and ``hosts``; numbers in order.
        Key *n* of ``sizes``: bodies of 2**(n - 1) to 2**n - 1 bytes.
        """
        begin = name.encode() + b"\0"
        numbers = name in ("out", "external", "sizes")
        for key, (count,) in self._counts.items(begin):
            rest = key[len(begin) :]
            yield str(int.from_bytes(rest, "big")) if numbers else rest.decode(), count

    def host(self, host: str) -> HostLinks:
        return HostLinks(*(self._hosts.get(reverse_host(host).encode()) or ()))

    def hosts(self) -> Iterator[tuple[str, HostLinks]]:
        for key, vector in self._hosts.items():
            yield reverse_host(key.decode()), HostLinks(*vector)

    def edges(self) -> Iterator[tuple[str, str, int]]:
        """The host graph: source, target, number of links, by reversed names."""
        for key, (number,) in self._edges.items():
            source, _, target = key.partition(b"\0")
            yield reverse_host(source.decode()), reverse_host(target.decode()), number


def _name(text: str) -> bytes:
    return text[:NAME_MAX].replace("\0", "").encode("utf-8", "replace")[:NAME_MAX] or b"-"


def _number(number: int) -> bytes:
    return number.to_bytes(6, "big")


def degree_counts(stats: LinkStats) -> dict[str, dict[int, int]]:
    """Return how many pages and hosts have each degree. Reads all hosts."""
    degrees = {
        name: {int(key): count for key, count in stats.table(name)} for name in ("out", "external")
    }
    out, into = Counter[int](), Counter[int]()
    for _, links in stats.hosts():
        out[links.out_hosts] += 1
        into[links.in_hosts] += 1
    return degrees | {"out_hosts": dict(out), "in_hosts": dict(into)}
