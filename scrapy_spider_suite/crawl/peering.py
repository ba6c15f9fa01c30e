"""An agent whose crawl meets in Redis: its membership, its hand-overs, and who asks it what."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapy_spider_suite.agents.lease import Lease
from scrapy_spider_suite.agents.listening import Listener
from scrapy_spider_suite.agents.members import SKEW_MAX, Candidate
from scrapy_spider_suite.agents.registry import Joined, Registry
from scrapy_spider_suite.agents.seats import seat_of
from scrapy_spider_suite.agents.streams import Streams
from scrapy_spider_suite.cluster.both_ways import HandOver
from scrapy_spider_suite.cluster.courier import Courier
from scrapy_spider_suite.cluster.folders import FolderCourier
from scrapy_spider_suite.cluster.peer import Peer, no_time
from scrapy_spider_suite.cluster.tcp import TcpCourier
from scrapy_spider_suite.control.calling import Calling
from scrapy_spider_suite.crawl.terms import fixed_of
from scrapy_spider_suite.errors import FencedError
from scrapy_spider_suite.runtime.tasks import watched
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.settings.values import endpoint
from scrapy_spider_suite.store.rocks_store import reading

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.agency import Agency
    from scrapy_spider_suite.crawl.company import Company

logger = logging.getLogger(__name__)

FOLDER = "handover"
"""In the job directory, for parcels that go and that come."""
_AGAIN = 1.0
"""Seconds after which hand-overs go on that a process had to leave that was not the member."""


class Peering:
    """The `cluster.members.Members` of *agency*, a process with that *incarnation*.

    Raises:
        ValueError: the crawl has no name for Redis, or there is no such URL.
    """

    def __init__(self, agency: Agency, incarnation: int) -> None:
        core, job = agency.core, agency.job
        settings = core.settings
        self._agency = agency
        self._job = job
        self._url = "" if settings.redis_url is None else settings.redis_url.url
        self._kv = core.store.kv("agent")
        lease = Lease(settings.project.longest_fetch)
        self._registry = Registry(self._url, agency.crawl, lease, incarnation=incarnation)
        self._peer = Peer(
            self._registry, self._candidate, agency.shares, changed=self._changed,
            post=agency.post, idle=lambda: agency.at_rest, over=agency.over, joined=self._joined,
            hear=agency.hear,
        )  # fmt: skip
        self.transport = Streams(self._url, agency.crawl, agency.name, incarnation)
        calling = Calling(job.folder, job.file.id, agency.name)
        self._listener = Listener(self._url, agency.crawl, agency.name, calling)
        self._courier: Courier | None = None
        self._handover: HandOver | None = None
        self._id = ""
        self._lapses = 0
        self._tasks: list[asyncio.Task[None]] = []

    # Life

    async def open(self) -> None:
        """See `Members`."""
        await self._peer.open()

    def start(self) -> None:
        """See `Members`."""
        self._peer.start()
        self._tasks = [
            watched(self._hand_over(), "hand-overs"), watched(self._listener.run(), "calls"),
        ]  # fmt: skip
        if (company := self._company) is not None:
            self._tasks.append(watched(company.run(self._registry), "addresses"))

    @property
    def _company(self) -> Company | None:
        sharing = self._agency.core.sharing
        return None if sharing is None else sharing.company

    async def close(self, *, over: bool = False) -> None:
        """See `Members`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._courier is not None:
            await self._courier.close()
        company = self._company
        await self._peer.close(no_time if company is None else company.quiet_in)

    async def _hand_over(self) -> None:
        while self._handover is not None:
            with reading(self._agency.core.store):
                try:
                    await self._handover.run(self._id)
                except FencedError:
                    await asyncio.sleep(_AGAIN)  # the next heartbeat says what comes of it
                    continue
            return

    # Joining

    async def _candidate(self) -> Candidate:
        """What joins: with an address at which parcels are taken already."""
        if self._courier is None:
            await self._receive()
        agency, job = self._agency, self._job
        settings, terms = agency.core.settings, agency.phasing and agency.phasing.terms
        return Candidate(
            name=agency.name, job=job.file.id, seat=seat_of(job.folder),
            grace=settings.agent_grace, weight=settings.agent_weight,
            fixed=fixed_of(settings, agency.assignment), idle=agency.finished,
            most=terms.phases if terms else 0, skew=terms.skew if terms else SKEW_MAX,
            address="" if self._courier is None else self._courier.address,
            id=(self._kv.get(b"crawl") or b"").decode(),
            number=int(self._kv.get(b"number") or b"0"),
        )  # fmt: skip

    async def _receive(self) -> None:
        core, folder = self._agency.core, self._job.folder / FOLDER
        courier = await self._make_courier(core.settings, folder / "in")
        hands = core.frontier.hands(self._job.store)._replace(open_sieve=self._open_sieve)
        self._handover = HandOver(
            hands, self._agency.shares, courier, folder / "out",
            lambda: (core.now(), time.time()), give=self._registry.give, look=self._peer.look,
            changed=self._agency.changed,
        )  # fmt: skip
        await courier.start(self._handover.inbox)
        self._courier = courier

    def _open_sieve(self) -> None:
        """Have a sieve whatever SUITE_SEEN is: another agent has one, and hands it over."""
        core = self._agency.core
        core.open_seen(replace(core.settings, seen="sieve"))
        core.frontier.use_sieve(active=core.settings.seen == "sieve")

    async def _make_courier(self, settings: SuiteSettings, folder: Path) -> Courier:
        rate, name = settings.handover_rate, self._agency.name
        if settings.handover_dir is not None:
            return FolderCourier(settings.handover_dir, self._agency.crawl, name, rate)
        if settings.cluster_key is None:
            key = await self._registry.secret()
        else:
            key = settings.cluster_key.text
        host, port = endpoint(settings.agent_address) if settings.agent_address else ("", 0)
        host = host or await asyncio.to_thread(own_address, self._url)
        return TcpCourier(host, port, key.encode(), folder, rate)

    def _joined(self, joined: Joined) -> None:
        self._id = joined.id
        lapsed, self._lapses = self._registry.lapses != self._lapses, self._registry.lapses
        if lapsed and not joined.kept and (company := self._company) is not None:
            company.forget()
        self._kv.put(b"crawl", joined.id.encode())
        self._kv.put(b"number", str(joined.number).encode())
        self._agency.core.write()
        logger.info(
            "this is agent %s, number %d, of the crawl %s%s", self._agency.name, joined.number,
            self._agency.crawl, ": it is back, and has what it had" if joined.kept else "",
        )  # fmt: skip

    def _changed(self) -> None:
        if self._handover is not None:
            self._handover.poke()
        self._agency.changed()

    # What is asked

    @property
    def ended(self) -> bool:
        """See `Members`."""
        return self._peer.ended

    @property
    def busy(self) -> bool:
        """See `Members`."""
        return self._handover is None or self._handover.busy

    def may_fetch(self, delay: float = 0.0) -> bool:
        """See `Members`."""
        return self._peer.may_fetch(delay)

    def drain(self) -> None:
        """See `Members`."""
        self._peer.drain()

    @property
    def stats(self) -> dict[str, int | float]:
        """See `Members`."""
        found: dict[str, Any] = {f"cluster/{n}": v for n, v in self._peer.facts.items()}
        if self._handover is not None:
            found |= {f"handover/{n}": v for n, v in self._handover.facts.items()}
        if self._courier is not None:
            found |= {f"courier/{n}": v for n, v in self._courier.counters.as_dict().items()}
        return found | {f"calls/{n}": v for n, v in asdict(self._listener.counters).items()}


def own_address(url: str) -> str:
    """The address of this machine from which it reaches *url*; takes a look-up of its name."""
    parts = urlsplit(url)
    with suppress(OSError, ValueError):
        place = parts.hostname or "127.0.0.1", parts.port or 6379
        family = socket.getaddrinfo(*place, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family[0], socket.SOCK_DGRAM) as probe:
            probe.connect(family[4])  # sends nothing
            return str(probe.getsockname()[0])
    return "127.0.0.1"
