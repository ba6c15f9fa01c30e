"""A job in the present data format is finished; a job in another format is refused.

``tests/data/jobs/job-format-N.tar.xz`` holds two jobs in the data format N, of the spiders ``bulk``
and ``ordinary``, ended after some ten pages of the web below.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from support.frontier_command import scrapy
from support.projects import Project
from support.webs import FakeWebProcess

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.outcomes import State
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rows import FORMAT
from scrapy_spider_suite.testing import FakeWebConfig

JOBS = Path(__file__).parents[1] / "data" / "jobs"
JOBS_ARCHIVE = JOBS / "job-format-1.tar.xz"
PORT = 47811
WEB = FakeWebConfig(hosts=5, pages=10, degree=4, port=PORT)

pytestmark = pytest.mark.slow


def _states(job: Path) -> dict[str, State]:
    with StoreReader(job / FOLDER) as reader:
        assert list(reader.check()) == []
        hosts = [host for host, _ in reader.store.records()]
        return {row.url: row.state.state for host in hosts for row in reader.urls(host)}


def test_the_present_format_has_a_fixture() -> None:
    """Whoever raises the number adds a file."""
    assert (JOBS / f"job-format-{FORMAT}.tar.xz").is_file()


def _unpack(archive: Path, spider: str, folder: Path) -> Path:
    """The job of *spider* in *archive*, in *folder*."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / spider


@pytest.mark.parametrize("spider", ["bulk", "ordinary"])
def test_a_job_of_this_format_is_finished(spider: str, tmp_path: Path) -> None:
    _finish(_unpack(JOBS_ARCHIVE, spider, tmp_path), spider, tmp_path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    job = _unpack(JOBS_ARCHIVE, "bulk", tmp_path)
    path = job / FOLDER / "job.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": FORMAT + 1}))
    refused = scrapy("pause", "-j", str(job))
    said = refused.stdout + refused.stderr
    assert refused.returncode == 2
    assert f"has data format {FORMAT + 1}" in said


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
