"""``scrapy packs redact --job``: no byte of a host is left in a job and its packs."""

from __future__ import annotations

import gzip
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from backports import zstd
from scrapy.exceptions import UsageError
from support.frontier_command import HOST, small_crawl
from support.packs_command import Packs
from support.webs import FakeWebProcess

from scrapy_spider_suite.analysis.link_stats import ROWS, LinkStats
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.operate.job_target import job_at_rest, take_job_lock
from scrapy_spider_suite.packs import open_packs, verify
from scrapy_spider_suite.seen.trie_store import TrieStore
from scrapy_spider_suite.settings.table import LINK_TABLES
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.seen_transfer import make_archiver
from scrapy_spider_suite.testing import FakeWebConfig

pytestmark = pytest.mark.slow
REVERSED = ".".join(HOST.split(".")[::-1])
SURT = ",".join(HOST.split(".")[::-1])
NAME = re.compile("|".join(re.escape(each) for each in (HOST, REVERSED, SURT)).encode())


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job with link statistics, packs, and URLs that have gone to the archive."""
    folder = tmp_path_factory.mktemp("crawled")
    config = FakeWebConfig(hosts=6, pages=5, degree=6, errors=0, redirects=0.1, seed=3)
    with FakeWebProcess(config) as web:
        done = small_crawl(
            web, folder, SUITE_PACKS_DIR=str(folder / "packs"), SUITE_AGENT_NAME="here",
            SUITE_LINK_STATS=",".join(LINK_TABLES),
        )  # fmt: skip
        assert done.reason == "finished", done.log[-3000:]
    with job_at_rest(folder / "job" / FOLDER) as site:
        assert site is not None
        archiver = make_archiver(site.store, site.frontier.counters, site.frontier.flush)
        assert archiver is not None
        archiver._after = b""  # a pass begins after some thousand pages
        while archiver.step():
            pass
        found_there = Entry("h000001.fake.test", "http://h000001.fake.test/later",
                            referrer=f"http://{HOST}/")  # fmt: skip
        site.frontier.admission.schedule([found_there], site.now())
        site.commit()
    return folder


@pytest.fixture
def job(crawled: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed; as a kill leaves it."""
    shutil.copytree(crawled / "packs", tmp_path / "packs")
    return shutil.copytree(crawled / "job", tmp_path / "job")


def contents(path: Path) -> bytes:
    """What is in a file, decompressed; packs are looked into by their records."""
    data = path.read_bytes()
    if path.suffix == ".zst" and ".warc" not in path.name:
        return zstd.decompress(data)
    return gzip.decompress(data) if path.suffix == ".gz" and ".warc" not in path.name else data


def rows(job: Path) -> Iterator[bytes]:
    """Every row of the database, whose tables are compressed."""
    with StoreReader(job / FOLDER) as reader:
        for _, key, value in reader.store.every_row():
            yield key
            yield value


