"""What an operator asks and orders in the registry of a crawl: for ``scrapy cluster``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from scrapy_spider_suite.agents.desk import EVERY, TIMEOUT, Desk, crawl_of
from scrapy_spider_suite.agents.members import FACTS_MAX, Answer, Tokens, View
from scrapy_spider_suite.agents.server import Server
from scrapy_spider_suite.errors import ClusterError

_Facts = dict[str, str | int | float | bool | None]


class Overview(NamedTuple):
    """A crawl at one moment."""

    id: str
    now: float
    """By Redis's clock."""

    view: View
    facts: dict[str, dict[str, Any]]
    """What each agent says of itself, by its name."""

    tokens: Tokens
    ended: bool
    fixed: dict[str, str]
    """The settings in which all agents agree, as text."""


async def crawls(url: str, *, timeout: float = TIMEOUT) -> list[str]:
    """The names of the crawls in the Redis at *url*, sorted.

    Raises `RegistryError`, and `ValueError`: there is no such URL.
    """
    server = Server(url, timeout)
    try:
        found = await server.names(EVERY)
    finally:
        await server.close()
    return sorted(name for key in found if (name := crawl_of(key)))


class Office(Desk):
    """The crawl *crawl* in the Redis at *url*. All its calls raise `RegistryError`."""

    async def overview(self) -> Overview | None:
        """The crawl; None if there is none of that name."""
        answer, data = await self._ask("look", {"facts": True})
        view = answer.view()
        if answer.code != "ok":
            return None
        return Overview(
            answer.id, answer.now / 1000, View(answer.epoch, ()) if view is None else view,
            dict(_facts(answer)), self._tokens(answer, data), answer.ended, self._fixed(answer),
        )  # fmt: skip

    def _fixed(self, answer: Answer) -> dict[str, str]:
        try:
            return msgspec.json.decode(answer.fixed, type=dict[str, str])
        except ValueError as error:
            raise self._damaged(error) from error

    async def remove(self, name: str, *, dead: bool = False) -> None:
        """Have others own what the agent *name* does.

        They may take it when its lease is over; at once if it is *dead*, which means that its
        process is known to be gone. Raises `ClusterError`: there is no such agent, or its lease
        has no end and it is not dead.
        """
        code = await self._order("remove", target=name, dead=dead)
        if code == "unknown":
            raise ClusterError(f"no agent of the crawl has the name {name}")
        if code == "endless":
            raise ClusterError(
                f"the lease of {name} has no end: see that its process is gone, and say that it is"
            )

    async def release(self) -> None:
        """Let the owners take what nobody holds, after Redis lost who held it.

        All agents that held something must be there. Raises `ClusterError`: no such crawl.
        """
        await self._order("release")

    async def forget(self) -> None:
        """Remove the crawl, and the letters of its agents, from Redis.

        Raises `ClusterError`: an agent of it runs.
        """
        answer, _ = await self._ask("order", {"order": "forget"})
        if answer.code == "busy":
            raise ClusterError(f"{answer.name} is at work on the crawl: stop it first")

    async def _order(self, order: str, **given: Any) -> str:
        answer, _ = await self._ask("order", {"order": order, **given})
        if answer.code == "lost":
            raise ClusterError("there is no crawl of that name")
        return answer.code


def _facts(answer: Answer) -> Iterator[tuple[str, dict[str, Any]]]:
    """What agents say; what is not what they say is left out."""
    flat = answer.facts if isinstance(answer.facts, list) else []
    for name, text in zip(flat[::2], flat[1::2], strict=False):
        try:
            known = msgspec.json.decode(text[:FACTS_MAX], type=_Facts)
        except ValueError:
            continue
        yield name, known
