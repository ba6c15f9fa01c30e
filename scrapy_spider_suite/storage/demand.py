"""Which pages have their links read next (E4, E7): of hosts whose queues run low, or the oldest.

A host is in demand when next to nothing of it is left to be asked for. Where too few hosts are left
to keep the crawl busy, pages of others may lead to more: the oldest ones are read then, a few at a
time. If those of one turn have brought no host to life, a single one is read after some fetches,
and the next after twice as many: in a crawl of few hosts some room is always free, and all would
soon be read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from scrapy_spider_suite.urls.normalize import host_of

if TYPE_CHECKING:
    from scrapy_spider_suite.storage.leases import Lease
    from scrapy_spider_suite.storage.unextracted import Unextracted, Unread

LOW: Final = 4
"""A host of which fewer URLs are left to be asked for is in demand."""
AT_ONCE: Final = 16
"""Pages that are chosen at a time, of hosts that are in demand."""
_FEW: Final = 4
"""For the sake of the whole crawl."""
_EACH: Final = 1
"""Pages of one host that are read at a time: what they bring is known before the next is."""
_LOOKED_AT: Final = 200
"""Hosts that are looked at at a time: it costs a look into the store for most."""
_PATIENCE: Final = (16, 256)
"""Fetches between two turns for the sake of the whole crawl, while they bring no host to life."""


class Demand:
    """Chooses among the pages of *waiting*. *left* says how many URLs of a host are to be fetched.

    Invariant: a page that was chosen is not chosen again before `over` was told of it.
    """

    def __init__(self, waiting: Unextracted, left: Callable[[str], int]) -> None:
        self._waiting = waiting
        self._left = left
        self._low: OrderedDict[str, None] = OrderedDict()  # in demand, first come first served
        self._earlier: bytes | None = b"" if len(waiting) else None  # how far `_fill` has come
        self._out: dict[int, str] = {}  # pages that were chosen, and their hosts
        self._for_host: set[int] = set()  # those of them that their host is in demand for
        self._of_turn: set[int] = set()  # those that are read for the whole crawl
        self._served: set[str] = set()  # hosts whose links wait for the sieve
        self._in_sieve = 0
        self._patience = 0
        self._next_turn = 0
        self._idle: set[str] = set()

    @property
    def out(self) -> int:
        """How many pages were chosen and are not over."""
        return len(self._out)

    def met(self, host: str) -> None:
        """Less of *host* is left than there was."""
        if len(self._waiting) and self._left(host) < LOW:
            self._low[host] = None

    def sifted(self, in_sieve: int) -> None:
        """So many links wait for the sieve: a host whose links do is not read on until they went.
        """
        if in_sieve < self._in_sieve:
            self._low.update(dict.fromkeys(self._served))
            self._served.clear()
        self._in_sieve = in_sieve

    def choose(
        self, *, starving: bool, fetches: int, nothing_else: Callable[[], bool]
    ) -> list[Unread]:
        """The pages that are wanted now, if any are.

        *starving*: there is room for fetches, and nothing may be fetched at present; the crawl has
        had so many *fetches*. *nothing_else* says whether that will last.
        """
        pages = self._of_hosts(AT_ONCE)
        if pages or not starving:
            return pages
        if nothing_else():
            return self.of_all(_FEW)
        return self._turn(fetches, _FEW)

    def _of_hosts(self, limit: int) -> list[Unread]:
        """Up to *limit* pages of hosts that are in demand."""
        found: list[Unread] = []
        busy = set(self._out.values())
        self._fill()
        for _ in range(min(_LOOKED_AT, len(self._low))):
            if len(found) >= limit:
                break
            host = self._low.popitem(last=False)[0]
            if host in busy or host in self._served or self._left(host) >= LOW:
                continue
            found += self._waiting.of_host(host, _EACH)
            if self._in_sieve:
                self._served.add(host)
        self._for_host.update(page.number for page in found)
        return self._take(found)

    def _fill(self) -> None:
        """Look, a portion at a time, at the hosts whose pages wait since an earlier run."""
        if self._earlier is None or self._low:
            return
        hosts, self._earlier = self._waiting.hosts(self._earlier, _LOOKED_AT)
        for host in hosts:
            self.met(host)

    def of_all(self, limit: int) -> list[Unread]:
        """Up to *limit* of the oldest pages."""
        return self._take(self._waiting.oldest(limit, self._out))

    def _turn(self, fetches: int, limit: int) -> list[Unread]:
        """The same, if it is time for a turn for the whole crawl."""
        if self._out or fetches < self._next_turn:
            return []
        least, most = _PATIENCE
        pages = self.of_all(1 if self._patience else limit)
        self._patience = max(least, min(most, 2 * self._patience))
        self._next_turn = fetches + self._patience
        self._of_turn = {page.number for page in pages}
        return pages

    def _take(self, pages: list[Unread]) -> list[Unread]:
        self._out |= {page.number: page.entry.host for page in pages}
        return pages

    # What a page brings

    def wants(self, page: Unread) -> bool:
        """Whether *page*, which was chosen, is still to be read: others may have brought enough."""
        return page.number not in self._for_host or self._left(page.entry.host) < LOW

    def reading(self, page: Unread, lease: Lease) -> None:
        """The links of *page*, which *lease* has, are about to become pending."""
        if page.number not in self._of_turn:
            return
        hosts = {host_of(url) for url in lease.links} | {each.host for each in lease.children}
        self._idle = {host for host in hosts if not self._left(host)}

    def over(self, page: Unread) -> None:
        """What *page* brought is pending, or it was given up, or is not wanted now."""
        self._out.pop(page.number, None)
        if any(map(self._left, self._idle)):  # a host has come to life
            self._patience = self._next_turn = 0
        self._for_host.discard(page.number)
        self._of_turn.discard(page.number)
        self._idle.clear()
        self.met(page.entry.host)
