"""Failed is not seen: a link to a URL that failed long ago may have it tried once more.

Off unless the policy says after how long, and for which reasons; but what failed in a trap that
turned out to be none gets it at once. Whoever wants them tried without a link that leads there asks
for it (`scrapy frontier retry`).
"""

from __future__ import annotations

from collections.abc import Callable

from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.storage.traps import Traps
from scrapy_spider_suite.store.host_queues import HostRecords
from scrapy_spider_suite.store.interface import Store
from scrapy_spider_suite.store.residency import Health
from scrapy_spider_suite.store.rows import HostRecord, UrlState
from scrapy_spider_suite.store.url_states import Ledger


class SecondChances:
    """Asks of known URLs whether they failed long enough ago. Times are wall times."""

    def __init__(
        self, store: Store, policy: Policy, records: HostRecords, ledger: Ledger, health: Health,
        refusal: Callable[[str, HostRecord], Event | None], traps: Traps,
    ) -> None:  # fmt: skip
        self.given = 0
        """How many URLs were made pending so."""
        self._store = store
        self._policy = policy
        self._records = records
        self._ledger = ledger
        self._health = health
        self._refusal = refusal
        self._traps = traps

    def due(self, identity: bytes, wall: float) -> UrlState | None:
        """The state of a URL that failed and may be tried again; None for any other."""
        after = self._policy.retry_failed_after
        if not after:
            return None
        state = self._failed(identity)
        if state is None or wall - state.when < after:
            return None
        return state if state.event in self._policy.retry_failed else None

    def freed(self, identity: bytes, url: str, host: str) -> UrlState | None:
        """The state of the normal *url* if it failed in a trap, and lies in none any more."""
        if not self._traps.frees(url, host):
            return None
        state = self._failed(identity)
        return state if state is not None and state.event is Event.TRAP else None

    def _failed(self, identity: bytes) -> UrlState | None:
        data = self._store.state(identity)
        state = None if data is None else UrlState.from_bytes(data)
        return state if state is not None and state.state is State.FAILED else None

    def give(self, entry: Entry, wall: float) -> bool:
        """Let *entry*, which is known, be new again; False if it is not due.

        With a URL that failed because its host was given up, the host is given another chance.
        """
        state = self.due(entry.identity, wall)
        state = state or self.freed(entry.identity, entry.url, entry.host)
        if state is None:
            return False
        record = self._records.touch(entry.host)
        if record.dead == state.event == Event.HOST_DEAD:
            self._health.revive(entry.host, record)
        if self._refusal(entry.host, record) is not None:
            return False
        self._ledger.take_back(entry.host, record, state)
        self.given += 1
        return True
