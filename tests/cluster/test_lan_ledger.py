"""Agents over UDP whose hosts share addresses: by a ledger each address has its delay."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.chaos import CRAWL, KEY, listed, name_of
from support.fleet import Fleet
from support.polite_crawls import Size
from support.redis_servers import free_port
from support.verdict import url_of, verdict_of
from support.webs import FakeWebProcess

SIZE = Size(hosts=12, addresses=2, pages=4, host_delay=0.15, ip_delay=0.1)
NAMES = [name_of(1), name_of(2)]


@pytest.mark.slow
def test_the_delay_of_an_address_is_kept_by_the_ledger(tmp_path: Path) -> None:
    """A file on their machine, and hosts of both at every address; each page is fetched once."""
    places = {name: (f"127.0.8.{number}", free_port()) for number, name in enumerate(NAMES, 1)}
    web = FakeWebProcess(SIZE.web(tmp_path / "arrivals", redirects=0.0))
    with web:
        settings = {
            **SIZE.settings(web.ready),
            "SUITE_CLUSTER": "lan", "SUITE_CRAWL_NAME": CRAWL, "SUITE_CLUSTER_KEY": KEY,
            "SUITE_AGENTS": listed(places), "SUITE_RATE_LEDGER": str(tmp_path / "ledger"),
            "DOWNLOAD_TIMEOUT": 4,
        }  # fmt: skip
        with Fleet(tmp_path, lambda name: settings, {"seeds": web.ready.seeds[0]}) as fleet:
            for name in NAMES:
                fleet.start(name)
            assert fleet.wait(120)
            web.stop()
            arrivals = web.arrivals()
            verdict = verdict_of(fleet, web.web, SIZE, arrivals)
    assert list(verdict.broken()) == []
    here: dict[str, set[str]] = {}
    for each in arrivals:
        here.setdefault(each.address, set()).update(verdict.kept.get(url_of(web.web, each), ()))
    assert list(here.values()) == [set(NAMES)] * SIZE.addresses
