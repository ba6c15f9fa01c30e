"""What each value of SUITE_CLUSTER must do, and what the crawl offers to it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy_spider_suite.cluster.agent import Agent
    from scrapy_spider_suite.crawl.context import Crawl

HAS_ENDED: Final = (
    "the crawl has ended: this agent has nothing to do, and ends unless it finds more; give it "
    "URLs with `scrapy frontier add`, or begin another crawl with other values of "
    "SUITE_CRAWL_NAME and JOBDIR"
)
"""Logged by an agent that is started after the end."""


class CrawlControl(Protocol):
    """What the scheduler offers to an agent."""

    crawl: Crawl

    @property
    def gate(self) -> object | None: ...

    @property
    def closing(self) -> bool: ...

    @property
    def starting(self) -> bool: ...

    @property
    def paused(self) -> bool: ...

    @property
    def pauses(self) -> Collection[str]: ...

    def has_work(self) -> bool: ...

    def pause(self, reason: str) -> None: ...

    def unpause(self, reason: str) -> None: ...

    def stop(self, reason: str) -> None: ...

    def abandon(self) -> None: ...


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

    def start(self) -> None:
        """Begin to exchange news with the other agents."""

    async def close(self, *, over: bool = False) -> None:
        """Stop; the agent will be back unless the crawl is *over* for it."""

    def may_fetch(self, delay: float = 0.0) -> bool:
        """Whether a fetch started now, and *delay* seconds after it, end before another agent may
        hold the host."""
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
