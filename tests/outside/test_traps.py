"""Pages that look like a trap: put last and told, and those given up come back when asked for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from support.names import STATUS_FILE, Setting
from support.projects import Project
from support.websites import Page, Site, links, running

LOOPBACK = {
    # Pages are compared once some are done, which without a pause may be dozens of pages later.
    Setting.ALLOW_PRIVATE_ADDRESSES: ["127.0.0.0/8"], Setting.HOST_DELAY: 0.02, Setting.IP_DELAY: 0,
    "ROBOTSTXT_OBEY": False,
}  # fmt: skip
SHOP = "Welcome to our little shop. We have many things on our shelves, each with its number: "


def crawl(
    project: Project, site: Site, code: int = 0, **settings: Any
) -> tuple[str, dict[str, Any]]:
    """Crawl *site* as a job, until the exit *code*; the log, and the status that was left behind.
    """
    line = ("crawl", "bulk", f"-aseeds={site.url}")
    done = project.scrapy(*line, JOBDIR="job", LOG_LEVEL="INFO", **settings)
    assert done.returncode == code, done.stderr[-3000:]
    return done.stderr, json.loads((project.folder / "job" / STATUS_FILE).read_text())


def test_pages_that_differ_in_digits_alone(tmp_path: Path) -> None:
    """Each is fetched, after the others of the host; log, status and summary say so."""
    things = [f"/thing/{number}" for number in range(1, 121)]
    letters = [f"/page/{letter}" for letter in "abcdefgh"]
    table: dict[str, Page] = {
        path: f"<p>{SHOP}{number}</p>" + links(*things[number : number + 40])
        for number, path in enumerate(things, 1)
    }  # fmt: skip
    table[things[60]] = f"{table[things[60]]}{links(*letters)}"
    table |= {path: f"<p>{path[-1] * 60}" for path in letters}
    table["/"] = links(*things[:2])
    project = Project(tmp_path / "project", **LOOPBACK)
    with running(Site(table)) as site:
        log, status = crawl(project, site)
        asked = [path for path in site.paths() if path in table]
    assert sorted(asked) == sorted(table)
    found_before = asked.index(things[99])
    assert max(map(asked.index, letters)) < found_before, "it comes after the others of the host"
    said = [line for line in log.splitlines() if f"{site.host}: the pages of" in line]
    assert len(said) == 1, said
    assert "/thing/0" in said[0]
    assert Setting.TRAPS in said[0]
    last = status["traps"]["numbers"]
    assert 20 <= last <= 60
    shown = project.scrapy("frontier", "status", "-jjob").stdout
    assert f"numbers {last}" in shown
    assert f"numbers {last}" in log


def test_what_was_given_up_comes_back(tmp_path: Path) -> None:
    """Pages that say exactly the same are given up, which the log says; `retry` fetches them."""
    lost = [f"/lost/{'x' * number}" for number in range(1, 81)]
    table: dict[str, Page] = dict.fromkeys(lost, f"<p>{SHOP}none")
    table["/"] = links(*lost)
    project = Project(tmp_path / "project", **LOOPBACK)
    with running(Site(table)) as site:
        log, status = crawl(project, site)
        before = set(site.paths())
        assert "frontier retry" in log
        assert len(set(lost) - before) == status["traps"]["same"] > 0
        retried = project.scrapy("frontier", "retry", "--reason", "trap", "-jjob")
        assert retried.returncode == 0, retried.stderr
        crawl(project, site)
        assert set(lost) <= set(site.paths())


def test_they_are_counted_over_all_runs(tmp_path: Path) -> None:
    """A crawl that is stopped and resumed still says at its end what it met before."""
    long = [f"/{'x' * 1_100}/{number}" for number in range(7)]
    pages = [f"/page/{letter}" for letter in "abcdefgh"]
    table: dict[str, Page] = {path: f"<p>{path[-1] * 60}" for path in pages}
    table["/"] = links(*long, *pages)
    project = Project(tmp_path / "project", **LOOPBACK, CONCURRENT_REQUESTS=1)
    with running(Site(table)) as site:
        for code, pages_most in (3, 2), (0, 0):
            log, status = crawl(project, site, code, CLOSESPIDER_PAGECOUNT=pages_most)
            assert "; URLs in traps: length 7\n" in log
            assert status["traps"] == {"length": 7}
            shown = project.scrapy("frontier", "status", "-jjob").stdout
            assert re.search("^traps +length 7$", shown, re.MULTILINE), shown
        assert sorted(site.paths()).count("/") == 1
        assert set(pages) < set(site.paths())


def test_a_large_host_is_no_trap(tmp_path: Path) -> None:
    """Once a host has so many pages that its folders are counted, still no trap is told of."""
    pages = [f"/page/{first}{second}" for first in "abcdefgh" for second in "abcdefgh"]
    table: dict[str, Page] = {path: f"<p>{path[-2:] * 60}" for path in pages}
    table["/"] = links(*pages)
    project = Project(tmp_path / "project", **LOOPBACK, **{Setting.HOST_MAX_PAGES: 400})
    with running(Site(table)) as site:
        log, status = crawl(project, site)
        assert set(pages) < set(site.paths())
    assert "The crawl ended (finished)" in log
    assert "in traps" not in log
    assert status["traps"] == {}
    assert "traps" not in project.scrapy("frontier", "status", "-jjob").stdout
