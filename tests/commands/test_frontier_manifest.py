"""``scrapy frontier manifest``: which crawl it was, over runs, changes and kills."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.frontier_command import Frontier
from support.inprocess_crawls import Crawled, crawl_here
from support.packs_command import parsed
from support.websites import Site, links
from support.websites import running as serving

from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.operate.executors.running_crawl import change_setting
from scrapy_spider_suite.operate.verbs.log import manifest
from scrapy_spider_suite.packs import open_packs
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.store.job_directory import FOLDER, JobFile, JobHistory

Run = Callable[[Any], Crawled]


class Broad(BroadSpider):
    """Follows everything."""

    name = "broad"
    allowed_domains = ("local.test", "127.0.0.1")


class Operated(Broad):
    """One whose operator changes something while it runs."""

    def parse_page(self, response: Any) -> None:
        """A setting, and a filter that lies in a file."""
        its_crawl = get_crawl(self.crawler)
        change_setting(its_crawl, "SUITE_HOST_MAX_PAGES", 70)
        Path(its_crawl.settings.fetch_filter[1:]).write_text("URLMatchesRegex(.*)")
        its_crawl.filters.adopt(its_crawl.filters.prepare(its_crawl.settings))


@pytest.fixture
def site() -> Iterator[Site]:
    """A page that leads to another."""
    with serving(Site({"/": links("/next"), "/next": links()})) as server:
        yield server


def crawl(run: Run, site: Site, job: Path, spider: type[BroadSpider] = Broad, **more: Any) -> None:
    """A run of the job."""
    settings = {"SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0,
                "JOBDIR": str(job), **more}  # fmt: skip
    done = run(crawl_here(spider, arguments={"seeds": f"{site.url}/"}, **settings))
    assert done.reason == "finished"


def told(job: Path, frontier: Frontier) -> dict[str, Any]:
    """The manifest."""
    [found] = frontier("manifest", "--json", "-j", str(job)).rows
    assert isinstance(found, dict)
    return found


def test_from_run_to_run(run: Run, site: Site, tmp_path: Path, frontier: Frontier) -> None:
    """Each with its versions and counts; what is another than before, with its moment."""
    job, lists, packs = tmp_path / "job", tmp_path / "seeds.txt", tmp_path / "packs"
    lists.write_text(f"{site.url}/listed\n")
    more = {"SUITE_FETCH_FILTER": "not URLMatchesRegex(.*secret.*)", "SUITE_SEEDS": str(lists)}
    crawl(run, site, job, **more)
    crawl(run, site, job, **more)
    frontier("add", f"{site.url}/next?2", "-j", str(job))
    crawl(run, site, job, SUITE_PACKS_DIR=str(packs))
    found, file = told(job, frontier), JobFile.read(job / FOLDER)
    assert file is not None
    assert (found["job"], found["spider"], found["created"]) == (file.id, "broad", file.created)
    runs = found["runs"]
    assert [each["reason"] for each in runs] == ["finished"] * 3
    assert len({each["run"] for each in runs}) == 3
    assert all(file.created <= each["begun"] < each["ended"] for each in runs)
    assert {"scrapy-spider-suite", "Scrapy"} <= set(runs[0]["versions"])
    assert runs[-1]["counts"] == found["counts"]
    assert found["counts"]["done"] >= 2
    assert len(found["settings"]) == 2  # the second run had those of the first
    assert found["settings"][-1]["suite"] == file.settings
    scrapy = found["settings"][0]["scrapy"]
    assert scrapy["concurrent_requests"] > 0
    assert scrapy["robotstxt_obey"] is False
    assert scrapy["allowed_domains"]["first"] == ["127.0.0.1", "local.test"]
    texts = [(row["stage"], row["text"]) for row in found["filters"]]
    assert texts == [("fetch", more["SUITE_FETCH_FILTER"]), ("fetch", "")]
    single = [row for row in found["seeds"] if "named" in row]
    digest = hashlib.sha256(f"{site.url}/".encode()).hexdigest()
    assert [(row["named"], row["sha256"]) for row in single] == [(1, digest)] * 3
    listed = [row for row in found["seeds"] if row.get("source") == str(lists)]
    assert [row["sha256"] for row in listed] == [hashlib.sha256(lists.read_bytes()).hexdigest()] * 2
    assert [row["verb"] for row in found["actions"]] == ["add"]
    # A pack leads to the manifest, and to the settings in it.
    info = next(open_packs(packs).records()).block.decode()
    assert f"job: {found['job']}\r\n" in info
    assert f"settings-digest: {runs[-1]['settings']}\r\n" in info
    assert runs[-1]["settings"] == found["settings"][-1]["digest"]
    said = frontier("manifest", "-j", str(job))
    assert len(said.out.splitlines()) < 40
    assert said.out.count("finished") == 3


def test_changes_of_a_run(run: Run, site: Site, tmp_path: Path, frontier: Frontier) -> None:
    """A setting that was set, and what a filter's file held."""
    job, rule = tmp_path / "job", tmp_path / "rule"
    rule.write_text("true")
    crawl(run, site, job, Operated, SUITE_FETCH_FILTER=f"@{rule}")
    found = told(job, frontier)
    [change] = [row for row in found["settings"] if "name" in row]
    assert (change["name"], change["new"]) == ("SUITE_HOST_MAX_PAGES", 70)
    assert [row["text"] for row in found["filters"]] == ["true", "URLMatchesRegex(.*)"]
    assert "SUITE_HOST_MAX_PAGES 0 -> 70" in frontier("manifest", "-j", str(job)).out


def test_torn_and_strange_lines(tmp_path: Path) -> None:
    """Are left out; a run that was killed has no end; a job of before has no runs."""
    chronicle, file = JobHistory(tmp_path), JobFile(3, "id", "broad", 1.0, {})
    assert manifest(tmp_path, file, {})["runs"] == []
    chronicle.append({"event": "begun", "run": "r", "when": 2.0},
                     {"event": "ended", "run": "r", "when": 3.0, "reason": "finished"})  # fmt: skip
    with chronicle.path.open("ab") as lines:
        lines.write(b'[1]\n{"event": "ended", "run": "unknown"}\n{"event": "odd"}\n{"event": "be')
    chronicle.append({"event": "begun", "run": "killed", "when": 5.0})
    found = manifest(tmp_path, file, {})
    assert [(each["begun"], each["ended"]) for each in found["runs"]] == [(2.0, 3.0), (5.0, None)]
    assert len(list(chronicle.rows())) == 5
    assert json.dumps(found)


def test_with_the_pages(
    run: Run, site: Site, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A WACZ file has it among what its package names; what is no job is said."""
    job, pages = tmp_path / "job", tmp_path / "packs"
    crawl(run, site, job, SUITE_PACKS_DIR=str(pages))
    for given, code in ((job, 0), (tmp_path, 2)):
        target = tmp_path / f"{code}.wacz"
        command, options, left = parsed(["export", pages, "--wacz", target, "--job", given], {})
        command.run(left, options)
        assert command.exitcode == code
        assert target.exists() is (code == 0)
    with zipfile.ZipFile(tmp_path / "0.wacz") as archive:
        found = archive.read("crawl/manifest.json")
        package = json.loads(archive.read("datapackage.json"))
    assert json.loads(found)["runs"][0]["reason"] == "finished"
    [named] = [each for each in package["resources"] if each["path"] == "crawl/manifest.json"]
    assert named["hash"] == f"sha256:{hashlib.sha256(found).hexdigest()}"
    assert "holds no job" in capfd.readouterr().err
