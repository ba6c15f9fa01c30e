"""``why`` and ``test`` name the filter that decides, its atoms, and where they stand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.frontier_command import Frontier
from support.jobs import Made

from scrapy_spider_suite.frontier.outcomes import Event


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    """A job to be filled."""
    made = Made(tmp_path / "job")
    yield made
    made.job._lock.close()


def judged(frontier: Frontier, made: Made, url: str, *more: str) -> dict[str, Any]:
    """What `test` says of *url*."""
    [row] = frontier("test", url, "-j", str(made.path), "--json", *more).rows
    found: dict[str, Any] = row
    return found


def test_a_link_that_would_not_be_queued(made: Made, frontier: Frontier) -> None:
    """The atoms that decided, what they said, and the place of the first."""
    text = "HostEndsWith(.test) and not (PathEndsWithOneOf(.pdf) or SameHost())"
    made.keep(SUITE_SCHEDULE_FILTER=text)
    made.close()
    row = judged(frontier, made, "http://a.test/x.pdf")
    assert (row["judgement"], row["decided_by"]) == ("refuse", "schedule filter")
    assert row["why"] == "it is not queued: PathEndsWithOneOf(.pdf) is true"
    assert row["where"] == f"SUITE_SCHEDULE_FILTER = {text!r} (project), line 1, column 30"
    # From where it would come is not known: that may matter.
    assert judged(frontier, made, "http://a.test/x")["judgement"] == "fetch"
    # Seeds are past it.
    assert judged(frontier, made, "http://a.test/x.pdf", "--depth", "0")["judgement"] == "fetch"


def test_a_file(made: Made, frontier: Frontier, tmp_path: Path) -> None:
    """Its path is in the setting; one that is gone is said, and judged without."""
    path = tmp_path / "fetch.filter"
    path.write_text("# by hand\nDepthLessThan(3)\n  and SchemeEquals(https)")
    made.keep(SUITE_FETCH_FILTER=f"@{path}")
    made.close()
    row = judged(frontier, made, "http://a.test/")
    assert row["decided_by"] == "fetch filter"
    assert row["why"] == "it is not fetched: SchemeEquals(https) is false"
    assert row["where"].endswith(f"'@{path}' (project), line 3, column 7")
    row = judged(frontier, made, "https://a.test/", "--depth", "3")
    assert row["why"] == "it is not fetched: DepthLessThan(3) is false"
    path.unlink()
    said = frontier("test", "http://a.test/", "-j", str(made.path))
    assert "fetch.filter cannot be read" in said.out
    assert "judged without filters" in said.out


def test_a_country(made: Made, frontier: Frontier, tmp_path: Path) -> None:
    """Of an address that is known."""
    table = tmp_path / "countries"
    table.write_text("10.0.0.0/8,AT\n")
    made.keep(
        SUITE_FETCH_FILTER="CountryEqualsOneOf(DE)", SUITE_COUNTRIES=str(table),
        SUITE_ALLOW_PRIVATE_ADDRESSES=True,
    )  # fmt: skip
    made.close()
    assert judged(frontier, made, "http://10.1.2.3/")["decided_by"] == "fetch filter"
    assert judged(frontier, made, "http://a.test/")["judgement"] == "fetch"


def test_what_waits_and_what_was_refused(made: Made, frontier: Frontier) -> None:
    """A pending URL that is no longer wanted will fail; one that has failed says why."""
    made.end("http://c.test/x", Event.FILTERED)
    made.find("http://a.test/x", depth=4)
    made.find("http://b.test/x", depth=4)
    made.keep(SUITE_FETCH_FILTER="DepthLessThan(3) or HostEquals(b.test)")
    made.close()

    def why(url: str) -> dict[str, Any]:
        [row] = frontier("why", url, "-j", str(made.path), "--json").rows
        found: dict[str, Any] = row
        return found

    row = why("http://a.test/x")
    assert row["next_try"] == "it will fail at its turn"
    assert row["why_then"].startswith("fetch filter: it is not fetched: DepthLessThan(3) is false")
    assert "HostEquals(b.test) is false" in row["why_then"]
    assert why("http://b.test/x")["next_try"] == "when the crawl goes on"
    row = why("http://c.test/x")
    assert (row["state"], row["reason"]) == ("failed", "filtered")
    assert row["because"] == "SUITE_FETCH_FILTER does not want the URL"


def test_what_would_become_of_the_page(made: Made, frontier: Frontier) -> None:
    """It is fetched all the same."""
    made.keep(
        SUITE_PARSE_FILTER="HostEquals(b.test) and StatusCategory(2)",
        SUITE_STORE_FILTER="StatusCategory(2)", SUITE_FOLLOW_FILTER="IsHttpResponse()",
    )  # fmt: skip
    made.close()
    assert judged(frontier, made, "http://a.test/")["judgement"] == "fetch"
    [row] = frontier("why", "http://a.test/", "-j", str(made.path), "--json").rows
    [said] = [each for each in row["rules_now"] if "filter" in each]
    assert said.startswith("parse filter: its page is not parsed: HostEquals(b.test) is false")


def test_an_opened_scope(made: Made, frontier: Frontier) -> None:
    """Then the schedule filter, not the scope, says how far out of it links may lead."""
    made.close()
    assert judged(frontier, made, "http://a.org/")["decided_by"] == "scope"


@pytest.mark.parametrize(("hops", "judgement"), [(1, "refuse"), (2, "fetch")])
def test_hops_beyond_the_scope(
    hops: int, judgement: str, made: Made, frontier: Frontier
) -> None:
    """Judged as if a page in the scope led there."""
    made.keep(SUITE_SCHEDULE_FILTER=f"HopsBeyondScopeLessThan({hops})")
    made.close()
    assert judged(frontier, made, "http://a.org/")["judgement"] == judgement
    assert judged(frontier, made, "http://a.test/")["judgement"] == "fetch"
