"""How an agent and the others of its crawl know of each other: the shape of `peer` and of `lan`."""

from __future__ import annotations

from typing import Final, Protocol

HAS_ENDED: Final = (
    "the crawl has ended: this agent has nothing to do, and ends unless it finds more; give it "
    "URLs with `scrapy frontier add`, or begin another crawl with other values of "
    "SUITE_CRAWL_NAME and JOBDIR"
)
"""What an agent says that is started again after that."""


class ClusterMode(Protocol):
    """One agent among the others."""

    @property
    def ended(self) -> bool:
        """The crawl is over: all agents are idle."""
        ...

    async def open(self) -> None:
        """Take part, and learn who owns and who holds what.

        Raises `ClusterError`, `SettingsError`.
        """

    def start(self) -> None:
        """Hear of the others, and let them hear, from now on."""

    async def close(self, *, over: bool = False) -> None:
        """Stop; this agent will be back, unless the crawl is *over* for it."""

    def may_fetch(self, delay: float = 0.0) -> bool:
        """Whether a fetch that is started now ends, and *delay* seconds after it are over, before
        anybody else may hold what is here."""
        ...

    def drain(self) -> None:
        """Hand over everything, then end."""

    @property
    def busy(self) -> bool:
        """Whether anything is being handed over, or is to be."""
        ...

    @property
    def stats(self) -> dict[str, int | float]:
        """Each for ``suite/...``."""
        ...
