"""``snapshot``: a whole job, or nothing; of a job at rest and of one that is being crawled."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
from support.forks import Fork
from support.frontier_command import FAST, HOST, SCRIPT, Frontier, Said, small_crawl
from support.loop_watch import GAP, TICK
from support.projects import environment
from support.running_crawl import running, until
from support.small_disks import make_read_only, tmpfs
from support.webs import FakeWebProcess

from scrapy_spider_suite.errors import JobError
from scrapy_spider_suite.operate.actions import ActionFolder, AuditLog
from scrapy_spider_suite.operate.terms import CrawlTerms
from scrapy_spider_suite.store import job_directory
from scrapy_spider_suite.store import job_directory as inventory
from scrapy_spider_suite.store.job_directory import FOLDER, JobFile
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.testing import FakeWebConfig


def rows(frontier: Frontier, *arguments: str) -> list[Any]:
    """What a verb says in JSON."""
    return frontier(*arguments, "--json").rows


def states(job: Path) -> dict[str, tuple[str, int]]:
    """Every URL of a *job*, its state and when that began."""
    with StoreReader(job / FOLDER) as reader:
        return {
            row.url: (row.state.state.value, row.state.when)
            for host, _ in reader.store.records()
            for row in reader.urls(host)
        }


# A job at rest


def test_a_fetch_log_elsewhere_is_named(job: Path, frontier: Frontier, tmp_path: Path) -> None:
    """It is not in the copy; one in the job is, and nothing is said of it."""
    [said] = rows(frontier, "snapshot", str(tmp_path / "one"), "-j", str(job))
    assert "not_copied" not in said
    store = RocksStore(job / FOLDER / "store")
    terms = CrawlTerms.load(store.kv("terms"))
    assert terms is not None
    kept = replace(terms, values={**terms.values, "SUITE_FETCH_LOG": "/var/log/fetches"})
    kept.save(store.kv("terms"))
    store.close()
    inventory.note_files(job / FOLDER / "store")
    [said] = rows(frontier, "snapshot", str(tmp_path / "two"), "-j", str(job))
    assert said["not_copied"] == "the fetch log in /var/log/fetches"


def test_everything_is_in_it(job: Path, frontier: Frontier, tmp_path: Path) -> None:
    """The store, the logs, what waits to be taken in, and what Scrapy and the project keep."""
    on = ("-j", str(job))
    frontier("refetch", HOST, *on)
    frontier("block", "b.test", "--why", "x", *on)
    (job / "requests.queue").mkdir()
    (job / "requests.queue" / "p0").write_bytes(b"\0" * 5000)
    (job / "spider.state").write_bytes(b"state")
    (job / "link").symlink_to("spider.state")
    (job / FOLDER / "seeds-0123").write_text("http://c.test/\n")
    target = tmp_path / "snapshot"
    [said] = rows(frontier, "snapshot", str(target), "--why", "before the move", *on)
    assert said["pending"] > 0
    assert frontier("check", "-j", str(target)) == Said(0, "everything agrees\n")
    assert states(target) == states(job)
    assert rows(frontier, "blocks", "-j", str(target)) == rows(frontier, "blocks", *on)
    # How the last process ended is no part of it.
    [status], [copied] = (rows(frontier, "status", "-j", str(each)) for each in (job, target))
    for waits in (status["waits"], copied["waits"]):
        for wait in waits:
            del wait["next_visit"]  # in seconds from now
    assert copied.items() <= status.items()
    assert copied["outcomes"]
    assert rows(frontier, "log", HOST, "-j", str(target)) == rows(frontier, "log", HOST, *on)
    assert (target / "requests.queue" / "p0").read_bytes() == b"\0" * 5000
    assert os.readlink(target / "link") == "spider.state"
    assert (target / FOLDER / "seeds-0123").exists()
    last = list(AuditLog(job / FOLDER).rows())[-1]
    assert (last["verb"], last["why"]) == ("snapshot", "before the move")
    assert last["facts"]["target"] == str(target)


def test_it_is_a_job_of_its_own(job: Path, frontier: Frontier, tmp_path: Path) -> None:
    """Another id, and what was asked of the one is not done to the other; nothing names a place."""
    target = tmp_path / "snapshot"
    assert frontier("snapshot", str(target), "-j", str(job)).code == 0
    old, new = JobFile.read(job / FOLDER), JobFile.read(target / FOLDER)
    assert old is not None
    assert new is not None
    assert new.id != old.id
    assert (new.origin, new.created, new.settings) == (old.id, old.created, old.settings)
    assert not (target / FOLDER / "actions").exists()
    assert list((job / FOLDER / "actions").iterdir()) == []
    frontier("block", "c.test", "--why", "x", "-j", str(target))
    assert rows(frontier, "blocks", "-j", str(job)) == []
    paths = [path for path in (target / FOLDER).rglob("*") if path.is_file()]
    named = [str(p) for p in paths if str(job).encode() in p.read_bytes()]
    # The audit log says where it was asked to be put.
    assert [name for name in named if "audit" not in name and "/store/" not in name] == []


def test_both_go_on(web: FakeWebProcess, tmp_path: Path, frontier: Frontier) -> None:
    """A snapshot that was moved is resumed beside its original, and fetches what was left."""
    small_crawl(web, tmp_path, CLOSESPIDER_PAGECOUNT=5)
    job = tmp_path / "job"
    left = rows(frontier, "status", "-j", str(job))[0]["pending"]
    assert left > 0
    assert frontier("snapshot", str(tmp_path / "taken"), "-j", str(job)).code == 0
    for folder in ("elsewhere", "again"):
        (tmp_path / folder).mkdir()
    shutil.copytree(tmp_path / "taken", tmp_path / "elsewhere" / "job")
    before = states(job)
    crawls = [small_crawl(web, tmp_path / "elsewhere"), small_crawl(web, tmp_path)]
    assert [crawl.reason for crawl in crawls] == ["finished", "finished"]
    ends = [states(tmp_path / "elsewhere" / "job"), states(job)]
    assert ends[0].keys() == ends[1].keys()
    for end in ends:
        assert {u: s for u, s in end.items() if before.get(u, ("pending",))[0] != "pending"} == {
            u: s for u, s in before.items() if s[0] != "pending"
        }
    assert states(tmp_path / "taken") == before


# Targets


def test_a_target_that_cannot_be(job: Path, frontier: Frontier, tmp_path: Path) -> None:
    """What exists is not touched, and nothing is asked of the job."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    for target, words in {
        "file": "exists: name a directory", "empty": "exists: name a directory",
        "nowhere/x": "there is no directory", "file/x": "there is no directory",
        f"{job.name}/{FOLDER}/x": "lies in the job directory itself",
    }.items():  # fmt: skip
        said = frontier("snapshot", str(tmp_path / target), "-j", str(job))
        assert said.code == 2
        assert words in said.out
        assert len(said.out.splitlines()) == 1
    assert (tmp_path / "file").read_text() == "mine"
    assert list(AuditLog(job / FOLDER).rows()) == []


