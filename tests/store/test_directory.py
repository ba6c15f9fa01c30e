"""The job directory: one user at a time, resumed as it was left, and refused where it must be."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.errors import (
    JobDamagedError,
    JobError,
    JobFormatError,
    JobInUseError,
    JobSettingsError,
)
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.store.job_directory import FOLDER, Job, JobFile, close_job, job_kv, job_of
from scrapy_spider_suite.store.rows import FORMAT

HOLD = """
import sys, time
from pathlib import Path
from scrapy.settings import Settings
from scrapy_spider_suite.store.job_directory import Job
from scrapy_spider_suite.settings.suite import SuiteSettings
job = Job(Path(sys.argv[1]), SuiteSettings.from_settings(Settings()), "news")
print("open", flush=True)
time.sleep(60)
"""


def open_job(path: Path, spider: str = "news", **settings: Any) -> Job:
    """Open the job in *path*."""
    return Job(path, SuiteSettings.from_settings(Settings(settings)), spider)


def begin(path: Path, **settings: Any) -> None:
    """Begin a job there, and end it as a crawl does."""
    open_job(path, **settings).close()


def edit(path: Path, **changes: Any) -> None:
    """Change the job's description."""
    file = path / FOLDER / "job.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


# Beginning and resuming


def test_a_new_job(tmp_path: Path) -> None:
    """Its directory is made; it is neither resumed nor was it left uncleanly."""
    job = open_job(tmp_path / "a" / "b")
    assert (job.resumed, job.unclean) == (False, False)
    assert {path.name for path in job.folder.iterdir()} == {"lock", "job.json", "store", "seen"}
    described = json.loads((job.folder / "job.json").read_text())
    assert (described["format"], described["spider"]) == (FORMAT, "news")
    assert described["settings"]["host_delay"] == 0.0
    job.close()


def test_a_job_goes_on_as_itself(tmp_path: Path) -> None:
    """The same id and birthday; what was stored is there."""
    job = open_job(tmp_path)
    first = job.file
    job.store.kv("x").put(b"key", b"value")
    job.close()
    job = open_job(tmp_path)
    assert (job.resumed, job.unclean) == (True, False)
    assert (job.file.id, job.file.created) == (first.id, first.created)
    assert job.store.kv("x").get(b"key") == b"value"
    job.close()


def test_an_unclean_end_is_noticed(tmp_path: Path) -> None:
    """A copy of a job that is open is what a kill would leave."""
    begin(tmp_path / "old")
    job = open_job(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "killed")
    job.close()
    killed = open_job(tmp_path / "killed")
    assert (killed.resumed, killed.unclean) == (True, True)
    killed.close()


def test_a_start_that_was_killed_at_once_is_a_new_job(tmp_path: Path) -> None:
    """A lock and nothing else says nothing of a job."""
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "lock").write_text("process 1")
    job = open_job(tmp_path)
    assert not job.resumed
    job.close()


def test_a_job_can_be_moved(tmp_path: Path) -> None:
    """Nothing in it names the place where it is."""
    job = open_job(tmp_path / "old")
    job.store.kv("x").put(b"key", b"value")
    job.close()
    for file in (tmp_path / "old" / FOLDER).glob("*.json"):
        assert str(tmp_path) not in file.read_text()
    shutil.move(tmp_path / "old", tmp_path / "new")
    job = open_job(tmp_path / "new")
    assert job.resumed
    assert job.store.kv("x").get(b"key") == b"value"
    job.close()


def test_the_batches_of_a_power_safe_job_are_synced(tmp_path: Path) -> None:
    """SUITE_COMMIT_SURVIVES reaches the store, and is free to change."""
    begin(tmp_path)
    job = open_job(tmp_path, SUITE_COMMIT_SURVIVES="power")
    assert job.store._write_options.sync
    job.close()


# One user at a time


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """The second is told who the first is, and disturbs nothing; a kill frees the job."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        before = (tmp_path / FOLDER / "job.json").read_text()
        with pytest.raises(JobInUseError, match=rf"in use by process {other.pid}: wait"):
            open_job(tmp_path, SUITE_HOST_DELAY=3)
        assert (tmp_path / FOLDER / "job.json").read_text() == before
        other.kill()
    job = open_job(tmp_path)
    assert job.unclean
    job.close()


def test_two_crawls_of_one_process(tmp_path: Path) -> None:
    """The lock holds between them too, and goes with a start that is refused."""
    job = open_job(tmp_path)
    with pytest.raises(JobInUseError):
        open_job(tmp_path)
    job.close()
    with pytest.raises(JobSettingsError):
        open_job(tmp_path, spider="other")
    open_job(tmp_path).close()


# Refusals


def test_another_spiders_job(tmp_path: Path) -> None:
    """Its URLs would go to callbacks that are not there."""
    begin(tmp_path)
    with pytest.raises(JobSettingsError, match="belongs to spider 'news', not 'other'"):
        open_job(tmp_path, spider="other")


def test_fixed_settings_stay(tmp_path: Path) -> None:
    """The line names each, with both values and the way out; set back, the job goes on."""
    job = open_job(tmp_path)
    job.store.kv("x").put(b"key", b"value")
    job.close()
    with pytest.raises(JobSettingsError) as caught:
        open_job(tmp_path, SUITE_PROFILE="broad")
    assert "SUITE_PROFILE was 'spider' and is 'broad'; set it back" in str(caught.value)
    begin(tmp_path)


def test_other_settings_may_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each difference is a line of the log; the next run compares with this one."""
    begin(tmp_path)
    with caplog.at_level(logging.INFO, "scrapy_spider_suite.store.job_directory"):
        begin(tmp_path, SUITE_HOST_MAX_PAGES=5, SUITE_MAX_WAIT="10m")
        begin(tmp_path, SUITE_HOST_MAX_PAGES=5, SUITE_MAX_WAIT=600)
    assert caplog.messages == [
        "SUITE_HOST_MAX_PAGES was 0, from now on 5",
        "SUITE_MAX_WAIT was 1800.0, from now on 600.0",
    ]


