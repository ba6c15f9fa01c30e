"""Real documentation sites: what the crawl fetches is what an independent walk reaches."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import lxml.html
import pytest
from support import real_sites as sites
from support.crawls import crawl, web_settings
from support.webs import FakeWebProcess

from scrapy_spider_suite.testing import FakeWebConfig

SITES = sites.SITES[-int(os.environ.get("SITES", "1")) :]
"""The smallest, for speed; SITES=6 is what docs/measurements.md tells of."""


def _file(folder: Path, path: str) -> Path | None:
    """The HTML file that *path*, a URL's, stands for; None if there is none."""
    found = folder / unquote(path).lstrip("/")
    if found.is_dir():
        found /= "index.html"
    is_page = found.suffix in (".html", ".htm") and found.is_file()
    return found.resolve() if is_page else None


def _links(page: Path) -> list[str]:
    """What a page links to, by lxml, with no code of ours."""
    try:
        tree = lxml.html.fromstring(page.read_bytes())
    except lxml.etree.ParserError:  # an empty page
        return []
    hrefs = tree.xpath("//a/@href | //area/@href | //frame/@src | //iframe/@src")
    hrefs += tree.xpath("//link[@rel='canonical']/@href")
    for content in tree.xpath("//meta[translate(@http-equiv,'REFSH','refsh')='refresh']/@content"):
        hrefs += [content.partition("=")[2].strip(" '\"")]
    return [str(href) for href in hrefs]


def _walk(folder: Path, host: str, start: str) -> set[Path]:
    """The pages of a site that are reached from *start*, breadth first."""
    first = _file(folder, start)
    assert first is not None
    reached, queue = {first}, [f"http://{host}/{start}"]
    for url in queue:
        page = _file(folder, urlsplit(url).path)
        for href in _links(page) if page else []:
            target = urljoin(url, href.strip()).partition("#")[0]
            parts = urlsplit(target)
            file = _file(folder, parts.path) if parts.hostname == host else None
            if file is not None and file not in reached:
                reached.add(file)
                queue.append(target)
    return reached


@pytest.mark.slow
@pytest.mark.long
def test_real_sites_are_crawled_whole(tmp_path: Path) -> None:
    """The pages fetched are those that a walk of the files with lxml reaches, all of them."""
    folders = sites.unpack_sites(tmp_path, SITES)
    expected = {site.name: _walk(folders[site.name], site.name, site.start) for site in SITES}
    assert sum(map(len, expected.values())) >= (5_000 if SITES == sites.SITES else 200)
    config = FakeWebConfig(
        hosts=0, sites={name: str(folder) for name, folder in folders.items()},
        log=tmp_path / "arrivals",
    )  # fmt: skip
    with FakeWebProcess(config) as web:
        port = web.ready.http_port
        seeds = ",".join(f"http://{site.name}:{port}/{site.start}" for site in SITES)
        settings = web_settings(
            web.ready.dns_port, SUITE_HOST_DELAY=0, SUITE_IP_DELAY=0, SUITE_IP_CONCURRENCY=0,
            SUITE_HOST_CONCURRENCY=4, SUITE_DEAD_HOST_FAILURES=2, SUITE_BACKOFF_BASE=1,
            JOBDIR=str(tmp_path / "job"), DOWNLOAD_MAXSIZE=64 << 20,
        )  # fmt: skip
        end = crawl("support.spiders.Bulk", settings, tmp_path, seeds=seeds, timeout=300)
        assert end.reason == "finished", end.log[-3000:]
        web.stop()
        arrivals = web.arrivals()
    for site in SITES:
        paths = {urlsplit(a.path).path for a in arrivals if a.host == site.name and a.status == 200}
        fetched = {_file(folders[site.name], path) for path in paths} - {None}
        assert fetched == expected[site.name]