def test_a_target_that_cannot_be_written(job: Path, frontier: Frontier, tmp_path: Path) -> None:
    """Full or read-only: one line, nothing is left of it, and the job is as it was."""
    (job / "big").write_bytes(os.urandom(3 << 20))
    before = states(job)
    with tmpfs(tmp_path / "small", "2m") as small:
        for words in ("No space left", "Read-only file system"):
            said = frontier("snapshot", str(small / "snapshot"), "-j", str(job))
            assert (said.code, words in said.out) == (2, True), said.out
            assert list(small.iterdir()) == []
            make_read_only(small)
    assert states(job) == before
    assert list((job / FOLDER / "actions").iterdir()) == []


def test_a_store_for_which_there_is_no_room(
    job: Path, frontier: Frontier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not begun with: the disk may be one that others need."""
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(job_directory.shutil, "disk_usage", lambda path: usage)
    with tmpfs(tmp_path / "other", "100m") as other:
        said = frontier("snapshot", str(other / "snapshot"), "-j", str(job))
        assert (said.code, "100 bytes free" in said.out) == (2, True)
        assert list(other.iterdir()) == []
    assert list((job / FOLDER / "actions").iterdir()) == []


def test_another_file_system(job: Path, frontier: Frontier, tmp_path: Path) -> None:
    """The files are copied there, and nothing is left behind."""
    with tmpfs(tmp_path / "other", "100m") as other:
        assert frontier("snapshot", str(other / "snapshot"), "-j", str(job)).code == 0
        assert states(other / "snapshot") == states(job)
        assert [path.name for path in other.iterdir()] == ["snapshot"]
    assert list((job / FOLDER / "actions").iterdir()) == []


def test_a_target_that_appears_meanwhile(job: Path, frontier: Frontier, tmp_path: Path) -> None:
    """It is left alone."""
    target = tmp_path / "target"

    def appear() -> Path:
        target.mkdir()
        (target / "file").touch()
        return shutil.copytree(job / FOLDER / "store", tmp_path / "copied")

    with pytest.raises(JobError, match="cannot be written: Directory not empty"):
        job_directory.copy_job(job, target, appear)
    assert [path.name for path in target.iterdir()] == ["file"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_log_that_is_rotated_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is copied again, until nothing is missing or there twice."""
    folder, made = tmp_path / "fetches", []
    folder.mkdir()
    (folder / "fetch.log").write_text("old")
    copy = job_directory.files.copy_file

    def rotating(path: Path, to: Path) -> None:
        if not made:
            made.append(os.rename(folder / "fetch.log", folder / "fetch-1-2.log"))
            (folder / "fetch.log").write_text("new")
        copy(path, to)

    monkeypatch.setattr(job_directory.files, "copy_file", rotating)
    job_directory._copy_at_rest(folder, tmp_path / "to")
    found = {path.name: path.read_text() for path in (tmp_path / "to").iterdir()}
    assert found == {"fetch-1-2.log": "old", "fetch.log": "new"}


def test_copies_that_nobody_fetched_go(tmp_path: Path) -> None:
    """After a day, with the other remains of actions."""
    actions = ActionFolder(tmp_path)
    path = actions.copy_path("1")
    path.mkdir(parents=True)
    (path / "file").touch()
    actions.sweep(time.time())
    assert path.is_dir()
    actions.sweep(time.time() + 100_000)
    assert not path.exists()


# A crawl that runs


@pytest.mark.slow
def test_of_a_running_crawl(frontier: Frontier, tmp_path: Path) -> None:
    """Consistent while it writes, the loop is not held up, and a kill of the copier harms nobody.

    The snapshot is finished elsewhere while the crawl goes on.
    """
    config = FakeWebConfig(hosts=20, pages=40, degree=10, log=tmp_path / "arrivals")
    on = ("-j", str(tmp_path / "job"))
    # It takes a minute, if nobody ends it.
    settings = {**FAST, "SUITE_HOST_DELAY": 1.5, "EXTENSIONS": {"support.loop_watch.Watch": 0}}
    (tmp_path / "elsewhere").mkdir()
    with FakeWebProcess(config) as web:
        with running(web, tmp_path, **settings):
            until(lambda: len(web.arrivals()) > 100, every=0.5)
            words = ["snapshot", str(tmp_path / "killed"), *on]
            with TemporaryFile() as said_by:
                killed = Fork(SCRIPT, words, tmp_path, environment(), said_by, said_by)
            until(lambda: list(tmp_path.glob(".killed.*")) or killed.poll() is not None)
            killed.kill()
            killed.wait()
            for number in range(5):
                target = tmp_path / f"taken{number}"
                [said] = rows(frontier, "snapshot", str(target), *on)
                assert said["pending"] > 0
                assert frontier("check", "-j", str(target)) == Said(0, "everything agrees\n")
            shutil.move(tmp_path / "taken4", tmp_path / "elsewhere" / "job")
            known = states(tmp_path / "elsewhere" / "job")
            done = {url for url, state in known.items() if state[0] == "done"}
            assert done
            crawl = small_crawl(web, tmp_path / "elsewhere", **FAST)
        assert crawl.reason == "finished", crawl.log[-3000:]
        end = states(tmp_path / "elsewhere" / "job")
        assert {url for url, state in end.items() if state[0] == "done"} >= set(web.web.reachable())
        assert {url: end[url] for url in done} == {url: known[url] for url in done}
    assert frontier("check", *on).code == 0
    gap = json.loads((tmp_path / "stats.json").read_text())[GAP] - TICK
    print(f"longest gap: {gap * 1000:.0f} ms")
    assert gap < 1.0
