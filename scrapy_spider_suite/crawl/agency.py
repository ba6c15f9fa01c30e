"""This crawl as one agent of several: what the core, the scheduler and the gate ask (``cluster``).

Made before the frontier, which asks it whose a URL is; at work from the opening of the scheduler to
its close.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import Request
from xxhash import xxh3_64_hexdigest

from scrapy_spider_suite.agents.assignment import assignment_of, fingerprint
from scrapy_spider_suite.agents.datagrams import Datagrams, parse_agents
from scrapy_spider_suite.agents.lease import Lease
from scrapy_spider_suite.agents.letters import Packer
from scrapy_spider_suite.agents.members import Candidate, Post
from scrapy_spider_suite.agents.tables import Assignment
from scrapy_spider_suite.agents.transport import Transport
from scrapy_spider_suite.cluster.known import KnownRows
from scrapy_spider_suite.cluster.lan import Neighbour
from scrapy_spider_suite.cluster.mail import Mail, nobody_listens
from scrapy_spider_suite.cluster.members import Members
from scrapy_spider_suite.cluster.shares import Shares
from scrapy_spider_suite.crawl.requests import hostname
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.exceptions import HostBarred
from scrapy_spider_suite.settings.declarations import Kind, full_name, words
from scrapy_spider_suite.settings.project import is_crawl
from scrapy_spider_suite.settings.suite import DECLARATIONS, SuiteSettings
from scrapy_spider_suite.storage.outbox import Outbox
from scrapy_spider_suite.storage.routing import Routing

if TYPE_CHECKING:
    from scrapy_spider_suite.agents.registry import Joined
    from scrapy_spider_suite.crawl.core import CrawlCore
    from scrapy_spider_suite.job.directory import Job
    from scrapy_spider_suite.scheduler import FrontierScheduler
    from scrapy_spider_suite.storage.leases import Lease as FrontierLease

logger = logging.getLogger(__name__)

_SOON = 5.0
"""Seconds for which a host waits that this agent may not visit now."""
_CACHE = 4
"""Of SUITE_SEEN_CACHE, the part that remembers what was sent to others."""
_RATE = 10.0
"""Seconds over which the rate of pages is told."""
_LONGEST = 300
"""Characters of a setting's value, in which agents are compared; of longer ones the hash."""


def agency_of(core: CrawlCore) -> Agency | None:
    """The agency of *core*; None where it crawls alone. Raises `SettingsError`."""
    if not core.settings.cluster or not is_crawl(core.crawler):
        return None
    if core.job is None:
        raise SettingsError.of("SUITE_CLUSTER", core.settings.cluster, "'' without JOBDIR")
    return Agency(core, core.job)


