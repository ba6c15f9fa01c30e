"""The protocol of a value of SUITE_CLUSTER, and the crawl's side of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from scrapy_spider_suite.cluster.membership import Heartbeat
from scrapy_spider_suite.cluster.ownership import Ownership
from scrapy_spider_suite.store.interface import KV

if TYPE_CHECKING:
    from scrapy_spider_suite.cluster.agent import Agent

HAS_ENDED: Final = (
    "the crawl has ended: this agent has nothing to do, and ends unless it finds more; give it "
    "URLs with `scrapy frontier add`, or begin another crawl with other values of "
    "SUITE_CRAWL_NAME and JOBDIR"
)
"""Logged by an agent that is started after the end."""


@dataclass(frozen=True, slots=True)
class AgentContext:
    """Shared by the parts of one agent.

    Attributes:
        incarnation: 64 random bits of this process.
        kv: the agent's mapping in the store.
        written: makes the store durable; waits while that fails.
        heartbeat: returns the agent's report.
        changed: called when the agent owns or holds other units.
        over: called once, with "" at the crawl's end, or a reason to end: ``removed``,
            ``replaced``,
            ``drained``, ``refused``.
    """

    ownership: Ownership
    incarnation: int
    job_id: str
    kv: KV
    written: Callable[[], Awaitable[None]]
    heartbeat: Callable[[], Heartbeat]
    changed: Callable[[], None]
    over: Callable[[str], None]

    @property
    def name(self) -> str:
        return self.ownership.name


class Service(Protocol):
    """Work for others that an agent does while it is a member of the crawl."""

    async def run(self) -> None:
        """Serve until cancelled."""

    @property
    def stats(self) -> dict[str, int]:
        """By the names of stats, without ``suite/``."""
        ...


ServiceFactory: TypeAlias = "Callable[[Agent], Service]"


class ClusterMode(Protocol):
    """One agent among the other agents."""

    @property
    def ended(self) -> bool:
        """Whether all agents are idle: the crawl is over."""
        ...

    async def open(self) -> None:
        """Join; learn owners and holders. Raises `ClusterError`, `SettingsError`."""

    async def meet(self) -> None:
        """Wait until fetches may begin. Raises `JoinRefusedError`."""

    def start(self) -> None:
        """Begin to exchange news with the other agents."""

    async def close(self, *, over: bool = False) -> None:
        """Stop; the agent will be back unless the crawl is *over* for it."""

    def may_fetch(self, delay: float = 0.0) -> bool:
        """Whether a fetch started now, and *delay* seconds after it, end in time."""
        ...

    def drain(self) -> None:
        """Hand over all hosts, then end."""

    @property
    def busy(self) -> bool:
        """Whether a hand-over is under way, or due."""
        ...

    @property
    def stats(self) -> dict[str, int | float]:
        """By the names of stats, without ``suite/``."""
        ...
