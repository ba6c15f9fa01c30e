"""What comes behind a hand-over, at the side that gave: forgetting what went, or keeping it after
all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scrapy_spider_suite.frontier.entries import host_key
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.storage.giving import GIVEN, NAME, ROWS, Giving
from scrapy_spider_suite.storage.hands import Hands
from scrapy_spider_suite.storage.settling import Clock, Steps
from scrapy_spider_suite.storage.units import Units
from scrapy_spider_suite.store.seen_transfer import bring_back, holding

_PLAN: Final = b"p"


class Forgetting:
    """Ends what `Giving` began, of the same units."""

    def __init__(self, hands: Hands, units: Units, clock: Clock) -> None:
        self._hands = hands
        self._store = hands.store
        self._records = hands.residents.records
        self._units = units
        self._clock = clock
        self._giving = Giving(hands, units, clock)

    def forget(self, parcel: str) -> Steps:
        """The receiver of *parcel* keeps it all: know nothing of it any more.

        Done twice, or after a kill, it is as done once. Of robots.txt and cookies, which stay
        within bounds of their own, and may be of use to other hosts of a site, nothing is removed.
        Raises what the store does.
        """
        yield from self._giving.printed.forget()
        for host in self._giving.hosts():
            if host is None:
                yield False
            else:
                yield from self._forget(host)
        self._hands.ledger.cache.clear()
        self._end(parcel)

    def keep(self, parcel: str) -> Steps:
        """The hand-over of *parcel* is called off: let hosts be admitted again."""
        for host in self._giving.hosts():
            if host is None:
                yield False
                continue
            record = self._records.of(host)
            if record.pending and record.due is None:
                self._hands.residents.waiting.add(host, record, self._clock()[1])
                self._records.changed(host, record)
                self._records.save()
        self._end(parcel)

    def _end(self, parcel: str) -> None:
        self._store.kv(NAME).delete(GIVEN + parcel.encode())
        self._hands.flush()

    def _forget(self, host: str) -> Iterator[bool]:
        if not self._units.by_host:
            # The archive removes whole hosts: what stays has rows until it goes there again.
            for waits in holding(self._store.archive, self._brought_back(host)):
                self._hands.flush()
                yield waits
        yield from self._forget_rows(host)
        yield from self._forget_kept(host)
        prefix = host_key(host)
        for portion in self._giving.states(host):
            for name, state in portion:
                if state.state is State.PENDING:
                    self._store.delete_state(prefix + name)
                    self._hands.ledger.forget(prefix + name)
                else:
                    self._hands.rework.forget_state(host, name, state)
            yield False
        if self._is_empty(host):
            yield from self._forget_host(host)

    def _brought_back(self, host: str) -> Steps:
        yield from bring_back(self._store, host)

    def _forget_rows(self, host: str) -> Iterator[bool]:
        after = self._records.of(host).head
        while entries := self._store.rows(host, after, ROWS):
            for entry in entries:
                if self._units.has(host, entry.url):
                    self._hands.holding.let_go(entry)
                    if not self._hands.rework.forget(entry):
                        yield True
                        break
                after = entry.key
            yield False

    def _forget_kept(self, host: str) -> Iterator[bool]:
        for portion in self._giving.kept(host):
            for name, key, _ in portion:
                if name == "revisits" and key.startswith(_PLAN):
                    self._hands.revisits.forget(key[len(_PLAN) :])
                elif name != "traps":
                    self._store.kv(name).delete(key)
            yield False

    def _is_empty(self, host: str) -> bool:
        """Whether nothing of *host* stays."""
        left = next(self._store.states(host_key(host)), None)
        return self._units.by_host or (left is None and not self._records.of(host).pending)

    def _forget_host(self, host: str) -> Iterator[bool]:
        """Forget the record of *host*, and before it, which is what a kill in between would leave,
        what the archive has of it."""
        archive, hands = self._store.archive, self._hands
        if archive is not None:
            self._hands.flush()
            while archive.behind or archive.urls.poll():
                yield True
            archive.remove(host)
        while True:
            record = self._records.of(host)
            done, dead = record.done, record.dead
            counted = hands.ledger.counters.events.get(Event.SUCCESS, 0)
            if hands.rework.forget_host(host, self._clock()[0]):
                break
            yield True
        counters = hands.ledger.counters
        # It had no rows that said so.
        left = counted - done
        if left > 0:
            counters.events[Event.SUCCESS] = left
        else:
            counters.events.pop(Event.SUCCESS, None)
        counters.dead_hosts -= dead == Event.HOST_DEAD.value
        hands.grounds.forget(host)
        yield False
