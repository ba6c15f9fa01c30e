"""Which Redis, and which crawl there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from scrapy.exceptions import UsageError

from scrapy_spider_suite.agents.calls import Caller
from scrapy_spider_suite.cluster.registry import ClusterAdmin, ClusterOverview, list_crawls
from scrapy_spider_suite.commands.verb import Call
from scrapy_spider_suite.errors import ClusterError
from scrapy_spider_suite.settings.values import RedisUrl, redis_url

T = TypeVar("T")

_SHOWN = 10


class Place(NamedTuple):
    """A crawl in a Redis."""

    redis: RedisUrl
    crawl: str


class Line(NamedTuple):
    """Open connections to the agents of a crawl, and how they were a moment ago."""

    place: Place
    office: ClusterAdmin
    caller: Caller
    overview: ClusterOverview


def redis_of(text: str | None) -> RedisUrl:
    """The Redis that *text* names. Raises `UsageError`: it names none."""
    try:
        found = redis_url().parse(text or "")
    except ValueError as error:
        raise UsageError(f"-j: {error}", print_help=False) from None
    if not isinstance(found, RedisUrl):
        raise UsageError("which Redis? give -j redis://HOST/0, or set SUITE_REDIS_URL",
                         print_help=False)  # fmt: skip
    return found


def name_of(call: Call) -> str | None:
    """The name of the crawl that *call* is about, if it says it."""
    return call.crawl or call.settings.get("SUITE_CRAWL_NAME")


async def find(redis: RedisUrl, name: str | None) -> Place:
    """The crawl *name* in *redis*; without a name the only one there is.

    Raises `ClusterError`: there is none, or more than one; or a crawl cannot have that name.
    """
    if name:
        return Place(redis, name)
    try:
        names = await list_crawls(redis.url)
    except ValueError as error:
        raise ClusterError(f"{redis}: {error}") from None
    if not names:
        raise ClusterError(f"Redis at {redis} holds no crawl of several agents")
    if len(names) > 1:
        some = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        raise ClusterError(f"Redis at {redis} holds {len(names)} crawls: give --crawl, of {some}")
    return Place(redis, names[0])


@asynccontextmanager
async def lines(redis: RedisUrl, name: str | None) -> AsyncIterator[Line]:
    """Connections to the crawl *name* in *redis*. Raises `ClusterError`: it is not there."""
    place = await find(redis, name)
    try:
        office, caller = ClusterAdmin(redis.url, place.crawl), Caller(redis.url, place.crawl)
    except ValueError as error:
        raise ClusterError(f"--crawl: {error}") from None
    try:
        overview = await office.overview()
        if overview is None:
            names = ", ".join((await list_crawls(redis.url))[:_SHOWN]) or "none"
            raise ClusterError(
                f"Redis at {redis} holds no crawl {place.crawl!r}; those there are: {names}"
            )
        yield Line(place, office, caller, overview)
    finally:
        await office.close()
        await caller.close()


def run(work: Coroutine[Any, Any, T]) -> T:
    """What *work* returns."""
    return asyncio.run(work)
