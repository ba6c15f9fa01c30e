"""The resolver of a crawl: host names to addresses that it may connect to.

Failures are cached, an open question is shared, a bounded number is asked at a time.
`AddressPolicy` judges the addresses found, never the name.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal
from weakref import WeakKeyDictionary

from msgspec import Struct
from pycares import errno
from scrapy import signals
from scrapy.crawler import Crawler

from scrapy_spider_suite.errors import (
    NoSuchHostError,
    PrivateAddressError,
    ResolveError,
    ResolveTimeoutError,
    SettingsError,
    SuiteError,
)
from scrapy_spider_suite.fetch.address_rules import (
    AddressPolicy,
    invalid_name_reason,
    literal_address,
)
from scrapy_spider_suite.fetch.dns_client import DnsClient, OutageWarning
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings
from scrapy_spider_suite.settings.values import Endpoint

_RESOLVERS: WeakKeyDictionary[Crawler, Resolver] = WeakKeyDictionary()


def suite_resolver(crawler: Crawler) -> Resolver:
    """Return the one resolver of *crawler*; the engine's end closes it. Raises `SettingsError`."""
    resolver = _RESOLVERS.get(crawler)
    if resolver is None:
        resolver = _RESOLVERS[crawler] = resolver_from(suite_settings(crawler))
        # The resolver outlives the signal manager's weak reference to it: _RESOLVERS holds it.
        crawler.signals.connect(resolver.close, signal=signals.engine_stopped)
    return resolver


def resolver_from(settings: SuiteSettings) -> Resolver:
    """Return a resolver for *settings*. Raises `SettingsError`."""
    try:
        policy = AddressPolicy(settings.allow_private_addresses)
    except ValueError as error:
        raise SettingsError(f"SUITE_ALLOW_PRIVATE_ADDRESSES: {error}") from None
    servers = [str(Endpoint(*server)) for server in settings.dns_servers]
    most, timeout = settings.dns_ttl_max, settings.project.dns_timeout or TIMEOUT
    limits = ResolverLimits(
        ttl_min=min(TTL_MIN, most), ttl_max=most, timeout=min(TIMEOUT, timeout)
    )
    return Resolver(policy, servers, settings.ip_family, limits)


ZERO_TTL = 600.0
"""Seconds that an answer with TTL 0 is used for; so is the hosts file, which has no TTL.

RFC 1035 §3.2.1 means it for one transaction, which a crawl that comes back soon cannot honour.
"""
TTL_MIN: Final = 600.0
"""Seconds that an address is kept at least, unless SUITE_DNS_TTL_MAX is less."""
TIMEOUT: Final = 10.0
"""Seconds within which a name is resolved or given up, unless DNS_TIMEOUT is less."""


@dataclass(frozen=True)
class ResolverLimits:
    """Bounds of a resolver; times in seconds."""

    ttl_min: float = TTL_MIN  # seconds that an answer is kept at least
    ttl_max: float = 86_400.0  # seconds that an answer is kept at most
    negative_ttl: float = 300.0  # seconds for a name that does not exist; most for failures
    cache_size: int = 100_000  # names in the cache, found or not
    timeout: float = TIMEOUT  # seconds until a name is given up, after its wait for a turn
    concurrency: int = 256  # names that are asked for at a time; more wait for their turn

    def lifetime(self, ttl: float) -> float:
        """Return the seconds for which an answer with *ttl* is used.

        A *ttl* with its highest bit set is negative here, and counts as 0 (RFC 2181 §8).
        """
        return min(max(ttl if ttl > 0 else ZERO_TTL, self.ttl_min), self.ttl_max)


TRANSIENT = 30.0
"""Most seconds that a failure or silence of name servers is remembered (RFC 2308 §7: 300)."""

UNREACHABLE = 1.0
"""Most seconds that a failure to reach any name server is remembered: to ask again costs nothing.

The network is down, or this process is out of files.
"""

_NO_SUCH_HOST = {
    errno.ARES_ENOTFOUND: "no such host",
    errno.ARES_ENONAME: "no such host",
    errno.ARES_ENODATA: "the host has no address",
    errno.ARES_EBADNAME: "not a host name",
}

_TRANSIENT = {
    errno.ARES_ESERVFAIL: "the name server failed",
    errno.ARES_EREFUSED: "the name server refuses to answer",
    errno.ARES_EBADRESP: "the name server's answer makes no sense",
    errno.ARES_EFORMERR: "the name server does not understand the question",
    errno.ARES_ENOTIMP: "the name server does not understand the question",
}


