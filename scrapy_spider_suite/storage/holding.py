"""What this agent may not fetch: what another agent holds, or is about to.

Who owns a URL is a question of tables, and where it is sent of `routing`. Only the holder of a unit
fetches; while a unit goes from one agent to another it is held back on both sides, and nothing else
is: everyone may store what comes for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.workbench import HostState, Visit, Workbench
from scrapy_spider_suite.store.residency import Elsewhere, Residents

_MOST: Final = 10_000
"""Entries in memory that are held back."""
_PORTION: Final = 1_500
"""Hosts, or entries, that are looked at again in one turn: some milliseconds."""


class Holding:
    """Sorts out of visits what is held back. To begin with nothing is.

    A host of which all is held back is taken off its address, and so gets no visit; it makes room
    for others that are due, and waits on disk then until it is free (`Freed`). Of other hosts
    entries are held back: they count as out, so that their rows stay where they are and no refill
    brings them again; once there are too many of them a host with one more gets no visit either.
    Nothing is written of it, so a kill leaves what there was.
    """

    def __init__(self, workbench: Workbench, residents: Residents) -> None:
        self._workbench = workbench
        self._residents = residents
        self._fronts = residents.fronts
        self._elsewhere: Elsewhere | None = None
        self._by_host = True
        self._hosts: set[str] = set()
        self._entries: dict[str, dict[bytes, Entry]] = {}
        self._count = 0
        self._again: Iterator[None] | None = None

    def change(self, elsewhere: Elsewhere | None, *, by_host: bool = True) -> None:
        """Hold back what is *elsewhere* from now on, and nothing else; with *by_host* whole hosts.

        What was held back before and is free by now is looked for in portions: the first of them
        at once, the others with `go_on`, while it is `at_work`.
        """
        self._elsewhere, self._by_host = elsewhere, by_host
        self._residents.hold_back(elsewhere if by_host else None)
        self._again = self._look_again()
        self.go_on()

    @property
    def at_work(self) -> bool:
        """Whether more is to be looked at again."""
        return self._again is not None

    def go_on(self) -> None:
        """Look at a portion of what was held back before."""
        if self._again is not None and sum(1 for _ in islice(self._again, _PORTION)) < _PORTION:
            self._again = None

    def _look_again(self) -> Iterator[None]:
        for key in list(self._hosts):
            self._free_host(key)
            yield
        for key, held in list(self._entries.items()):
            yield from self._free_entries(key, list(held.values()))

    def _free_host(self, key: str) -> None:
        """Have a host that may be visited by now placed again; the others need no look."""
        host, elsewhere = self._workbench.hosts.get(key), self._elsewhere if self._by_host else None
        if host is not None and elsewhere is not None and elsewhere(key, ""):
            return
        self._hosts.discard(key)
        if host is not None:
            self._residents.unresolved.want(host)

    def _free_entries(self, key: str, held: list[Entry]) -> Iterator[None]:
        for entry in held:
            if not self.holds_back(entry) and self.counts_as_out(entry):
                self.let_go(entry)
                host = self._workbench.hosts.get(key)
                if host is not None:  # otherwise its rows are read again when it comes
                    self._fronts.push(host, entry)
                    self._workbench.offer(host)
            yield

    def __bool__(self) -> bool:
        """Whether anything in memory is held back at present."""
        return bool(self._hosts or self._entries)

    def sort_out(self, visit: Visit) -> bool:
        """Take out of *visit* what is held back; False if nothing is left, and it is over."""
        if self._elsewhere is None:
            return True
        host = visit.host
        if not self._by_host:
            return self._sort_entries(visit, host)
        if not self._elsewhere(host.key, ""):
            return True
        self._hold_all(visit, host)
        return False

    def _hold_all(self, visit: Visit, host: HostState) -> None:
        self._workbench.cancel(visit)
        self._workbench.displace(host)
        self._hosts.add(host.key)

    def _sort_entries(self, visit: Visit, host: HostState) -> bool:
        held = [
            entry for entry in visit.entries if not entry.volatile and self.holds_back(entry)
        ]  # fmt: skip
        if held and self._count >= _MOST:
            self._hold_all(visit, host)
            return False
        self._count += len(held)
        for entry in held:
            visit.entries.remove(entry)
            self._fronts.lease(entry)
            self._entries.setdefault(host.key, {})[entry.key] = entry
        if visit.entries:
            return True
        if host.more and not host.front:
            self._fronts.refill(host)
        self._workbench.cancel(visit)
        return False

    def holds_back(self, entry: Entry) -> bool:
        """Whether *entry* may not be fetched here."""
        elsewhere = self._elsewhere
        return elsewhere is not None and elsewhere(entry.host, entry.url)

    def counts_as_out(self, entry: Entry) -> bool:
        """Whether *entry* is one of those that count as out and are not."""
        return entry.key in self._entries.get(entry.host, {})

    def let_go(self, entry: Entry) -> None:
        """Let *entry* count as out no more: it is about to go."""
        held = self._entries.get(entry.host, {})
        if held.pop(entry.key, None) is not None:
            self._fronts.unlease(entry)
            self._count -= 1
        if not held:
            self._entries.pop(entry.host, None)
