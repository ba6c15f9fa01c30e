"""Several agents of one crawl in virtual time, each with a frontier of its own, and their mail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from scrapy_spider_suite.cluster.assignment import Assignment, Member, OwnerTable
from scrapy_spider_suite.cluster.mailbox import Outbox, OwnerOf, OwnerRouter, unpack_rows
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.store.rocks_store import Store
from support.virtual_crawl import POLICY, Crawl, Web

A_MESSAGE = 20


def owner_of(assignment: Assignment, table: OwnerTable) -> OwnerOf:
    """Whose a URL is, by *table*."""
    return lambda host, url: table.owner(assignment.unit(host, url))


@dataclass
class Agents:
    """As many agents as *stores*, which exchange messages every *beat* virtual seconds."""

    web: Web
    assignment: Assignment
    stores: Sequence[Store]
    seats: int = 64
    beat: float = 0.5
    cache: int = 0
    sift: bool = False
    policies: Sequence[Policy] = (POLICY,)
    """Of each; the last one of those that follow, too."""
    crawls: dict[str, Crawl] = field(default_factory=dict)
    routings: dict[str, OwnerRouter] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    heirs: dict[str, str] = field(default_factory=dict)
    """Who takes the messages of one that does not come back."""
    now: float = 0.0
    rows: int = 0
    links: int = 0

    def __post_init__(self) -> None:
        members = [Member(f"agent-{number}") for number in range(len(self.stores))]
        owner = owner_of(self.assignment, OwnerTable.of(self.assignment, members))
        for number, (member, store) in enumerate(zip(members, self.stores, strict=True)):
            routing = OwnerRouter(
                Outbox(store.kv("outbox")), owner, member.name, cache=self.cache,
                by_host=self.assignment.by_host,
            )  # fmt: skip
            self.routings[member.name] = routing
            policy = self.policies[min(number, len(self.policies) - 1)]
            self.crawls[member.name] = Crawl(
                store, self.web, policy, seats=self.seats, seed=number, sift=self.sift,
                routing=routing,
            )  # fmt: skip

    def each(self, what: Callable[[Crawl], None]) -> None:
        """Do *what* with each."""
        for crawl in self.crawls.values():
            what(crawl)

    @property
    def urls(self) -> list[str]:
        """What was fetched by any."""
        return [url for crawl in self.crawls.values() for url in crawl.urls]

    @property
    def over(self) -> bool:
        """Whether nothing is pending or on its way anywhere."""
        there = self.crawls.keys() - self.away
        frontiers = [self.crawls[name].frontier for name in there]
        waiting = any(frontier.pending or frontier.states.in_sieve for frontier in frontiers)
        return not waiting and not any(len(self.routings[name].outbox) for name in there)

    def run(self, until: float = 60_000.0) -> None:
        """Go on until all is over."""
        while not self.over and self.now < until:
            self.now += self.beat
            for crawl in self.crawls.values():
                crawl.run(until=self.now)
                crawl.now = max(crawl.now, self.now)
                crawl.frontier.flush()
            self.deliver()

    def deliver(self) -> None:
        """Bring what waits in the outboxes to where it belongs, in pieces of a few rows."""
        for name, routing in self.routings.items():
            if name in self.away:
                continue
            for to in routing.outbox.receivers:
                receiver = self.heirs.get(to, to)
                if receiver in self.away:
                    continue
                while message := list(islice(routing.outbox.rows(to), A_MESSAGE)):
                    frontier = self.crawls[receiver].frontier
                    entries = list(unpack_rows(row for _, row in message))
                    frontier.admission.schedule(entries, self.now)
                    frontier.flush()
                    routing.outbox.drop(to, message[0][0], message[-1][0])
                    self.rows += len(message)
                    self.links += len(entries)
            self.crawls[name].frontier.flush()
