"""A job in which nothing has happened yet may be begun with other fixed settings (`Job`)."""

from __future__ import annotations

import errno
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings

from scrapy_spider_suite.errors import JobSettingsError
from scrapy_spider_suite.frontier.entries import Entry, state_key
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.store import job_reader
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.job_directory import FOLDER, Job, JobFile
from scrapy_spider_suite.store.rows import HostRecord
from scrapy_spider_suite.store.seen_index import DONE_200
from scrapy_spider_suite.store.seen_transfer import SieveRows


def open_job(path: Path, **settings: Any) -> Job:
    """Open the job in *path*."""
    return Job(path, SuiteSettings.from_settings(Settings(settings)), "news")


def contents(path: Path) -> dict[str, bytes]:
    """All files but those that an attempt may write to."""
    files = (each for each in path.rglob("*") if each.is_file() and each.name != "lock")
    return {str(each.relative_to(path)): each.read_bytes() for each in files}


def something(job: Job, what: str) -> None:
    """Let *what* have happened to *job*."""
    store, key = job.store, state_key("a.t", "http://a.t/")
    match what:
        case "a URL waits":
            store.put_row(Entry("a.t", "http://a.t/", key=b"\0" * 10))
        case "a URL was seen":
            store.put_state(key, DONE_200)
        case "a URL was archived":
            assert store.archive is not None
            store.archive.add([key])
        case "a sieve has met it":
            job.open_seen(SuiteSettings.from_settings(Settings({"SUITE_SEEN_STORE": "sieve"})))
            assert store.sieve is not None
            store.sieve.sieve.offer_prints(store.sieve.prints([key]))
            store.sieve.sieve.begin().run()
        case "a host was met":
            store.put_record("a.t", HostRecord())
        case "links wait for the sieve":
            SieveRows(store).put(0, b"row")
        case "start() was read":
            store.kv("start").put(b"started", b"1")
        case "it is a member":
            store.kv("agent").put(b"crawl", b"1")
        case "it has met others":
            store.kv("agent").put(b"met", b"")
        case "it has counted":
            Counters(sequence=1).save(store)


@pytest.mark.parametrize(
    "what",
    [
        "a URL waits", "a URL was seen", "a URL was archived", "a sieve has met it",
        "a host was met", "links wait for the sieve", "start() was read", "it is a member",
        "it has met others", "it has counted",
    ],
)  # fmt: skip
def test_what_has_happened_to_a_job_fixes_its_settings(what: str, tmp_path: Path) -> None:
    """Other ones are refused, and nothing is changed."""
    job = open_job(tmp_path)
    something(job, what)
    job.close()
    before = contents(tmp_path)
    with pytest.raises(JobSettingsError, match="SUITE_PROFILE was 'spider' and is 'broad'"):
        open_job(tmp_path, SUITE_PROFILE="broad")
    assert contents(tmp_path) == before
    open_job(tmp_path).close()


def test_a_job_in_which_nothing_is_takes_other_fixed_settings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its first start was refused by somebody else; what they depend on is made for the new."""
    old: dict[str, Any] = {"SUITE_SEEN_STORE": "sieve", "SUITE_SIEVE_BITS": "128"}
    new = {**old, "SUITE_SIEVE_BITS": "64", "SUITE_PROFILE": "broad"}
    job = open_job(tmp_path, **old)
    Counters().save(job.store)
    first = job.file
    job.close()
    with caplog.at_level(logging.INFO, "scrapy_spider_suite.store.job_directory"):
        job = open_job(tmp_path, **new)
    assert "SUITE_SIEVE_BITS was '128', from now on '64'" in caplog.messages
    assert (job.file.id, job.file.settings["sieve_bits"]) == (first.id, "64")
    assert job.store.sieve is not None
    assert job.store.sieve.width == 8
    something(job, "a URL waits")
    job.close()
    with pytest.raises(JobSettingsError, match="SUITE_SIEVE_BITS was '64' and is '128'"):
        open_job(tmp_path, **old)
    open_job(tmp_path, **new).close()


@pytest.mark.parametrize("bits", ["64", "128"])
def test_a_kill_while_other_fixed_settings_are_taken(
    bits: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before they are written down: the next start takes either."""
    open_job(tmp_path / "old", SUITE_SEEN_STORE="sieve", SUITE_SIEVE_BITS="128").close()

    write = JobFile.write

    def copy_before(described: JobFile, folder: Path) -> None:
        shutil.copytree(tmp_path / "old", tmp_path / "killed")
        write(described, folder)

    monkeypatch.setattr(JobFile, "write", copy_before)
    job = open_job(tmp_path / "old", SUITE_SEEN_STORE="sieve", SUITE_SIEVE_BITS="64")
    monkeypatch.undo()
    job.close()
    job = open_job(tmp_path / "killed", SUITE_SEEN_STORE="sieve", SUITE_SIEVE_BITS=bits)
    assert job.store.sieve is not None
    assert job.store.sieve.width == int(bits) // 8
    job.close()


def test_of_a_damaged_job_nobody_knows_what_is_in_it(tmp_path: Path) -> None:
    """It keeps its fixed settings."""
    open_job(tmp_path).close()
    [table, *_] = (tmp_path / FOLDER / "store").glob("*.sst")
    table.unlink()
    with pytest.raises(JobSettingsError, match="SUITE_PROFILE was"):
        open_job(tmp_path, SUITE_PROFILE="broad")


def test_where_nobody_can_look_the_settings_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since there is no room for what a look needs."""
    open_job(tmp_path).close()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(job_reader, "LockedFolder", full)
    with pytest.raises(JobSettingsError, match="SUITE_PROFILE was"):
        open_job(tmp_path, SUITE_PROFILE="broad")
