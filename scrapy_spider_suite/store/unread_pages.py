"""Stored pages whose links are unread, and which of them are read next.

A row is written with the commit of its page, and deleted with the batch that makes its links
pending. Pages of hosts with nearly empty queues come first. Where too few hosts are left, the
oldest pages are read, ever more rarely while they bring no URLs to hosts without any.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

import msgpack  # type: ignore[import-untyped]
import xxhash

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.rocks_store import Store
from scrapy_spider_suite.store.rows import pack_row, unpack_row

LOW: Final = 4  # a host of which fewer URLs are left to be asked for is in demand
AT_ONCE: Final = 16  # pages that are chosen at a time, of hosts that are in demand
_FEW: Final = 4  # for the sake of the whole crawl
_EACH: Final = 1  # pages of one host that are read at a time
_EXAMINED: Final = 200  # hosts that are examined at a time
_PATIENCE: Final = (16, 256)  # fetches between two turns for the whole crawl: least, most


class PageDemand:
    """Chooses among the pages of *waiting*. *left*: how many URLs of a host are to be fetched.

    Invariant: a chosen page is not chosen again before `finish`.
    """

    def __init__(self, waiting: UnreadPages, left: Callable[[str], int]) -> None:
        self._waiting = waiting
        self._left = left
        self._low: OrderedDict[str, None] = OrderedDict()  # hosts in demand, the first comes first
        self._earlier: bytes | None = b"" if len(waiting) else None  # where to look for more
        self._out: dict[int, str] = {}  # chosen pages, and their hosts
        self._for_host: set[int] = set()  # chosen pages of hosts in demand
        self._of_turn: set[int] = set()  # chosen pages for the whole crawl
        self._served: set[str] = set()  # hosts whose links wait for the sieve
        self._in_sieve = 0
        self._patience = 0
        self._next_turn = 0
        self._idle: set[str] = set()
        self._asked: OrderedDict[str, None] = OrderedDict()  # hosts, by an operator

    @property
    def out(self) -> int:
        return len(self._out)

    def host_shrank(self, host: str) -> None:
        if self._waiting.count and self._left(host) < LOW:
            self._low[host] = None

    def ask(self, host: str) -> None:
        """Choose pages of *host* next."""
        self._asked[host] = None

    def sifted(self, in_sieve: int) -> None:
        """*in_sieve* links wait: hosts with such links are read on when they are gone."""
        if in_sieve < self._in_sieve:
            self._low.update(dict.fromkeys(self._served))
            self._served.clear()
        self._in_sieve = in_sieve

    def choose(
        self, *, starving: bool, fetches: int, nothing_else: Callable[[], bool]
    ) -> list[UnreadPage]:
        """The pages to read now; *fetches* is the number of the crawl's fetches so far.

        *starving*: there is room, and nothing may be fetched now; *nothing_else*: that will last.
        """
        while self._asked:
            host = self._asked.popitem(last=False)[0]
            found = self._waiting.for_host(host, AT_ONCE)
            if found:
                self._asked[host] = None  # until none is left
            if pages := [page for page in found if page.number not in self._out]:
                return self._note_chosen(pages)
            if found:
                break  # they are being read
        pages = self._of_hosts(AT_ONCE)
        if pages or not starving:
            return pages
        if nothing_else():
            return self.of_all(_FEW)
        return self._turn(fetches, _FEW)

    def _of_hosts(self, limit: int) -> list[UnreadPage]:
        found: list[UnreadPage] = []
        busy = set(self._out.values())
        if self._earlier is not None and not self._low:
            hosts, self._earlier = self._waiting.hosts(self._earlier, _EXAMINED)
            for host in hosts:
                self.host_shrank(host)
        for _ in range(min(_EXAMINED, len(self._low))):
            if len(found) >= limit:
                break
            host = self._low.popitem(last=False)[0]
            if host in busy or host in self._served or self._left(host) >= LOW:
                continue
            found += self._waiting.for_host(host, _EACH)
            if self._in_sieve:
                self._served.add(host)
        self._for_host.update(page.number for page in found)
        return self._note_chosen(found)

    def of_all(self, limit: int) -> list[UnreadPage]:
        return self._note_chosen(self._waiting.oldest(limit, self._out))

    def _turn(self, fetches: int, limit: int) -> list[UnreadPage]:
        if self._out or fetches < self._next_turn:
            return []
        least, most = _PATIENCE
        pages = self.of_all(1 if self._patience else limit)
        self._patience = max(least, min(most, 2 * self._patience))
        self._next_turn = fetches + self._patience
        self._of_turn = {page.number for page in pages}
        return pages

    def _note_chosen(self, pages: list[UnreadPage]) -> list[UnreadPage]:
        self._out |= {page.number: page.entry.host for page in pages}
        return pages

    def wants(self, page: UnreadPage) -> bool:
        """Whether a chosen *page* is still to be read: others may have brought enough URLs."""
        return page.number not in self._for_host or self._left(page.entry.host) < LOW

    def reading(self, page: UnreadPage, hosts: Iterable[str]) -> None:
        """The links of *page*, which lead to *hosts*, are about to become pending."""
        if page.number in self._of_turn:
            self._idle = {host for host in {*hosts} if not self._left(host)}

    def finish(self, page: UnreadPage) -> None:
        """The links of *page* are pending, or it was given up, or is not wanted now."""
        self._out.pop(page.number, None)
        if any(map(self._left, self._idle)):  # a host without URLs got some
            self._patience = self._next_turn = 0
        self._for_host.discard(page.number)
        self._of_turn.discard(page.number)
        self._idle.clear()
        self.host_shrank(page.entry.host)


NAME: Final = "unextracted"
_OF_HOST, _BY_AGE, _COUNT, _FOLDER = b"h", b"n", b"c", b"f"
_NUMBER = struct.Struct(">Q")
_HEADS: Final = 20_000  # hosts whose first row is remembered: before it lie deleted rows


class UnreadPage(NamedTuple):
    """A page whose links are to be read; *place*: where it is stored."""

    number: int
    entry: Entry
    place: bytes


class UnreadPages:
    """The rows of one job. *counters* number them; changes come with the store's next batch.

    *count*: how many pages wait.
    """

    def __init__(self, store: Store, counters: Counters) -> None:
        self._kv = store.kv(NAME)
        self._counters = counters
        self._heads: dict[bytes, int] = {}
        self._folder = ""
        count = self._kv.get(_COUNT)
        self.count = 0 if count is None else _number(count)
        # Scans skip the deleted rows before the first one.
        self._first = 0
        if self.count:
            self._first = next((_number(key[1:]) for key, _ in self._kv.items(_BY_AGE)), 0)

    def __len__(self) -> int:
        return self.count

    def add(self, entry: Entry, place: bytes) -> None:
        self._counters.sequence += 1
        number = self._counters.sequence
        if not self.count:
            self._first = number
        self._put(UnreadPage(number, entry, place))
        self._kv.put(_BY_AGE + _NUMBER.pack(number), _digest(entry.host))
        self._count_pages(1)

    def _put(self, page: UnreadPage) -> None:
        host = page.entry.host
        row = msgpack.packb((host, pack_row(page.entry), page.place))
        self._kv.put(_OF_HOST + _digest(host) + _NUMBER.pack(page.number), row)

    def remove(self, page: UnreadPage) -> bool:
        """The links of *page* are known, or given up; False if it is gone."""
        number, host = _NUMBER.pack(page.number), _digest(page.entry.host)
        if self._kv.get(_BY_AGE + number) is None:
            return False
        self._kv.delete(_OF_HOST + host + number)
        self._kv.delete(_BY_AGE + number)
        self._count_pages(-1)
        if page.number == self._first:
            self._first += 1
        head = self._heads.get(host)
        if head == page.number:
            self._heads[host] = head + 1
        return True

    def __contains__(self, page: UnreadPage) -> bool:
        return self._kv.get(_BY_AGE + _NUMBER.pack(page.number)) is not None

    def _count_pages(self, change: int) -> None:
        self.count = max(0, self.count + change)
        self._kv.put(_COUNT, _NUMBER.pack(self.count))

    def oldest(self, limit: int, without: Collection[int] = ()) -> list[UnreadPage]:
        """Up to *limit* of the oldest pages except *without*. Raises `JobDamagedError`."""
        found: list[UnreadPage] = []
        if not self.count:
            return found
        for key, host in self._kv.items(_BY_AGE, _NUMBER.pack(self._first)):
            number = _number(key[1:])
            if not found and not without:
                self._first = number
            if number in without:
                continue
            row = self._kv.get(_OF_HOST + host + key[1:])
            if row is None:
                raise JobDamagedError(f"the page {number} that waits for its links has no row")
            found.append(_page(number, row))
            if len(found) == limit:
                break
        return found

    def for_host(self, host: str, limit: int) -> list[UnreadPage]:
        digest = _digest(host)
        if not self.count:
            return []
        found = list(islice(self._rows(host, self._heads.get(digest, 0)), limit))
        if found:
            if len(self._heads) >= _HEADS:
                self._heads.clear()
            self._heads[digest] = found[0].number
        return found

    def hosts(self, since: bytes, limit: int) -> tuple[list[str], bytes | None]:
        """Up to *limit* hosts with pages, from *since* on, and where to continue; None: nowhere."""
        found: list[str] = []
        for _ in range(limit):
            row = next(self._kv.items(_OF_HOST, since), None)
            if row is None:
                return found, None
            key, value = row
            page = _page(_number(key[-_NUMBER.size :]), value)
            found.append(page.entry.host)
            since = _digest(page.entry.host) + b"\xff" * (_NUMBER.size + 1)
        return found, since

    def _rows(self, host: str, since: int = 0) -> Iterator[UnreadPage]:
        for key, row in self._kv.items(_OF_HOST + _digest(host), _NUMBER.pack(since)):
            page = _page(_number(key[-_NUMBER.size :]), row)
            if page.entry.host == host:  # two hosts may have one digest
                yield page

    def everything(self) -> Iterator[UnreadPage]:
        """Every page, host by host. Raises `JobDamagedError`."""
        for key, row in self._kv.items(_OF_HOST):
            yield _page(_number(key[-_NUMBER.size :]), row)

    def has_url(self, host: str, url: str) -> bool:
        return any(page.entry.url == url for page in self._rows(host))

    def count_of(self, host: str) -> int:
        return sum(1 for _ in self._rows(host))

    def wrong(self) -> Iterator[str]:
        """The disagreements of the rows, a line each."""
        numbers = {_number(key[1:]): host for key, host in self._kv.items(_BY_AGE)}
        rows = 0
        for page in self.everything():
            rows += 1
            if numbers.pop(page.number, None) != _digest(page.entry.host):
                yield f"{page.entry.url} waits for its links to be read, and has no turn"
        for number in numbers:
            yield f"the page {number} that waits for its links to be read has no row"
        if rows != self.count:
            pages = counted(self.count, "page")
            yield f"the job counts {pages} whose links are to be read, and has {rows:,}"

    def forget(self, host: str, belongs: Callable[[str], bool], limit: int) -> Iterator[int]:
        """Drop pages of *host* whose URLs *belong*; yields their number after *limit* rows."""
        at = 0
        while rows := list(islice(self._rows(host, at), limit)):
            at = rows[-1].number + 1
            yield sum(self.remove(page) for page in rows if belongs(page.entry.url))

    def forget_referrers(self, gone: Callable[[str], bool]) -> Iterator[None]:
        """Clear the referrers that are *gone*, one with each step."""
        for page in self.everything():
            if gone(page.entry.referrer):
                page.entry.referrer = ""
                self._put(page)
                yield

    @staticmethod
    def keys_of(host: str) -> tuple[bytes, bytes]:
        """Between which keys of the family ``kv`` all rows of *host* lie."""
        begin = NAME.encode() + b"\0" + _OF_HOST + _digest(host)
        return begin, begin + b"\xff" * (_NUMBER.size + 1)

    def folders(self) -> list[str]:
        return [key[len(_FOLDER) :].decode() for key, _ in self._kv.items(_FOLDER)]

    def note_folder(self, path: str) -> None:
        if path != self._folder:
            self._folder = path
            self._kv.put(_FOLDER + path.encode(), b"")


def _digest(host: str) -> bytes:
    return xxhash.xxh3_64_digest(host.encode())


def _number(data: bytes) -> int:
    try:
        return int(_NUMBER.unpack(data)[0])
    except struct.error as error:
        raise JobDamagedError(f"no number of a page that waits for its links ({error})") from error


def _page(number: int, row: bytes) -> UnreadPage:
    try:
        host, entry, place = msgpack.unpackb(row)
        return UnreadPage(number, unpack_row(host, b"", entry), place)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise JobDamagedError(f"a page that waits for its links has no row ({error})") from error
