"""A site and a crawl for each test of Scrapy's features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from support.inprocess_crawls import Crawled, Crawling, crawl_here
from support.websites import Site, running


@pytest.fixture
def site() -> Iterator[Site]:
    """A running site without pages."""
    with running(Site()) as server:
        yield server


@pytest.fixture(scope="session")
def _threads() -> Iterator[None]:
    """The reactor's threads, which it starts by itself only when it is run as a whole."""
    from twisted.internet import reactor

    pool = reactor.getThreadPool()
    pool.start()
    yield
    pool.stop()


@pytest.fixture
def crawl(run: Callable[[Any], Any], _threads: None) -> Crawling:
    """Run a spider in this process: ``crawl(spidercls, addon=True, SETTING=value)``."""

    def crawl_it(*args: Any, **kwargs: Any) -> Crawled:
        crawled: Crawled = run(crawl_here(*args, **kwargs))
        return crawled

    return crawl_it


@pytest.fixture(params=[True, False], ids=["suite", "plain"])
def either(request: pytest.FixtureRequest, crawl: Crawling) -> Any:
    """`crawl` with the add-on, and once more without: Scrapy itself meets the same expectations."""
    return partial(crawl, addon=request.param)
