"""Addresses of hosts hold over a restart, as long as the name server said."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.crawls import Crawl, crawl, loopback_settings
from support.dns_server import NameServer
from support.names import Setting
from support.websites import Site, links, running

HOSTS = [f"h{number}.example" for number in range(12)]


@pytest.fixture
def names() -> Iterator[NameServer]:
    """A name server that knows all hosts."""
    server = NameServer()
    for host in HOSTS:
        server.add(host, "127.0.0.1")
    yield server
    server.close()


def _crawl(names: NameServer, site: Site, folder: Path, **settings: object) -> Crawl:
    given = {
        Setting.DNS_SERVERS: [names.address], Setting.IP_DELAY: 0, Setting.HOST_DELAY: 0.01,
        "ROBOTSTXT_OBEY": False, "JOBDIR": str(folder / "job"), **settings,
    }  # fmt: skip
    seeds = ",".join(f"http://{host}:{site.server_port}/" for host in HOSTS)
    return crawl("support.spiders.Bulk", loopback_settings(**given), folder, seeds=seeds)


def _visited(site: Site) -> list[tuple[str, str]]:
    return [(visit.headers["Host"].partition(":")[0], visit.path) for visit in site.visits]


def test_no_name_is_asked_for_again_after_a_restart(names: NameServer, tmp_path: Path) -> None:
    """Of hosts that were visited, and of those that only waited for their visit."""
    with running(Site({"/": links("/more"), "/more": "x"})) as site:
        first = _crawl(names, site, tmp_path, **{Setting.MAX_PAGES: 4})
        assert first.reason == "max_pages", first.log[-3000:]
        asked, visited = list(names.asked), _visited(site)
        second = _crawl(names, site, tmp_path)
        assert second.reason == "finished", second.log[-3000:]
        later = {host for host, _ in _visited(site)[len(visited) :]}
    assert later & {host for host, _ in asked}
    assert Counter(host for host, _ in names.asked) == dict.fromkeys(HOSTS, 1)
    everything = [(host, path) for host in HOSTS for path in ("/", "/more")]
    assert sorted(_visited(site)) == sorted(everything)


def test_a_name_is_asked_for_again_when_its_answer_has_expired(
    names: NameServer, tmp_path: Path
) -> None:
    short = {Setting.DNS_TTL_MAX: 1}
    with running(Site({"/": links("/more"), "/more": "x"})) as site:
        first = _crawl(names, site, tmp_path, **short, **{Setting.MAX_PAGES: 4})
        assert first.reason == "max_pages", first.log[-3000:]
        expired, asked = time.time() + 1.0, len(names.asked)
        while time.time() <= expired:
            time.sleep(0.05)
        left = set(HOSTS) - {host for host, path in _visited(site) if path == "/more"}
        second = _crawl(names, site, tmp_path, **short)
        assert second.reason == "finished", second.log[-3000:]
    assert {host for host, _ in names.asked[asked:]} == left
