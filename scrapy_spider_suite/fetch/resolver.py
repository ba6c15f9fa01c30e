"""The resolver of each crawler, made from its settings.

The gate, the download handlers and the robots middleware of one crawler must agree on where a host
is, so they share one :class:`~scrapy_spider_suite.dns.Resolver`; two crawlers in one process have
two, each with its own settings and cache.

A bounded map whose values expire. Pure: the time is an argument, in seconds on any one clock.

The bounds of a resolver and the counts that it gives out. Pure.

How a look-up ends, in the form in which the resolver remembers it. Pure.

The resolver of a crawl: names to addresses that it may connect to (T2, DNS threads of U12).

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
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar
from weakref import WeakKeyDictionary

from msgspec import Struct
from pycares import errno
from scrapy import signals

from scrapy_spider_suite.errors import (
    NoSuchHostError,
    PrivateAddressError,
    ResolveError,
    ResolveTimeoutError,
    SettingsError,
    SuiteError,
)
from scrapy_spider_suite.fetch.address_rules import AddressPolicy, literal_address, why_not_a_name
from scrapy_spider_suite.fetch.dns_client import Silence, Succession, parse_server
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

_RESOLVERS: WeakKeyDictionary[Crawler, Resolver] = WeakKeyDictionary()


def suite_resolver(crawler: Crawler) -> Resolver:
    """Return the resolver of *crawler*, the same one each time; it is closed with the engine.

    Raises:
        SettingsError: a setting is wrong.
    """
    resolver = _RESOLVERS.get(crawler)
    if resolver is None:
        resolver = _RESOLVERS[crawler] = resolver_from(suite_settings(crawler))
        # The resolver outlives the signal manager's weak reference to it: _RESOLVERS holds it.
        crawler.signals.connect(resolver.close, signal=signals.engine_stopped)
    return resolver


def resolver_from(settings: SuiteSettings) -> Resolver:
    """Return a resolver that follows *settings*.

    Raises:
        SettingsError: a setting is wrong.
    """
    return Resolver(
        _policy(settings), _servers(settings), settings.ip_family, _limits(settings)
    )


def reconfigure(resolver: Resolver, settings: SuiteSettings) -> None:
    """Let *resolver* follow other *settings* from now on; whom it trusts stays as it is.

    Raises:
        SettingsError: a setting is wrong.
    """
    resolver.reconfigure(
        _policy(settings), _servers(settings), settings.ip_family, _limits(settings)
    )


def _limits(settings: SuiteSettings) -> ResolverLimits:
    most = settings.dns_ttl_max
    timeout = min(TIMEOUT, settings.project.dns_timeout or TIMEOUT)
    return ResolverLimits(ttl_min=min(TTL_MIN, most), ttl_max=most, timeout=timeout)


def _policy(settings: SuiteSettings) -> AddressPolicy:
    try:
        return AddressPolicy(settings.allow_private_addresses)
    except ValueError as error:
        raise SettingsError(f"SUITE_ALLOW_PRIVATE_ADDRESSES: {error}") from None


def _servers(settings: SuiteSettings) -> list[str]:
    return [
        f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        for address, port in settings.dns_servers
    ]


Key = TypeVar("Key")
Value = TypeVar("Value")


class ExpiringCache(Generic[Key, Value]):
    """The values last used, at most *size* of them, each until it expires.

    Invariant: at most *size* pairs are held, and no value is returned at or after its expiry. When
    a new key finds the cache full, the key that was used least recently goes. An expired pair may
    keep its place until it is asked for or pushed out: it costs one place, never an answer.

    Raises:
        ValueError: *size* is less than 1.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a cache holds at least one value, not {size}")
        self._size = size
        # Least recently used first. An OrderedDict, because taking the first key of a plain dict
        # again and again walks over the places of those taken before.
        self._pairs: OrderedDict[Key, tuple[Value, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pairs)

    def __repr__(self) -> str:
        return f"<ExpiringCache: {len(self._pairs)} of {self._size}>"

    def get(self, key: Key, now: float) -> tuple[Value, float] | None:
        """Return the live value of *key* and when it expires, or None; finding it is a use."""
        pair = self._pairs.get(key)
        if pair is None:
            return None
        if pair[1] <= now:
            del self._pairs[key]
            return None
        self._pairs.move_to_end(key)
        return pair

    def put(self, key: Key, value: Value, expires: float) -> None:
        """Store *value* under *key* until *expires*, in place of what was there."""
        self._pairs[key] = (value, expires)
        self._pairs.move_to_end(key)
        if len(self._pairs) > self._size:
            self._pairs.popitem(last=False)

    def drop(self, key: Key) -> None:
        """Forget *key*. Forgetting an unknown key is not an error."""
        self._pairs.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        self._pairs.clear()


ZERO_TTL = 600.0
"""Seconds that an answer with TTL 0 is used for.

RFC 1035 §3.2.1 means it for one transaction only, which a crawl that comes back every few seconds
cannot honour. The hosts file has no TTL, and counts as 0 as well.
"""


TTL_MIN: Final = 600.0
"""Seconds that an address is kept at least, unless SUITE_DNS_TTL_MAX is less."""
TIMEOUT: Final = 10.0
"""Seconds within which a name is resolved or given up, unless DNS_TIMEOUT is less."""


@dataclass(frozen=True)
class ResolverLimits:
    """Bounds in time and number.

    Raises:
        ValueError: a number is out of its range; the message names it.
    """

    ttl_min: float = TTL_MIN
    """Seconds that an answer is kept at least."""

    ttl_max: float = 86_400.0
    """Seconds that an answer is kept at most."""

    negative_ttl: float = 300.0
    """Seconds that it is remembered that a name does not exist. `outcome` bounds the rest."""

    cache_size: int = 100_000
    """Names in the cache, found or not."""

    timeout: float = TIMEOUT
    """Seconds within which a name is resolved or given up, not counting the wait for its turn."""

    concurrency: int = 256
    """Names that are asked for at a time; more wait for their turn."""

    def __post_init__(self) -> None:
        if not 0 <= self.ttl_min <= self.ttl_max:
            raise ValueError(f"ttl_min {self.ttl_min} is not between 0 and ttl_max {self.ttl_max}")
        if self.negative_ttl < 0:
            raise ValueError(f"negative_ttl {self.negative_ttl} is negative")
        for name in ("cache_size", "timeout", "concurrency"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} {getattr(self, name)} is not positive")

    def lifetime(self, ttl: float) -> float:
        """Return for how many seconds an answer with this *ttl* is used.

        One with its highest bit set is negative here, and counts as 0 (RFC 2181 §8).
        """
        return min(max(ttl if ttl > 0 else ZERO_TTL, self.ttl_min), self.ttl_max)


@dataclass(frozen=True, slots=True)
class ResolverStatistics:
    """Counts since the resolver was made, and two sizes at this moment."""

    queries: int
    """Questions put to the name servers or the hosts file, IPv4 and IPv6 apart."""
    hits: int
    """Look-ups answered with addresses from the cache."""
    negative_hits: int
    """Look-ups answered with a failure from the cache."""
    shared: int
    """Look-ups that joined a question which was open already."""
    timeouts: int
    """Names given up because no server answered in time."""
    failures: int
    """Names asked for and not resolved for any other reason: no such host, server failure."""
    refused: int
    """Names asked for whose addresses the policy refuses, all of them."""
    in_flight: int
    """Names that are being asked for or wait for their turn."""
    cached: int
    """Names in the cache, some of them possibly expired."""


TRANSIENT = 30.0
"""Seconds that a failure or silence of the name servers is remembered at most.

RFC 2308 §7 allows five minutes.
"""

UNREACHABLE = 1.0
"""Seconds that it is remembered at most that no name server can be reached.

The network is down, or this process has no file left for a socket: to find out anew costs nothing.
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


class Outcome(Struct, frozen=True, gc=False):
    """Either addresses or an error, and how long either holds.

    Errors are kept as type and text: an exception that is raised again and again holds on to every
    frame that it passed. The garbage collector does not know outcomes, of which there are many.
    """

    addresses: tuple[str, ...]
    keep: float
    """Seconds; 0 for what must not be remembered."""
    error: type[SuiteError] | None = None
    message: str = ""


def failed(name: str, code: int, negative_ttl: float) -> Outcome:
    """Return the outcome for the c-ares failure *code* (``ARES_...``).

    A name that does not exist is remembered for *negative_ttl* seconds, a failure or a silence of
    the name servers for `TRANSIENT` at most, our own troubles (memory, files, being closed) not at
    all.
    """
    if code in _NO_SUCH_HOST:
        return Outcome((), negative_ttl, NoSuchHostError, f"{name}: {_NO_SUCH_HOST[code]}")
    short = min(TRANSIENT, negative_ttl)
    if code == errno.ARES_ETIMEOUT:
        return Outcome((), short, ResolveTimeoutError, f"{name}: no name server answered in time")
    if code in _TRANSIENT:
        return Outcome((), short, ResolveError, f"{name}: {_TRANSIENT[code]}")
    if code == errno.ARES_ECONNREFUSED:
        short = min(UNREACHABLE, negative_ttl)
        return Outcome((), short, ResolveError, f"{name}: no name server can be reached")
    if code in (errno.ARES_ECANCELLED, errno.ARES_EDESTRUCTION):
        return Outcome((), 0.0, ResolveError, f"{name}: the resolver was closed")
    # c-ares has more codes than pycares has names for.
    symbol = errno.errorcode.get(code, f"c-ares error {code}")
    return Outcome((), 0.0, ResolveError, f"{name}: {symbol}")


def judged(name: str, addresses: tuple[str, ...], keep: float, policy: AddressPolicy) -> Outcome:
    """Return the outcome for *addresses*, at least one.

    Those that *policy* allows, or the reason for which it refuses the first.
    """
    reasons = [policy.refuses(address, name) for address in addresses]
    kept = tuple(a for a, why in zip(addresses, reasons, strict=True) if why is None)
    if kept:
        return Outcome(kept, keep)
    # An address that is the host itself stands in the reason.
    host = "" if literal_address(name) else f"{name}: "
    return Outcome((), keep, PrivateAddressError, f"{host}{reasons[0]}")


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
