"""Why hosts wait, and until when, as ``scrapy frontier`` tells it of a crawl that runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.crawls import loopback_settings, start
from support.names import STATUS_FILE, Setting
from support.projects import scrapy
from support.running_crawl import until
from support.websites import Answer, Site, running

HOUR = 3_600.0
BACKING_OFF, DELAYED, SILENT = "127.0.0.2", "127.0.0.3", "127.0.0.4"
PAGE = "".join(f'<a href="/{n}">{n}</a>' for n in range(3))


def sites() -> list[Site]:
    """One that is overloaded, one with a Crawl-delay, and one whose robots.txt cannot be had."""
    overloaded = Answer(b"", 503, {"Retry-After": str(int(HOUR))})
    slow = Answer(b"User-agent: *\nCrawl-delay: 3600\n", headers={"Content-Type": "text/plain"})
    return [
        Site({"/": overloaded}, BACKING_OFF),
        Site({"/": PAGE, "/robots.txt": slow}, DELAYED),
        Site({"/": PAGE, "/robots.txt": Answer(b"", 503)}, SILENT),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a crawl of three sites runs, all of which have answered and must wait for long."""
    folder = tmp_path_factory.mktemp("crawl")
    with ExitStack() as stack:
        web = [stack.enter_context(running(site)) for site in sites()]
        (folder / "seeds.txt").write_text("".join(f"{site.url}/\n" for site in web))
        settings = loopback_settings(**{
            "JOBDIR": str(folder / "job"), "ROBOTSTXT_OBEY": True, Setting.MAX_WAIT: 0,
        })  # fmt: skip
        process = start(
            "support.spiders.Bulk", settings, folder, seeds=str(folder / "seeds.txt")
        )  # fmt: skip
        try:
            until(lambda: all(site.paths() for site in web) and "/" in web[0].paths())
            status = folder / "job" / STATUS_FILE
            for _ in range(3):  # what the answers mean is written within a second or two
                said = status.read_text()
                until(lambda: status.read_text() != said)  # noqa: B023
            yield folder
        finally:
            process.kill()
            process.wait(30)


def asked(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """What ``scrapy frontier`` with *arguments* says of the job, a value for each line."""
    said = scrapy(folder, "frontier", *arguments, "--json", "-j", str(folder / "job"))
    return [json.loads(line) for line in said.stdout.splitlines()]


def waits(folder: Path) -> list[dict[str, Any]]:
    """The reasons for which hosts wait, once there is a job."""
    return [wait for row in asked(folder, "status") for wait in row.get("waits", ())]


REASONS = {
    BACKING_OFF: "Retry-After", DELAYED: "Crawl-delay", SILENT: "robots.txt unavailable",
}  # fmt: skip


@pytest.mark.parametrize(("host", "reason"), REASONS.items())
def test_a_host_in_memory_says_why_it_waits_and_for_how_long(
    folder: Path, host: str, reason: str
) -> None:
    """Its robots.txt, back-off or Crawl-delay holds it for long, and that is what is said."""
    [row] = [row for row in asked(folder, "hosts") if row["host"] == host]
    assert row["why"].startswith(reason)
    assert row["next_visit"] > HOUR / 60
    [of_host] = asked(folder, "why", host)
    assert of_host["why"].startswith(reason)
    assert of_host["next_visit"] > HOUR / 60


def test_one_summary_says_why_the_crawl_waits(folder: Path) -> None:
    """``status`` and ``why`` without an argument count hosts by reason, and know the next time."""
    for said in (waits(folder), asked(folder, "why")[0]["waits"]):
        hosts = {wait["reason"]: wait["hosts"] for wait in said}
        assert hosts == dict.fromkeys(REASONS.values(), 1)
        assert all(wait["next_visit"] > HOUR / 60 for wait in said)
    for verb in ("status", "why"):
        said = scrapy(folder, "frontier", verb, "-j", str(folder / "job")).stdout
        assert "3 hosts wait: 1 " in said
        for reason in REASONS.values():
            assert f"1 {reason} (next in " in said
