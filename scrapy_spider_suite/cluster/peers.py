"""Mode ``peers``: agents that meet in Redis; heartbeats, joining, claims, the end.

While Redis is away the agent goes on until its lease is nearly over, then starts no fetch.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from scrapy_spider_suite.cluster.agreement import shared_settings
from scrapy_spider_suite.cluster.handover.handover import Handover
from scrapy_spider_suite.cluster.handover.handover_context import HandoverContext
from scrapy_spider_suite.cluster.handover.handover_file import FileTransport
from scrapy_spider_suite.cluster.membership import (
    HEARTBEAT,
    SKEW_MAX,
    AgentLease,
    Candidate,
    Holders,
    Membership,
    MemberState,
    clock_refusal,
    folder_identity,
    refuse_short_lease,
)
from scrapy_spider_suite.cluster.mode import HAS_ENDED, AgentContext
from scrapy_spider_suite.cluster.registry import AgentRegistry, Joined
from scrapy_spider_suite.cluster.transports.redis_streams import RedisStreams
from scrapy_spider_suite.cluster.transports.shared_folder import FolderTransport
from scrapy_spider_suite.cluster.transports.tcp import TcpTransport
from scrapy_spider_suite.errors import FencedError, JoinRefusedError, RegistryError, SettingsError
from scrapy_spider_suite.runtime.clock import boottime
from scrapy_spider_suite.runtime.tasks import cancel_tasks, logged_task, wait_at_most
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.settings.values import endpoint
from scrapy_spider_suite.signals import settings_changed, settings_changing
from scrapy_spider_suite.store.rocks_store import condemn_on_damage

if TYPE_CHECKING:
    from scrapy_spider_suite.cluster.agent import Agent
    from scrapy_spider_suite.cluster.ledger.shared_addresses import SharedAddresses

logger = logging.getLogger(__name__)

WHILE_IDLE: Final = 1.0
"""Seconds between heartbeats of an idle agent: the end takes two rounds."""
PATIENCE: Final = 30.0
"""Seconds for which a starting agent asks Redis again, after one of `_PASSES`."""
_PASSES: Final = ("away", "ending")  # passing refusals: Redis is away; the others are closing
_LONG: Final = 1e9  # seconds of an endless lease in the stats
_FIRST, _MOST = 0.5, 5.0  # seconds until a failed Redis is asked again: at first, and at most


class MemberHeartbeat:
    """Keeps an agent a member of *registry*.

    Attributes:
        away: why Redis cannot be used, or "".
        moved: free units that this agent took.
    """

    def __init__(
        self, context: AgentContext, registry: AgentRegistry,
        candidate: Callable[[], Awaitable[Candidate]], *, idle: Callable[[], bool],
        joined: Callable[[Joined], None], hear: Callable[[bool], None],
    ) -> None:  # fmt: skip
        self.ended = False
        self.away = ""
        self.moved = 0
        self.registry = registry
        self._candidate = candidate
        self._ownership = context.ownership
        self._changed, self._post, self._over = context.changed, context.heartbeat, context.over
        self._idle, self._joined, self._hear = idle, joined, hear
        self._known: Holders | None = None
        self._held = context.ownership.mine  # as of then
        self._poked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._draining = False
        self._skew, self._clock_off = 0.0, False

    # Life

    async def open(self) -> None:
        """Join, and learn the holders.

        Raises `JoinRefusedError`, `RegistryError`: not within `PATIENCE` seconds.
        """
        until, wait, told = time.monotonic() + PATIENCE, _FIRST, False
        while True:
            try:
                await self._join()
                if self.registry.answer.ended:
                    logger.warning(HAS_ENDED)
                return
            except (RegistryError, JoinRefusedError) as error:
                away = isinstance(error, RegistryError)
                why = f"SUITE_REDIS_URL: {error}" if away else str(error)
                if error.kind not in _PASSES or time.monotonic() + wait > until:
                    raise type(error)(why, error.kind) from error
                if not told:
                    logger.warning("%s; it is asked again for %g s", why, PATIENCE)
                told = True
                self.away = str(error) if away else ""
                await asyncio.sleep(wait)
                wait = min(_MOST, 2 * wait)

    def start(self) -> None:
        self._task = logged_task(self._run(), "heartbeats")

    async def close(self, quiet: Callable[[], float] = lambda: 0.0) -> None:
        """Stop, and announce a return; *quiet*: see `AgentRegistry.announce_stop`."""
        await cancel_tasks(self._task)
        with suppress(RegistryError, FencedError):  # its lease runs out by itself
            await self.registry.announce_stop(quiet)
        await self.registry.close()

    def poke(self) -> None:
        self._poked.set()

    def may_fetch(self, delay: float = 0.0) -> bool:
        return self.registry.lease.may_fetch(boottime(), time.time(), delay)

    def drain(self) -> None:
        self._draining = True
        self.poke()

    @property
    def facts(self) -> dict[str, int | float]:
        view, skew = self.registry.view, self.registry.skew
        seconds = self.registry.lease.seconds(boottime(), time.time())
        return {
            "agents": len(view.members), "epoch": view.epoch, "taken": self.moved,
            "away": int(bool(self.away)),
            "skew": 0.0 if skew is None else round(skew.offset, 3),
            "lease": round(max(0.0, min(seconds, _LONG)), 1),
        }  # fmt: skip

    # Heartbeats

    async def _run(self) -> None:
        wait = _FIRST
        while True:
            try:
                await self._beat()
                self._back()
                wait = _FIRST
                await wait_at_most(self._poked, WHILE_IDLE if self._idle() else HEARTBEAT)
                self._poked.clear()
            except RegistryError as error:
                self._failed(error)
                await asyncio.sleep(wait)
                wait = min(_MOST, 2 * wait)
            except FencedError as error:
                if not await self._again(error):
                    return

    async def _beat(self) -> None:
        answer = await self.registry.renew(self._post)
        self._look_at_clock()
        await self._learn()
        row = self.registry.row
        if self._draining or (row is not None and row.state is not MemberState.ACTIVE):
            await self._drain()
        if answer.ended != self.ended:
            self.ended = answer.ended
            if self.ended:
                self._over("")

    def _look_at_clock(self) -> None:
        skew = self.registry.skew
        why = "" if skew is None else clock_refusal(skew.offset, self._skew)
        if why and not self._clock_off:
            logger.warning(why)
        self._clock_off = bool(why)

    async def _again(self, error: FencedError) -> bool:
        if not error.again:
            if self.registry.answer.code == MemberState.LEFT:
                self._drained()  # no answer came when it left
            else:
                logger.error("%s: this agent ends", error)
                reasons = (each for each in ("removed", "taken") if each in str(error))
                self._over(next(reasons, "fenced"))
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
            self._over("refused")
            return False
        return True

    async def _join(self) -> None:
        if not self.registry.lease.live(boottime(), time.time()):
            # Others may hold by now what it held.
            self._ownership.set_number(0)
            self._changed()
        candidate = await self._candidate()
        self._skew = candidate.skew
        joined = await self.registry.join(candidate)
        self._ownership.set_number(joined.number)
        self._joined(joined)
        await self._learn(anew=True)
        self._back()
        answer = self.registry.answer
        if answer.claims > answer.now and not self._ownership.mine.any():
            logger.info(
                "Redis was started a moment ago, or has lost data: agents that held something may "
                "be on their way; what nobody has claimed is taken in %.0f s",
                (answer.claims - answer.now) / 1000,
            )  # fmt: skip

    # What changes

    async def _learn(self, *, anew: bool = False) -> None:
        registry, ownership = self.registry, self._ownership
        other = ownership.epoch != registry.view.epoch
        if other:
            await self._meet(registry.view)
        else:
            ownership.update_members(registry.view)
        known = self._known
        answer = registry.answer
        if known is not None and known.era != answer.era:
            await self._claim(known)
        moved = known is None or (known.era, known.moves) != (answer.era, answer.moves)
        if moved or other or anew:
            await self.look()
        # Who is dead frees what it held.
        free = ownership.free()
        if len(free) and (await registry.seize(free, ownership.epoch)).units.size:
            await self.look()

    async def _meet(self, view: Membership) -> None:
        ownership = self._ownership
        try:
            # It takes long where many are new.
            table = await asyncio.to_thread(ownership.table_of, view.members)
            if ownership.set_membership(view, table):
                members = ", ".join(member.name for member in view.members)
                logger.info("agents that share the crawl: %s", members or "none")
        except SettingsError as error:
            logger.error("%s: this agent ends", error)
            self._over("refused")
        self._changed()

    async def _claim(self, known: Holders) -> None:
        mine = self._held.nonzero()[0].astype("u2")  # it may have had another number then
        if len(mine):
            claimed = await self.registry.claim(mine, known.at)
            logger.warning(
                "Redis was restarted, or has lost data: this agent has claimed %d of the %s that "
                "it held", len(claimed.units), counted(len(mine), "unit"),
            )  # fmt: skip

    async def look(self) -> None:
        """Update the holders. Raises as the registry does."""
        before = self._ownership.mine
        self._known = await self.registry.holders()
        self._ownership.set_holders(self._known)
        self._held = self._ownership.mine
        taken = int((self._held & ~before).sum())
        self.moved += taken
        self._changed()

    # Going

    async def _drain(self) -> None:
        row = self.registry.row
        self._hear(True)  # it is a member still, as the heartbeat said
        if row is not None and row.state is MemberState.ACTIVE and not await self.registry.leave():
            self._draining = False
            logger.error("there is no other agent that could take what this one has: it stays")
        elif not self._ownership.mine.any() and self._idle():
            # What comes from now on would stay here.
            self._hear(False)
            if await self.registry.finish_leaving():
                self._drained()

    def _drained(self) -> None:
        logger.info("this agent has handed over everything, and ends")
        self._over("drained")

    # Redis

    def _failed(self, error: RegistryError) -> None:
        if not self.away:
            logger.warning("%s; this agent goes on with what it has", error)
        self.away = str(error)

    def _back(self) -> None:
        if self.away:
            logger.info("Redis is back")
            self.away = ""


HANDOVER_FOLDER = "handover"
"""In the job directory, for hand-over files."""
_AGAIN = 1.0  # seconds until hand-overs resume after the process was fenced


class PeersMode:
    """Mode ``peers`` of *agency*. Raises `ValueError`: invalid crawl name or URL."""

    def __init__(self, agency: Agent, context: AgentContext) -> None:
        crawl, job = agency.crawl, agency.job
        settings = crawl.settings
        self._agency = agency
        self._job = job
        self._url = "" if settings.redis_url is None else settings.redis_url.url
        self._kv, incarnation = context.kv, context.incarnation
        lease = AgentLease(settings.project.longest_fetch)
        self._registry = AgentRegistry(self._url, agency.crawl_name, lease, incarnation=incarnation)
        self._peer = MemberHeartbeat(
            replace(context, changed=self._changed), self._registry, self._candidate,
            idle=lambda: agency.at_rest, joined=self._joined, hear=agency.set_receiving,
        )  # fmt: skip
        self.transport = RedisStreams(self._url, agency.crawl_name, agency.name, incarnation)
        self._services = [make(agency) for make in agency.services]
        self._file_transport: FileTransport | None = None
        self._handover: Handover | None = None
        self._id = ""
        self._lapses = 0
        self._tasks: list[asyncio.Task[None]] = []
        crawl.crawler.signals.connect(self._check_settings, settings_changing)
        crawl.crawler.signals.connect(self._settings_changed, settings_changed)

    def _check_settings(self, old: SuiteSettings, new: SuiteSettings) -> None:
        refuse_short_lease(new, new.longest_delay)

    def _settings_changed(self, old: SuiteSettings, new: SuiteSettings) -> None:
        if self._file_transport is not None:
            self._file_transport.throttle.rate = new.handover_rate

    # Life

    async def open(self) -> None:
        await self._peer.open()

    async def meet(self) -> None:
        ...

    def start(self) -> None:
        self._peer.start()
        self._tasks = [
            logged_task(self._hand_over(), "hand-overs"),
            *(logged_task(service.run(), "services") for service in self._services),
        ]  # fmt: skip
        if (addresses := self._addresses) is not None:
            self._tasks.append(logged_task(addresses.run(self._registry), "addresses"))

    @property
    def _addresses(self) -> SharedAddresses | None:
        limits = self._agency.limits
        return None if limits is None else limits.addresses

    async def close(self, *, over: bool = False) -> None:
        await cancel_tasks(*self._tasks)
        if self._file_transport is not None:
            await self._file_transport.close()
        addresses = self._addresses
        await self._peer.close((lambda: 0.0) if addresses is None else addresses.quiet_in)

    async def _hand_over(self) -> None:
        while self._handover is not None:
            with condemn_on_damage(self._agency.crawl.store):
                try:
                    await self._handover.run(self._id)
                except FencedError:
                    await asyncio.sleep(_AGAIN)  # the next heartbeat says what comes of it
                    continue
            return

    # Joining

    async def _candidate(self) -> Candidate:
        if self._file_transport is None:
            await self._receive()
        agency, job = self._agency, self._job
        settings, terms = agency.crawl.settings, agency.phasing and agency.phasing.terms
        return Candidate(
            name=agency.name, job=job.file.id, folder=folder_identity(job.folder),
            grace=settings.agent_grace, weight=settings.agent_weight,
            fixed=shared_settings(settings, agency.ownership.assignment), idle=agency.finished,
            most=terms.phases if terms else 0, skew=terms.skew if terms else SKEW_MAX,
            address="" if self._file_transport is None else self._file_transport.address,
            id=(self._kv.get(b"crawl") or b"").decode(),
            number=int(self._kv.get(b"number") or b"0"),
        )  # fmt: skip

    async def _receive(self) -> None:
        crawl, folder = self._agency.crawl, self._job.folder / HANDOVER_FOLDER
        file_transport = await self._make_file_transport(crawl.settings, folder / "in")
        context = HandoverContext(
            crawl.frontier, self._job.store, self._agency.ownership,
            lambda: (crawl.now(), time.time()), self._agency.changed, open_sieve=self._open_sieve,
        )  # fmt: skip
        self._handover = Handover(
            context, file_transport, folder / "out", give=self._registry.give, look=self._peer.look
        )
        await file_transport.start(self._handover.inbox)
        self._file_transport = file_transport

    def _open_sieve(self) -> None:
        """Open a sieve whatever SUITE_SEEN_STORE is: another agent hands one over."""
        crawl = self._agency.crawl
        self._job.open_seen(replace(crawl.settings, seen_store="sieve"))
        crawl.frontier.states.use_sieve(active=crawl.settings.seen_store == "sieve")

    async def _make_file_transport(self, settings: SuiteSettings, folder: Path) -> FileTransport:
        rate, name = settings.handover_rate, self._agency.name
        if settings.handover_dir is not None:
            return FolderTransport(settings.handover_dir, self._agency.crawl_name, name, rate)
        if settings.cluster_key is None:
            key = await self._registry.secret()
        else:
            key = settings.cluster_key.text
        host, port = endpoint(settings.agent_address) if settings.agent_address else ("", 0)
        host = host or await asyncio.to_thread(own_address, self._url)
        return TcpTransport(host, port, key.encode(), folder, rate)

    def _joined(self, joined: Joined) -> None:
        self._id = joined.id
        lapsed, self._lapses = self._registry.lapses != self._lapses, self._registry.lapses
        if lapsed and not joined.kept and (addresses := self._addresses) is not None:
            addresses.forget()
        self._kv.put(b"crawl", joined.id.encode())
        self._kv.put(b"number", str(joined.number).encode())
        self._agency.crawl.write()
        logger.info(
            "this is agent %s, number %d, of the crawl %s%s", self._agency.name, joined.number,
            self._agency.crawl_name, ": it is back, and has what it had" if joined.kept else "",
        )  # fmt: skip

    def _changed(self) -> None:
        if self._handover is not None:
            self._handover.poke()
        self._agency.changed()

    # What is asked

    @property
    def ended(self) -> bool:
        return self._peer.ended

    @property
    def busy(self) -> bool:
        return self._handover is None or self._handover.busy

    def may_fetch(self, delay: float = 0.0) -> bool:
        return self._peer.may_fetch(delay)

    def drain(self) -> None:
        self._peer.drain()

    @property
    def stats(self) -> dict[str, int | float]:
        found: dict[str, Any] = {f"cluster/{n}": v for n, v in self._peer.facts.items()}
        if self._handover is not None:
            found |= {f"handover/{n}": v for n, v in self._handover.facts.items()}
        if self._file_transport is not None:
            found |= {
                f"handover_transport/{n}": v
                for n, v in asdict(self._file_transport.counters).items()
            }
        for service in self._services:
            found |= service.stats
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
