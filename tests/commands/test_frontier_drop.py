"""``drop``: a receipt, and nothing left; what was not asked for stays."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from scrapy.exceptions import UsageError
from support.frontier_command import FAST, HOST, Frontier, Said, small_crawl
from support.running_crawl import running, until
from support.webs import FakeWebProcess

from scrapy_spider_suite.operate.actions import AuditLog
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.rocks_store import RocksStore, TableRewrite
from scrapy_spider_suite.testing import FakeWebConfig


def rows(frontier: Frontier, *arguments: str) -> list[Any]:
    """What a verb says in JSON."""
    return frontier(*arguments, "--json").rows


def remains(job: Path, text: str) -> list[str]:
    """The files of the store in which *text* stands; the blocks of tables are compressed."""
    store = RocksStore(job / FOLDER / "store")
    found = [
        f"{family}: {key!r}"
        for family in ("hosts", "due", "queue", "states", "kv", "meta")
        for key, value in store._on_disk(family)
        if text.encode() in key or text.encode() in value
    ]
    store.close()
    return found


def test_a_host(job: Path, frontier: Frontier) -> None:
    """A dry run counts; then everything goes that is its own, and the counters agree."""
    on = ("-j", str(job))
    frontier("add", f"http://{HOST}/pending", *on)
    before = rows(frontier, "status", *on)[0]
    mine = rows(frontier, "urls", HOST, "--limit", "0", *on)
    [dry] = rows(frontier, "drop", HOST, "--dry-run", *on)
    assert dry["urls"] == len(mine)
    assert rows(frontier, "status", *on)[0] == before
    [receipt] = rows(frontier, "drop", HOST, "--yes", "--why", "request", *on)
    counted = {state: sum(row["state"] == state for row in mine) for state in ("done", "failed")}
    assert receipt["pending"] == 1
    assert {name: receipt[name] for name in counted} == counted
    assert receipt["robots"] >= 1
    assert receipt["seeds"] == 2
    after = rows(frontier, "status", *on)[0]
    assert after["done"] == before["done"] - receipt["done"]
    assert after["failed"] == before["failed"] - receipt["failed"]
    assert sum(after["outcomes"].values()) == after["done"] + after["failed"]
    assert frontier("check", *on) == Said(0, "everything agrees\n")
    assert "never met" in frontier("why", HOST, *on).out
    assert rows(frontier, "blocks", *on) == []
    last = list(AuditLog(job / FOLDER).rows())[-1]
    assert (last["verb"], last["why"]) == ("drop", "request")
    assert last["facts"]["done"] == receipt["done"]
    # The last page that another host's URL came from is that URL's, not this host's.
    assert [each for each in remains(job, HOST) if not each.startswith("queue")] == []


def test_below_a_url(job: Path, frontier: Frontier) -> None:
    """Only that, and the host stays."""
    on = ("-j", str(job))
    mine = [row["url"] for row in rows(frontier, "urls", HOST, "--limit", "0", *on)]
    prefix = mine[0] + "0"
    below = [url for url in mine if url.startswith(prefix)]
    assert below
    [receipt] = rows(frontier, "drop", prefix, "--yes", *on)
    assert receipt["done"] + receipt["failed"] == len(below)
    assert (receipt["robots"], receipt["cookies"]) == (0, 0)
    left = [row["url"] for row in rows(frontier, "urls", HOST, "--limit", "0", *on)]
    assert left == [url for url in mine if url not in below]
    assert frontier("check", *on) == Said(0, "everything agrees\n")


def test_text_has_a_receipt(job: Path, frontier: Frontier) -> None:
    """And what was not touched; of a host that nobody knows there is none."""
    said = frontier("drop", HOST, "--yes", "-j", str(job))
    assert said.code == 0
    assert said.out.startswith(f"{HOST} was dropped: pending 0, done ")
    assert "\n  the fetch log\n  the audit log\n" in said.out
    assert f"\nreceipt: {list(AuditLog(job / FOLDER).rows())[-1]['id']} " in said.out
    said = frontier("drop", "nobody.test", "--yes", "-j", str(job))
    assert said.code == 2
    assert said.out == "scrapy frontier: the job has never met the host 'nobody.test'\n"
    assert [row["ok"] for row in AuditLog(job / FOLDER).rows()][-2:] == [True, False]
    assert frontier("check", "-j", str(job)) == Said(0, "everything agrees\n")


def test_what_could_not_be_rewritten_is_told(
    job: Path, frontier: Frontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the receipt, and by an exit code of its own; once more, and it is gone."""
    with monkeypatch.context() as patch:
        errors = count()
        patch.setattr(TableRewrite, "_errors", lambda self: next(errors))
        said = frontier("drop", HOST, "--yes", "--json", "-j", str(job))
    assert said.code == 4
    assert said.rows[0]["done"] > 0
    [left] = said.rows[0]["not_removed"]
    assert left.startswith("the store's tables could not all be rewritten")
    again = frontier("drop", HOST, "--yes", "--json", "-j", str(job))
    assert again.code == 0
    assert "not_removed" not in again.rows[0]
    assert [each for each in remains(job, HOST) if not each.startswith("queue")] == []


