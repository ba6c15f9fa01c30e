"""The resolver of a crawl: names to addresses that it may connect to (T2, DNS threads of U12).

What a look-up goes through, in this order: an address written as a host is taken as it is; a host
that cannot be a name fails at once; what the cache knows is answered from it, failures too; a
question that is open already is shared; everything else is asked, a bounded number of names at a
time. Whatever the way, `AddressPolicy` judges the addresses that come out, not the name that went
in.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from scrapy_spider_suite.dns.addresses import AddressPolicy, literal_address, why_not_a_name
from scrapy_spider_suite.dns.cache import ExpiringCache
from scrapy_spider_suite.dns.channel import parse_server
from scrapy_spider_suite.dns.limits import ResolverLimits, ResolverStatistics
from scrapy_spider_suite.dns.outcome import Outcome, failed, judged
from scrapy_spider_suite.dns.silence import Silence
from scrapy_spider_suite.dns.succession import Succession
from scrapy_spider_suite.errors import (
    NoSuchHostError,
    PrivateAddressError,
    ResolveTimeoutError,
    SuiteError,
)

Family = Literal["any", "4", "6"]

# "any" asks for IPv6 only where there is no IPv4 that may be used: half the questions, and no host
# is tried over a network that the machine may not have.
_FAMILIES: dict[Family, tuple[socket.AddressFamily, ...]] = {
    "any": (socket.AF_INET, socket.AF_INET6),
    "4": (socket.AF_INET,),
    "6": (socket.AF_INET6,),
}

# After these the other family is worth a question; a server that failed would fail again.
_ASK_ON: tuple[type[SuiteError], ...] = (NoSuchHostError, PrivateAddressError)

_COUNTED_AS: dict[type[SuiteError], str] = {
    ResolveTimeoutError: "timeouts",
    PrivateAddressError: "refused",
}


@dataclass(frozen=True, slots=True)
class Resolution:
    """Where a host is."""

    addresses: tuple[str, ...]
    """Numeric, without brackets, at least one, in the name server's order, without refused ones."""

    expires_in: float
    """Seconds for which the addresses may be used without asking again."""


