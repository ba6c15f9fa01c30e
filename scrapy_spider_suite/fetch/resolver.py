"""The resolver of a crawl: host names to addresses that it may connect to.

Failures are cached, an open question is shared, a bounded number is asked at a time.
`AddressPolicy` judges the addresses found, never the name. Name servers and hosts file are asked
through c-ares (pycares) on the running event loop: aiodns runs it in a thread, where each answer
would wait for the interpreter lock twice.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple
from weakref import WeakKeyDictionary

import pycares
from msgspec import Struct
from pycares import errno
from scrapy import signals
from scrapy.crawler import Crawler

from scrapy_spider_suite import errors
from scrapy_spider_suite.errors import ResolveError
from scrapy_spider_suite.fetch import address_rules
from scrapy_spider_suite.fetch.address_rules import AddressPolicy, literal_address
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings
from scrapy_spider_suite.settings.values import Endpoint

logger = logging.getLogger(__name__)

TICK = 0.1  # seconds between two checks of timeouts while questions are open
FIRST_WAIT = 1.0  # most seconds to the second try, with a server whose speed is not known yet
LEAST_WAIT = 0.25  # least seconds to the second try, which c-ares takes with a fast server
MAX_ADDRESSES = 16  # addresses kept of one answer, which may hold thousands

# ARES_AI_NOSORT of ares.h, for which pycares has no name: without it c-ares opens a socket to each
# address found.
_NO_SORT = 1 << 7

_RECORD_TYPE = {socket.AF_INET: pycares.QUERY_TYPE_A, socket.AF_INET6: pycares.QUERY_TYPE_AAAA}

_ADDRESS_RECORDS = (pycares.ARecordData, pycares.AAAARecordData)

_Result = pycares.AddrInfoResult | pycares.DNSResult


class DnsAnswer(NamedTuple):
    addresses: tuple[str, ...]  # numeric, in the order of the answer
    ttl: int  # seconds, the least of the records; 0 for the hosts file
    code: int | None = None  # why there are no addresses


class AresChannel:
    """A set of name servers (none: the system's) and the open questions; for one event loop.

    c-ares caches answers for their TTL without bounds: `DnsClient` replaces channels.
    """

    def __init__(self, servers: Sequence[str], timeout: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._watched: set[int] = set()
        self._open: set[asyncio.Future[DnsAnswer]] = set()
        self._ticker: asyncio.TimerHandle | None = None
        self._closed = False
        self._dns_alone = bool(servers)
        # c-ares waits for the first try as long as five answers took of late, twice as long for
        # each further one, shortened by up to a half at random, and ignores late answers.
        self._ares = pycares.Channel(
            servers=servers,
            tries=max(2, math.ceil(math.log2(2 * timeout / LEAST_WAIT))),
            timeout=min(FIRST_WAIT, timeout / 4),
            sock_state_cb=self._watch,
        )

    @property
    def idle(self) -> bool:
        return not self._open

    def ask(self, host: str, family: socket.AddressFamily) -> asyncio.Future[DnsAnswer]:
        """Ask for the addresses of *host* (ASCII) of one *family*; the future never raises."""
        future: asyncio.Future[DnsAnswer] = self._loop.create_future()

        def settle(result: _Result | None, code: int | None) -> None:
            self._open.discard(future)
            if not future.done():
                future.set_result(_answer(result, code))

        self._open.add(future)
        try:
            if self._dns_alone:
                # Not getaddrinfo with lookups="b": pycares frees that text before c-ares reads it.
                self._ares.query(host, _RECORD_TYPE[family], callback=settle)
            else:
                self._ares.getaddrinfo(
                    host, None, family=family, type=socket.SOCK_STREAM, flags=_NO_SORT,
                    callback=settle,
                )  # fmt: skip
        except pycares.AresError as error:
            # For some failures pycares raises, for some it calls back, for some it does both.
            settle(None, error.args[0])
        self._keep_ticking()
        return future

    def close(self) -> None:
        """Answer all open questions with ``ARES_ECANCELLED`` and close the sockets."""
        if self._closed:
            return
        self._ares.cancel()
        # From here on c-ares may call back from the thread in which pycares takes it apart.
        self._closed = True
        if self._ticker is not None:
            self._ticker.cancel()
        for fd in tuple(self._watched):
            self._forget(fd)
        self._ares.close()

    def _keep_ticking(self) -> None:
        if self._open and self._ticker is None and not self._closed:
            self._ticker = self._loop.call_later(TICK, self._tick)

    def _tick(self) -> None:
        self._ticker = None
        self._ares.process_fd(pycares.ARES_SOCKET_BAD, pycares.ARES_SOCKET_BAD)
        self._keep_ticking()

    def _watch(self, fd: int, readable: bool, writable: bool) -> None:
        # Neither readable nor writable: c-ares is about to close it.
        if self._closed:
            return
        self._forget(fd)
        if readable:
            self._loop.add_reader(fd, self._ares.process_fd, fd, pycares.ARES_SOCKET_BAD)
        if writable:
            self._loop.add_writer(fd, self._ares.process_fd, pycares.ARES_SOCKET_BAD, fd)
        if readable or writable:
            self._watched.add(fd)

    def _forget(self, fd: int) -> None:
        if fd not in self._watched:
            return
        self._watched.discard(fd)
        if not self._loop.is_closed():
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)


def _answer(result: _Result | None, code: int | None) -> DnsAnswer:
    if result is None:
        return DnsAnswer((), 0, errno.ARES_ENODATA if code is None else code)
    if isinstance(result, pycares.AddrInfoResult):
        # pycares has the text of an address as bytes.
        found = [node.addr[0].decode("ascii") for node in result.nodes]
        ttls = [node.ttl for node in result.nodes] + [cname.ttl for cname in result.cnames]
    else:
        data = (record.data for record in result.answer)
        found = [each.addr for each in data if isinstance(each, _ADDRESS_RECORDS)]
        ttls = [record.ttl for record in result.answer]
    if not found:
        return DnsAnswer((), 0, errno.ARES_ENODATA)
    return DnsAnswer(tuple(dict.fromkeys(found))[:MAX_ADDRESSES], min(ttls))


MAX_AGE = 60.0
"""Seconds after which the next question opens a new channel, which reads ``resolv.conf`` again."""
MIN_AGE = 1.0  # seconds that a channel is used at least, even after `DnsClient.skip_cache`
MAX_ASKED = 4096
"""Questions after which the next one opens a new channel; c-ares keeps some 650 bytes of each."""
ALONE = 32  # most questions at a time that are asked on a channel of their own


class DnsClient:
    """The channel in use and its predecessors; no answer is repeated after `MAX_AGE` seconds."""

    def __init__(self, servers: Sequence[str], timeout: float, now: Callable[[], float]) -> None:
        self._servers = tuple(servers)
        self._timeout = timeout
        self._now = now
        self._current: AresChannel | None = None
        self._opened = 0.0
        self._asked = 0
        self._skips_cache = False
        self._retired: set[AresChannel] = set()
        self._alone = asyncio.Semaphore(ALONE)
        self._closed = False

    async def ask(self, host: str, family: socket.AddressFamily, seconds: float) -> DnsAnswer:
        """Return the addresses of *host*, or the code of a failure, within *seconds*."""
        deadline = asyncio.get_running_loop().time() + seconds
        answer = await self._ask_in(self._channel, host, family, seconds)
        if answer.code == errno.ARES_EBADRESP and not self._closed:
            # c-ares lets one datagram that makes no sense fail every question that is open with
            # the server, so that one hostile name took all others with it.
            return await self._ask_alone(host, family, deadline)
        if answer.code == errno.ARES_ECONNREFUSED:
            # Out of files, c-ares cannot read resolv.conf and takes this machine for the server.
            self.skip_cache()
        return answer

    async def _ask_in(
        self, channel: Callable[[], AresChannel], host: str, family: socket.AddressFamily,
        seconds: float,
    ) -> DnsAnswer:  # fmt: skip
        if self._closed:
            return DnsAnswer((), 0, errno.ARES_ECANCELLED)
        try:
            question = channel().ask(host, family)
        except pycares.AresError:
            return DnsAnswer((), 0, errno.ARES_ENOTINITIALIZED)
        try:
            return await asyncio.wait_for(question, max(0.0, seconds))
        except TimeoutError:
            return DnsAnswer((), 0, errno.ARES_ETIMEOUT)

    async def _ask_alone(
        self, host: str, family: socket.AddressFamily, deadline: float
    ) -> DnsAnswer:
        async with self._alone:
            try:
                channel = AresChannel(self._servers, self._timeout)
            except pycares.AresError:
                return DnsAnswer((), 0, errno.ARES_ENOTINITIALIZED)
            self._retired.add(channel)  # so that `close` finds it
            try:
                left = deadline - asyncio.get_running_loop().time()
                return await self._ask_in(lambda: channel, host, family, left)
            finally:
                self._close_channel(channel)

    def skip_cache(self) -> None:
        """Have the servers answer the next question, not a cache."""
        self._skips_cache = True

    def close(self) -> None:
        self._closed = True
        for channel in (self._current, *self._retired):
            if channel is not None:
                channel.close()
        self._current = None
        self._retired.clear()

    def _channel(self) -> AresChannel:
        age = self._now() - self._opened
        worn = age >= MAX_AGE or self._asked >= MAX_ASKED or (self._skips_cache and age >= MIN_AGE)
        if self._current is None or worn:
            successor = AresChannel(self._servers, self._timeout)
            if self._current is not None:
                self._retired.add(self._current)
                loop = asyncio.get_running_loop()
                loop.call_later(self._timeout, self._close_channel, self._current)
            for idle in [each for each in self._retired if each.idle]:
                self._close_channel(idle)
            self._current = successor
            self._opened = self._now()
            self._asked = 0
            self._skips_cache = False
        self._asked += 1
        return self._current

    def _close_channel(self, channel: AresChannel) -> None:
        self._retired.discard(channel)
        channel.close()


_UNANSWERED = frozenset({errno.ARES_ECONNREFUSED, errno.ARES_ETIMEOUT})
_UNANSWERED_MIN = 3  # questions in a row: one may be the fault of the servers of its name


class OutageWarning:
    """Warns when no name server answers (*since*), and when they answer again."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = servers
        self._unanswered = _UNANSWERED_MIN - 1  # before any answer, the first one counts
        self.since: float | None = None

    def note(self, code: int | None, now: float) -> None:
        """Note the end of a question at *now* with *code* (None: addresses)."""
        if code not in _UNANSWERED:
            self._unanswered = 0
            if self.since is not None:
                logger.warning("Name servers answer again, after %.0f s", now - self.since)
                self.since = None
            return
        self._unanswered += 1
        if self.since is None and self._unanswered >= _UNANSWERED_MIN:
            self.since = now
            logger.warning(
                "No name server answers (%s; SUITE_DNS_SERVERS chooses them): new hosts wait",
                server_names(self._servers),
            )


def server_names(servers: Sequence[str]) -> str:
    return ", ".join(servers) or "those of the system"


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
    try:
        policy = AddressPolicy(settings.allow_private_addresses)
    except ValueError as error:
        raise errors.SettingsError(f"SUITE_ALLOW_PRIVATE_ADDRESSES: {error}") from None
    servers = [str(Endpoint(*server)) for server in settings.dns_servers]
    most, timeout = settings.dns_ttl_max, settings.project.dns_timeout or TIMEOUT
    limits = ResolverLimits(ttl_min=min(TTL_MIN, most), ttl_max=most, timeout=min(TIMEOUT, timeout))
    return Resolver(policy, servers, settings.ip_family, limits)


ZERO_TTL = 600.0
"""Seconds that an answer with TTL 0 is used for; so is the hosts file, which has no TTL.

RFC 1035 §3.2.1 means it for one transaction, which a crawl that comes back soon cannot honour.
"""
TTL_MIN: Final = 600.0  # seconds that an address is kept at least, unless SUITE_DNS_TTL_MAX is less
TIMEOUT: Final = 10.0
"""Seconds within which a name is resolved or given up, unless DNS_TIMEOUT is less."""


@dataclass(frozen=True)
class ResolverLimits:
    ttl_min: float = TTL_MIN  # seconds that an answer is kept at least
    ttl_max: float = 86_400.0  # seconds that an answer is kept at most
    negative_ttl: float = 300.0  # seconds for a name that does not exist; most for failures
    cache_size: int = 100_000  # names in the cache, found or not
    timeout: float = TIMEOUT  # seconds until a name is given up, after its wait for a turn
    concurrency: int = 256  # names that are asked for at a time; more wait for their turn

    def lifetime(self, ttl: float) -> float:
        """Seconds for which an answer is used; a negative *ttl* counts as 0 (RFC 2181 §8)."""
        return min(max(ttl if ttl > 0 else ZERO_TTL, self.ttl_min), self.ttl_max)


TRANSIENT = 30.0
"""Most seconds that a failure or silence of name servers is remembered (RFC 2308 §7: 300)."""

UNREACHABLE = 1.0
"""Most seconds that a failure to reach any name server is remembered: to ask again costs nothing.

The network is down, or this process is out of files.
"""

_NOT_UNDERSTOOD: Final = "the name server does not understand the question"

_FAILURES: Final[dict[int, tuple[type[errors.SuiteError], str, float]]] = {
    errno.ARES_ENOTFOUND: (errors.NoSuchHostError, "no such host", math.inf),
    errno.ARES_ENONAME: (errors.NoSuchHostError, "no such host", math.inf),
    errno.ARES_ENODATA: (errors.NoSuchHostError, "the host has no address", math.inf),
    errno.ARES_EBADNAME: (errors.NoSuchHostError, "not a host name", math.inf),
    errno.ARES_ESERVFAIL: (ResolveError, "the name server failed", TRANSIENT),
    errno.ARES_EREFUSED: (ResolveError, "the name server refuses to answer", TRANSIENT),
    errno.ARES_EBADRESP: (ResolveError, "the name server's answer makes no sense", TRANSIENT),
    errno.ARES_EFORMERR: (ResolveError, _NOT_UNDERSTOOD, TRANSIENT),
    errno.ARES_ENOTIMP: (ResolveError, _NOT_UNDERSTOOD, TRANSIENT),
    errno.ARES_ETIMEOUT: (errors.ResolveTimeoutError, "no name server answered in time", TRANSIENT),
    errno.ARES_ECONNREFUSED: (ResolveError, "no name server can be reached", UNREACHABLE),
    errno.ARES_ECANCELLED: (ResolveError, "the resolver was closed", 0.0),
    errno.ARES_EDESTRUCTION: (ResolveError, "the resolver was closed", 0.0),
}
"""The error, its reason, and the most seconds for which it is remembered."""


class LookupResult(Struct, frozen=True, gc=False):
    """Addresses or an error (as type and text: a raised one keeps frames), for *seconds*."""

    addresses: tuple[str, ...]
    seconds: float  # 0: must not be remembered
    error: type[errors.SuiteError] | None = None
    message: str = ""


def failed_lookup(name: str, code: int, negative_ttl: float) -> LookupResult:
    """Return the result for the c-ares failure *code*; it holds *negative_ttl* seconds at most."""
    # c-ares has more codes than pycares has names for.
    unknown = ResolveError, errno.errorcode.get(code, f"c-ares error {code}"), 0.0
    error, why, most = _FAILURES.get(code, unknown)
    return LookupResult((), min(most, negative_ttl), error, f"{name}: {why}")


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
    return LookupResult((), seconds, errors.PrivateAddressError, f"{host}{reasons[0]}")


Family = Literal["any", "4", "6"]

# "any" asks for IPv6 only where there is no IPv4 that may be used: half the questions, and no host
# is tried over a network that the machine may not have.
_FAMILIES: dict[Family, tuple[socket.AddressFamily, ...]] = {
    "any": (socket.AF_INET, socket.AF_INET6), "4": (socket.AF_INET,), "6": (socket.AF_INET6,),
}  # fmt: skip

# After these the other family is worth a question; a server that failed would fail again.
_ASK_ON: tuple[type[errors.SuiteError], ...] = (errors.NoSuchHostError, errors.PrivateAddressError)

_COUNTER_NAMES: dict[type[errors.SuiteError], str] = {
    errors.ResolveTimeoutError: "timeouts",
    errors.PrivateAddressError: "refused",
}


@dataclass(frozen=True, slots=True)
class Resolution:
    """Allowed addresses of a host: numeric, no brackets, at least one, in the server's order."""

    addresses: tuple[str, ...]
    expires_in: float  # seconds until the host is to be looked up again


class Resolver:
    """Names to addresses for one crawl, on one event loop.

    *servers*: ``address:port``, instead of the system's, hosts file and search domains. *now*:
    the clock of the cache. *listener* is called with each host that loses trust.
    """

    def __init__(
        self, policy: AddressPolicy, servers: Sequence[str] = (), family: Family = "any",
        limits: ResolverLimits | None = None, now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
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
        """The addresses of *host*, as ada writes it. A caller may be cancelled.

        Raises `NoSuchHostError`, `ResolveTimeoutError`, `ResolveError`, `PrivateAddressError`.
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

    def restore(self, host: str, address: str, seconds: float) -> Resolution | None:
        """Take over the *address* of *host* from an earlier run, for *seconds* at most.

        None: the settings of this run do not allow it, so the name is to be looked up.
        """
        if self.family != "any" and (":" in address) != (self.family == "6"):
            return None
        name, seconds = _canonical(host), min(seconds, self.limits.ttl_max)
        result = allowed_lookup(name, (address,), seconds, self.policy)
        if result.error is not None:
            return None
        self._remember(name, result)
        return Resolution(result.addresses, seconds)

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
        problem = address_rules.invalid_name_reason(name)
        if problem is None:
            return None
        return LookupResult((), 0.0, errors.NoSuchHostError, f"{name[:100]!a}: {problem}")

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
            self._remember(name, outcome)
        return outcome

    def _remember(self, name: str, outcome: LookupResult) -> None:
        self._cache[name] = outcome, self._now() + outcome.seconds
        self._cache.move_to_end(name)
        if len(self._cache) > self.limits.cache_size:
            self._cache.popitem(last=False)

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
        return min(outcomes, key=lambda outcome: outcome.error is errors.NoSuchHostError)


def _canonical(host: str) -> str:
    return host.lower().removesuffix(".")


def _resolution(outcome: LookupResult, expires_in: float) -> Resolution:
    if outcome.error is not None:
        raise outcome.error(outcome.message)
    return Resolution(outcome.addresses, max(0.0, expires_in))
