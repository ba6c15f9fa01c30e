"""Exchanges grants with a ledger: one politeness for several processes.

Visits wait in the workbench (`frontier.permits`), other requests at the gate.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, TypeVar

from scrapy.exceptions import DownloadTimeoutError
from scrapy.signals import spider_closed

from scrapy_spider_suite.cluster.ledger.grants import Grants, Need
from scrapy_spider_suite.cluster.ledger.ledger_stores import FileLedger, RedisLedger
from scrapy_spider_suite.cluster.ledger.rate_ledger import (
    LedgerBatch,
    RateLedger,
    address_grant_key,
    host_grant_key,
)
from scrapy_spider_suite.cluster.ledger.shared_addresses import AddressSharing, SharedAddresses
from scrapy_spider_suite.cluster.redis_server import require_redis
from scrapy_spider_suite.errors import LedgerError, SettingsError
from scrapy_spider_suite.frontier.outcomes import Health
from scrapy_spider_suite.frontier.permits import NEAR
from scrapy_spider_suite.runtime.clock import boottime
from scrapy_spider_suite.runtime.tasks import logged_task, wait_at_most
from scrapy_spider_suite.settings.values import RedisUrl

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_spider_suite.crawl.context import Crawl, Engine
    from scrapy_spider_suite.frontier.workbench import AddressState, HostState
    from scrapy_spider_suite.settings.suite import SuiteSettings

logger = logging.getLogger(__name__)

SOONEST, LATEST = 0.25, 10.0
"""Seconds until a failed ledger is asked again: at first, and at most."""

PAUSE: Final = 0.005
"""Seconds between calls, to gather lines."""


class LedgerClient:
    """Exchanges *grants* with *ledger* while `run` runs.

    *news* gets the keys whose `Grants.ready` may have changed. *away*: why the last call failed.
    """

    def __init__(
        self, ledger: RateLedger, grants: Grants, *, clock: Callable[[], float] = boottime,
        news: Callable[[set[str]], None] = lambda keys: None, pause: float = PAUSE,
    ) -> None:  # fmt: skip
        self.away = ""
        self._grants = grants
        self._damaged: set[str] = set()
        self._ledger = ledger
        self._clock = clock
        self._news = news
        self._pause = pause
        self._closed = False
        self._one = asyncio.Lock()
        self._wake = asyncio.Event()

    def poke(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        wait = SOONEST
        while not self._closed:
            if (due := self._grants.due(self._clock())) != 0.0:
                self._wake.clear()
                await wait_at_most(self._wake, due)
                continue
            try:
                await self._call()
                wait = SOONEST
                await asyncio.sleep(self._pause)
            except LedgerError:
                await asyncio.sleep(wait)
                wait = min(LATEST, 2 * wait)

    async def close(self) -> None:
        """Return unused grants and send what is left; never raises. `run` ends by itself."""
        self._closed = True
        self.poke()
        self._grants.close()
        try:
            while await self._call():
                pass
        except LedgerError:
            pass
        await self._ledger.close()

    async def _call(self) -> bool:
        async with self._one:
            now = self._clock()
            sent = self._grants.outgoing(now)
            if sent is None:
                return False
            try:
                reply = await self._ledger.settle(sent.batch)
            except BaseException as error:
                self._grants.failed(sent)
                if isinstance(error, LedgerError):
                    if not self.away:
                        logger.warning(
                            "%s; no fetch starts on what is shared until it is back", error
                        )
                    self.away = str(error)
                raise
            if self.away:
                logger.info("%s is back", self._ledger.where)
                self.away = ""
            self._report(reply.damaged)
            self._news(self._grants.answered(sent, reply, now, self._clock()))
            return True

    def _report(self, keys: Iterable[str]) -> None:
        for key in keys:
            if key not in self._damaged and len(self._damaged) < 100:
                self._damaged.add(key)
                logger.warning(
                    "%s holds what the suite did not write under %r: nothing is fetched there",
                    self._ledger.where, key,
                )  # fmt: skip


T = TypeVar("T")


NO_GATE: Final = "SUITE_RATE_LEDGER needs the downloader of the suite: remove DOWNLOADER"

LEDGER_NAME: Final = "shared"
"""Of the ledger in a Redis, which all its crawls share."""

_LEDGER: Final = "SUITE_RATE_LEDGER"
_REDIS: Final = "SUITE_REDIS_URL"  # the setting that names the ledger of agents in mode ``peers``

_UNKNOWN: Final = 1.0  # seconds until a host is looked at again while nothing more is known

_PASSES: Final = frozenset({"away", "memory"})  # errors of a ledger for which a crawl waits


def make_shared_limits(crawl: Crawl, settings: SuiteSettings) -> SharedLimits | None:
    """Return the limits that *crawl* shares, or None. Raises `SettingsError`."""
    if settings.rate_ledger is not None:
        return SharedLimits(crawl, _ledger(settings.rate_ledger, LEDGER_NAME, _LEDGER))
    if crawl.agent is None or settings.cluster != "peers" or settings.redis_url is None:
        return None
    # Each host is one agent's; its address may be that of others' hosts.
    return SharedLimits(
        crawl, _ledger(settings.redis_url, crawl.agent.crawl_name, _REDIS), agents=True
    )


def _ledger(where: RedisUrl | Path, name: str, setting: str) -> RateLedger:
    if not isinstance(where, RedisUrl):
        return FileLedger(where.absolute())
    require_redis(setting)
    try:
        return RedisLedger(where.url, name)
    except ValueError as error:
        raise SettingsError(f"{setting} = {str(where)!r}: {error}") from error


class SharedLimits:
    """The limits that one crawl shares; a `frontier.permits.Lender`.

    Stats: ``suite/ledger/…``, in numbers of keys (`GrantCounters`).

    Attributes:
        addresses: with *agents*, which share addresses alone; None: all hosts and addresses are
            shared.
    """

    def __init__(self, crawl: Crawl, ledger: RateLedger, *, agents: bool = False) -> None:
        self.addresses = SharedAddresses(crawl, self._met) if agents else None
        self._crawl = crawl
        self._ledger = ledger
        # Whatever is longer is cut: a grant runs out, and then others may fetch there.
        self._longest = crawl.settings.project.longest_fetch
        self._process = secrets.token_hex(8)
        self.grants = Grants(self._process, timeout=self._longest, ahead=NEAR)
        self._client = LedgerClient(ledger, self.grants, news=self._news)
        self._running: asyncio.Task[None] | None = None
        self._closed = False
        self._asked = 0.0  # when `pause` was
        # Connected after the scheduler's end: by then every fetch has said how it ended.
        crawl.crawler.signals.connect(self.close, spider_closed)

    @property
    def away(self) -> bool:
        """Whether no fetch can start, since the ledger does not answer."""
        return bool(self._client.away) and self.addresses is None

    async def open(self, control: Engine) -> None:
        """Ask the ledger for the first time. Raises `SettingsError`: unusable."""
        if control.gate is None:
            raise SettingsError(NO_GATE)
        self._crawl.frontier.leases.permits.source = self
        self._running = logged_task(self._client.run(), "grants")
        try:
            await self._ledger.settle(LedgerBatch(self._process, 0, 0, 1, 0, 0))
        except LedgerError as error:
            setting = _LEDGER if self.addresses is None else _REDIS
            if error.kind not in _PASSES:
                raise SettingsError(f"{setting}: {error}") from error
            if self.addresses is None:  # agents are refused if it does not come back soon
                logger.warning("%s: %s; nothing is fetched until it answers", setting, error)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._client.close()
        if self._running is not None:
            await self._running
        self.publish()

    def publish(self) -> None:
        stats = self._crawl.crawler.stats
        for name, value in asdict(self.grants.counters).items():
            stats.set_value(f"suite/ledger/{name}", value)
        stats.set_value("suite/ledger/waiting", len(self._crawl.frontier.leases.permits))
        if self.addresses is not None:
            for name, count in self.addresses.counts().items():
                stats.set_value(f"suite/ledger/{name}", count)

    # Fetches

    def pause(self, host: HostState, address: AddressState) -> float:
        self._asked = now = boottime()
        if self._is_unknown(address):
            return _UNKNOWN
        needs = self._needs(host, address)
        at = self.grants.ready(needs, now)
        if at <= now:
            return 0.0
        self._client.poke()
        return max(_UNKNOWN, at - now) if self._passes_by(needs) else at - now

    def awaits(self, host: HostState, address: AddressState) -> bool:
        if self.addresses is not None and self._is_unknown(address):
            return self.addresses.will_say(address)
        needs = self._needs(host, address)
        return not self._passes_by(needs) and self.grants.awaits(needs, self._asked)

    def drop(self, host: HostState, address: AddressState) -> None:
        self.grants.drop(self._needs(host, address))
        self._client.poke()

    def begin(self, host: HostState, address: AddressState) -> tuple[Need, ...]:
        """Begin a fetch after a `pause` of 0.0; pass the result to `end`."""
        taken = self.grants.start(self._needs(host, address), self._asked)
        if taken and self.addresses is not None:
            self.addresses.begun(address)
        return taken

    def end(self, taken: tuple[Need, ...], host: HostState, address: AddressState) -> None:
        """End a fetch; ask for the next grant if that fetch could begin at once."""
        now = boottime()
        self.grants.end(taken, now)
        if (host.front or host.more) and max(host.gap(), address.delay) <= NEAR:
            self.grants.ready(self._needs(host, address), now)
        self._client.poke()

    async def bounded(self, transfer: Coroutine[Any, Any, T]) -> T:
        """Await *transfer*; cut it off before its grant expires."""
        try:
            async with asyncio.timeout(self._longest) as limit:
                return await transfer
        except TimeoutError:
            if not limit.expired():
                raise
            text = f"cut off after {self._longest:g} s: the ledger lets others go there then"
            raise DownloadTimeoutError(text) from None

    def heard(self, host: HostState, health: Health) -> None:
        """Share a pause that *host* asked for.

        Silence may be due to the place of this process: only agents with parts of one host share
        it.
        """
        if self.addresses is not None:
            return  # nobody else has the host
        agent = self._crawl.agent
        whole = agent is None or agent.owns_hosts
        if health is not Health.OVERLOADED and (whole or health is not Health.UNREACHABLE):
            return
        wait = host.next_fetch - self._crawl.now()
        if wait > host.gap():
            self.grants.postpone(host_grant_key(host.key), boottime() + wait)
            self._client.poke()

    # News

    def _news(self, keys: set[str]) -> None:
        found: dict[str, set[str]] = {"host": set(), "address": set()}
        for key in keys:
            kind, _, name = key.partition(" ")
            found[kind].add(name)
        self._look_again(found["host"], found["address"])

    def _met(self, addresses: set[str]) -> None:
        if addresses:
            self._look_again(set(), addresses)

    def _look_again(self, hosts: set[str], addresses: set[str]) -> None:
        crawl = self._crawl
        crawl.frontier.leases.permits.announce(hosts, addresses, crawl.now())
        gate = None if crawl.engine is None else crawl.engine.gate
        if gate is not None and (hosts or addresses):
            gate.wake(*hosts, *addresses)
        crawl.wake()

    # What is shared

    def _is_unknown(self, address: AddressState) -> bool:
        return (
            self.addresses is not None
            and _is_paced(address)
            and self.addresses.standing(address) in (AddressSharing.NEW, AddressSharing.ASK)
        )

    def _passes_by(self, needs: tuple[Need, ...]) -> bool:
        return self.addresses is not None and bool(needs and self._client.away)

    def _needs(self, host: HostState, address: AddressState) -> tuple[Need, ...]:
        needs, shared = [], True
        if self.addresses is None:
            needs.append(Need(host_grant_key(host.key), host.gap()))
        elif _is_paced(address):
            shared = self.addresses.standing(address) is AddressSharing.SHARED
        if shared and _is_paced(address):
            needs.append(Need(address_grant_key(address.key), address.delay))
        return tuple(needs)


def _is_paced(address: AddressState) -> bool:
    return bool(address.numeric and address.concurrency)
