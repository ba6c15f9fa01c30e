"""When a URL is tried next, and its robots.txt asked for, as ``scrapy frontier why`` tells it."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.crawls import loopback_settings, start
from support.names import STATUS_FILE, Setting
from support.projects import scrapy
from support.running_crawl import until
from support.websites import Answer, Site, running

HOUR, BACK_OFF = 3_600, 4
BACKING_OFF, SILENT, SLOW, REFUSING = "127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"
PAGE = '<a href="/1">1</a>'
TEXT = {"Content-Type": "text/plain"}
OPEN = Answer(b"User-agent: *\nAllow: /\n", headers=TEXT)


def sites() -> list[Site]:
    """One that is overloaded, one whose robots.txt cannot be had, and one that takes its time."""
    overloaded = Answer(b"", 503, {"Retry-After": str(HOUR)})
    return [
        Site({"/": overloaded, "/robots.txt": OPEN}, BACKING_OFF),
        Site({"/": PAGE, "/robots.txt": Answer(b"", 503)}, SILENT),
        Site({"/": Answer(PAGE.encode(), wait=HOUR), "/robots.txt": OPEN}, SLOW),
    ]


class Running:
    """A crawl that runs in *folder*, and where its *seeds* are, by host."""

    def __init__(self, folder: Path, seeds: dict[str, str]) -> None:
        self.folder = folder
        self.seeds = seeds

    def __call__(self, *arguments: str) -> list[dict[str, Any]]:
        """What ``scrapy frontier`` with *arguments* says of the job, a value for each line."""
        job = str(self.folder / "job")
        said = scrapy(self.folder, "frontier", *arguments, "--json", "-j", job)
        return [json.loads(line) for line in said.stdout.splitlines()]

    def asked_for_robots(self, host: str) -> list[float]:
        """Seconds since each robots.txt that was asked of *host*."""
        times = [each["time"] for each in self("log", host) if each["url"].endswith("/robots.txt")]
        return [time.time() - datetime.fromisoformat(each).timestamp() for each in times]


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A crawl of three sites, and one where nobody listens; a page is under way all the time."""
    folder = tmp_path_factory.mktemp("crawl")
    with ExitStack() as stack:
        web = [stack.enter_context(running(site)) for site in sites()]
        seeds = {site.host: f"{site.url}/" for site in web}
        taken = stack.enter_context(socket.socket())
        taken.bind((REFUSING, 0))  # and nobody listens
        seeds[REFUSING] = f"http://{REFUSING}:{taken.getsockname()[1]}/"
        (folder / "seeds.txt").write_text("\n".join(seeds.values()))
        settings = loopback_settings(**{
            "JOBDIR": str(folder / "job"), "ROBOTSTXT_OBEY": True, Setting.MAX_WAIT: 0,
            "DOWNLOAD_TIMEOUT": HOUR, Setting.BACKOFF_BASE: BACK_OFF,
        })  # fmt: skip
        process = start(
            "support.spiders.Bulk", settings, folder, seeds=str(folder / "seeds.txt")
        )  # fmt: skip
        try:
            until(lambda: "/" in web[0].paths() and web[1].paths() and web[2].paths())
            status = folder / "job" / STATUS_FILE
            for _ in range(3):  # what the answers mean is written within a second or two
                said = status.read_text()
                until(lambda: status.read_text() != said)  # noqa: B023
            assert json.loads(status.read_text())["leased"]
            yield Running(folder, seeds)
        finally:
            process.kill()
            process.wait(30)


def seconds(words: str) -> float:
    """The seconds of a time such as ``59 min``, to the minute."""
    number, unit = words.split()
    return float(number) * {"s": 1, "min": 60, "h": HOUR}[unit]


@pytest.mark.parametrize("host", [BACKING_OFF, SILENT])
def test_nothing_of_a_host_that_must_wait_is_under_way(crawl: Running, host: str) -> None:
    """The URL is tried when its host may be visited, in an hour or so."""
    [row] = crawl("why", crawl.seeds[host])
    assert (row["state"], row["under_way"]) == ("pending", "no")
    assert re.fullmatch(r"in \d+ min", row["next_try"]), row
    assert row["why_then"]


def test_a_page_that_is_fetched_may_be_under_way(crawl: Running) -> None:
    """Only the crawl knows."""
    [row] = crawl("why", crawl.seeds[SLOW])
    assert row["under_way"].startswith("perhaps")


@pytest.mark.slow
def test_a_host_that_refuses(crawl: Running) -> None:
    """Its robots.txt is asked for at each visit: the last time, and the next, are those of visits.
    """
    until(lambda: len(crawl.asked_for_robots(REFUSING)) >= 3, every=1.0)

    def backs_off() -> bool:
        return float(crawl("why", REFUSING)[0]["next_visit"]) > 2 * BACK_OFF

    until(backs_off, every=0.5)
    [row], ago = crawl("why", REFUSING), min(crawl.asked_for_robots(REFUSING))
    [robots] = row["robots"]
    said = re.search(r"no answer, last asked (\d+ s) ago, asked again in (\d+ \w+)$", robots)
    assert said, robots
    assert seconds(said[1]) <= ago + 1
    assert abs(seconds(said[2]) - row["next_visit"]) <= 1.0
    [row] = crawl("why", crawl.seeds[REFUSING])
    said = re.fullmatch(r"in (\d+ s)", row["next_try"])
    assert said, row
    assert row["under_way"] == "no"


def test_a_robots_txt_is_not_asked_for_before_its_host(crawl: Running) -> None:
    """It answers 503 and holds its host, or has answered and holds for a day."""
    [row] = crawl("why", SILENT)
    [robots] = row["robots"]
    said = re.search(r"status 503, last asked \d+ s ago, asked again in (\d+ min)$", robots)
    assert said, robots
    assert abs(seconds(said[1]) - row["next_visit"]) <= 60
    [row] = crawl("why", BACKING_OFF)
    [robots] = row["robots"]
    assert re.search(r"status 200, read \d+ s ago, asked again in 24 h$", robots), robots
