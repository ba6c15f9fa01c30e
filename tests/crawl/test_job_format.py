"""Jobs that an older release began are finished by this one.

``tests/data/jobs/job-format-N.tar.xz`` holds two jobs in the data format N, of the spiders
``bulk`` and ``ordinary``, ended after some ten pages of the web below. With a new format, the one
that is current gets a file, and none is removed.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from projects import Project

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.outcomes import State
from scrapy_spider_suite.job import FOLDER
from scrapy_spider_suite.storage.reader import StoreReader
from scrapy_spider_suite.storage.records import FORMAT
from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess

JOBS = Path(__file__).parents[1] / "data" / "jobs"
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


@pytest.mark.parametrize("archive", sorted(JOBS.glob("*.tar.xz")), ids=lambda path: path.name)
@pytest.mark.parametrize("spider", ["bulk", "ordinary"])
def test_an_older_job_is_finished(archive: Path, spider: str, tmp_path: Path) -> None:
    """Everything reachable is done in the end, and what was done before is not fetched again."""
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    job = tmp_path / spider
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
