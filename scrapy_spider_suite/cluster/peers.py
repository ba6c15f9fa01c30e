"""Mode ``peers``: agents that meet in Redis; heartbeats, joining, claims, the end.

While Redis is away the agent goes on until its lease is nearly over, then starts no fetch.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast
from urllib.parse import urlsplit

from scrapy_spider_suite.cluster.handover.handover import Handover
from scrapy_spider_suite.cluster.handover.handover_context import HandoverContext
from scrapy_spider_suite.cluster.handover.handover_file import FileTransport
from scrapy_spider_suite.cluster.mailbox import HAS_ENDED, ClusterMode
from scrapy_spider_suite.cluster.membership import (
    HEARTBEAT,
    SKEW_MAX,
    AgentLease,
    Candidate,
    Holders,
    Membership,
    MemberState,
    RegistryAnswer,
    clock_refusal,
    folder_identity,
    refuse_short_lease,
    shared_settings,
)
from scrapy_spider_suite.cluster.pulses import PulseSender
from scrapy_spider_suite.cluster.registry import AgentRegistry
from scrapy_spider_suite.cluster.transports.redis_streams import RedisStreams
from scrapy_spider_suite.cluster.transports.shared_folder import FolderTransport
from scrapy_spider_suite.cluster.transports.tcp import TcpTransport
from scrapy_spider_suite.crawl.context import write_changes
from scrapy_spider_suite.errors import FencedError, JoinRefusedError, RegistryError, SettingsError
from scrapy_spider_suite.runtime.clock import boottime
from scrapy_spider_suite.runtime.tasks import cancel_tasks, logged_task, wait_at_most
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.settings.values import endpoint
from scrapy_spider_suite.signals import settings_changed, settings_changing
from scrapy_spider_suite.store.rocks_store import DamageGuard

if TYPE_CHECKING:
    from scrapy_spider_suite.cluster.agent import Agent, ClusterAgent
    from scrapy_spider_suite.cluster.ledger.shared_limits import SharedAddresses, SharedLimits

logger = logging.getLogger(__name__)

WHILE_IDLE: Final = 1.0  # seconds between heartbeats of an idle agent: the end takes two rounds
PATIENCE: Final = 30.0  # seconds for which a starting agent asks Redis again
_LONG: Final = 1e9  # seconds of an endless lease in the stats
_FIRST, _MOST = 0.5, 5.0  # seconds until a failed Redis is asked again: at first, and at most


class MemberHeartbeat(ClusterMode):
    """Keeps *agent* a member of *registry*. *passing*: kinds of refusals that may pass."""

    passing: ClassVar = frozenset({"away", "ending"})  # Redis is away; the others are closing
    agent: ClusterAgent

    def __init__(self, agent: ClusterAgent, registry: AgentRegistry) -> None:
        self.away = ""  # why Redis cannot be used
        self.taken = 0  # free units that this agent took
        self.registry, self.agent = registry, agent
        self._ownership = agent.ownership
        self._known: Holders | None = None
        self._held = agent.ownership.mine  # as of then
        self._poked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._draining = False
        self._skew, self._clock_off = 0.0, False

    async def candidate(self) -> Candidate:
        raise NotImplementedError

    def joined(self, joined: RegistryAnswer) -> None:
        """Called after each join."""

    def units_changed(self) -> None:
        """Called when owners or holders changed."""
        self.agent.changed()

    def quiet_in(self) -> float:
        """Return the seconds until all fetches and delays are over, after no fetch may start."""
        return 0.0

    async def open(self) -> None:
        """Join. Raises `JoinRefusedError`, `RegistryError`: not within `PATIENCE` seconds."""
        until, wait = time.monotonic() + PATIENCE, _FIRST
        while True:
            try:
                await self._join()
                if self.registry.answer.ended:
                    logger.warning(HAS_ENDED)
                return
            except (RegistryError, JoinRefusedError) as error:
                away = isinstance(error, RegistryError)
                why = f"SUITE_REDIS_URL: {error}" if away else str(error)
                if error.kind not in self.passing or time.monotonic() + wait > until:
                    raise type(error)(why, error.kind) from error
                if wait == _FIRST:
                    logger.warning("%s; it is asked again for %g s", why, PATIENCE)
                self.away = str(error) if away else ""
                await asyncio.sleep(wait)
                wait = min(_MOST, 2 * wait)

    def start(self) -> None:
        self._task = logged_task(self._run(), "heartbeats")

    async def close(self, *, over: bool = False) -> None:
        await cancel_tasks(self._task)
        with suppress(RegistryError, FencedError):  # its lease runs out by itself
            await self.registry.announce_stop(self.quiet_in)
        await self.registry.close()

    def may_fetch(self, delay: float = 0.0) -> bool:
        return self.registry.lease.may_fetch(boottime(), time.time(), delay)

    def drain(self) -> None:
        self._draining = True
        self._poked.set()

    @property
    def stats(self) -> dict[str, int | float]:
        view, skew = self.registry.view, self.registry.skew
        seconds = self.registry.lease.seconds(boottime(), time.time())
        return {
            "cluster/agents": len(view.members), "cluster/epoch": view.epoch,
            "cluster/taken": self.taken, "cluster/away": int(bool(self.away)),
            "cluster/skew": 0.0 if skew is None else round(skew.offset, 3),
            "cluster/lease": round(max(0.0, min(seconds, _LONG)), 1),
        }  # fmt: skip

    # Heartbeats

    async def _run(self) -> None:
        wait = _FIRST
        while True:
            try:
                await self._beat()
                self._back()
                wait = _FIRST
                await wait_at_most(self._poked, WHILE_IDLE if self.agent.at_rest else HEARTBEAT)
                self._poked.clear()
            except RegistryError as error:
                self._failed(error)
                await asyncio.sleep(wait)
                wait = min(_MOST, 2 * wait)
            except FencedError as error:
                if not await self._rejoin(error):
                    return

    async def _beat(self) -> None:
        answer = await self.registry.renew(self.agent.heartbeat)
        skew = self.registry.skew
        why = "" if skew is None else clock_refusal(skew.offset, self._skew)
        if why and not self._clock_off:
            logger.warning(why)
        self._clock_off = bool(why)
        await self._update_view()
        row = self.registry.row
        if self._draining or (row is not None and row.state is not MemberState.ACTIVE):
            await self._drain()
        if answer.ended != self.ended:
            self.ended = answer.ended
            if self.ended:
                self.agent.over("")

    async def _rejoin(self, error: FencedError) -> bool:
        if not error.again:
            if self.registry.answer.code == MemberState.LEFT:
                self._end_drained()  # no answer came when it left
            else:
                logger.error("%s: this agent ends", error)
                reasons = (each for each in ("removed", "taken") if each in str(error))
                self.agent.over(next(reasons, "fenced"))
            return False
        logger.warning("%s: it joins again", error)
        try:
            await self._join()
        except RegistryError as away:
            self._failed(away)
            await asyncio.sleep(_MOST)
        except FencedError:
            await asyncio.sleep(_FIRST)
        except JoinRefusedError as refused:
            logger.error("%s: this agent ends", refused)
            self.agent.over("refused")
            return False
        return True

    async def _join(self) -> None:
        if not self.registry.lease.live(boottime(), time.time()):
            # Others may hold by now what it held.
            self._ownership.set_number(0)
            self.units_changed()
        candidate = await self.candidate()
        self._skew = candidate.skew
        joined = await self.registry.join(candidate)
        self._ownership.set_number(joined.number)
        self.joined(joined)
        await self._update_view(anew=True)
        self._back()
        answer = self.registry.answer
        if answer.claims > answer.now and not self._ownership.mine.any():
            logger.info(
                "Redis was started a moment ago, or has lost data: agents that held something may "
                "be on their way; what nobody has claimed is taken in %.0f s",
                (answer.claims - answer.now) / 1000,
            )  # fmt: skip

    async def _update_view(self, *, anew: bool = False) -> None:
        registry, ownership, known = self.registry, self._ownership, self._known
        other = ownership.epoch != registry.view.epoch
        if other:
            await self._set_members(registry.view)
        else:
            ownership.records = registry.view.numbers
        answer = registry.answer
        if known is not None and known.era != answer.era:
            await self._claim(known)
        moved = known is None or (known.era, known.moves) != (answer.era, answer.moves)
        if moved or other or anew:
            await self.update_holders()
        # A dead holder frees its units.
        free = ownership.free()
        if len(free) and (await registry.seize(free, ownership.epoch)).units.size:
            await self.update_holders()

    async def _set_members(self, view: Membership) -> None:
        ownership = self._ownership
        try:
            # It takes long where many are new.
            table = await asyncio.to_thread(ownership.table_of, view.members)
            if ownership.set_membership(view, table):
                members = ", ".join(member.name for member in view.members)
                logger.info("agents that share the crawl: %s", members or "none")
        except SettingsError as error:
            logger.error("%s: this agent ends", error)
            self.agent.over("refused")
        self.units_changed()

    async def _claim(self, known: Holders) -> None:
        mine = self._held.nonzero()[0].astype("u2")  # it may have had another number then
        if len(mine):
            claimed = await self.registry.claim(mine, known.at)
            logger.warning(
                "Redis was restarted, or has lost data: this agent has claimed %d of the %s that "
                "it held", len(claimed.units), counted(len(mine), "unit"),
            )  # fmt: skip

    async def update_holders(self) -> None:
        before = self._ownership.mine
        self._known = await self.registry.holders()
        self._ownership.set_holders(self._known)
        self._held = self._ownership.mine
        self.taken += int((self._held & ~before).sum())
        self.units_changed()

    async def _drain(self) -> None:
        row = self.registry.row
        self.agent.set_receiving(True)  # it is a member still, as the heartbeat said
        if row is not None and row.state is MemberState.ACTIVE and not await self.registry.leave():
            self._draining = False
            logger.error("there is no other agent that could take what this one has: it stays")
        elif not self._ownership.mine.any() and self.agent.at_rest:
            # What comes from now on would stay here.
            self.agent.set_receiving(False)
            if await self.registry.finish_leaving():
                self._end_drained()

    def _end_drained(self) -> None:
        logger.info("this agent has handed over everything, and ends")
        self.agent.over("drained")

    def _failed(self, error: RegistryError) -> None:
        if not self.away:
            logger.warning("%s; this agent goes on with what it has", error)
        self.away = str(error)

    def _back(self) -> None:
        if self.away:
            logger.info("Redis is back")
            self.away = ""


class RedisMode(MemberHeartbeat):
    """A member with pulses, shared addresses and the services of its *agent*.

    Raises `ValueError`: invalid crawl name or URL.
    """

    def __init__(self, agent: ClusterAgent) -> None:
        settings, name = agent.crawl.settings, agent.crawl_name
        refuse_short_lease(settings, agent.crawl.policy_file.policy.overrides.longest_delay)
        self.url = "" if settings.redis_url is None else settings.redis_url.url
        lease = AgentLease(settings.project.longest_fetch)
        registry = AgentRegistry(self.url, name, lease, incarnation=agent.incarnation)
        super().__init__(agent, registry)
        self._services = [PulseSender(agent, self.url), *(make(agent) for make in agent.services)]
        self._lapses = 0
        self._tasks: list[asyncio.Task[None]] = []
        agent.crawl.crawler.signals.connect(self._check_settings, settings_changing)

    def _check_settings(self, old: SuiteSettings, new: SuiteSettings) -> None:
        refuse_short_lease(new, new.longest_delay)

    def start(self) -> None:
        super().start()
        self._tasks += (logged_task(service.run(), "services") for service in self._services)
        if (addresses := self._addresses) is not None:
            self._tasks.append(logged_task(addresses.run(self.registry), "addresses"))

    @property
    def _addresses(self) -> SharedAddresses | None:
        limits = cast("SharedLimits | None", self.agent.crawl.rates)
        return None if limits is None else limits.addresses

    def quiet_in(self) -> float:
        return 0.0 if self._addresses is None else self._addresses.quiet_in()

    async def close(self, *, over: bool = False) -> None:
        await cancel_tasks(*self._tasks)
        await super().close(over=over)

    def joined(self, joined: RegistryAnswer) -> None:
        lapsed, self._lapses = self.registry.lapses != self._lapses, self.registry.lapses
        if lapsed and not joined.kept and (addresses := self._addresses) is not None:
            addresses.forget()
        logger.info(
            "this is agent %s, number %d, of the crawl %s%s", self.agent.name, joined.number,
            self.agent.crawl_name, ": it is back, and has what it had" if joined.kept else "",
        )  # fmt: skip

    @property
    def stats(self) -> dict[str, int | float]:
        found = super().stats
        for service in self._services:
            found |= service.stats
        return found


_AGAIN = 1.0  # seconds until hand-overs resume after the process was fenced


class PeersMode(RedisMode):
    """Mode ``peers`` of *agent*. Raises `ValueError`: invalid crawl name or URL."""

    agent: Agent

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        name = agent.crawl_name
        self.transport = RedisStreams(self.url, name, agent.name, agent.incarnation)
        self._file_transport: FileTransport | None = None
        self._handover: Handover | None = None
        self._id = ""
        agent.crawl.crawler.signals.connect(self._settings_changed, settings_changed)

    def _settings_changed(self, old: SuiteSettings, new: SuiteSettings) -> None:
        if self._file_transport is not None:
            self._file_transport.rate = new.handover_rate

    def start(self) -> None:
        super().start()
        self._tasks.append(logged_task(self._hand_over(), "hand-overs"))

    async def close(self, *, over: bool = False) -> None:
        await cancel_tasks(*self._tasks)
        if self._file_transport is not None:
            await self._file_transport.close()
        await super().close(over=over)

    async def _hand_over(self) -> None:
        assert self._handover is not None
        with DamageGuard(self.agent.crawl.store):
            while True:
                with suppress(FencedError):  # the next heartbeat says what comes of it
                    await self._handover.run(self._id)
                await asyncio.sleep(_AGAIN)

    async def candidate(self) -> Candidate:
        transport = self._file_transport or await self._start_handovers()
        agent, job, kv = self.agent, self.agent.job, self.agent.kv
        settings, phasing = agent.crawl.settings, agent.phasing
        return Candidate(
            name=agent.name, job=job.file.id, folder=folder_identity(job.folder),
            grace=settings.agent_grace, weight=settings.agent_weight,
            fixed=shared_settings(settings, agent.ownership.assignment), idle=agent.finished,
            most=settings.phases if phasing else 0, skew=phasing.skew if phasing else SKEW_MAX,
            address=transport.address, id=(kv.get(b"crawl") or b"").decode(),
            number=int(kv.get(b"number") or b"0"),
        )  # fmt: skip

    async def _start_handovers(self) -> FileTransport:
        agent, crawl = self.agent, self.agent.crawl
        folder = agent.job.folder / "handover"
        file_transport = await self._make_file_transport(crawl.settings, folder / "in")
        context = HandoverContext(
            crawl.frontier, agent.job.store, agent.ownership, lambda: (crawl.now(), time.time()),
            agent.changed, open_sieve=self._open_sieve, cookies=lambda: agent.job.cookies,
        )  # fmt: skip
        self._handover = Handover(
            context, file_transport, folder / "out", give=self.registry.give,
            update_holders=self.update_holders,
        )  # fmt: skip
        await file_transport.start(self._handover.inbox)
        self._file_transport = file_transport
        return file_transport

    def _open_sieve(self) -> None:
        crawl = self.agent.crawl  # whatever its SUITE_SEEN_STORE is: another agent hands one over
        self.agent.job.open_seen(replace(crawl.settings, seen_store="sieve"))
        crawl.frontier.states.use_sieve(active=crawl.settings.seen_store == "sieve")

    async def _make_file_transport(self, settings: SuiteSettings, folder: Path) -> FileTransport:
        rate, agent = settings.handover_rate, self.agent
        if settings.handover_dir is not None:
            return FolderTransport(settings.handover_dir, agent.crawl_name, agent.name, rate)
        given = settings.cluster_key
        key = await self.registry.secret() if given is None else given.text
        host, port = endpoint(settings.agent_address) if settings.agent_address else ("", 0)
        host = host or await asyncio.to_thread(own_address, self.url)
        return TcpTransport(host, port, key.encode(), folder, rate)

    def joined(self, joined: RegistryAnswer) -> None:
        self._id = joined.id
        agent = self.agent
        agent.kv.put(b"crawl", joined.id.encode())
        agent.kv.put(b"number", str(joined.number).encode())
        write_changes(agent.crawl)
        super().joined(joined)

    def units_changed(self) -> None:
        if self._handover is not None:
            self._handover.poke()
        super().units_changed()

    @property
    def busy(self) -> bool:
        return self._handover is None or self._handover.busy

    @property
    def stats(self) -> dict[str, int | float]:
        found: dict[str, Any] = super().stats
        if self._handover is not None:
            found |= {f"handover/{n}": v for n, v in self._handover.facts.items()}
        if self._file_transport is not None:
            counters = asdict(self._file_transport.counters)
            found |= {f"handover_transport/{n}": v for n, v in counters.items()}
        return found


def own_address(url: str) -> str:
    """Return this machine's address towards *url*; looks its name up."""
    parts = urlsplit(url)
    with suppress(OSError, ValueError):
        place = parts.hostname or "127.0.0.1", parts.port or 6379
        family = socket.getaddrinfo(*place, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family[0], socket.SOCK_DGRAM) as probe:
            probe.connect(family[4])  # sends nothing
            return str(probe.getsockname()[0])
    return "127.0.0.1"
