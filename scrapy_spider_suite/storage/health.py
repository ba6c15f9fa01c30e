"""What a host's answers mean for it: waiting longer, or being given up.

Of a host that was given up everything that is pending fails, a part at a time. Nothing of that
is stored: after a restart the host's record says that it is dead, and the first visit that it
would get gives it up again.
"""

from __future__ import annotations

from collections.abc import Callable

from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.outcomes import OUTCOMES, Event, State
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.politeness import judge
from scrapy_spider_suite.frontier.workbench import HostState, Workbench
from scrapy_spider_suite.storage.ledger import Ledger
from scrapy_spider_suite.storage.records import HostRecord
from scrapy_spider_suite.storage.residents import Residents

_AT_ONCE = 2_000
"""URLs that are failed before anyone else has a turn again."""
_NO_ANSWER = frozenset({Event.REFUSED, Event.TIMEOUT, Event.CONNECTION_LOST})


class Health:
    """Applies what `politeness.judge` decides to hosts in memory.

    *let_go* is told of every URL that failed with its host.
    """

    def __init__(
        self, workbench: Workbench, residents: Residents, ledger: Ledger, policy: Policy,
        let_go: Callable[[Entry, float], None],
    ) -> None:  # fmt: skip
        self._workbench = workbench
        self._residents = residents
        self._records = residents.records
        self._ledger = ledger
        self._policy = policy
        self._let_go = let_go
        self._given_up: dict[str, Event] = {}

    def judge(
        self, host: HostState, event: Event, now: float, wall: float, retry_after: float | None
    ) -> None:
        """Let *host* wait, or give it up, for what its last visit ended with."""
        record: HostRecord = host.record
        verdict = judge(event, record.failures, self._policy.back_off, retry_after)
        record.failures = verdict.failures
        if verdict.wait:
            self._workbench.postpone(host, now + verdict.wait, verdict.why)
            if event in _NO_ANSWER:
                host.resolved_until = now  # its address may have changed
            self._records.touch(host.key)
        if verdict.dead and not record.dead:
            record.dead = Event.HOST_DEAD.value
            self._ledger.counters.dead_hosts += 1
            self.give_up(host.key, Event.HOST_DEAD, now, wall)
        self._records.save()

    def unresolved(self, host: HostState, event: Event, now: float, wall: float) -> None:
        """The name of *host* has no address: fail what it has, or have it looked up again later."""
        if OUTCOMES[event].state is State.FAILED:
            host.record.dead = event.value
            self.give_up(host.key, event, now, wall)
            return
        self.judge(host, event, now, wall, None)
        if not host.record.dead:
            self._residents.unresolved.want(host)

    # Giving up

    @property
    def giving_up(self) -> int:
        """Hosts that were given up and have URLs left."""
        return len(self._given_up)

    def given_up(self, key: str) -> Event | None:
        """Why a host is being given up; None if it is not."""
        return self._given_up.get(key)

    def give_up(self, key: str, event: Event, now: float, wall: float) -> None:
        """Give up a host because of *event*."""
        self._given_up[key] = event
        self._residents.withdraw(key)
        self._fail(key, _AT_ONCE, now, wall)
        self._records.save()

    def forgive(self, key: str) -> None:
        """A host is not given up after all; what is still pending for it may be visited."""
        self._given_up.pop(key, None)
        host = self._workbench.hosts.get(key)
        if host is not None and host.address is None:
            self._residents.unresolved.want(host)

    def revive(self, key: str, record: HostRecord) -> bool:
        """Forget that the host with *record* was given up; whether it was."""
        dead, record.dead, record.failures = record.dead, "", 0
        if dead:
            self._ledger.counters.dead_hosts -= dead == Event.HOST_DEAD.value
            self.forgive(key)
        return bool(dead)

    def go_on(self, now: float, wall: float) -> None:
        """The next part of what is pending for hosts that were given up."""
        left = _AT_ONCE
        for key in list(self._given_up):
            left -= max(1, self._fail(key, left, now, wall))
            if left <= 0:
                break
        self._records.save()

    def _fail(self, key: str, limit: int, now: float, wall: float) -> int:
        """Fail some *limit* pending URLs of a host; return how many."""
        event = self._given_up[key]
        failed = 0
        while failed < limit:
            entries = self._residents.drain(key, min(limit - failed, 500))
            if not entries:
                if not self._residents.fronts.leased(key):
                    del self._given_up[key]
                    self._residents.retire(key)
                break
            failed += len(entries)
            for entry in entries:
                self.fail(entry, event, now, wall)
        return failed

    def fail(self, entry: Entry, event: Event, now: float, wall: float) -> None:
        """Fail *entry*, which was taken out of its queue, because of *event*."""
        record = self._records.touch(entry.host)
        self._ledger.remove(entry, record)
        self._ledger.refuse(entry, record, event, wall)
        self._let_go(entry, now)
