"""``add``, ``refetch`` and ``retry``: on a job that lies still, and in a crawl that runs."""

from __future__ import annotations

import re
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.frontier_command import FAST, HOST, Frontier, Said, small_crawl
from support.running_crawl import running, until
from support.webs import FakeWebProcess

from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.testing import FakeWebConfig


def status(frontier: Frontier, job: Path) -> Any:
    """What ``status`` says."""
    return frontier("status", "-j", str(job), "--json").rows[0]


def urls(frontier: Frontier, job: Path, host: str = HOST) -> list[Any]:
    """What ``urls`` says of all URLs of a host."""
    return frontier("urls", host, "-j", str(job), "--json", "--limit", "0").rows


def sound(frontier: Frontier, job: Path) -> bool:
    """Whether queues, states, hosts and counters agree."""
    said = frontier("check", "-j", str(job))
    return said == Said(0, "everything agrees\n")


def test_add(job: Path, frontier: Frontier, tmp_path: Path) -> None:
    """URLs, hosts and files of them, all or none; what is known is left alone."""
    actions = job / FOLDER / "actions"
    assert frontier("add", "http://a.test/", "missing.txt", "-j", str(job)).code == 2
    assert not actions.exists() or list(actions.iterdir()) == []
    seeds = tmp_path / "seeds.txt"
    seeds.write_text("# some\nb.test\n\nhttp://c.test/x\nftp://c.test/x\n" + "\n".join(
        f"http://many.test/{n}" for n in range(450)
    ))  # fmt: skip
    on = ("http://a.test/", str(seeds), "-j", str(job), "--json")
    [dry] = frontier("add", "--dry-run", *on).rows
    assert (dry["urls"], dry["new"], dry["no_web_addresses"]) == (453, 453, 1)
    assert dry["first_bad"] == [f"{seeds}:5 'ftp://c.test/x': no web address"]
    assert status(frontier, job)["pending"] == 0
    said = frontier("add", "--yes", *on)
    assert said.code == 0
    row = said.rows[0]
    assert (row["urls"], row["new"], row["no_web_addresses"]) == (454, 453, 1)
    assert status(frontier, job)["pending"] == 453
    [dry] = frontier("add", "--dry-run", *on).rows
    assert (dry["urls"], dry["new"]) == (453, 0)
    again = frontier("add", str(seeds), "-j", str(job), "--json").rows[0]
    assert (again["urls"], again["new"]) == (453, 0)
    assert list(actions.iterdir()) == []
    assert sound(frontier, job)


def test_first_comes_first(job: Path, frontier: Frontier) -> None:
    """Before what was there already."""
    frontier("add", "http://a.test/1", "http://a.test/2", "-j", str(job))
    frontier("add", "http://a.test/3", "--first", "-j", str(job))
    [why] = frontier("why", "a.test", "-j", str(job), "--json").rows
    assert [url[-1] for url in why["next_urls"]] == ["3", "1", "2"]


def test_refetch_a_host(web: FakeWebProcess, job: Path, frontier: Frontier) -> None:
    """A dry run says how many; then they are pending, and the next run fetches each once more."""
    before = status(frontier, job)
    known = urls(frontier, job)
    dry = frontier("refetch", HOST, "--dry-run", "-j", str(job), "--json").rows[0]
    assert (dry["dry_run"], dry["urls"]) == (True, len(known))
    assert sum(dry["by_reason"].values()) == len(known)
    assert status(frontier, job) == before
    said = frontier("refetch", HOST, "-j", str(job), "--json").rows[0]
    assert said["urls"] == len(known)
    after = status(frontier, job)
    assert after["pending"] == len(known)
    assert after["done"] + after["failed"] == before["done"] + before["failed"] - len(known)
    assert sound(frontier, job)
    again = frontier("refetch", HOST, "-j", str(job), "--json").rows[0]
    assert (again["urls"], again["pending_already"]) == (0, len(known))
    began = time.time()
    assert small_crawl(web, job.parent, JOBDIR=str(job)).reason == "finished"
    assert urls(frontier, job) == known
    end = status(frontier, job)
    assert (end["done"], end["failed"]) == (before["done"], before["failed"])
    time.sleep(1.0)  # the web writes its log every half second
    later = [a for a in web.arrivals() if a.start > began]
    fetched = Counter((a.host, a.path) for a in later if "robots" not in a.path)
    assert {host for host, _ in fetched} == {HOST}
    assert sum(fetched.values()) == len(known)


def test_refetch_a_pattern_and_a_file(job: Path, frontier: Frontier, tmp_path: Path) -> None:
    """A star stands for anything; a file names URLs, known or not."""
    known = [row["url"] for row in urls(frontier, job)]
    root, one = known[0], known[1]
    said = frontier("refetch", f"{root}*.html", "-j", str(job), "--json").rows[0]
    assert said["urls"] == sum(url.endswith(".html") for url in known)
    listed = tmp_path / "again.txt"
    listed.write_text(f"# some\n{root}\n???\n{one}\nhttp://never.test/\n")
    bad = [f"{listed}:3 '???': neither a URL nor a host name"]
    dry = frontier("refetch", str(listed), "--dry-run", "-j", str(job), "--json").rows[0]
    assert (dry["urls"], dry["no_web_addresses"], dry["first_bad"]) == (1, 1, bad)
    said = frontier("refetch", str(listed), "--first", "--yes", "-j", str(job), "--json").rows[0]
    assert (said["urls"], said["pending_already"], said["unknown"]) == (1, 1, 1)
    assert (said["no_web_addresses"], said["first_bad"]) == (1, bad)
    assert said["said"].endswith(f"; 1 line is no URL: {bad[0]}")
    [why] = frontier("why", HOST, "-j", str(job), "--json").rows
    assert why["next_urls"][0] == root
    assert sound(frontier, job)


