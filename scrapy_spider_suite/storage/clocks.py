"""The clocks of hosts and addresses, which outlive the process (promise 1)."""

from __future__ import annotations

import math
import struct

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.frontier.policy import Policy, waits_for_rule
from scrapy_spider_suite.frontier.waits import reason_of_clock
from scrapy_spider_suite.frontier.workbench import AddressState, HostState, Workbench
from scrapy_spider_suite.storage.records import HostRecord
from scrapy_spider_suite.storage.store import Store

LATEST = 30 * 86400.0
"""No stored time is believed to be further ahead than this (a clock that was set back)."""
GRAIN = 1e-6
"""Seconds that are added where wall time becomes monotonic time: more than a double loses."""
NEVER = 4e12
"""The end (wall) of a bar that has none."""
_CLOCK = struct.Struct(">d")


class AddressClocks:
    """Makes the states of addresses; *floor* as in `Residents`."""

    def __init__(
        self, workbench: Workbench, store: Store, policy: Policy, floor: float | None
    ) -> None:
        self._addresses = workbench.addresses
        self._store = store
        self._policy = policy
        self._floor = floor
        self._stored: dict[str, float] = {}

    def begin_anew(self, now: float) -> None:
        """Let addresses that come from now on count as fetched at *now*."""
        self._floor = now

    def load(self, now: float, wall: float) -> None:
        """Take over the clocks of an earlier run. Raises `JobDamagedError`."""
        clocks = self._store.kv("addresses")
        for name, value in list(clocks.items()):
            try:
                until = _CLOCK.unpack(value)[0] - wall + GRAIN
                if 0 < until < LATEST:
                    self._stored[name.decode()] = now + until
            except (struct.error, UnicodeDecodeError) as error:
                raise JobDamagedError(f"an address's clock cannot be read ({error})") from error
            clocks.delete(name)

    def save(self, wall_offset: float) -> None:
        """Put the clocks of all addresses in memory into the store's next batch."""
        clocks = self._store.kv("addresses")
        # Those of an earlier run that this one never came to, too: it may have been a short one.
        known = self._stored | {key: state.next_fetch for key, state in self._addresses.items()}
        for key, next_fetch in known.items():
            clocks.put(key.encode(), _CLOCK.pack(next_fetch + wall_offset))

    def not_before(self, pacing_key: str, next_fetch: float) -> None:
        """Let the address paced under *pacing_key* not be visited before *next_fetch*."""
        state = self._addresses.get(pacing_key)
        if state is not None:
            state.next_fetch = max(state.next_fetch, next_fetch)
        else:
            self._stored[pacing_key] = max(self._stored.get(pacing_key, next_fetch), next_fetch)

    def next_fetch(self, pacing_key: str) -> float:
        """When the address paced under *pacing_key* may be visited, in memory or not; long ago if
        nothing is known of it."""
        state = self._addresses.get(pacing_key)
        if state is not None:
            return state.next_fetch
        at = self._stored.get(pacing_key, -math.inf)
        if self._floor is None:
            return at
        return max(at, self._floor + self._policy.of_address(pacing_key).delay)

    def over(self) -> float:
        """When the delay of every address is over, in memory or not."""
        known = [*self._stored.values(), *(each.next_fetch for each in self._addresses.values())]
        if self._floor is not None:
            longest = max(self._policy.address.delay, self._policy.overrides.longest_delay)
            known.append(self._floor + longest)
        return max(known, default=-math.inf)

    def state(self, pacing_key: str, address: str, now: float) -> AddressState:
        """The clock of the address paced under *pacing_key* (none of its own: "")."""
        state = self._addresses.get(pacing_key)
        if state is None:
            pace = self._policy.of_address(address) if address else None
            delay, concurrency = (pace.delay, pace.concurrency) if pace else (0.0, 0)
            next_fetch = self._stored.pop(pacing_key, now)
            if self._floor is not None:
                next_fetch = max(next_fetch, self._floor + delay)
            state = AddressState(pacing_key, delay, concurrency, next_fetch)
            state.numeric, state.revision = address, self._policy.revision
            if next_fetch > now or self._floor is not None:
                state.fetched = next_fetch - delay
            self._addresses[pacing_key] = state
        return state


def wait_of(record: HostRecord, gap: float, wall: float) -> float:
    """Seconds until the host with *record*, whose visits are *gap* apart, may be visited again."""
    wait = record.next_fetch - wall + GRAIN
    if wait >= LATEST or waits_for_rule(record.why):
        wait = min(wait, gap)  # a bar is looked at anew
    return wait


def load_clock(host: HostState, now: float, wall: float, floor: float | None) -> None:
    """Set the clock of a host that comes into memory by its record; *floor* as in `Residents`."""
    record: HostRecord = host.record
    wait = wait_of(record, host.gap(), wall)
    host.next_fetch, host.fetched = now + max(0.0, wait), now + wait - host.gap()
    if floor is not None:
        host.fetched = max(host.fetched, floor)
        host.next_fetch = max(host.next_fetch, floor + host.gap())
    if wait > host.gap():
        host.why = record.why or "kept from before"


def note_clock(host: HostState, wall_offset: float) -> None:
    """Write into its record when a host may be visited, and why not sooner.

    Of its clock and a bar the later: a phase that comes must not hide that it waits longer.
    """
    record: HostRecord = host.record
    record.next_fetch, record.why = host.next_fetch + wall_offset, reason_of_clock(host)
    if host.bar is not None and host.bar.until > record.next_fetch:
        record.next_fetch, record.why = min(host.bar.until, NEVER), str(host.bar)
