"""Crawls of everything that the in-vitro web can do to a crawler; for tests/crawl."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.testing import FakeWebConfig
from scrapy_spider_suite.testing.hostile_site import HOST, hostile_hosts
from support.crawls import Crawl, crawl, web_settings
from support.webs import FakeWebProcess

NAMES = (
    "alias.test", "cname-loop.test", "garbage.test", "hang.test", "mapped.test", "metadata.test",
    "moving.test", "nodata.test", "nowhere.invalid", "plain.test", "private.test", "rebind.test",
    "refused.test", "servfail.test", "slow-dns.test", "timeout.test", "ttl0.test",
)  # fmt: skip
"""The name server's special names, and one that does not exist."""
HOSTS = 8
ALLOWED = "127.8.0.0/16"
"""Where the in-vitro web is; 127.0.0.1 stays private."""
PATIENCE = {
    "CONCURRENT_REQUESTS": 32,
    "DOWNLOAD_TIMEOUT": 6,
    "SUITE_ALLOW_PRIVATE_ADDRESSES": [ALLOWED],
    "SUITE_BACKOFF_BASE": 0.2,
    "SUITE_BACKOFF_MAX": 5,
    "SUITE_MAX_WAIT": 20,
}
"""Settings with which a crawl loses little time on those who want it to."""


@dataclass
class Ended:
    """What a crawl left behind: its stats and log, and how the first page of each host ended."""

    crawl: Crawl
    pages: dict[str, str]
    ordinary: set[str]
    fetched: set[str]

    @property
    def tracebacks(self) -> list[str]:
        """The log's messages with a traceback, other than Scrapy's own for download errors."""
        lines = self.crawl.log.splitlines()
        found = [at for at, line in enumerate(lines) if line.startswith("Traceback")]
        before = [lines[at - 1] for at in found]
        chained = ("", "The above exception", "During handling")
        return [
            line for line in before
            if "[scrapy.core.scraper] ERROR: Error downloading" not in line
            and not line.startswith(chained) and line.strip()
        ]  # fmt: skip


def hostile_crawl(spider: str, folder: Path, seeds: list[str], **settings: Any) -> Ended:
    """Crawl the ordinary hosts, all *seeds* (host names) beside them, with *spider*."""
    config = FakeWebConfig(
        hosts=HOSTS, pages=10, degree=5, addresses=4, seeds=HOSTS, hostile=True,
        hostile_pace=0.5, hostile_seconds=20, log=folder / "arrivals",
    )  # fmt: skip
    with FakeWebProcess(config) as web:
        port = web.ready.http_port
        own = [url for url in web.ready.seeds if HOST not in url]
        urls = [*own, *(f"http://{host}:{port}/" for host in seeds)]
        (folder / "seeds").write_text("\n".join(urls))
        watch = {"EXTENSIONS": {"support.loop_watch.Watch": 1}}
        chosen = web_settings(web.ready.dns_port, **{**PATIENCE, **watch, **settings})
        end = crawl(spider, chosen, folder, timeout=300, seeds=str(folder / "seeds"))
        web.stop()
        fetched = {f"http://{a.host}:{port}{a.path}" for a in web.arrivals()}
    ordinary = {url for url in web.web.reachable() if ".fake.test" in url}
    return Ended(end, _pages(folder, seeds, port), ordinary, fetched)


def _pages(folder: Path, hosts: list[str], port: int) -> dict[str, str]:
    job = folder / "job" / FOLDER
    if not job.exists():
        return {}
    pages = {}
    with StoreReader(job) as reader:
        assert list(reader.check()) == []
        for host in hosts:
            states = {row.url: row.state for row in reader.urls(host)}
            state = states[f"http://{host}:{port}/"]
            pages[host] = f"{state.event or ''} {state.state}".strip()
    return pages


def all_hosts() -> list[str]:
    """Every hostile host but the one whose index leads to them, and every special name."""
    return [*NAMES, *(host for host in hostile_hosts() if host != HOST)]


def documented(page: Path) -> dict[str, dict[str, str]]:
    """The tables of *page*: first column → {heading: cell}, code marks taken off."""
    rows: dict[str, dict[str, str]] = {}
    heads: list[str] = []
    for line in page.read_text().splitlines():
        cells = [cell.strip().replace("`", "") for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or set(cells[0]) <= {"-", ":"}:
            continue
        if cells[0] in ("behaviour", "bound", "name"):
            heads = cells
        elif heads[0] != "bound":
            rows[cells[0]] = dict(zip(heads, cells, strict=True))
    return rows