class Agency:
    """One agent, of the *job* of *core*.

    Attributes:
        name: of this agent.
        crawl: the name of the crawl.
        only_waiting: nothing is left here but hosts that wait for longer than SUITE_MAX_WAIT.
    """

    def __init__(self, core: CrawlCore, job: Job) -> None:
        settings, spider = core.settings, core.crawler.spider
        self.name = settings.agent_name or socket.gethostname()
        self.crawl = settings.crawl_name or ("" if spider is None else spider.name)
        self.only_waiting = False
        self.assignment = assignment_of(settings.assignment)
        self.shares = Shares(self.assignment, self.name)
        self.routing = Routing(
            Outbox(core.store.kv("outbox")), self.shares.owner, self.name,
            by_host=self.assignment.by_host, cache=settings.seen_cache // _CACHE,
            shared_seeds=settings.shared_seeds,
        )  # fmt: skip
        self._core, self._job = core, job
        self._kv = core.store.kv("agent")
        self._members: Members | None = None
        self._mail: Mail | None = None
        self._scheduler: FrontierScheduler | None = None
        self._heard: Callable[[str, list[Any]], None] = nobody_listens
        self._rate = Rate()

    # Life

    async def open(self, scheduler: FrontierScheduler) -> None:
        """Take part. Raises `ClusterError`, `SettingsError`, `OSError`."""
        self._scheduler = scheduler
        incarnation = secrets.randbits(64)
        self._hold()
        make = self._peer if self._core.settings.cluster == "peers" else self._neighbour
        try:
            self._members, transport = make(incarnation)
        except ValueError as error:
            raise SettingsError(f"SUITE_CLUSTER: {error}") from error
        self._mail = Mail(
            self._core.frontier, self.routing, transport,
            Packer(self.name, incarnation, transport.bounds),
            KnownRows(self._core.store.kv("received")), self.shares, written=self._core.written,
            clock=self._core.now, news=self._core.wake, heard=self._heard,
        )  # fmt: skip
        await self._members.open()
        await self._mail.start()
        self._members.start()

    def _peer(self, incarnation: int) -> tuple[Members, Transport]:
        # Redis is an extra.
        from scrapy_spider_suite.agents.registry import Registry
        from scrapy_spider_suite.agents.streams import Streams
        from scrapy_spider_suite.cluster.peer import Peer

        settings = self._core.settings
        url = "" if settings.redis_url is None else settings.redis_url.url
        lease = Lease(settings.project.download_timeout)
        peer = Peer(
            Registry(url, self.crawl, lease, incarnation=incarnation), self._candidate(),
            self.shares, changed=self._changed, post=self.post, over=self._over,
            joined=self._joined,
        )  # fmt: skip
        return peer, Streams(url, self.crawl, self.name, incarnation)

    def _neighbour(self, incarnation: int) -> tuple[Members, Transport]:
        settings = self._core.settings
        agents = parse_agents(settings.agents)
        key = "" if settings.cluster_key is None else settings.cluster_key.text
        fixed = fixed_of(settings, self.assignment)
        terms = xxh3_64_hexdigest(repr(sorted(fixed.items())).encode())
        neighbour = Neighbour(
            list(agents), self.shares, incarnation, terms, changed=self._changed, post=self.post,
            over=self._over,
        )  # fmt: skip
        neighbour.tell = self._tell
        self._heard = neighbour.heard
        return neighbour, Datagrams(self.name, agents, key.encode())

    def _tell(self, to: str, message: Sequence[Any]) -> bool:
        return self._mail is not None and self._mail.tell(to, message)

    def _candidate(self) -> Candidate:
        settings, job = self._core.settings, self._job
        return Candidate(
            name=self.name, job=job.file.id, seat=_seat(job), grace=settings.agent_grace,
            weight=settings.agent_weight, address="", fixed=fixed_of(settings, self.assignment),
            id=(self._kv.get(b"crawl") or b"").decode(),
            number=int(self._kv.get(b"number") or b"0"),
        )  # fmt: skip

    def _joined(self, joined: Joined) -> None:
        self._kv.put(b"crawl", joined.id.encode())
        self._kv.put(b"number", str(joined.number).encode())
        self._core.write()
        logger.info(
            "this is agent %s, number %d, of the crawl %s%s", self.name, joined.number, self.crawl,
            ": it is back, and has what it had" if joined.kept else "",
        )  # fmt: skip

    async def close(self) -> None:
        """Stop; the others know that this agent will be back."""
        if self._mail is not None:
            await self._mail.close()
        if self._members is not None:
            await self._members.close()

    # What changes

    def _changed(self) -> None:
        """Others own, or hold, what they did not before."""
        self._hold()
        if self._mail is not None:
            self._mail.reroute()
        self._core.wake()

    def _hold(self) -> None:
        elsewhere, by_host = self.shares.elsewhere, self.assignment.by_host
        self._core.frontier.holding.change(elsewhere, by_host=by_host)

    def _over(self, reason: str) -> None:
        if self._scheduler is not None and (reason or self.only_waiting):
            self._scheduler.stop(reason or "waiting")
        self._core.wake()

    # What is asked

    @property
    def ended(self) -> bool:
        """Whether the crawl is over, everywhere."""
        return self._members is not None and self._members.ended

    def may_fetch(self) -> bool:
        """Whether a fetch may be started: nobody else can hold before its end what is here."""
        return self._members is not None and self._members.may_fetch()

    def refuse_fetch(self, request: Request, lease: FrontierLease | None) -> None:
        """Raise `HostBarred` if this agent may not send *request* now.

        What has no visit may go to a host of another agent only by a ledger that all share.
        """
        until = time.time() + _SOON
        if not self.may_fetch():
            raise HostBarred("the lease of this agent has run out", until)
        if lease is not None:
            elsewhere = self._core.frontier.holding.holds_back(lease.entry)
        else:
            elsewhere = self._core.settings.ledger is None and self.shares.elsewhere(
                hostname(request), request.url
            )
        if elsewhere:
            raise HostBarred(
                "another agent has the host; with SUITE_LEDGER both may send requests there", until
            )

    def drain(self) -> None:
        """Hand over everything, then end."""
        if self._members is not None:
            self._members.drain()

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do here."""
        scheduler, mail = self._scheduler, self._mail
        if scheduler is None or mail is None or scheduler.starting or self._core.stays_open:
            return False
        done = self.only_waiting or not scheduler.has_work()
        return done and mail.idle and self.shares.settled

    def post(self) -> Post:
        """What this agent says of itself, with each heartbeat."""
        outbox, counters = self.routing.outbox, self._core.frontier.counters
        taken = 0 if self._mail is None else self._mail.taken
        return Post(
            epoch=self.shares.epoch, idle=self.idle, sent=outbox.put_in, received=outbox.dropped,
            activity=counters.sequence + counters.done + counters.failed + taken,
            facts=self._facts(),
        )  # fmt: skip

    def _facts(self) -> dict[str, str | int | float | None]:
        core = self._core
        frontier, phases = core.frontier, core.overriding.policy.phases
        done = frontier.counters.done
        return {
            "machine": socket.gethostname(), "pid": os.getpid(), "job": str(self._job.path),
            "hosts": len(frontier.workbench.hosts), "pending": frontier.pending, "done": done,
            "failed": frontier.counters.failed, "rate": self._rate.of(core.now(), done),
            "lag": len(self.routing.outbox),
            "phase": None if phases is None else phases.active(time.time()) + 1,
            "paused": bool(self._scheduler is not None and self._scheduler.paused),
        }  # fmt: skip

    def publish(self) -> None:
        """Set the stats."""
        stats = self._core.crawler.stats
        if self._mail is not None:
            for name, value in self._mail.counters.items():
                stats.set_value(f"suite/mail/{name}", value)
        if self._members is not None:
            for name, number in self._members.facts.items():
                stats.set_value(f"suite/cluster/{name}", number)
        stats.set_value("suite/mail/waiting", len(self.routing.outbox))
        stats.set_value("suite/mail/spared", self.routing.spared)
        stats.set_value("suite/cluster/foreign_seeds", self.routing.foreign_seeds)
        stats.set_value("suite/cluster/units", int(self.shares.mine.sum()))


def fixed_of(settings: SuiteSettings, assignment: Assignment) -> dict[str, str]:
    """The settings in which the agents of a crawl have to agree, by name, as text."""
    fixed = {
        full_name(name): _short(words(getattr(settings, name)))
        for name, declared in DECLARATIONS.items() if declared.kind is Kind.FIXED
    }  # fmt: skip
    del fixed["SUITE_AGENT_GRACE"]  # which the registry compares
    fixed["SUITE_ASSIGNMENT"] += f" ({fingerprint(assignment)})"
    return fixed


def _short(text: str) -> str:
    """*text*, or what tells it from others."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}… ({xxh3_64_hexdigest(text.encode())})"


def _seat(job: Job) -> str:
    """What only the same directory on the same running machine has: see `Candidate`."""
    status = job.folder.stat()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = job.file.id + str(time.time())  # no proof: a process that was killed is waited for
    return f"{boot}:{status.st_dev}:{status.st_ino}"


class Rate:
    """Pages by second, over the last ten seconds or so."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def of(self, now: float, done: int) -> float:
        """The rate, where *done* pages are done at *now*."""
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _RATE:
            self._seen.pop(0)
        then, before = self._seen[0]
        return round((done - before) / (now - then), 2) if now > then else 0.0
