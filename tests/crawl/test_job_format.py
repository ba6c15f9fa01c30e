"""Jobs that an older release began are finished by this one.

``tests/data/jobs/job-format-N.tar.xz`` holds two jobs in the data format N, of the spiders
``bulk`` and ``ordinary``, ended after some ten pages of the web below. With a new format, the one
that is current gets a file, and none is removed.
"""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from support.frontier_command import Said, scrapy
from support.projects import Project

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.outcomes import State
from scrapy_spider_suite.store.job_directory import FOLDER, JobFile
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rows import FORMAT
from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess

JOBS = Path(__file__).parents[1] / "data" / "jobs"
OLDEST = JOBS / "job-format-1.tar.xz"
PORT = 47811
WEB = FakeWebConfig(hosts=5, pages=10, degree=4, port=PORT)

pytestmark = pytest.mark.slow


def _states(job: Path) -> dict[str, State]:
    with StoreReader(job / FOLDER) as reader:
        assert list(reader.check()) == []
        hosts = [host for host, _ in reader.hosts()]
        return {row.url: row.state.state for host in hosts for row in reader.urls(host)}


def test_the_present_format_has_a_fixture() -> None:
    """Whoever raises the number adds a file."""
    assert (JOBS / f"job-format-{FORMAT}.tar.xz").is_file()


def _unpack(archive: Path, spider: str, folder: Path) -> Path:
    """The job of *spider* in *archive*, in *folder*."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / spider


@pytest.mark.parametrize("archive", sorted(JOBS.glob("*.tar.xz")), ids=lambda path: path.name)
@pytest.mark.parametrize("spider", ["bulk", "ordinary"])
def test_an_older_job_is_finished(archive: Path, spider: str, tmp_path: Path) -> None:
    """Its crawl is started as it is; what came with a newer format is there in the end."""
    job = _unpack(archive, spider, tmp_path)
    before = _format(job)
    log = _finish(job, spider, tmp_path)
    assert _format(job) == FORMAT
    assert (f"had data format {before} and has {FORMAT} now" in log) is (before < FORMAT)


@pytest.mark.parametrize("spider", ["bulk", "ordinary"])
def test_a_job_that_was_upgraded_is_finished(spider: str, tmp_path: Path) -> None:
    """Tried, refused before, killed in the middle at two places, done, and then resumed."""
    job = _unpack(OLDEST, spider, tmp_path)
    on = ("-j", str(job))
    described = (job / FOLDER / "job.json").read_bytes()
    [dry] = frontier("upgrade", "--dry-run", "--json", *on).rows
    assert (dry["format"], dry["upgraded"], len(dry["new"])) == (1, False, FORMAT - 1)
    refused = frontier("pause", *on)
    assert (refused.code, "older data format: upgrade it with" in refused.out) == (2, True)
    assert list((job / FOLDER / "actions").iterdir()) == []  # not to be done some day
    _killed(job, "scrapy_spider_suite.runtime.files.os.replace")
    assert (job / FOLDER / "job.json").read_bytes() == described
    _killed(job, "scrapy_spider_suite.store.rocks_store.RocksStore.flush")
    assert _format(job) == FORMAT
    [said] = frontier("upgrade", "--json", *on).rows
    assert (said["before"], said["upgraded"]) == (FORMAT, False)
    assert frontier("check", *on).out == "everything agrees\n"
    assert "had data format" not in _finish(job, spider, tmp_path)


def test_an_upgrade_of_what_cannot_be(tmp_path: Path) -> None:
    """One line, and nothing is changed: in use, damaged, newer, no job."""
    job = _unpack(OLDEST, "bulk", tmp_path)
    with (job / FOLDER / "lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "is in use" in frontier("upgrade", "-j", str(job)).out
    [table, *_] = (job / FOLDER / "store").glob("*.sst")
    table.unlink()
    assert "is damaged" in frontier("upgrade", "-j", str(job)).out
    assert _format(job) == 1
    path = job / FOLDER / "job.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": FORMAT + 1}))
    assert "written by a newer release" in frontier("upgrade", "-j", str(job)).out
    said = frontier("upgrade", "-j", str(tmp_path))
    assert (said.code, "holds no job" in said.out) == (2, True)


def frontier(*arguments: str) -> Said:
    """What ``scrapy frontier`` says."""
    ended = scrapy(*arguments)
    return Said(ended.returncode, ended.stdout + ended.stderr)


def _format(job: Path) -> int:
    described = JobFile.read(job / FOLDER)
    assert described is not None
    return described.format


def _killed(job: Path, place: str) -> None:
    """Upgrade *job* in a process that is killed as soon as it comes to *place*."""
    script = (
        "import os, signal, sys, unittest.mock; from pathlib import Path\n"
        "from scrapy_spider_suite.job.upgrading import upgrade\n"
        "kill = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        "unittest.mock.patch(sys.argv[1], kill).start()\n"
        "upgrade(Path(sys.argv[2]))\n"
    )
    command = [sys.executable, "-c", script, place, str(job / FOLDER)]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], check=False)
    assert ended.returncode == -signal.SIGKILL


def _finish(job: Path, spider: str, tmp_path: Path) -> str:
    """Crawl *job* to its end, and return the log: everything reachable is done then, and what was
    done before is not fetched again."""
    done = {url for url, state in _states(job).items() if state is State.DONE}
    web = FakeWebProcess(FakeWebConfig.from_values({**WEB.__dict__, "log": tmp_path / "log"}))
    try:
        web.start()
    except SettingsError as error:
        pytest.skip(f"the port that the job's URLs name is taken: {error}")
    try:
        project = Project(
            tmp_path / "project", SUITE_DNS_SERVERS=f"127.0.0.1:{web.ready.dns_port}",
            SUITE_ALLOW_PRIVATE_ADDRESSES=["127.0.0.0/8"], SUITE_HOST_DELAY=0.01, SUITE_IP_DELAY=0,
            DOWNLOAD_DELAY=0.01,
        )  # fmt: skip
        argument = "seeds" if spider == "bulk" else "start"
        ended = project.scrapy(
            "crawl", spider, "-a", f"{argument}={web.ready.seeds[0]}", JOBDIR=str(job)
        )
    finally:
        web.stop()
    assert ended.returncode == 0, ended.stderr
    assert "(finished)" in ended.stderr, ended.stderr[-3000:]
    states = _states(job)
    assert {url for url, state in states.items() if state is State.DONE} >= set(web.web.reachable())
    again = {f"http://{each.host}:{PORT}{each.path}" for each in web.arrivals()} & done
    assert again == set()
    return str(ended.stderr)
