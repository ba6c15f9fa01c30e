"""The handler as a fixture, a `Client` on each event loop."""

from __future__ import annotations

import asyncio

import pytest
import uvloop
from helpers_client import Client, run_with

from scrapy_spider_suite.fetch.http1 import Http1Handler

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def client(request: pytest.FixtureRequest) -> Client:
    """The suite's handler on either loop."""
    return Client(Http1Handler, run_with(LOOPS[request.param]))
