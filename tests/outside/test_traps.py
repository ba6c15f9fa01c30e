"""Pages that look like a trap: put last and told, and those given up come back when asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from projects import Project
from support.names import STATUS_FILE, Setting
from websites import Page, Site, links, running

LOOPBACK = {
    Setting.ALLOW_PRIVATE_ADDRESSES: ["127.0.0.0/8"], Setting.HOST_DELAY: 0, Setting.IP_DELAY: 0,
    "ROBOTSTXT_OBEY": False,
}  # fmt: skip
SHOP = "Welcome to our little shop. We have many things on our shelves, each with its number: "


def crawl(project: Project, site: Site) -> tuple[str, dict[str, Any]]:
    """Crawl *site* as a job; the log, and the status that the crawl left behind."""
    done = project.scrapy("crawl", "bulk", f"-aseeds={site.url}", JOBDIR="job", LOG_LEVEL="INFO")
    assert done.returncode == 0, done.stderr[-3000:]
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
    assert Setting.TRAP_SAME in said[0]
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
