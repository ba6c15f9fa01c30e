"""What the values of SUITE_CLUSTER have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from scrapy_spider_suite.cluster.agent import Agent
    from scrapy_spider_suite.cluster.messages import Message, MessageTransport

HAS_ENDED: Final = (
    "the crawl has ended: this agent has nothing to do, and ends unless it finds more; give it "
    "URLs with `scrapy frontier add`, or begin another crawl with other values of "
    "SUITE_CRAWL_NAME and JOBDIR"
)
"""Logged by an agent that is started after the end."""


class Service(Protocol):
    """Work for others that an agent does while it is a member of the crawl."""

    @property
    def stats(self) -> dict[str, int]:
        """By their names without ``suite/``."""

    async def run(self) -> None:
        """Serve until cancelled."""


ServiceFactory: TypeAlias = "Callable[[Agent], Service]"


class ClusterMode:
    """One agent among the other agents.

    Attributes:
        ended: all agents are idle: the crawl is over.
        busy: a hand-over is under way, or due.
        listens: notices are expected.
        stats: by their names without ``suite/``.
    """

    transport: MessageTransport
    ended = False
    listens = False

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
        return True

    def drain(self) -> None:
        """Hand over all hosts, then end."""

    @property
    def busy(self) -> bool:
        return False

    @property
    def stats(self) -> dict[str, int | float]:
        return {}

    # Messages

    def heard(self, sender: str, message: Sequence[Any]) -> None:
        """Take a notice. Raises `ValueError` or `TypeError` for invalid ones."""
        raise ValueError("no messages are expected")

    def accepts(self, message: Message) -> bool:
        """Whether to store the rows of *message*; otherwise they stay with their sender."""
        return True

    def agrees(self, to: str) -> bool:
        """Whether the agent *to* stores rows of this agent."""
        return True