class Resolver:
    """Names to addresses for one crawl, on one event loop.

    Args:
        policy: which addresses may be used.
        servers: name servers as ``address:port``, asked instead of the system's; without them
            names mean what they mean to the system: hosts file, single labels, search domains.
        family: ``"4"`` and ``"6"`` ask for addresses of that kind only, ``"any"`` for IPv6 where
            IPv4 is lacking. Addresses written as hosts are taken whatever their kind.
        limits: bounds in time and number.
        now: the clock of the cache, in seconds; need not be that of the event loop.

    Attributes:
        listener: is told of each host that is trusted no more.

    Raises:
        ValueError: a server is not ``address:port``.
    """

    def __init__(
        self,
        policy: AddressPolicy,
        servers: Sequence[str] = (),
        family: Family = "any",
        limits: ResolverLimits | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy = policy
        self.servers = tuple(map(parse_server, servers))
        self.family: Family = family
        self.limits = limits or ResolverLimits()
        self.closed = False
        self.listener: Callable[[str], None] | None = None
        self._now = now
        self._cache: ExpiringCache[str, Outcome] = ExpiringCache(self.limits.cache_size)
        self._asking: dict[str, asyncio.Task[Outcome]] = {}
        self._turns = asyncio.Semaphore(self.limits.concurrency)
        self._channels = Succession(self.servers, self.limits.timeout, now)
        self._counts: Counter[str] = Counter()
        self._silence = Silence()

    def __repr__(self) -> str:
        return f"<Resolver: {len(self._cache)} cached, {len(self._asking)} in flight>"

    async def resolve(self, host: str) -> Resolution:
        """Return where *host* (as ada writes it; case and a trailing dot do not matter) may be
        connected to.

        Cancelling one caller leaves the question open for the others who wait for the same host.

        Raises:
            NoSuchHostError: it does not exist, has no address of the family wanted, or cannot be a
            name. ResolveTimeoutError: no name server answered in time. ResolveError: the name
            servers failed or cannot be reached, or the resolver is closed. PrivateAddressError: it
            has addresses, and the policy refuses all of them.
        """
        name = _canonical(host)
        known = self._cache.get(name, self._now())
        if known is not None:
            outcome, expires = known
            self._counts["negative_hits" if outcome.error else "hits"] += 1
            return _resolution(outcome, expires - self._now())
        outcome = self._by_itself(name) or await self._shared(name)
        return _resolution(outcome, outcome.keep)

    def trust(self, host: str) -> bool:
        """Let *host* be wherever it is: the operator named it, not a page. True if that is new.

        A host that turns out to have a public address is held to public ones from then on.
        """
        name = _canonical(host)
        new = self.policy.trust(name)
        if new:
            self._cache.drop(name)
        return new

    def withdraw(self, host: str) -> None:
        """Hold *host* to public addresses from now on: an earlier run has found it at one."""
        self.policy.withdraw(_canonical(host))

    def peek(self, host: str) -> Resolution | None:
        """Return what `resolve` would return without asking; None where it would ask, or fail."""
        name = _canonical(host)
        now = self._now()
        known = self._cache.get(name, now)
        if known is None:
            outcome = self._by_itself(name)
            return None if outcome is None or outcome.error else _resolution(outcome, outcome.keep)
        if known[0].error:
            return None
        self._counts["hits"] += 1
        return Resolution(known[0].addresses, known[1] - now)

    def invalidate(self, host: str) -> None:
        """Forget *host*, because its address refused a connection or never answered: the next
        look-up asks anew.

        That question has an answer that is at most a second old, unless the name server itself
        keeps older ones.
        """
        self._cache.drop(_canonical(host))
        self._channels.outdate()

    def reconfigure(
        self, policy: AddressPolicy, servers: Sequence[str], family: Family,
        limits: ResolverLimits,
    ) -> None:  # fmt: skip
        """Go by other arguments from now on, except for ``limits.concurrency``.

        What is known is forgotten: it may be otherwise now; but not who is trusted, and who is not
        any more. Raises `ValueError` as the constructor, and changes nothing then.
        """
        parsed = tuple(map(parse_server, servers))
        policy.go_on_from(self.policy)
        self.policy, self.servers, self.family, self.limits = policy, parsed, family, limits
        self._channels.reconfigure(parsed, limits.timeout)
        self._cache = ExpiringCache(limits.cache_size)

    def statistics(self) -> ResolverStatistics:
        """Return a snapshot of the counters."""
        names = ("queries", "hits", "negative_hits", "shared", "timeouts", "failures", "refused")
        counts = {name: self._counts[name] for name in names}
        return ResolverStatistics(in_flight=len(self._asking), cached=len(self._cache), **counts)

    @property
    def silent_servers(self) -> tuple[str, ...] | None:
        """The name servers, those of the system if it is empty, if none of them answers."""
        return self.servers if self._silence.lasts else None

    def close(self) -> None:
        """Fail what is in flight with `ResolveError` and let go of the sockets.

        Closing twice is not an error.
        """
        self.closed = True
        self._channels.close()
        self._cache.clear()

    def _by_itself(self, name: str) -> Outcome | None:
        """Return the outcome for a host that is an address or cannot be a name, None for a name."""
        address = literal_address(name)
        if address is not None:
            return judged(name, (address,), self.limits.ttl_max, self.policy)
        problem = why_not_a_name(name)
        if problem is None:
            return None
        return Outcome((), 0.0, NoSuchHostError, f"{name[:100]!a}: {problem}")

    async def _shared(self, name: str) -> Outcome:
        """Return the outcome of the open question for *name*, opening one if there is none."""
        task = self._asking.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._look_up(name))
            self._asking[name] = task
        else:
            self._counts["shared"] += 1
        return await asyncio.shield(task)

    async def _look_up(self, name: str) -> Outcome:
        """Ask for *name* in its turn, and remember the outcome."""
        try:
            async with self._turns:
                outcome = await self._ask(name)
        finally:
            del self._asking[name]
        if outcome.error is not None:
            self._counts[_COUNTED_AS.get(outcome.error, "failures")] += 1
        if outcome.keep > 0 and not self.closed:
            self._cache.put(name, outcome, self._now() + outcome.keep)
        return outcome

    async def _ask(self, name: str) -> Outcome:
        """Ask for one family after the other until there is an address to use or no reason to ask
        on.

        That all addresses are refused says more than that the other family has none: the former is
        returned.
        """
        deadline = time.monotonic() + self.limits.timeout
        outcomes: list[Outcome] = []
        for family in _FAMILIES[self.family]:
            self._counts["queries"] += 1
            answer = await self._channels.ask(name, family, deadline - time.monotonic())
            if not self.closed:
                self._silence.note(answer.code, self.servers, self._now())
            if answer.code is None:
                keep = self.limits.lifetime(answer.ttl)
                if self.policy.found(name, answer.addresses) and self.listener is not None:
                    self.listener(name)
                outcomes.append(judged(name, answer.addresses, keep, self.policy))
            else:
                outcomes.append(failed(name, answer.code, self.limits.negative_ttl))
            if outcomes[-1].error not in _ASK_ON:
                return outcomes[-1]
        return min(outcomes, key=lambda outcome: outcome.error is NoSuchHostError)


def _canonical(host: str) -> str:
    """Return *host* in lower case and without the dot that ends a full name."""
    return host.lower().removesuffix(".")


def _resolution(outcome: Outcome, expires_in: float) -> Resolution:
    """Return the addresses of *outcome*, or raise its error."""
    if outcome.error is not None:
        raise outcome.error(outcome.message)
    return Resolution(outcome.addresses, max(0.0, expires_in))
