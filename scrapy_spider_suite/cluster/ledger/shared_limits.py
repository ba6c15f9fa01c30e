"""The limits that processes share: which addresses are shared, and grants of a ledger.

Agents go by the ledger at shared addresses only. An agent asks about an address before its first
fetch; an agent alone there is told, and the new one waits until it uses the ledger. After a loss of
Redis no agent becomes alone before all units are claimed, or a lease has passed, and all agents
have named their addresses.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import asdict
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from scrapy.exceptions import DownloadTimeoutError
from scrapy.signals import spider_closed

from scrapy_spider_suite.cluster.ledger.grants import Grants, Need
from scrapy_spider_suite.cluster.ledger.rate_ledger import (
    FileLedger,
    LedgerBatch,
    RateLedger,
    RedisLedger,
    grant_key,
)
from scrapy_spider_suite.cluster.membership import AddressQuestion
from scrapy_spider_suite.cluster.redis_server import require_redis
from scrapy_spider_suite.errors import FencedError, LedgerError, RegistryError, SettingsError
from scrapy_spider_suite.frontier.outcomes import Health
from scrapy_spider_suite.frontier.permits import NEAR
from scrapy_spider_suite.frontier.workbench import AddressState
from scrapy_spider_suite.runtime.clock import boottime
from scrapy_spider_suite.runtime.tasks import WarnOnce, logged_task, wait_at_most
from scrapy_spider_suite.settings.values import RedisUrl

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_spider_suite.cluster.agent import ClusterAgent
    from scrapy_spider_suite.cluster.registry import AgentRegistry
    from scrapy_spider_suite.crawl.context import Crawl, Engine
    from scrapy_spider_suite.frontier.workbench import HostState
    from scrapy_spider_suite.settings.suite import SuiteSettings

logger = logging.getLogger(__name__)

ADDRESSES_PER_CALL: Final = 500  # some milliseconds of Redis's time


class AddressSharing(IntEnum):
    """The use of an address; ``meet.lua`` answers the first three."""

    ASK = 0  # ask again: another agent there may not know of this one
    ALONE = 1
    SHARED = 2
    NEW = 3


class AddressBook:
    """The addresses of one process.

    *quiet*: whether no fetch without the ledger is under way at an address, and its delay is over.
    """

    def __init__(self, quiet: Callable[[str], bool]) -> None:
        self._quiet = quiet
        self._known: dict[str, AddressSharing] = {}
        self._open: dict[str, None] = {}  # to be asked about, in this order
        self._gone: set[str] = set()
        self._told: set[str] = set()  # where others wait until this agent uses the ledger
        self._mine: dict[str, None] = {}  # where it goes on, and the server is to hear of it

    def counts(self) -> dict[str, int]:
        shared = sum(each is AddressSharing.SHARED for each in self._known.values())
        return {"addresses": len(self._known), "shared": shared}

    def standing(self, address: str) -> AddressSharing:
        """Return the sharing of *address*; a new one is asked about in the next call."""
        if (found := self._known.get(address)) is None:
            self._gone.discard(address)
            self._ask(address)
            return AddressSharing.NEW
        return found

    def _ask(self, address: str) -> None:
        self._known[address] = AddressSharing.NEW
        self._open[address] = None

    def drop_quiet(self, addresses: Collection[str]) -> None:
        for address in [each for each in self._known if each not in addresses]:
            if self._quiet(address):
                del self._known[address]
                self._open.pop(address, None)
                self._told.discard(address)
                self._mine.pop(address, None)
                self._gone.add(address)

    def forget(self) -> None:
        """Ask about all addresses again: others may have taken this agent for gone."""
        self._mine.clear()
        for address in self._known:
            self._ask(address)

    def report_again(self) -> None:
        """The server lost its state: report known addresses, ask about the others."""
        self._told.clear()  # whoever waits is heard of again
        for address, standing in self._known.items():
            if standing in (AddressSharing.ALONE, AddressSharing.SHARED):
                self._mine[address] = None
            else:
                self._ask(address)

    def question(self, known: int) -> AddressQuestion:
        new = list(islice(self._open, ADDRESSES_PER_CALL))
        heard = list(filter(self._quiet, islice(self._told, ADDRESSES_PER_CALL)))
        # An earlier process of this agent was there.
        self._gone.update(address for address in heard if address not in self._known)
        mine = list(islice(self._mine, ADDRESSES_PER_CALL))
        later = (self._known[each] for each in islice(self._open, ADDRESSES_PER_CALL, None))
        complete = len(mine) == len(self._mine) and AddressSharing.NEW not in later
        return AddressQuestion(
            new, list(islice(self._gone, ADDRESSES_PER_CALL)), heard, mine, complete, known
        )

    def answered(
        self, asked: AddressQuestion, states: Sequence[int], news: Sequence[str]
    ) -> set[str]:
        """Take the answer to *asked*; return the addresses with news."""
        self._gone.difference_update(asked.gone)
        self._told.difference_update(asked.heard)
        for address in asked.mine:
            self._mine.pop(address, None)
        changed = set()
        for address, state in zip(asked.new, states, strict=True):
            if address not in self._open:
                continue  # it is gone meanwhile
            del self._open[address]
            self._known[address] = AddressSharing(state)
            if state == AddressSharing.ASK:
                self._open[address] = None
            else:
                changed.add(address)
        for address in news:
            if self._known.get(address) is AddressSharing.ALONE:
                self._known[address] = AddressSharing.SHARED
                changed.add(address)
            self._told.add(address)
        return changed


_LOOK: Final = 1.0  # seconds between two questions: another agent waits for one or two
_GATHER: Final = 0.02  # seconds in which addresses for a question gather
_KEEP: Final = 30.0  # seconds between two checks of which addresses are left
_TROUBLE: Final = "trouble"


class SharedAddresses(AddressBook):
    """The addresses of the agent of *crawl*; *changed* gets those whose sharing changed."""

    def __init__(self, crawl: Crawl, changed: Callable[[set[str]], None]) -> None:
        super().__init__(self._is_quiet)
        self._away = False
        self._once = WarnOnce(logger, "addresses that agents share")
        self._crawl = crawl
        self._changed = changed
        self._by_ledger: set[str] = set()
        self._asked = asyncio.Event()
        self._era = 0
        self._kept = 0.0

    def _ask(self, address: str) -> None:
        super()._ask(address)
        self._asked.set()

    def awaits(self, address: str) -> bool:
        return not self._away and self.standing(address) is AddressSharing.NEW

    def quiet_in(self) -> float:
        """Return the seconds until all fetches and all delays of addresses are over."""
        crawl = self._crawl
        longest = crawl.settings.project.longest_fetch
        addresses = crawl.frontier.workbench.addresses.values()
        wires = (longest + each.delay for each in addresses if each.wire)
        return max(crawl.frontier.residents.clocks.all_free_at() - crawl.now(), *wires, 0.0)

    def begun(self, address: AddressState) -> None:
        """A fetch by the ledger begins at *address*; none without it is left there."""
        if not address.wire and address.key in self._told:
            self._by_ledger.add(address.key)

    def _is_quiet(self, key: str) -> bool:
        frontier = self._crawl.frontier
        address = frontier.workbench.addresses.get(key)
        if key in self._by_ledger:
            return True
        if address is not None and address.wire:
            return False
        # An earlier process may have been there just now.
        return frontier.residents.clocks.next_fetch(key) <= self._crawl.now()

    async def run(self, registry: AgentRegistry) -> None:
        while True:
            try:
                await self._exchange(registry)
                self._away = False
                self._once.over(_TROUBLE)
            except RegistryError as error:
                self._away = True
                if error.kind != "away":  # which the heartbeats say
                    self._once.say(_TROUBLE, f"{error}; nothing is fetched at new ones meanwhile")
            except FencedError:
                pass  # when it joins again, it is known what it has to ask anew
            await wait_at_most(self._asked, _LOOK)
            await asyncio.sleep(_GATHER)
            self._asked.clear()

    async def _exchange(self, registry: AgentRegistry) -> None:
        crawl = self._crawl
        if crawl.now() - self._kept > _KEEP:
            self._kept = crawl.now()
            self.drop_quiet(crawl.frontier.workbench.addresses)
        asked = self.question(self._era or registry.answer.era)
        states, news = await registry.ask_addresses(asked)
        if asked.known != registry.answer.era:
            self.report_again()
        self._era = registry.answer.era
        self._by_ledger.difference_update(asked.heard, asked.gone)
        if changed := self.answered(asked, states, news):
            self._changed(changed)


SOONEST, LATEST = 0.25, 10.0  # seconds until a failed ledger is asked again: at first, and at most
PAUSE: Final = 0.005  # seconds between calls, to gather lines


class LedgerClient:
    """Exchanges *grants* with *ledger* while `run` runs."""

    def __init__(self, ledger: RateLedger, grants: Grants, pause: float = PAUSE) -> None:
        self.trouble = ""  # why the last call failed
        self.grants = grants
        self._once = WarnOnce(logger, "rate ledger")
        self._ledger = ledger
        self._pause = pause
        self._closed = False
        self._one = asyncio.Lock()
        self._wake = asyncio.Event()

    def poke(self) -> None:
        self._wake.set()

    def ready_changed(self, keys: set[str]) -> None:
        """Called when `Grants.ready` may have changed for *keys*."""

    async def run(self) -> None:
        wait = SOONEST
        while not self._closed:
            if (due := self.grants.due(boottime())) != 0.0:
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
        self.grants.close()
        with suppress(LedgerError):
            while await self._call():
                pass
        await self._ledger.close()

    async def _call(self) -> bool:
        async with self._one:
            now = boottime()
            sent = self.grants.outgoing(now)
            if sent is None:
                return False
            try:
                reply = await self._ledger.settle(sent.batch)
            except BaseException as error:
                self.grants.failed(sent)
                if isinstance(error, LedgerError):
                    if not self.trouble:
                        why = "no fetch starts on what is shared until it is back"
                        logger.warning("%s; %s", error, why)
                    self.trouble = str(error)
                raise
            if self.trouble:
                logger.info("%s is back", self._ledger.where)
                self.trouble = ""
            if reply.damaged:
                where, key = self._ledger.where, reply.damaged[0]
                why = f"{where} holds what the suite did not write under {key!r}"
                self._once.say("damaged", f"{why}: nothing is fetched there")
            self.ready_changed(self.grants.answered(sent, reply, now, boottime()))
            return True


T = TypeVar("T")

NO_GATE: Final = "SUITE_RATE_LEDGER needs the downloader of the suite: remove DOWNLOADER"
LEDGER_NAME: Final = "shared"  # of the ledger in a Redis, which all its crawls share
_LEDGER: Final = "SUITE_RATE_LEDGER"
_REDIS: Final = "SUITE_REDIS_URL"  # the setting that names the ledger of agents in mode ``peers``
_UNKNOWN: Final = 1.0  # seconds until a host is looked at again while nothing more is known
_PASSES: Final = frozenset({"away", "memory"})  # errors of a ledger for which a crawl waits


def make_shared_limits(crawl: Crawl, settings: SuiteSettings) -> SharedLimits | None:
    """Return the limits that *crawl* shares, or None. Raises `SettingsError`."""
    if settings.rate_ledger is not None:
        return SharedLimits(crawl, _ledger(settings.rate_ledger, LEDGER_NAME, _LEDGER))
    if crawl.agent is None or settings.cluster == "lan" or settings.redis_url is None:
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


class SharedLimits(LedgerClient):
    """The limits that one crawl shares; a `frontier.permits.PermitSource`.

    *addresses*: with *agents*, which share these alone; None: all hosts and addresses are shared.
    """

    def __init__(self, crawl: Crawl, ledger: RateLedger, *, agents: bool = False) -> None:
        # Longer fetches are cut: a grant runs out, and then others may fetch there.
        self.longest = crawl.settings.project.longest_fetch
        self._process = secrets.token_hex(8)
        super().__init__(ledger, Grants(self._process, timeout=self.longest, ahead=NEAR))
        self.addresses = SharedAddresses(crawl, self._wake_at) if agents else None
        self._crawl = crawl
        self._running: asyncio.Task[None] | None = None
        self._asked = 0.0  # when `pause` was
        # Connected after the scheduler's end: by then every fetch has said how it ended.
        crawl.crawler.signals.connect(self.close, spider_closed)

    @property
    def away(self) -> bool:
        """Whether no fetch can start, since the ledger does not answer."""
        return bool(self.trouble) and self.addresses is None

    async def open(self, control: Engine) -> None:
        """Ask the ledger for the first time. Raises `SettingsError`: unusable."""
        if control.gate is None:
            raise SettingsError(NO_GATE)
        self._crawl.frontier.leases.permits.source = self
        self._running = logged_task(self.run(), "grants")
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
        await super().close()
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
        self.poke()
        return max(_UNKNOWN, at - now) if self._passes_by(needs) else at - now

    def awaits(self, host: HostState, address: AddressState) -> bool:
        if self.addresses is not None and self._is_unknown(address):
            return self.addresses.awaits(address.key)
        needs = self._needs(host, address)
        return not self._passes_by(needs) and self.grants.awaits(needs, self._asked)

    def drop(self, host: HostState, address: AddressState) -> None:
        self.grants.drop(self._needs(host, address))
        self.poke()

    def begin(self, host: HostState, address: AddressState) -> tuple[Need, ...]:
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
        self.poke()

    async def bounded(self, transfer: Coroutine[Any, Any, T]) -> T:
        """Await *transfer*; cut it off before its grant expires."""
        try:
            async with asyncio.timeout(self.longest) as limit:
                return await transfer
        except TimeoutError:
            if not limit.expired():
                raise
            text = f"cut off after {self.longest:g} s: the ledger lets others go there then"
            raise DownloadTimeoutError(text) from None

    def heard(self, host: HostState, health: Health) -> None:
        """Share a pause that *host* asked for."""
        if self.addresses is not None:
            return  # nobody else has the host
        # Silence may be due to this process's place: only agents with parts of a host share it.
        agent = cast("ClusterAgent | None", self._crawl.agent)
        whole = agent is None or agent.ownership.assignment.by_host
        if health is not Health.OVERLOADED and (whole or health is not Health.UNREACHABLE):
            return
        wait = host.next_fetch - self._crawl.now()
        if wait > host.gap():
            self.grants.postpone(grant_key("host", host.key), boottime() + wait)
            self.poke()

    def ready_changed(self, keys: set[str]) -> None:
        found: dict[str, set[str]] = {"host": set(), "address": set()}
        for key in keys:
            kind, _, name = key.partition(" ")
            found[kind].add(name)
        self._wake_at(found["address"], found["host"])

    def _wake_at(self, addresses: set[str], hosts: Collection[str] = ()) -> None:
        crawl = self._crawl
        crawl.frontier.leases.permits.announce(hosts, addresses, crawl.now())
        gate = None if crawl.engine is None else crawl.engine.gate
        if gate is not None and (hosts or addresses):
            gate.wake(*hosts, *addresses)
        crawl.wake()

    def _is_unknown(self, address: AddressState) -> bool:
        return (
            self.addresses is not None
            and _is_paced(address)
            and self.addresses.standing(address.key) in (AddressSharing.NEW, AddressSharing.ASK)
        )

    def _passes_by(self, needs: tuple[Need, ...]) -> bool:
        return self.addresses is not None and bool(needs and self.trouble)

    def _needs(self, host: HostState, address: AddressState) -> tuple[Need, ...]:
        needs, shared = [], True
        if self.addresses is None:
            needs.append(Need(grant_key("host", host.key), host.gap()))
        elif _is_paced(address):
            shared = self.addresses.standing(address.key) is AddressSharing.SHARED
        if shared and _is_paced(address):
            needs.append(Need(grant_key("address", address.key), address.delay))
        return tuple(needs)


def _is_paced(address: AddressState) -> bool:
    return bool(address.numeric and address.concurrency)
