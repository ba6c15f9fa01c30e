"""``scrapy frontier log``: what was fetched, of a finished job and of one that runs."""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.frontier_command import HOST, Frontier
from support.webs import FakeWebProcess

from scrapy_spider_suite.fetch.fetch_log import LOG_FOLDER, FetchLog, closed_files, compress_file
from scrapy_spider_suite.operate.verbs.log import moment
from scrapy_spider_suite.testing import Arrival


def test_every_arrival_of_a_host(
    finished: Path, frontier: Frontier, web: FakeWebProcess, arrivals: list[Arrival]
) -> None:
    """As the servers saw them: robots.txt first, and each with its status."""
    said = frontier("log", HOST, "-j", str(finished), "--json")
    assert said.code == 0
    port = f":{web.ready.http_port}"
    told = [(row["url"].partition(port)[2], row["status"]) for row in said.rows]
    arrived = [(each.path, each.status) for each in arrivals if each.host == HOST]
    assert sorted(told) == sorted(arrived)
    assert told[0] == ("/robots.txt", 200)
    plain = frontier("log", HOST, "-j", str(finished)).out.splitlines()
    assert len(plain) == len(told)
    assert [line.split()[0] for line in plain] == [row["time"] for row in said.rows]


def test_a_url_and_a_domain(
    finished: Path, frontier: Frontier, web: FakeWebProcess, arrivals: list[Arrival]
) -> None:
    """One page, in whatever spelling; and all hosts."""
    url = f"http://{HOST}:{web.ready.http_port}/robots.txt"
    (row,) = frontier("log", url.upper().replace("ROBOTS.TXT", "robots.txt"), "-j", str(finished),
                      "--json").rows  # fmt: skip
    assert (row["url"], row["remarks"]) == (url, ["robots"])
    everything = frontier("log", ".fake.test", "-j", str(finished)).out.splitlines()
    assert len(everything) == len(arrivals)


def test_since(finished: Path, frontier: Frontier) -> None:
    """Nothing of the future, everything of the last days."""
    assert frontier("log", HOST, "--since", "2d", "-j", str(finished)).out
    said = frontier("log", HOST, "--since", "2999-01-01", "-j", str(finished))
    assert (said.code, said.out) == (1, "scrapy frontier: no such fetch is in the fetch log\n")


def test_files_elsewhere_are_read_too(job: Path, frontier: Frontier) -> None:
    """A host that was never fetched is not found; compressed files are; damage is said."""
    nothing = frontier("log", "nowhere.test", "-j", str(job))
    assert (nothing.code, nothing.out) == (
        1, "scrapy frontier: no such fetch is in the fetch log\n"
    )  # fmt: skip
    folder = job / "suite" / LOG_FOLDER
    before = frontier("log", HOST, "-j", str(job)).out
    log = FetchLog(folder, size=1)
    log.flush()
    log.close()
    (path,) = closed_files(folder)
    if path.suffix == ".log":
        compress_file(path)
        (path,) = closed_files(folder)
    assert frontier("log", HOST, "-j", str(job)).out == before
    path.write_bytes(path.read_bytes()[:-300])
    said = frontier("log", HOST, "-j", str(job))
    assert f"{path} is damaged and was read in part" in said.out


def test_a_job_without_one(job: Path, frontier: Frontier) -> None:
    """Is said to be so."""
    folder = job / "suite" / LOG_FOLDER
    folder.rename(folder.with_name("elsewhere"))
    said = frontier("log", HOST, "-j", str(job))
    assert said.code == 2
    assert "has no fetch log (SUITE_FETCH_LOG = True)" in said.out


def test_moments() -> None:
    """Ago, or a date, in UTC unless it says otherwise."""
    assert moment("2h") == pytest.approx(time.time() - 7_200, abs=5)
    assert moment("2026-11-21") == datetime(2026, 11, 21, tzinfo=UTC).timestamp()
    assert moment("2026-11-21T19:03Z") == datetime(2026, 11, 21, 19, 3, tzinfo=UTC).timestamp()
    assert moment("2026-11-21T19:03+01:00") == moment("2026-11-21T18:03")
    for wrong in ("yesterday", "2026-13-01", "-3h", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="expected a time ago such as 2h"):
            moment(wrong)
