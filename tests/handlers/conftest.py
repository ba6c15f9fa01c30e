"""The handlers as fixtures, each as a `Client` on its event loop."""

from __future__ import annotations

import asyncio

import pytest
import uvloop
from helpers_client import Client, Run, run_with

from scrapy_spider_suite.handlers.http1 import Http1Handler
from scrapy_spider_suite.handlers.pinned import PinnedHTTP11Handler

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def http1(request: pytest.FixtureRequest) -> Client:
    """The suite's own handler on either loop."""
    return Client(Http1Handler, run_with(LOOPS[request.param]))


@pytest.fixture
def pinned(run: Run) -> Client:
    """Scrapy's handler, pinned, on the reactor's loop."""
    return Client(PinnedHTTP11Handler, run)


@pytest.fixture(params=["pinned", *LOOPS])
def client(request: pytest.FixtureRequest, run: Run) -> Client:
    """Each handler of the suite; the contract that they share is tested on it."""
    if request.param == "pinned":
        return Client(PinnedHTTP11Handler, run)
    return Client(Http1Handler, run_with(LOOPS[request.param]))