def test_settings_of_other_releases_are_no_difference(tmp_path: Path) -> None:
    """What only one of the two knows cannot have changed."""
    begin(tmp_path)
    edit(tmp_path, settings={"of_the_past": 1})
    begin(tmp_path)


def test_another_format(tmp_path: Path) -> None:
    """It is left alone; to upgrade helps only with a newer one."""
    begin(tmp_path)
    edit(tmp_path, format=FORMAT + 1, more="fields")
    with pytest.raises(JobFormatError, match=f"has data format {FORMAT + 1}.*reads {FORMAT}: upg"):
        open_job(tmp_path)
    edit(tmp_path, format=FORMAT - 1)
    with pytest.raises(JobFormatError, match=f"format {FORMAT - 1}.*reads {FORMAT}: use another"):
        open_job(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": "1"}', '{"format": 1}', '{"format": 1, "x": 2}', "\0"]
)
def test_a_damaged_description(text: str, tmp_path: Path) -> None:
    """One line with the way out; the store is not touched."""
    begin(tmp_path)
    (tmp_path / FOLDER / "job.json").write_text(text)
    with pytest.raises(JobDamagedError, match=r"job\.json .*scrapy frontier check") as caught:
        open_job(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_store_without_its_description(tmp_path: Path) -> None:
    """Which settings it was written with is not known."""
    begin(tmp_path)
    (tmp_path / FOLDER / "job.json").unlink()
    with pytest.raises(JobDamagedError, match=r"job\.json is missing"):
        open_job(tmp_path)
    assert not (tmp_path / FOLDER / "job.json").exists()


def test_a_damaged_store(tmp_path: Path) -> None:
    """It is said in one line, and nothing of it is deleted."""
    begin(tmp_path)
    [manifest] = (tmp_path / FOLDER / "store").glob("MANIFEST*")
    manifest.write_bytes(b"no manifest")
    with pytest.raises(JobDamagedError, match="is damaged"):
        open_job(tmp_path)
    assert manifest.read_bytes() == b"no manifest"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    """A file where the directory should be, say."""
    (tmp_path / "file").touch()
    with pytest.raises(JobError, match="cannot be used: Not a directory"):
        open_job(tmp_path / "file")


def test_the_description_is_written_whole(tmp_path: Path) -> None:
    """Under another name first: a kill in between leaves the old one."""
    described = JobFile(FORMAT, "id", "news", 0.0, {})
    described.write(tmp_path)
    assert JobFile.read(tmp_path) == described
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]
    assert JobFile.read(tmp_path / "nowhere") is None


# The job of a crawler


def test_a_crawler_has_one_job(tmp_path: Path) -> None:
    """Opened when first asked for; its parts have mappings of their own."""
    crawler = get_crawler(Spider, {"JOBDIR": str(tmp_path)})
    crawler.spidercls.name = "news"
    crawler.crawling = True
    job = job_of(crawler)
    assert job is not None
    assert job_of(crawler) is job
    kv = job_kv(crawler, "part")
    assert kv is not None
    kv.put(b"a", b"1")
    assert job.store.kv("part").get(b"a") == b"1"
    close_job(crawler)
    close_job(crawler)
    open_job(tmp_path).close()


def test_no_job_without_jobdir_or_crawl(tmp_path: Path) -> None:
    """Nothing of ours is made on the disk then."""
    assert job_of(get_crawler(Spider)) is None
    looking = get_crawler(Spider, {"JOBDIR": str(tmp_path / "job")})
    assert job_of(looking) is None
    assert job_kv(looking, "part") is None
    assert not (tmp_path / "job" / FOLDER).exists()


def test_a_damaged_archive_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The crawl goes on without what was in the file, and is told how to mend it."""
    job = open_job(tmp_path)
    assert job.store.archive is not None
    job.store.archive.urls.add(f"http://a.t/{n}" for n in range(100))
    job.store.archive.urls.flush()
    job.close()
    [segment] = (tmp_path / FOLDER / "seen").glob("segment-*")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    job = open_job(tmp_path)
    said = [line for line in caplog.messages if segment.name in line]
    assert len(said) == 1
    assert "scrapy frontier check --repair" in said[0]
    job.close()


def test_a_lost_archive_is_refused(tmp_path: Path) -> None:
    """Everything in it would be fetched again: a copy of a job must have it."""
    begin(tmp_path)
    shutil.rmtree(tmp_path / FOLDER / "seen")
    with pytest.raises(JobDamagedError, match=r"archive of seen URLs, is missing"):
        open_job(tmp_path)
    with pytest.raises(JobDamagedError, match="is missing"):
        open_job(tmp_path, SUITE_SEEN_STORE="plain")