def test_refetch_a_file_that_is_not_there(job: Path, frontier: Frontier) -> None:
    """A mistyped name is no host of which nothing is known."""
    said = frontier("refetch", "no-such-list.txt", "-j", str(job))
    assert said.code == 2
    assert "no such file" in said.out


def test_refetch_a_domain(job: Path, frontier: Frontier) -> None:
    """All hosts below it."""
    before = status(frontier, job)
    said = frontier("refetch", ".fake.test", "-j", str(job), "--json").rows[0]
    assert said["urls"] == before["done"] + before["failed"]
    after = status(frontier, job)
    assert (after["done"], after["failed"], after["outcomes"]) == (0, 0, {})
    assert sound(frontier, job)


def test_retry(job: Path, frontier: Frontier) -> None:
    """Those that failed for that reason, of all hosts or of one; others are left alone."""
    before = status(frontier, job)["outcomes"]
    reason = next(name for name in before if name.endswith("error"))
    dry = frontier("retry", "--reason", reason, "--dry-run", "-j", str(job), "--json").rows[0]
    assert dry["by_reason"] == {reason: before[reason]}
    said = frontier("retry", "--reason", reason, "-j", str(job), "--json", "--why", "fixed")
    assert said.rows[0]["urls"] == before[reason]
    after = status(frontier, job)
    assert after["pending"] == before[reason]
    assert reason not in after["outcomes"]
    assert frontier("retry", "nobody.test", "--reason", reason, "-j", str(job)).out.startswith("0")
    assert sound(frontier, job)


def test_retry_of_a_host_that_was_given_up(
    web: FakeWebProcess, job: Path, frontier: Frontier
) -> None:
    """It is asked again, and given up again if it has not changed."""
    frontier("add", "http://nobody.fake.test/", "-j", str(job))
    small_crawl(web, job.parent, JOBDIR=str(job))
    [gone] = urls(frontier, job, "nobody.fake.test")
    assert gone["reason"] == "no_such_host"
    said = frontier("retry", "--reason", "no-such-host", "-j", str(job), "--json").rows[0]
    assert (said["urls"], said["hosts_given_up"]) == (1, 1)
    [why] = frontier("why", "nobody.fake.test", "-j", str(job), "--json").rows
    assert "given up" not in why["why"]
    small_crawl(web, job.parent, JOBDIR=str(job))
    assert urls(frontier, job, "nobody.fake.test")[0]["reason"] == "no_such_host"
    assert sound(frontier, job)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["refetch", "192.0.2.0/24"], "which hosts live in an address range is not known"),
        (["refetch", "http://*.test/"], "with \\* only after the host"),
        (["refetch", "no such host"], "no host"),
    ],
)
def test_what_is_no_pattern(
    arguments: list[str], said: str, finished: Path, frontier: Frontier
) -> None:
    """One line, exit code 2."""

    done = frontier(*arguments, "-j", str(finished))
    assert (done.code, done.out.count("\n")) == (2, 1)
    assert re.search(said, done.out)


@pytest.mark.slow
def test_in_a_crawl_that_runs(frontier: Frontier, tmp_path: Path) -> None:
    """Added, refetched first, politely: no two requests to the host closer than its delay."""
    config = FakeWebConfig(hosts=3, pages=20, log=tmp_path / "arrivals")
    job, delay = tmp_path / "job", 0.1
    settings = {**FAST, "SUITE_HOST_DELAY": delay, "SUITE_WHEN_DONE": "wait"}
    with FakeWebProcess(config) as web:
        with running(web, tmp_path, **settings):
            until(lambda: len(web.arrivals()) > 30)
            done = [row for row in urls(frontier, job) if row["state"] == "done"]
            listed = tmp_path / "again"
            listed.write_text("".join(row["url"] + "\n" for row in done))
            said = frontier("refetch", str(listed), "--first", "-j", str(job), "--json").rows[0]
            assert said["urls"] == len(done) > 3
            until(lambda: not status(frontier, job)["pending"])
        arrivals = [a for a in web.arrivals() if a.host == HOST]
    pages = Counter(a.path for a in arrivals)
    paths = {row["url"].partition(f"{HOST}:{web.ready.http_port}")[2] for row in done}
    assert all(pages[path] == 2 for path in paths)
    assert all(number == 1 for path, number in pages.items() if path not in paths)
    ordered = sorted(arrivals)
    gaps = [b.start - a.end for a, b in pairwise(ordered)]
    assert min(gaps) > delay - 0.005
    assert sound(frontier, job)