class LookupResult(Struct, frozen=True, gc=False):
    """Addresses or an error, valid for *seconds*; outside garbage collection.

    An error is kept as type and text: a raised exception keeps every frame.
    """

    addresses: tuple[str, ...]
    seconds: float  # 0: must not be remembered
    error: type[SuiteError] | None = None
    message: str = ""


def failed_lookup(name: str, code: int, negative_ttl: float) -> LookupResult:
    """Return the result for the c-ares failure *code* (``ARES_...``).

    Holds *negative_ttl* seconds for an unknown name, `TRANSIENT` at most for failing servers, 0 for
    our own faults.
    """
    if code in _NO_SUCH_HOST:
        return LookupResult((), negative_ttl, NoSuchHostError, f"{name}: {_NO_SUCH_HOST[code]}")
    short = min(TRANSIENT, negative_ttl)
    if code == errno.ARES_ETIMEOUT:
        why = f"{name}: no name server answered in time"
        return LookupResult((), short, ResolveTimeoutError, why)
    if code in _TRANSIENT:
        return LookupResult((), short, ResolveError, f"{name}: {_TRANSIENT[code]}")
    if code == errno.ARES_ECONNREFUSED:
        short = min(UNREACHABLE, negative_ttl)
        return LookupResult((), short, ResolveError, f"{name}: no name server can be reached")
    if code in (errno.ARES_ECANCELLED, errno.ARES_EDESTRUCTION):
        return LookupResult((), 0.0, ResolveError, f"{name}: the resolver was closed")
    # c-ares has more codes than pycares has names for.
    symbol = errno.errorcode.get(code, f"c-ares error {code}")
    return LookupResult((), 0.0, ResolveError, f"{name}: {symbol}")


def allowed_lookup(
    name: str, addresses: tuple[str, ...], seconds: float, policy: AddressPolicy
) -> LookupResult:
    """Return the allowed ones of *addresses* (at least one), or why the first is refused."""
    reasons = [policy.why_refused(address, name) for address in addresses]
    kept = tuple(a for a, why in zip(addresses, reasons, strict=True) if why is None)
    if kept:
        return LookupResult(kept, seconds)
    # An address that is the host itself stands in the reason.
    host = "" if literal_address(name) else f"{name}: "
    return LookupResult((), seconds, PrivateAddressError, f"{host}{reasons[0]}")


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

_COUNTER_NAMES: dict[type[SuiteError], str] = {
    ResolveTimeoutError: "timeouts",
    PrivateAddressError: "refused",
}


@dataclass(frozen=True, slots=True)
class Resolution:
    """Where a host is."""

    addresses: tuple[str, ...]
    """Numeric, without brackets, at least one, in the name server's order, all allowed."""

    expires_in: float  # seconds until the host is to be looked up again