def test_it_is_not_done_by_mistake(job: Path, frontier: Frontier) -> None:
    """Without --yes nothing happens where nobody can be asked; nor for more than a host."""
    before = rows(frontier, "status", "-j", str(job))
    with pytest.raises(UsageError, match="give --yes, or --dry-run"):
        frontier("drop", HOST, "-j", str(job))
    for more in (".fake.test", "192.0.2.0/24"):
        with pytest.raises(UsageError, match="more than a host"):
            frontier("drop", more, "--yes", "-j", str(job))
    assert rows(frontier, "status", "-j", str(job)) == before


def test_a_dropped_host_can_be_crawled_anew(
    web: FakeWebProcess, job: Path, frontier: Frontier
) -> None:
    """From its robots.txt on, as if it had never been met."""
    on = ("-j", str(job))
    known = rows(frontier, "urls", HOST, "--limit", "0", *on)
    frontier("drop", HOST, "--yes", *on)
    frontier("add", known[0]["url"], *on)
    began = time.time()
    assert small_crawl(web, job.parent, JOBDIR=str(job)).reason == "finished"
    time.sleep(1.0)
    paths = [a.path for a in web.arrivals() if a.start > began and a.host == HOST]
    assert paths[0] == "/robots.txt"
    again = rows(frontier, "urls", HOST, "--limit", "0", *on)
    assert {row["url"] for row in again} <= {row["url"] for row in known}
    assert frontier("check", *on) == Said(0, "everything agrees\n")


@pytest.mark.slow
def test_while_it_is_crawled(frontier: Frontier, tmp_path: Path) -> None:
    """Blocked first, it goes while the crawl does, and does not come back."""
    config = FakeWebConfig(hosts=2, pages=2_000, log=tmp_path / "arrivals")
    job = tmp_path / "job"
    on = ("-j", str(job))
    settings = {**FAST, "SUITE_HOST_DELAY": 0.08}
    with FakeWebProcess(config) as web, running(web, tmp_path, **settings):
        until(lambda: len([a for a in web.arrivals() if a.host == HOST]) > 50)
        assert frontier("block", HOST, "--why", "request", *on).code == 0
        [receipt] = rows(frontier, "drop", HOST, "--yes", *on)
        gone = time.time()
        assert receipt["done"] > 20
        assert receipt["pending"] > 0
        assert rows(frontier, "blocks", *on)[0]["subject"] == HOST
        until(lambda: any(a.start > gone + 2.0 for a in web.arrivals()))
        assert [a for a in web.arrivals() if a.host == HOST and a.start > gone] == []
        assert {row["state"] for row in rows(frontier, "urls", HOST, *on)} <= {"pending"}
    assert frontier("check", *on) == Said(0, "everything agrees\n")
