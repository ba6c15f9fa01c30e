"""Crawls with few open files, and with every batch synced to the medium."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import forks
from support.crawls import crawl, web_settings
from support.projects import SCRAPY, Project, environment
from support.webs import FakeWebProcess

from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.testing import FakeWebConfig

pytestmark = pytest.mark.slow

FILES = 256
HOSTS = 300


def test_more_hosts_than_files(tmp_path: Path) -> None:
    """With 256 open files none of 300 hosts, all with keep-alive, is lost."""
    config = FakeWebConfig(
        hosts=HOSTS, pages=2, degree=6, addresses=HOSTS, seeds=HOSTS, latency=0.3,
        seeds_file=tmp_path / "seeds",
    )  # fmt: skip
    with FakeWebProcess(config) as web:
        if web.ready.addresses < HOSTS:
            pytest.skip("the in-vitro web cannot have an address for each host here")
        project = Project(
            tmp_path / "project", SUITE_DNS_SERVERS=f"127.0.0.1:{web.ready.dns_port}",
            SUITE_ALLOW_PRIVATE_ADDRESSES=["127.0.0.0/8"], SUITE_HOST_DELAY=0.5, SUITE_IP_DELAY=0,
            CONCURRENT_REQUESTS=400, ROBOTSTXT_OBEY=True,
        )  # fmt: skip
        ended = forks.run(
            f"import resource as r; r.setrlimit(r.RLIMIT_NOFILE, ({FILES}, {FILES})); {SCRAPY}",
            "crawl", "bulk", "-a", f"seeds={tmp_path / 'seeds'}", f"-sJOBDIR={tmp_path / 'job'}",
            folder=project.folder, environment=environment(), timeout=600,
        )  # fmt: skip
        reachable = set(web.web.reachable())
    assert ended.returncode == 0, ended.stderr[-3000:]
    with StoreReader(tmp_path / "job" / FOLDER) as reader:
        counters = reader.counters()
    assert (counters.pending, counters.failed, counters.dead_hosts) == (0, 0, 0), ended.stderr
    assert counters.done >= len(reachable)


def test_synced_to_the_medium(tmp_path: Path) -> None:
    """SUITE_COMMIT_SURVIVES = power: the same crawl, every batch synced."""
    with FakeWebProcess(FakeWebConfig(hosts=10, pages=10, degree=4, addresses=10)) as web:
        settings = web_settings(
            web.ready.dns_port, JOBDIR=str(tmp_path / "job"), SUITE_COMMIT_SURVIVES="power",
            SUITE_HOST_DELAY=0.01, SUITE_IP_DELAY=0,
        )  # fmt: skip
        end = crawl("support.spiders.Bulk", settings, tmp_path, seeds=web.ready.seeds[0])
        reachable = set(web.web.reachable())
    assert end.reason == "finished"
    with StoreReader(tmp_path / "job" / FOLDER) as reader:
        assert list(reader.check()) == []
        assert reader.counters().done == len(reachable)
