"""One agent of a crawl: its mode, its mailbox, and what the scheduler and the gate ask of it."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from scrapy.utils.defer import deferred_from_coro

from scrapy_spider_suite.cluster.assignment import Assignment, load_assignment
from scrapy_spider_suite.cluster.lan import make_lan_mode
from scrapy_spider_suite.cluster.ledger.shared_limits import SharedLimits
from scrapy_spider_suite.cluster.mailbox import ClusterMode, Mailbox, Outbox, OwnerRouter
from scrapy_spider_suite.cluster.membership import AgentPhase, Heartbeat, Ownership
from scrapy_spider_suite.cluster.redis_server import require_redis
from scrapy_spider_suite.crawl.context import make_durable, stays_open
from scrapy_spider_suite.errors import SettingsError, SuiteError
from scrapy_spider_suite.exceptions import HostExcluded
from scrapy_spider_suite.runtime.refusal import refuse, running_command
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.project import is_crawl

if TYPE_CHECKING:
    from scrapy_spider_suite.analysis.time_series import Array
    from scrapy_spider_suite.crawl.context import Crawl, Engine
    from scrapy_spider_suite.crawl.queue.leases import Fetch
    from scrapy_spider_suite.store.job_directory import Job

logger = logging.getLogger(__name__)

_RATE_SECONDS: Final = 10.0  # over which the rate of pages is measured
OUTBOX_ROWS = 2_500_000  # rows for other agents at which the crawl pauses: 0.1 to 4 KB each
OUTBOX_FULL = "the outbox"
_OUTBOX_CHECK = 1.0  # seconds between two checks of a full outbox
_DISK = 0.25  # seconds between two tries to write to a store that failed
_PORTIONS = 0.01  # seconds between two portions of re-admitted rows
_SOON = 5.0  # seconds for which a host waits that this agent may not visit now
_CACHE = 4  # the share of `seen_cache` that remembers URLs sent to others
_DONE = ("finished", "waiting")  # finish reasons with which all agents end


def make_agent(crawl: Crawl) -> ClusterAgent | None:
    """Return the agent of *crawl*; None if it crawls alone. Raises `SettingsError`."""
    if not crawl.settings.cluster or not is_crawl(crawl.crawler):
        return None
    if crawl.job is None:
        raise SettingsError.of("SUITE_CLUSTER", crawl.settings.cluster, "JOBDIR to be set with it")
    if crawl.settings.cluster == "shared-queue":
        require_redis("SUITE_CLUSTER = 'shared-queue'")
        from scrapy_spider_suite.cluster.shared_queue import Fetcher  # it loads redis-py

        return Fetcher(crawl, crawl.job)
    return Agent(crawl, crawl.job)


class ClusterAgent:
    """One process of a crawl of several; made before the frontier, which asks its `routing`."""

    routing: OwnerRouter
    phasing: AgentPhase | None = None
    queued = 0

    def __init__(self, crawl: Crawl, job: Job, assignment: Assignment) -> None:
        settings, spider = crawl.settings, crawl.crawler.spider
        self.crawl, self.job = crawl, job
        self.name = settings.agent_name or socket.gethostname()
        self.crawl_name = settings.crawl_name or ("" if spider is None else spider.name)
        self.incarnation = secrets.randbits(64)  # of this process
        self.kv = crawl.store.kv("agent")
        self.only_waiting = False  # all hosts left wait for longer than SUITE_MAX_WAIT
        self.services: list[Callable[[ClusterAgent], Any]] = []  # see `PeersMode`
        self.ownership = Ownership(assignment, self.name)
        self._mode: ClusterMode | None = None
        self._scheduler: Engine | None = None
        self._fetched: list[tuple[float, int]] = []  # of the last seconds: time, pages until then

    async def open(self, scheduler: Engine) -> None:
        """Join the crawl. Raises `ClusterError`, `SettingsError`, `OSError`."""
        raise NotImplementedError

    async def close(self, reason: str = "") -> None:
        """Stop for *reason*; the other agents wait for this one unless the crawl is over."""
        raise NotImplementedError

    def changed(self) -> None:
        """Ownership or holders changed."""

    def set_receiving(self, on: bool) -> None:
        """Whether URLs of other agents are stored."""

    def over(self, reason: str) -> None:
        """Stop: the crawl is over (""), or the agent ends for *reason*."""
        if self._scheduler is not None and (reason or self.only_waiting):
            self._scheduler.stop(reason or "waiting")
        self.crawl.wake()

    @property
    def ended(self) -> bool:
        return self._mode is not None and self._mode.ended

    def drain(self) -> None:
        if self._mode is not None:
            self._mode.drain()

    async def write_durably(self) -> None:
        """Make the store durable; waits while that fails."""
        await make_durable(self.crawl)
        while self.crawl.store.backlog:
            await asyncio.sleep(_DISK)
            await make_durable(self.crawl)

    def is_elsewhere(self, host: str, url: str) -> bool:
        """Whether another agent fetches *url* of *host*."""
        raise NotImplementedError

    def refuse_fetch(self, host: str, url: str, fetch: Fetch | None, delay: float) -> None:
        """Raise `HostExcluded` if a request for *url*, and *delay* seconds after it, may not run
        here now.
        """
        until = time.time() + _SOON
        if self._mode is None or not self._mode.may_fetch(delay):
            raise HostExcluded("the lease of this agent has run out", until)
        if fetch is not None:
            elsewhere = self.crawl.frontier.leases.foreign.holds_back(fetch.entry)
        else:
            alone = self.crawl.settings.rate_ledger is None
            elsewhere = alone and self.is_elsewhere(host, url)
        if elsewhere:
            raise HostExcluded(
                "another agent has the host; with SUITE_RATE_LEDGER both may send requests there",
                until,
            )

    def may_fetch(self) -> bool:
        """Whether a fetch may start: its host cannot get another holder before its end."""
        return self._mode is not None and self._mode.may_fetch() and self.outbox_has_room()

    def outbox_has_room(self) -> bool:
        """Whether what is found may be kept until others take it."""
        raise NotImplementedError

    @property
    def finished(self) -> bool:
        """Whether nothing is left of the job, and nothing may come."""
        return not (self._has_rows or stays_open(self.crawl))

    @property
    def _has_rows(self) -> bool:
        raise NotImplementedError

    @property
    def at_rest(self) -> bool:
        """Whether this agent has nothing to do."""
        raise NotImplementedError

    def heartbeat(self) -> Heartbeat:
        raise NotImplementedError

    def _facts(self) -> dict[str, str | int | float | None]:
        crawl, scheduler, mode = self.crawl, self._scheduler, self._mode
        frontier, phases = crawl.frontier, crawl.policy_file.policy.phases
        recent = self._fetched
        recent.append((crawl.now(), frontier.statistics().fetched))
        while len(recent) > 2 and recent[-1][0] - recent[1][0] >= _RATE_SECONDS:
            recent.pop(0)
        (then, before), (now, fetched) = recent[0], recent[-1]
        rate = round((fetched - before) / (now - then), 2) if now > then else 0.0
        return {
            "machine": socket.gethostname(), "pid": os.getpid(), "job": str(self.job.path),
            "hosts": len(frontier.workbench.hosts), "pending": frontier.pending,
            "pages": frontier.counters.pages, "failed": frontier.counters.failures, "rate": rate,
            "lag": len(self.routing.outbox),
            "phase": None if phases is None else phases.active(time.time()) + 1,
            "paused": scheduler is not None and scheduler.paused,
            "pauses": "" if scheduler is None else ", ".join(sorted(scheduler.pauses)),
            "skew": None if mode is None else mode.stats.get("cluster/skew"),
        }  # fmt: skip

    def queue_pulses(self) -> dict[str, tuple[Array, Array]]:
        """Counters and gauges (`pulses.PART_COLUMNS`) of the queues of a shared queue."""
        return {}

    def publish(self) -> None:
        for name, value in self.stats.items():
            self.crawl.crawler.stats.set_value(f"suite/{name}", value)

    @property
    def stats(self) -> dict[str, int | float]:
        """By their names without ``suite/``."""
        return {} if self._mode is None else self._mode.stats


class Agent(ClusterAgent):
    """An agent that exchanges URLs with the others, which all its parts see."""

    def __init__(self, crawl: Crawl, job: Job) -> None:
        settings = crawl.settings
        assignment = load_assignment(settings.assignment)
        super().__init__(crawl, job, assignment)
        self.outbox = Outbox(crawl.store.kv("outbox"))
        self.routing = OwnerRouter(
            self.outbox, self.ownership.owner, self.name,
            by_host=assignment.by_host, cache=settings.seen_cache // _CACHE,
            shared_seeds=settings.shared_seeds, by_slot=self.ownership.by_slot,
        )  # fmt: skip
        # With a part of every host, agents take turns.
        self.phasing = None if assignment.by_host else AgentPhase(crawl, self.ownership)
        self._mailbox: Mailbox | None = None
        self._readmitting: asyncio.TimerHandle | None = None

    async def open(self, scheduler: Engine) -> None:
        """Join the crawl. Raises `ClusterError`, `SettingsError`, `OSError`."""
        self._scheduler = scheduler
        if self.phasing is not None:
            self.phasing.check()
        self.changed()
        try:
            self._mode = self._make_mode()
        except ValueError as error:
            raise SettingsError(f"SUITE_CLUSTER: {error}") from error
        self._mailbox = Mailbox(self, self._mode)
        await self._mode.open()
        await self._mailbox.start()
        self._mode.start()
        await self._mode.meet()

    def _make_mode(self) -> ClusterMode:
        if self.crawl.settings.cluster == "peers":
            require_redis("SUITE_CLUSTER = 'peers'")
            from scrapy_spider_suite.cluster.peers import PeersMode  # it loads redis-py

            return PeersMode(self)
        return make_lan_mode(self)

    def send_notice(self, to: str, message: Sequence[Any]) -> bool:
        return self._mailbox is not None and self._mailbox.send_notice(to, message)

    async def close(self, reason: str = "") -> None:
        """Stop for *reason*; the other agents wait for this one unless the crawl is over."""
        if self._readmitting is not None:
            self._readmitting.cancel()
        if self._mailbox is not None:
            await self._mailbox.close()
        if self._mode is not None:
            await self._mode.close(over=reason in _DONE)

    def changed(self) -> None:
        """Ownership or holders changed: re-address the outbox, hold hosts back or admit them."""
        elsewhere, by_host = self.ownership.is_held_elsewhere, self.ownership.assignment.by_host
        self.crawl.frontier.leases.foreign.set_rule(elsewhere, by_host=by_host)
        if self.phasing is not None:
            self.phasing.changed()
        if self._mailbox is not None:
            self._mailbox.readdress_outbox()
        self._plan_readmission()

    def _plan_readmission(self) -> None:
        self.crawl.wake()
        if self._readmitting is None and self.crawl.frontier.leases.foreign.busy:
            loop = asyncio.get_running_loop()
            self._readmitting = loop.call_later(_PORTIONS, self._readmit)

    def _readmit(self) -> None:
        self._readmitting = None
        self.crawl.frontier.leases.foreign.step()
        self._plan_readmission()

    def set_receiving(self, on: bool) -> None:
        if self._mailbox is not None:
            self._mailbox.set_receiving(on)

    def outbox_has_room(self) -> bool:
        """False: the outbox is full, and the crawl pauses until a tenth of it is free."""
        scheduler, outbox = self._scheduler, self.outbox
        if scheduler is None or len(outbox) < OUTBOX_ROWS:
            return True
        if OUTBOX_FULL not in scheduler.pauses:
            most = sorted(outbox.receivers.items(), key=lambda each: -each[1])[:3]
            logger.warning(
                "the outbox is full: %s for other agents (%s): the crawl pauses until some are "
                "taken; nothing is lost", counted(len(outbox), "row waits", "rows wait"),
                ", ".join(f"{name} {rows:,}" for name, rows in most),
            )  # fmt: skip
            self.crawl.crawler.stats.inc_value("suite/outbox/pauses")
            scheduler.pause(OUTBOX_FULL)
            self._check_outbox(scheduler)
        return False

    def _check_outbox(self, scheduler: Engine) -> None:
        rows = len(self.outbox)
        if scheduler.closing:
            return
        if rows > OUTBOX_ROWS * 9 // 10:
            asyncio.get_running_loop().call_later(_OUTBOX_CHECK, self._check_outbox, scheduler)
        else:
            waiting = counted(rows, "row waits", "rows wait")
            logger.info("%s for other agents: the crawl goes on", waiting)
            scheduler.unpause(OUTBOX_FULL)

    @property
    def _has_rows(self) -> bool:
        frontier = self.crawl.frontier
        return bool(frontier.pending or frontier.states.in_sieve or len(self.routing.outbox))

    @property
    def at_rest(self) -> bool:
        scheduler, mailbox, mode = self._scheduler, self._mailbox, self._mode
        if scheduler is None or mailbox is None or mode is None or mode.busy:
            return False
        done = self.only_waiting or not (scheduler.starting or scheduler.has_work())
        return done and mailbox.idle and self.ownership.settled

    def heartbeat(self) -> Heartbeat:
        outbox, counters = self.outbox, self.crawl.frontier.counters
        stored = 0 if self._mailbox is None else self._mailbox.stored
        idle = self.at_rest and not stays_open(self.crawl)
        return Heartbeat(
            epoch=self.ownership.epoch, idle=idle, left=self._has_rows and not idle,
            sent=outbox.put_in, received=outbox.dropped,
            activity=counters.sequence + counters.done + counters.failed + stored,
            facts=self._facts(),
        )  # fmt: skip

    def is_elsewhere(self, host: str, url: str) -> bool:
        return self.ownership.is_held_elsewhere(host, url)

    @property
    def stats(self) -> dict[str, int | float]:
        found: dict[str, int | float] = {
            "messages/waiting": len(self.routing.outbox), "messages/spared": self.routing.spared,
            "cluster/foreign_seeds": self.routing.foreign_seeds,
            "cluster/units": int(self.ownership.mine.sum()),
        }  # fmt: skip
        if self._mailbox is not None:
            found |= {f"messages/{name}": n for name, n in self._mailbox.counters.items()}
        return found | super().stats


Partners: TypeAlias = "list[SharedLimits | ClusterAgent]"
_PATIENCE = 1.0  # seconds to wait for cancelled tasks and other crawls of the process


async def join_cluster(others: Partners, scheduler: Engine) -> None:
    """Open *others* in order, before any fetch.

    Raises the `SuiteError` of a refusal; under a command, ends the process.
    """
    async def open_all() -> None:
        for each in others:
            await each.open(scheduler)

    opening = asyncio.ensure_future(open_all())
    closed = asyncio.Event()

    async def shut_down() -> None:
        await _give_up(opening, others, scheduler, "shutdown")
        tasks = asyncio.all_tasks()
        # `CrawlerProcess` runs the engine by Deferreds: it logs a cancellation with a traceback.
        if all(getattr(each.get_coro(), "__name__", "") != "open_spider_async" for each in tasks):
            closed.set()
            if left := tasks - {asyncio.current_task()}:
                await asyncio.wait(left, timeout=_PATIENCE)

    with _before_shutdown(shut_down):
        try:
            await opening
        except asyncio.CancelledError:
            await closed.wait()
            raise  # Scrapy's tasks end by it, too
        except (SuiteError, OSError) as error:
            await _give_up(opening, others, scheduler, "refused")
            if running_command() is None:
                raise
            # A Deferred would swallow it.
            asyncio.get_running_loop().call_soon(refuse, error)
            await asyncio.get_running_loop().create_future()


async def _give_up(
    opening: asyncio.Future[None], others: Partners, scheduler: Engine, reason: str
) -> None:
    scheduler.abandon()
    opening.cancel()
    for each in others:
        await each.close()
    scheduler.crawl.close_job(reason)


@contextmanager
def _before_shutdown(what: Callable[[], Coroutine[Any, Any, None]]) -> Iterator[None]:
    """Have the reactor run *what* before it stops: Scrapy cannot stop while it opens a crawl."""
    if "twisted.internet.reactor" not in sys.modules:
        yield
        return
    from twisted.internet import reactor as installed

    reactor: Any = installed
    begun = False

    def begin() -> Any:
        nonlocal begun
        begun = True
        return deferred_from_coro(what())

    trigger = reactor.addSystemEventTrigger("before", "shutdown", begin)
    try:
        yield
    finally:
        if not begun:
            reactor.removeSystemEventTrigger(trigger)
