"""Link statistics: what the pages of a crawl link to, counted exactly while it runs (T3, K19).

Every count is a row of the store, so memory does not grow with pages or hosts, and the rows are
part of the batch that makes their pages done: after a kill they are those of the pages that are
done, neither more nor less. `LinkStats.page` is to be called in the operation that settles a page,
`LinkStats.save` before each flush of the store.

What is counted, by *table* (any of them can be left out):

- ``links``: pages, links, links within a host and to others, in all;
- ``hosts``: the same for each host, and how many hosts it links to and is linked from;
- ``out``, ``external``: pages by their number of links, and of links to other hosts;
- ``statuses``, ``types``, ``languages``, ``sizes`` (by powers of two): fetches;
- ``anchors``: words of the texts of links, not unless asked for: a row for each word there is.

BUbiNG counts degrees, lengths and types so, but forgets them at the end (4.13 of its study).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from scrapy_spider_suite.monitor.sums import Sums
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.urls.hosts import reverse_host
from scrapy_spider_suite.urls.normalize import host_of

ROWS = "links"
"""The mapping of a job's store that its counts are rows of."""
TABLES = ("links", "hosts", "out", "external", "statuses", "types", "languages", "sizes", "anchors")
DEFAULT = frozenset(TABLES) - {"anchors"}
ROWS_MAX = 4_096
"""Changed rows that are held in memory before they are merged: a few MB."""
NAME_MAX = 100
"""Bytes of a media type, language or word that count; servers make them up at any length."""
TERMS_MAX = 2_000
"""Words of the link texts of one page that are counted."""

_FIELDS = 7
_PAGES, _LINKS, _INTERNAL, _EXTERNAL, _IN_LINKS, _OUT_HOSTS, _IN_HOSTS = range(_FIELDS)
_TOTALS = (b"pages", b"links", b"internal", b"external")
_WORDS = re.compile(r"[^\W_]{2,}")


@dataclass(frozen=True, slots=True)
class PageFacts:
    """What is counted of one fetch. URLs are normal.

    ``links``: of the page, each once; None if it was not read for links. ``again``: the page was
    counted before, so that this is another fetch of it, but no other page: its links are not
    counted once more. ``size``: bytes of the body. ``anchors``: texts of links.
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
    """The links of a host, or of all of them. A host that was only linked to has 0 pages."""

    pages: int = 0
    links: int = 0
    internal: int = 0
    external: int = 0
    in_links: int = 0
    """Links from other hosts."""
    out_hosts: int = 0
    """Other hosts that it links to: its out-degree in the host graph."""
    in_hosts: int = 0
    """Other hosts that link to it: its in-degree."""


class LinkStats:
    """Counts into *rows*, a mapping of the job's store that nothing else uses.

    *tables* says what is counted; `ValueError` if one of them does not exist.
    """

    def __init__(
        self, rows: KV, tables: Iterable[str] = DEFAULT, *, rows_max: int = ROWS_MAX
    ) -> None:
        self.tables = frozenset(tables)
        if unknown := self.tables - frozenset(TABLES):
            raise ValueError(f"no tables: {', '.join(sorted(unknown))}; {', '.join(TABLES)}")
        self._rows_max = rows_max
        self._hosts = Sums(rows, b"h", _FIELDS)
        self._edges = Sums(rows, b"e", 1)
        self._counts = Sums(rows, b"t", 1)

    def page(self, page: PageFacts) -> None:
        """Count *page*: with the next batch of the store, if `save` comes before that."""
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
            self._words(page.anchors)
        if len(self._hosts) + len(self._edges) + len(self._counts) >= self._rows_max:
            self.save()

    def save(self) -> None:
        """Put all that was counted into the store's next batch. Raises `JobDamagedError`."""
        for edge in self._edges.merge():
            source, _, target = edge.partition(b"\0")
            self._hosts.vector(source)[_OUT_HOSTS] += 1
            self._hosts.vector(target)[_IN_HOSTS] += 1
        self._hosts.merge()
        self._counts.merge()

    def forget(self, takes: Callable[[str], bool]) -> int:
        """Forget the hosts that *takes* names, and who links to them; return how many rows.

        Of other hosts, degrees and links from other hosts no longer count them. What was counted
        of all hosts together stays: those pages were fetched. Saved at once.
        """
        gone = {key for key, _ in self._hosts.items() if takes(reverse_host(key.decode()))}
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
        """Count the links of the page *url*: by host first, since most of them share one."""
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
        if "hosts" in self.tables:
            self._host(own, (1, total, internal, external), found)

    def _host(self, own: str, numbers: Iterable[int], others: Counter[str]) -> None:
        key = reverse_host(own).encode()
        vector = self._hosts.vector(key)
        for place, number in enumerate(numbers):
            vector[place] += number
        for host, number in others.items():
            other = reverse_host(host).encode()
            self._hosts.vector(other)[_IN_LINKS] += number
            self._edges.vector(key + b"\0" + other)[0] += number

    def _words(self, anchors: Sequence[str]) -> None:
        left = TERMS_MAX
        for anchor in anchors:
            words = _WORDS.findall(anchor[: NAME_MAX * 10].casefold())[:left]
            for word in words:
                self._count(b"anchors", _name(word))
            left -= len(words)
            if left <= 0:
                return

    # Reading: what was saved

    def totals(self) -> HostLinks:
        """The sums over all hosts (``links``); of degrees there are none."""
        rows = {key.partition(b"\0")[2]: n for key, (n,) in self._counts.items(b"links\0")}
        return HostLinks(*(rows.get(name, 0) for name in _TOTALS))

    def table(self, name: str) -> Iterator[tuple[str, int]]:
        """The rows of a table that is not ``links`` or ``hosts``: key and count.

        Numbers (``out``, ``external``, ``sizes``) come in their order. A key *n* of ``sizes``
        stands for bodies of less than 2**n bytes, and of at least 2**(n - 1) but for 0.
        """
        begin = name.encode() + b"\0"
        numbers = name in ("out", "external", "sizes")
        for key, (count,) in self._counts.items(begin):
            rest = key[len(begin) :]
            yield str(int.from_bytes(rest, "big")) if numbers else rest.decode(), count

    def host(self, host: str) -> HostLinks:
        """The links of one host."""
        return HostLinks(*(self._hosts.get(reverse_host(host).encode()) or ()))

    def hosts(self) -> Iterator[tuple[str, HostLinks]]:
        """All hosts, in the order of their reversed names: every one fetched or linked to."""
        for key, vector in self._hosts.items():
            yield reverse_host(key.decode()), HostLinks(*vector)

    def edges(self) -> Iterator[tuple[str, str, int]]:
        """Pairs of different hosts, and how many links of pages of the first lead to the second.

        In the order of their reversed names: the host graph, as of now.
        """
        for key, (number,) in self._edges.items():
            source, _, target = key.partition(b"\0")
            yield reverse_host(source.decode()), reverse_host(target.decode()), number


def _name(text: str) -> bytes:
    """A key of what a server or a page names; "-" if it does not."""
    return text[:NAME_MAX].replace("\0", "").encode("utf-8", "replace")[:NAME_MAX] or b"-"


def _number(number: int) -> bytes:
    """A key that sorts as the number does."""
    return number.to_bytes(6, "big")