class Resolver:
    """Names to addresses for one crawl, on one event loop.

    Args:
        servers: name servers as ``address:port``, instead of the system's, hosts file and search
            domains.
        family: ``"4"``, ``"6"``, or ``"any"``: IPv6 where IPv4 is lacking.
        now: the clock of the cache, in seconds.

    Attributes:
        counts: queries (IPv4 and IPv6 apart), hits, negative_hits, shared, timeouts, failures,
            refused.
        listener: called with each host that loses trust.
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
        self.servers = tuple(servers)
        self.family: Family = family
        self.limits = limits or ResolverLimits()
        self.closed = False
        self.listener: Callable[[str], None] | None = None
        self._now = now
        # Results and when they expire, least recently used first. An OrderedDict, because deleting
        # the first key of a plain dict again and again walks over the places of those deleted.
        self._cache: OrderedDict[str, tuple[LookupResult, float]] = OrderedDict()
        self._asking: dict[str, asyncio.Task[LookupResult]] = {}
        self._turns = asyncio.Semaphore(self.limits.concurrency)
        self._client = DnsClient(self.servers, self.limits.timeout, now)
        self.counts: Counter[str] = Counter()
        self._outage = OutageWarning(self.servers)

    def __repr__(self) -> str:
        return f"<Resolver: {len(self._cache)} cached, {len(self._asking)} in flight>"

    async def resolve(self, host: str) -> Resolution:
        """Return the addresses of *host*, as ada writes it. A caller may be cancelled.

        Raises:
            NoSuchHostError: it does not exist, has no address of the family, or cannot be a name.
            ResolveTimeoutError: no name server answered in time.
            ResolveError: servers failed or are unreachable, or the resolver is closed.
            PrivateAddressError: the policy refuses all its addresses.
        """
        name = _canonical(host)
        known = self._known(name)
        if known is None:
            result = self._literal(name) or await self._shared(name)
            return _resolution(result, result.seconds)
        self.counts["negative_hits" if known[0].error else "hits"] += 1
        return _resolution(*known)

    def trust(self, host: str) -> bool:
        name = _canonical(host)
        new = self.policy.trust(name)
        if new:
            self._cache.pop(name, None)
        return new

    def withdraw(self, host: str) -> None:
        """Allow *host* public addresses only."""
        self.policy.withdraw(_canonical(host))

    def cached(self, host: str) -> Resolution | None:
        """Return the known addresses of *host*; None if unknown, or a failure."""
        name = _canonical(host)
        known = self._known(name)
        if known is None:
            result = self._literal(name)
            known = None if result is None else (result, result.seconds)
        elif not known[0].error:
            self.counts["hits"] += 1
        return None if known is None or known[0].error else _resolution(*known)

    def _known(self, name: str) -> tuple[LookupResult, float] | None:
        # The cached result, and the seconds that are left of it.
        pair = self._cache.get(name)
        if pair is None:
            return None
        result, expires = pair
        left = expires - self._now()
        if left <= 0:
            del self._cache[name]
            return None
        self._cache.move_to_end(name)
        return result, left

    def forget(self, host: str) -> None:
        """Forget *host*, whose address refused or never answered; the next answer is fresh."""
        self._cache.pop(_canonical(host), None)
        self._client.skip_cache()

    @property
    def silent_servers(self) -> tuple[str, ...] | None:
        """The name servers if none answers (empty: the system's), else None."""
        return None if self._outage.since is None else self.servers

    def close(self) -> None:
        """Fail open look-ups with `ResolveError` and close the sockets; idempotent."""
        self.closed = True
        self._client.close()
        self._cache.clear()

    def _literal(self, name: str) -> LookupResult | None:
        address = literal_address(name)
        if address is not None:
            return allowed_lookup(name, (address,), self.limits.ttl_max, self.policy)
        problem = invalid_name_reason(name)
        if problem is None:
            return None
        return LookupResult((), 0.0, NoSuchHostError, f"{name[:100]!a}: {problem}")

    async def _shared(self, name: str) -> LookupResult:
        task = self._asking.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._look_up(name))
            self._asking[name] = task
        else:
            self.counts["shared"] += 1
        return await asyncio.shield(task)

    async def _look_up(self, name: str) -> LookupResult:
        try:
            async with self._turns:
                outcome = await self._ask(name)
        finally:
            del self._asking[name]
        if outcome.error is not None:
            self.counts[_COUNTER_NAMES.get(outcome.error, "failures")] += 1
        if outcome.seconds > 0 and not self.closed:
            self._cache[name] = outcome, self._now() + outcome.seconds
            self._cache.move_to_end(name)
            if len(self._cache) > self.limits.cache_size:
                self._cache.popitem(last=False)
        return outcome

    async def _ask(self, name: str) -> LookupResult:
        """Ask for one family after the other; a refusal is returned before "no address"."""
        deadline = time.monotonic() + self.limits.timeout
        outcomes: list[LookupResult] = []
        for family in _FAMILIES[self.family]:
            self.counts["queries"] += 1
            answer = await self._client.ask(name, family, deadline - time.monotonic())
            if not self.closed:
                self._outage.note(answer.code, self._now())
            if answer.code is None:
                seconds = self.limits.lifetime(answer.ttl)
                if self.policy.note_addresses(name, answer.addresses) and self.listener is not None:
                    self.listener(name)
                outcomes.append(allowed_lookup(name, answer.addresses, seconds, self.policy))
            else:
                outcomes.append(failed_lookup(name, answer.code, self.limits.negative_ttl))
            if outcomes[-1].error not in _ASK_ON:
                return outcomes[-1]
        return min(outcomes, key=lambda outcome: outcome.error is NoSuchHostError)


def _canonical(host: str) -> str:
    return host.lower().removesuffix(".")


def _resolution(outcome: LookupResult, expires_in: float) -> Resolution:
    if outcome.error is not None:
        raise outcome.error(outcome.message)
    return Resolution(outcome.addresses, max(0.0, expires_in))