def traces(folder: Path, name: re.Pattern[bytes] = NAME) -> set[str]:
    """Where the host is named."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*")
             if path.is_file() and (name.search(contents(path)) or name.search(os.fsencode(path)))}
    if any(map(name.search, rows(folder / "job"))):
        found.add("a row")
    packs = open_packs(folder / "packs")
    if any(name.search(record.to_bytes()) for record in packs.records()):
        found.add("a record")
    if any(name.search(page.body) for page in packs):
        found.add("a page")
    urls = TrieStore(folder / "job" / FOLDER / "seen", ids=False, readonly=True)
    if any(name.search(url.encode()) for url in urls.iter("")):
        found.add("an archived URL")
    urls.close()
    return found


def urls_of_others(job: Path) -> set[str]:
    """The URLs of all other hosts that the job knows."""
    with StoreReader(job / FOLDER) as reader:
        hosts = [host for host, _ in reader.store.records() if host != HOST]
        return {row.url for host in hosts for row in reader.urls(host)}


@pytest.mark.long
def test_no_byte_is_left(job: Path, packs: Packs) -> None:
    """Of its pages and URLs in packs, indexes, links, store, archive and logs; the rest stays."""
    folder = job.parent
    before = traces(folder)
    assert {"a row", "a record", "a page", "an archived URL"} <= before
    assert any(path.startswith("job/suite/fetches/") for path in before)
    others = urls_of_others(job)
    counted = packs("redact", folder / "packs", "--job", job, "--host", HOST, "--dry-run",
                    "--json").rows[0]  # fmt: skip
    assert traces(folder) == before
    said = packs("redact", folder / "packs", "--job", job, "--host", HOST, "--mentions", "--yes",
                 "--json")  # fmt: skip
    swept, receipt = said.rows
    assert said.code == 0, said.rows
    assert (swept["hosts"], swept["left"]) == (1, [])
    for name in ("hosts", "urls", "links", "fetches"):
        assert counted[name] == swept[name]
    assert (counted["done"], swept["done"]) == (False, True)
    assert min(swept[name] for name in ("urls", "referrers", "links", "fetches", "actions")) > 0
    assert receipt["pages"] > 0
    assert traces(folder) == set()
    assert HOST not in said.out.decode()
    with StoreReader(job / FOLDER) as reader:
        assert list(reader.check()) == []
    assert list(verify(folder / "packs")) == []
    assert [page.url for page in open_packs(folder / "packs")] != []
    assert urls_of_others(job) == others
    # Nothing more to do, and nothing goes wrong.
    again = packs("redact", folder / "packs", "--job", job, "--host", HOST, "--yes", "--json")
    assert again.rows[0]["urls"] == again.rows[0]["fetches"] == 0
    # What `drop` said of it names it in the audit log: only until it is swept, too.
    assert traces(folder) == set()


def test_links_of_others_are_right(job: Path, packs: Packs) -> None:
    """Degrees are those of the graph without the host."""
    with StoreReader(job / FOLDER) as reader:
        every = list(LinkStats(reader.store.kv(ROWS)).edges())
    edges = [edge for edge in every if HOST not in edge[:2]]
    assert 0 < len(edges) < len(every)
    assert packs("redact", job.parent / "packs", "--job", job, "--host", HOST, "--yes").code == 0
    with StoreReader(job / FOLDER) as reader:
        stats = LinkStats(reader.store.kv(ROWS))
        assert list(stats.edges()) == edges
        for host, links in stats.hosts():
            assert host != HOST
            assert links.out_hosts == sum(source == host for source, _, _ in edges)
            assert links.in_hosts == sum(target == host for _, target, _ in edges)
            assert links.in_links == sum(number for _, target, number in edges if target == host)


def test_a_domain_goes_whole(job: Path, packs: Packs) -> None:
    """With all hosts below."""
    said = packs("redact", job.parent / "packs", "--job", job, "--host", "*.fake.test",
                 "--mentions", "--yes", "--json")  # fmt: skip
    assert said.rows[0]["hosts"] == 6
    assert traces(job.parent, re.compile(rb"fake[.]test|test[,.]fake")) == set()


def test_a_crawl_that_runs(job: Path, packs: Packs) -> None:
    """Is not disturbed: its job is not swept, its packs are not touched."""
    before = traces(job.parent)
    with (job / FOLDER / "lock").open("a+") as lock:
        assert take_job_lock(lock)
        said = packs("redact", job.parent / "packs", "--job", job, "--host", HOST, "--yes")
    assert (said.code, "in use by a crawl" in said.err) == (2, True)
    assert traces(job.parent) == before


def test_only_a_host_and_only_a_job(job: Path, packs: Packs, tmp_path: Path) -> None:
    """A URL is `drop`ped; a folder that holds no job is said to."""
    with pytest.raises(UsageError, match="scrapy frontier drop"):
        packs("redact", tmp_path / "packs", "--job", job, "--url", f"http://{HOST}/", "--yes")
    said = packs("redact", tmp_path / "packs", "--job", tmp_path, "--host", HOST, "--yes")
    assert (said.code, "no job" in said.err) == (2, True)
