"""``scrapy frontier report``: each table against what the servers saw, as text, CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scrapy.exceptions import UsageError
from support.frontier_command import HOST, Frontier
from support.webs import FakeWebProcess

from scrapy_spider_suite.operate.verbs.report import NAMES
from scrapy_spider_suite.testing import Arrival


def test_statuses(finished: Path, frontier: Frontier, arrivals: list[Arrival]) -> None:
    """Every arrival, robots.txt too; Heritrix's name is the same report."""
    rows = frontier("report", "statuses", "-j", str(finished), "--json").rows
    assert {int(row["status"]): row["fetches"] for row in rows} == Counter(
        each.status for each in arrivals
    )
    assert [row["fetches"] for row in rows] == sorted((r["fetches"] for r in rows), reverse=True)
    assert frontier("report", "responsecode", "-j", str(finished), "--json").rows == rows


def test_types(finished: Path, frontier: Frontier, arrivals: list[Arrival]) -> None:
    """Their bytes are those of the bodies."""
    rows = frontier("report", "types", "-j", str(finished), "--json").rows
    assert sum(row["fetches"] for row in rows) == len(arrivals)
    pages = next(row for row in rows if row["type"] == "text/html")
    assert pages["bytes"] >= pages["fetches"] * 3_000
    assert frontier("report", "mimetype", "--limit", "1", "-j", str(finished), "--json").rows == [
        rows[0]
    ]


def test_hosts_and_domains(finished: Path, frontier: Frontier) -> None:
    """Ten hosts of one domain; the sums agree."""
    hosts = frontier("report", "hosts", "-j", str(finished), "--json").rows
    assert len(hosts) == 10
    assert HOST in {row["host"] for row in hosts}
    (domain,) = frontier("report", "domains", "-j", str(finished), "--json").rows
    assert domain == {"domain": "fake.test", "hosts": 10} | {
        name: sum(row[name] for row in hosts) for name in ("done", "failed", "pending", "attempts")
    }
    two = frontier("report", "hosts", "--limit", "2", "-j", str(finished), "--json").rows
    assert [row["done"] for row in two] == sorted((r["done"] for r in hosts), reverse=True)[:2]


def test_seeds(finished: Path, frontier: Frontier, web: FakeWebProcess) -> None:
    """The one there was."""
    (row,) = frontier("report", "seeds", "-j", str(finished), "--json").rows
    expected: dict[str, Any] = {
        "seed": web.ready.seeds[0], "state": "done", "reason": "success", "status": 200,
        "attempts": 1, "tag": None,
    }  # fmt: skip
    assert row.pop("when") > 1_700_000_000
    assert row == expected


def test_the_crawl(finished: Path, frontier: Frontier, arrivals: list[Arrival]) -> None:
    """In figures that agree with the other reports."""
    (facts,) = frontier("report", "crawl", "-j", str(finished), "--json").rows
    assert facts["fetches"] == len(arrivals) == facts["fetches_page"] + facts["fetches_robots"]
    assert facts["fetches_robots"] == sum(each.path == "/robots.txt" for each in arrivals)
    types = frontier("report", "types", "-j", str(finished), "--json").rows
    assert facts["bytes"] == sum(row["bytes"] for row in types)
    assert facts["spider"] == "bulk"
    assert facts["pending"] == 0
    assert facts["done"] + facts["failed"] == facts["fetches_page"]


def test_link_statistics(finished: Path, frontier: Frontier, arrivals: list[Arrival]) -> None:
    """Sizes are below the powers of two that they are counted by; all links say "more"."""
    pages = [each for each in arrivals if each.path != "/robots.txt"]
    sizes = frontier("report", "sizes", "-j", str(finished), "--json").rows
    assert sum(row["fetches"] for row in sizes) == len(pages)
    assert sizes[-1]["below"] > 3_000
    languages = frontier("report", "languages", "-j", str(finished), "--json").rows
    assert sum(row["fetches"] for row in languages) == len(pages)
    (word,) = frontier("report", "anchors", "--limit", "1", "-j", str(finished), "--json").rows
    assert word["word"] == "more"
    links = frontier("report", "links", "-j", str(finished), "--json").rows
    assert word["times"] >= sum(row["links"] for row in links) > len(pages)


def test_the_most_frequent_degrees(finished: Path, frontier: Frontier) -> None:
    degrees = frontier("report", "degrees", "-j", str(finished), "--json").rows
    two = frontier("report", "degrees", "--limit", "2", "-j", str(finished), "--json").rows
    counts = sorted((row["count"] for row in degrees), reverse=True)
    assert [row["count"] for row in two] == counts[:2]
    assert len(counts) > 2


@pytest.mark.parametrize("name", NAMES)
def test_every_form_says_the_same(name: str, finished: Path, frontier: Frontier) -> None:
    """Text, CSV with a line of names, and JSON."""
    rows = frontier("report", name, "-j", str(finished), "--json").rows
    text = frontier("report", name, "--csv", "-j", str(finished)).out
    table = list(csv.DictReader(io.StringIO(text)))
    assert [{key: "" if value is None else str(value) for key, value in row.items()}
            for row in rows] == table  # fmt: skip
    lines = frontier("report", name, "-j", str(finished)).out.splitlines()
    if name in ("crawl", "crawl-summary"):
        assert len(lines) == len(rows[0])
    else:
        assert len(lines) == len(rows) + 1


def test_an_unknown_report(finished: Path, frontier: Frontier) -> None:
    """Is refused with the names that there are."""
    with pytest.raises(UsageError, match="choose from 'crawl', 'seeds'"):
        frontier("report", "nothing", "-j", str(finished))
