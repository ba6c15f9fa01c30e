"""Fixtures: the download handler on each event loop, and a resolver with its name server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, cast

import pytest
import uvloop
from support.dns_server import Clock, NameServer, Run
from support.http_client import Client, run_with

from scrapy_spider_suite.fetch.address_rules import AddressPolicy
from scrapy_spider_suite.fetch.http1 import Http1Handler
from scrapy_spider_suite.fetch.resolver import Resolver, ResolverLimits

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def client(request: pytest.FixtureRequest) -> Client:
    """The suite's handler on either loop."""
    return Client(Http1Handler, run_with(LOOPS[request.param]))


@pytest.fixture
def nameserver() -> Iterator[NameServer]:
    """A name server that knows nothing yet."""
    server = NameServer()
    yield server
    server.close()


def _run_asyncio(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def _run_uvloop(main: Coroutine[Any, Any, None]) -> None:
    uvloop = pytest.importorskip("uvloop")
    uvloop.run(main)


@pytest.fixture(params=[_run_asyncio, _run_uvloop], ids=["asyncio", "uvloop"])
def run_on_loop(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine to its end, on asyncio's own loop and on uvloop's."""
    return cast("Run", request.param)


@pytest.fixture
def clock() -> Clock:
    """A clock that stands."""
    return Clock()


@pytest.fixture
def use(nameserver: NameServer, run_on_loop: Run, clock: Clock) -> Callable[..., None]:
    """Runs a scenario with a resolver that asks the name server of the test, and closes it."""

    def use(scenario: Callable[[Resolver], Coroutine[Any, Any, None]], **options: Any) -> None:
        async def main() -> None:
            options.setdefault("policy", AddressPolicy(False))
            options.setdefault("limits", ResolverLimits(ttl_min=60.0))
            resolver = Resolver(servers=[nameserver.address], now=clock, **options)
            try:
                await scenario(resolver)
            finally:
                resolver.close()

        run_on_loop(main())

    return use
