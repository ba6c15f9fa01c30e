"""Which host is where, and who answers for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scrapy_spider_suite.testing import FakeWeb, FakeWebConfig, SyntheticWeb
from scrapy_spider_suite.testing.fake_web import (
    HANGING,
    REFUSED,
    HostTable,
    LoopbackEndpoint,
    extra_endpoints,
)
from scrapy_spider_suite.testing.name_server import SERVED

Ask = Callable[..., Any]


def directory(config: FakeWebConfig) -> HostTable:
    """A directory of as many endpoints as *config* needs."""
    count = config.addresses + extra_endpoints(config) + 2
    places = [LoopbackEndpoint(f"127.8.0.{number + 1}", 8080) for number in range(count)]
    return HostTable(config, SyntheticWeb(config, (8080,)), places)


def test_hosts_share_the_pool_and_the_rest_have_their_own(tmp_path: Path) -> None:
    """Synthetic hosts first, then special names, sites, and the two that do not serve."""
    config = FakeWebConfig(hosts=6, addresses=3, sites={"a.test": str(tmp_path)})
    found = directory(config)
    pool = [found.address(f"h{k:06d}.fake.test") for k in range(6)]
    assert pool == ["127.8.0.1", "127.8.0.2", "127.8.0.3"] * 2
    assert {found.address(name) for name in SERVED} == {"127.8.0.4"}
    assert found.serving == ["127.8.0.4", "127.8.0.5"]
    assert found.address("a.test") == "127.8.0.6"
    assert (found.address(REFUSED), found.address(HANGING)) == ("127.8.0.7", "127.8.0.8")
    assert found.base("a.test") == "http://a.test:8080"


@pytest.mark.parametrize("host", ["b.test", "hostile.test", "h000006.fake.test", ""])
def test_others_are_nowhere(host: str) -> None:
    """Hostile hosts too, unless they are asked for."""
    with pytest.raises(LookupError):
        directory(FakeWebConfig(hosts=6, addresses=3)).endpoint(host)


def test_special_names_serve_plain_pages(small: FakeWeb, ask: Ask) -> None:
    """Enough for a small crawl of one host."""
    for host in SERVED:
        assert b"/2.html" in ask(small, small.url(host)).body
    assert ask(small, small.url("plain.test", "/2.html")).status == 200
    assert ask(small, small.url("plain.test", "/3.html")).status == 404
