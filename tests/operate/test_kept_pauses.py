"""Politeness as kept: pauses between the requests of a fetch log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scrapy_spider_suite.fetch.fetch_log import LOG_FOLDER, FetchLog, format_line
from scrapy_spider_suite.operate.kept_pauses import (
    EDGES,
    add_pauses,
    kept_pauses,
    pauses_of_lines,
)

NOW = 1_795_900_000.0


def line(began: float, ended: float, host: str = "a.test", address: str = "192.0.2.1") -> bytes:
    """A fetch; times are seconds from `NOW`."""
    ms = round((ended - began) * 1_000)
    return format_line(NOW + ended, 200, 9, ms, f"http://{host}/x", address=address)


def pauses(*lines: bytes, host: float = 4.0, address: float = 0.5) -> list[dict[str, Any]]:
    """The rows of hosts and of addresses."""
    return pauses_of_lines(lines, host, address)


def test_a_pause_is_from_the_end_to_the_next_start() -> None:
    """Hosts and addresses have their own."""
    hosts, addresses = pauses(line(0, 1), line(2, 3, "b.test"), line(5, 6), line(9, 10))
    assert (hosts["compared"], hosts["least"], hosts["shorter"]) == (2, 3.0, 1)
    assert (addresses["compared"], addresses["least"], addresses["shorter"]) == (3, 1.0, 0)
    assert sum(hosts["classes"]) == 2
    assert hosts["classes"][EDGES.index(2.0)] == hosts["classes"][EDGES.index(4.0)] == 1


def test_the_clock_of_the_log_is_not_finer_than_it_is() -> None:
    """Both ends are rounded to milliseconds, so two of them are forgiven."""
    hosts, _ = pauses(line(0, 1), line(4.998, 6), line(9.997, 11))
    assert hosts["shorter"] == 1


def test_requests_at_the_same_time_overlap() -> None:
    """Their pause is negative, and in the first class."""
    hosts, _ = pauses(line(0, 5), line(1, 6))
    assert hosts["least"] == -4.0
    assert hosts["classes"][0] == 1


def test_comments_and_foreign_lines_are_passed_over() -> None:
    hosts, _ = pauses(b"# fetch log 1: time\n", b"\n", b"x y z\n", line(0, 1), line(7, 8))
    assert hosts["compared"] == 1


def test_rows_of_agents_are_added_up() -> None:
    one, other = pauses(line(0, 1), line(7, 8)), pauses(line(0, 1), line(3, 4), line(4, 5))
    hosts, addresses = add_pauses([*one, *other, *pauses()])
    assert (hosts["compared"], hosts["least"], hosts["shorter"]) == (3, 0.0, 2)
    assert sum(hosts["classes"]) == addresses["compared"] == 3


def test_the_log_of_a_job(tmp_path: Path) -> None:
    """In the job or elsewhere; without a log nothing is known."""
    settings = {"fetch_log": True, "host_delay": 4.0, "ip_delay": 0.5}
    assert kept_pauses(tmp_path, settings) == []
    log = FetchLog(tmp_path / LOG_FOLDER)
    for each in range(3):
        log.add(line(5 * each, 5 * each + 1), NOW)
    log.close()
    hosts, _ = kept_pauses(tmp_path, settings)
    assert (hosts["compared"], hosts["least"], hosts["shorter"]) == (2, 4.0, 0)
    elsewhere = {**settings, "fetch_log": str(tmp_path / LOG_FOLDER)}
    assert kept_pauses(tmp_path / "other", elsewhere) == kept_pauses(tmp_path, settings)
    assert kept_pauses(tmp_path, {**settings, "fetch_log": False}) == []
