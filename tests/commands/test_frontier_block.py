"""``block`` and ``unblock``: read from the server's log, and kept in the job."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from scrapy.exceptions import UsageError
from support.frontier_command import FAST, HOST, Frontier, Said, small_crawl
from support.running_crawl import running, until
from support.webs import FakeWebProcess

from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.operate.actions import AuditLog
from scrapy_spider_suite.operate.job_target import StoredBlock, apply_blocks
from scrapy_spider_suite.store.interface import MemoryKV
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.testing import Arrival, FakeWebConfig

LEAD = 2.0
"""Seconds after the command within which a block is in force."""


def rows(frontier: Frontier, *arguments: str) -> list[Any]:
    """What a verb says in JSON."""
    return frontier(*arguments, "--json").rows


# A job that lies still


def test_blocks_are_kept(job: Path, frontier: Frontier) -> None:
    """With who, why and until when, in their one spelling; unblocked, they are gone."""
    on = ("-j", str(job))
    said = frontier("block", "Example.COM.", "--for", "7d", "--why", "noise", *on)
    assert said.out == "example.com is blocked for 604800 s\n"
    again = rows(frontier, "block", "example.com", "--why", "more noise", *on)[0]
    assert (again["blocked_before"], again["until"]) == (True, None)
    for subject in (".example.org", "192.0.2.77/24", "https://example.net/a/"):
        assert frontier("block", subject, "--why", "x", *on).code == 0
    kept = {row["subject"]: row for row in rows(frontier, "blocks", *on)}
    assert set(kept) == {"example.com", ".example.org", "192.0.2.0/24", "https://example.net/a/"}
    assert kept["example.com"]["reason"] == "more noise"
    assert "@" in kept["example.com"]["who"]
    assert frontier("unblock", "192.0.2.0/24", *on).out == "192.0.2.0/24 is no longer blocked\n"
    refused = frontier("unblock", "www.example.org", *on)
    assert refused.code == 1
    assert "not blocked by itself; blocked is: .example.org, example.com" in refused.out
    assert len(rows(frontier, "blocks", *on)) == 3
    assert [row["ok"] for row in AuditLog(job / FOLDER).rows()] == [True] * 6 + [False]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["block", "a b", "--why", "x"], "no host, .domain or address range"),
        (["block"], "the following arguments are required: HOST"),
        (["block", "a.test", "--for", "ever", "--why", "x"], "expected a number of seconds"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str, finished: Path, frontier: Frontier) -> None:
    """Said before anything is asked of the job."""
    with pytest.raises(Exception, match=said):
        frontier(*arguments, "-j", str(finished))


def test_a_range_cannot_be_dropped(job: Path, frontier: Frontier) -> None:
    """Which hosts live there, nobody knows; nothing is blocked then."""
    said = frontier("block", "192.0.2.0/24", "--drop", "--yes", "--why", "x", "-j", str(job))
    assert said.code == 1
    assert "not known" in said.out
    assert rows(frontier, "blocks", "-j", str(job)) == []


@pytest.mark.parametrize("subject", ["a.test", ".test", "http://a.test/"])
def test_drop(job: Path, frontier: Frontier, subject: str, tmp_path: Path) -> None:
    """What is pending there fails, the rest stays; `retry` brings it back."""
    on = ("-j", str(job))
    urls = tmp_path / "urls.txt"
    urls.write_text("".join(f"http://{h}/{n}\n" for n in range(300) for h in ("a.test", "b.org")))
    frontier("add", str(urls), *on)
    [said] = rows(frontier, "block", subject, "--drop", "--yes", "--why", "asked to leave", *on)
    assert said["dropped"] == 300
    assert rows(frontier, "status", *on)[0]["pending"] == 300
    gone = rows(frontier, "urls", "a.test", "--limit", "0", *on)
    assert {(row["state"], row["reason"]) for row in gone} == {("failed", "barred")}
    assert frontier("check", *on) == Said(0, "everything agrees\n")
    assert rows(frontier, "retry", "--reason", "barred", *on)[0]["urls"] == 300
    assert frontier("check", *on) == Said(0, "everything agrees\n")


def test_a_dry_run_counts(job: Path, frontier: Frontier) -> None:
    """What a block would hold, or fail, and what would go on without it; nothing is changed."""
    on = ("-j", str(job))
    frontier("add", "http://a.test/1", "http://a.test/2", "http://b.a.test/", *on)
    why = ("--dry-run", "--why", "x", *on)
    for subject, count in ((".a.test", 3), ("a.test", 2), ("http://a.test/2", 1), (HOST, 0)):
        assert rows(frontier, "block", subject, *why)[0]["urls"] == count
        assert rows(frontier, "block", subject, "--drop", *why)[0]["urls"] == count
    assert rows(frontier, "block", "192.0.2.0/24", *why)[0]["urls"] is None
    assert frontier("unblock", ".a.test", "--dry-run", *on).code == 1
    with pytest.raises(UsageError, match="give --yes, or --dry-run"):
        frontier("block", "a.test", "--drop", "--why", "x", *on)
    assert rows(frontier, "blocks", *on) == []
    frontier("block", ".a.test", "--why", "x", *on)
    assert rows(frontier, "unblock", ".a.test", "--dry-run", *on)[0]["urls"] == 3
    assert len(rows(frontier, "blocks", *on)) == 1
    assert rows(frontier, "status", *on)[0]["pending"] == 3


def test_a_block_that_is_over_is_forgotten() -> None:
    """By the policy and by the job; those that are taken out are taken out of the policy."""
    kv, policy = MemoryKV(), Policy()
    StoredBlock("a.test", "ops", 0.0, "x", until=100.0).put(kv)
    StoredBlock("b.test", "ops", 0.0, "x").put(kv)
    StoredBlock("c.test", "ops", 0.0, "x").put(kv)
    assert apply_blocks(kv, policy, 50.0) == 100.0
    assert policy.exclusion("a.test", "", 50.0) is not None
    kv.delete(b"c.test")
    assert apply_blocks(kv, policy, 100.0) == float("inf")
    assert [str(subject) for subject in policy.blocks] == ["b.test"]
    assert policy.exclusion("a.test", "", 50.0) is None
    assert kv.get(b"a.test") is None


# A crawl that runs


def after(web: FakeWebProcess, when: float, host: str) -> list[Arrival]:
    """What reached *host* after *when*, as far as the log has it."""
    return [a for a in web.arrivals() if a.host == host and a.start > when]


def quiet(web: FakeWebProcess, when: float, host: str, seconds: float = 3.0) -> bool:
    """Whether nothing reaches *host* from *when* on, for so many seconds, though others are."""
    other = "h000002.fake.test"
    until(lambda: any(a.start > when + seconds for a in web.arrivals() if a.host == other))
    return not after(web, when, host)


@pytest.mark.slow
def test_a_host_is_blocked_while_it_is_crawled(frontier: Frontier, tmp_path: Path) -> None:
    """No request to it starts more than 2 s later, robots.txt and images included.

    What is pending there waits.
    """
    config = FakeWebConfig(hosts=3, pages=2_000, redirects=0.2, images=2, log=tmp_path / "arrivals")
    on = ("-j", str(tmp_path / "job"))
    settings = {
        **FAST, "SUITE_HOST_DELAY": 0.2, "IMAGES_STORE": str(tmp_path),
        "TEST_CONSTANTS": {"scrapy_spider_suite.crawl.robots.TTL": 1},
        "ITEM_PIPELINES": {"scrapy.pipelines.images.ImagesPipeline": 1},
    }  # fmt: skip
    with FakeWebProcess(config) as web:
        with running(web, tmp_path, "support.odd_spiders.Pictures", **settings):
            until(lambda: len([a for a in web.arrivals() if a.host == HOST]) > 30)
            assert [a for a in web.arrivals() if a.host == HOST and ".png" in a.path]
            asked = time.time()
            assert frontier("block", HOST, "--why", "complaint", *on).code == 0
            assert quiet(web, asked + LEAD, HOST)
            [why] = rows(frontier, "why", HOST, *on)
            assert why["pending"] > 0
            assert why["failed"] == 0
            assert why["why"].startswith(f"blocked ({HOST}, block by ")
            assert why["why"].endswith(": complaint")
            assert frontier("unblock", HOST, *on).code == 0
            back = time.time()
            until(lambda: after(web, back, HOST))
            root = f"http://{HOST}:{web.ready.http_port}/"
            began = time.time()
            assert frontier("block", f"{root}0", "--why", "endless", *on).code == 0
            assert quiet(web, began + LEAD, "nobody.test")
            later = after(web, began + LEAD, HOST)
            assert later
            assert not [a.path for a in later if a.path.startswith("/0")]
            began = time.time()
            assert frontier("block", ".fake.test", "--why", "all", *on).code == 0
            until(lambda: time.time() > began + LEAD + 1.5)
            assert [a for a in web.arrivals() if a.start > began + LEAD] == []
        before = len(web.arrivals())
        with running(web, tmp_path, "support.odd_spiders.Pictures", **settings) as process:
            # Nobody may be visited: it ends, and says that it waits.
            until(lambda: process.poll() is not None)
        assert len(web.arrivals()) == before
        assert json.loads((tmp_path / "stats.json").read_text())["closed"] == "waiting"
    assert frontier("check", *on).code == 0


@pytest.mark.slow
def test_a_block_ends_by_itself(web: FakeWebProcess, tmp_path: Path, frontier: Frontier) -> None:
    """After its time the crawl goes on with what waited, in the same run."""
    small_crawl(web, tmp_path)
    on = ("-j", str(tmp_path / "job"))
    assert rows(frontier, "refetch", HOST, *on)[0]["urls"] > 1
    began = time.time()
    frontier("block", HOST, "--for", "6", "--why", "x", *on)
    assert small_crawl(web, tmp_path).reason == "finished"
    time.sleep(1.0)
    fetched = [a for a in after(web, began, HOST) if "robots" not in a.path]
    assert fetched
    assert min(a.start for a in fetched) > began + 5.9
    assert rows(frontier, "blocks", *on) == []
