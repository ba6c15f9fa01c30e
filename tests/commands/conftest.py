"""A small web, the job of a crawl of it, and ``scrapy frontier`` to look at that."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import packs_command
from support.frontier_command import Frontier, Said, parsed, small_crawl
from support.webs import FakeWebProcess

from scrapy_spider_suite.packs.pack_file import FORMATS
from scrapy_spider_suite.settings.table import LINK_TABLES
from scrapy_spider_suite.testing import Arrival, FakeWebConfig


@pytest.fixture
def frontier(capsys: pytest.CaptureFixture[str]) -> Frontier:
    """Run the command in this process, as Scrapy's command line does."""

    def run(*arguments: str, **settings: Any) -> Said:
        command, options, left = parsed(arguments, settings)
        capsys.readouterr()
        command.run(left, options)
        printed = capsys.readouterr()
        return Said(command.exitcode, "".join(printed), printed.out)

    return run


@pytest.fixture(scope="session")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeWebProcess]:
    """Ten hosts of four pages, some of which are errors."""
    log = tmp_path_factory.mktemp("web") / "arrivals"
    with FakeWebProcess(FakeWebConfig(hosts=10, pages=4, errors=0.2, seed=3, log=log)) as web:
        yield web


@pytest.fixture(scope="session")
def first_crawl(
    web: FakeWebProcess, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Arrival]]:
    """The job of a crawl that ran to its end, with link statistics; what the servers saw of it."""
    folder, began = tmp_path_factory.mktemp("finished"), time.time()
    assert small_crawl(web, folder, SUITE_LINK_STATS=LINK_TABLES).reason == "finished"
    job, ended = folder / "job", time.time()
    fetches = (job / "suite" / "fetches" / "fetch.log").read_bytes().count(b"\n") - 1
    deadline = time.monotonic() + 10  # they write it now and then
    while True:
        found = [each for each in web.arrivals() if began < each.start < ended]
        if len(found) >= fetches or time.monotonic() > deadline:
            return job, found
        time.sleep(0.05)


@pytest.fixture(scope="session")
def finished(first_crawl: tuple[Path, list[Arrival]]) -> Path:
    """That job, not to be changed."""
    return first_crawl[0]


@pytest.fixture(scope="session")
def arrivals(first_crawl: tuple[Path, list[Arrival]]) -> list[Arrival]:
    """What the servers saw of that crawl."""
    return first_crawl[1]


@pytest.fixture
def job(finished: Path, tmp_path: Path) -> Path:
    """A copy of that job, to be changed."""
    return shutil.copytree(finished, tmp_path / "copy")


@pytest.fixture
def packs(capfdbinary: pytest.CaptureFixture[bytes]) -> packs_command.Packs:
    """Run ``scrapy packs`` in this process, too."""

    def run(*arguments: object, **settings: Any) -> packs_command.Said:
        command, options, left = packs_command.parsed(arguments, settings)
        capfdbinary.readouterr()
        command.run(left, options)
        out, err = capfdbinary.readouterr()
        return packs_command.Said(command.exitcode, out, err.decode())

    return run


@pytest.fixture(params=FORMATS)
def folders(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    """The packs of two agents, in each format."""
    return packs_command.two_agents(tmp_path / "packs", request.param)
