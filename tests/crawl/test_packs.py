"""SUITE_PACKS_DIR: every answer that came is packed, and no page is done before it is."""

from __future__ import annotations

import errno
import gzip
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crawls import crawl, crawl_over_kills, web_settings
from inprocess import Crawled, crawl_here
from websites import Answer, Site, links, running

from scrapy_spider_suite.job.directory import FOLDER
from scrapy_spider_suite.packs import open_packs, verify
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.storage.reader import StoreReader
from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess


class Broad(BroadSpider):
    """Follows everything."""

    name = "broad"


def answers(packs: Path) -> Counter[tuple[str, int]]:
    """How often each URL came with each status, by what is packed."""
    return Counter((page.url, page.status) for page in open_packs(packs))


def arrived(web: FakeWebProcess) -> Counter[tuple[str, int]]:
    """The same by what the server says."""
    port = web.ready.http_port
    return Counter((f"http://{a.host}:{port}{a.path}", a.status) for a in web.arrivals())


@pytest.mark.parametrize("form", ["lzo", "gz", "zst"])
def test_every_answer_is_packed(form: str, tmp_path: Path) -> None:
    """Pages, redirects, errors and robots.txt, each once; packs and indexes are as they must be."""
    config = FakeWebConfig(
        hosts=12, pages=12, degree=6, redirects=0.1, errors=0.1, log=tmp_path / "arrivals"
    )
    packs = tmp_path / "packs"
    with FakeWebProcess(config) as web:
        settings = web_settings(
            web.ready.dns_port, SUITE_HOST_DELAY=0, SUITE_IP_DELAY=0, SUITE_PACKS_DIR=str(packs),
            SUITE_PACKS_FORMAT=form, SUITE_AGENT_NAME="here", SUITE_RETRY_TIMES=1,
            SUITE_BACKOFF_BASE=0.01, SUITE_BACKOFF_MAX=0.01,
        )  # fmt: skip
        ended = crawl("crawl_spiders.Bulk", settings, tmp_path, seeds=web.ready.seeds[0])
        assert ended.reason == "finished", ended.log[-3000:]
        web.stop()
        expected = arrived(web)
    assert answers(packs) == expected
    assert ended.stats["suite/packs/answers"] == expected.total()
    assert list(verify(packs)) == []
    assert [path.suffix for path in packs.glob("bulk-*-here.warc.*")] != []
    assert not list(packs.glob("*.open"))


@pytest.fixture
def site() -> Iterator[Site]:
    """A running site."""
    body = gzip.compress(links("/plain").encode() + b"x" * 5000)
    pages = {
        "/": Answer(body=body, headers={"Content-Encoding": "gzip", "Content-Type": "text/html"}),
        "/plain": links(),
    }
    with running(Site(pages)) as server:
        yield server


def test_what_is_packed_is_what_came(
    site: Site, run: Callable[[Any], Crawled], tmp_path: Path
) -> None:
    """Head and compressed body as on the wire, the request as it was sent, where its links lead."""
    done = run(
        crawl_here(
            Broad, arguments={"seeds": f"{site.url}/"}, SUITE_ALLOW_PRIVATE_ADDRESSES=True,
            SUITE_HOST_DELAY=0, SUITE_IP_DELAY=0, SUITE_PACKS_DIR=str(tmp_path),
        )
    )  # fmt: skip
    assert done.reason == "finished"
    packs = open_packs(tmp_path)
    page = packs.get(f"{site.url}/")
    assert page is not None
    assert page.headers["content-encoding"] == "gzip"
    assert page.body.endswith(b"x" * 5000)
    assert int(page.headers["content-length"]) < 5000
    assert [(link.url, link.kind) for link in page.links] == [(f"{site.url}/plain", "a")]
    kinds = Counter(record.kind for record in packs.records())
    assert kinds["request"] == kinds["response"] == done.stat("suite/packs/answers")
    child = packs.get(f"{site.url}/plain")
    assert child is not None
    assert child.metadata is not None
    assert child.metadata.block.startswith(f"via: {site.url}/\r\n".encode())


def test_what_is_not_to_be_stored_is_not_packed(
    site: Site, run: Callable[[Any], Crawled], tmp_path: Path
) -> None:
    """SUITE_STORE_FILTER: of other pages nothing is kept."""
    run(
        crawl_here(
            Broad, arguments={"seeds": f"{site.url}/"}, SUITE_ALLOW_PRIVATE_ADDRESSES=True,
            SUITE_HOST_DELAY=0, SUITE_IP_DELAY=0, SUITE_PACKS_DIR=str(tmp_path),
            SUITE_STORE_FILTER="URLMatchesRegex(.*plain)",
        )
    )  # fmt: skip
    packs = open_packs(tmp_path)
    assert packs.get(f"{site.url}/") is None
    assert packs.get(f"{site.url}/plain") is not None


@pytest.mark.slow
def test_kills_lose_no_page(tmp_path: Path) -> None:
    """Killed five times: what is done is packed, packs verify, the rest is fetched again."""
    config = FakeWebConfig(hosts=40, pages=12, degree=8, addresses=20, errors=0.0)
    job, packs, chance = tmp_path / "job", tmp_path / "packs", random.Random(5)
    with FakeWebProcess(config) as web:
        settings = web_settings(
            web.ready.dns_port, JOBDIR=str(job), SUITE_HOST_DELAY=0.02, SUITE_IP_DELAY=0.01,
            SUITE_PACKS_DIR=str(packs), SUITE_AGENT_NAME="here",
        )  # fmt: skip
        times = [chance.uniform(0.2, 1.5) for _ in range(5)]
        crawl_over_kills(
            "crawl_spiders.Bulk", settings, tmp_path, times, seeds=web.ready.seeds[0]
        )
        reachable = set(web.web.reachable())
    assert list(verify(packs)) == []
    with StoreReader(job / FOLDER) as reader:
        assert list(reader.check()) == []
        done = reader.counters().done
    packed = {url for url, status in answers(packs) if status == 200}
    assert packed >= {url for url in reachable if web.web.status(url) == 200}
    assert done >= len(reachable)


@pytest.mark.parametrize("broken", ["write", "thread"])
def test_what_cannot_be_packed_is_fetched_again(
    site: Site, run: Callable[[Any], Crawled], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    broken: str,
) -> None:  # fmt: skip
    """A full disk, or a writer that has ended: the crawl pauses, the page is not done."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device") if broken == "write" else KeyError

    name = "packfile.PackFile.append" if broken == "write" else "packing.Packing.take"
    monkeypatch.setattr(f"scrapy_spider_suite.packs.{name}", refuse)
    job, packs = tmp_path / "job", tmp_path / "packs"
    settings: dict[str, Any] = {
        "SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0,
        "SUITE_PACKS_DIR": str(packs), "JOBDIR": str(job),
    }  # fmt: skip
    arguments = {"seeds": f"{site.url}/"}
    done = run(crawl_here(Broad, arguments=arguments, CLOSESPIDER_TIMEOUT=3, **settings))
    assert done.reason == "closespider_timeout"
    assert done.stat("suite/packs/failed") >= 1
    assert done.stat("suite/job/done") == 0
    monkeypatch.undo()
    again = run(crawl_here(Broad, arguments=arguments, **settings))
    assert again.reason == "finished"
    assert {url for url, status in answers(packs) if status == 200} == {
        f"{site.url}/", f"{site.url}/plain",
    }  # fmt: skip
