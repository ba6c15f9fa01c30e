"""Everything that the in-vitro web can do to a crawler, at once (issue: bad input; promise 3, 4).

What is expected of each behaviour is read from docs/hostile.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.hostile_crawls import NAMES, Ended, all_hosts, documented, hostile_crawl
from support.loop_watch import GAP, PEAK

from scrapy_spider_suite.testing.hostile_site import BEHAVIOURS, HOST

PAGE = Path(__file__).parents[2] / "docs" / "hostile.md"
LEAST_MEMORY = 300_000_000
LONGEST_GAP = 3.0
WAITS = "waits"
# It ends in another moment or not at all: what it redirects to was fetched before, or is filtered
# by Scrapy as the request that it came from.
FILTERED = {"redirect-empty", "redirect-loop", "redirect-pair", "refresh-loop"}
QUADRATIC = "many-attributes"  # minutes in lxml, which the spider's callback uses


def _expected(column: str, label: str) -> set[str]:
    row = documented(PAGE)[label]
    outcomes = [cell.strip() for cell in row[column].split(" or ")]
    return {_state(cell) for cell in outcomes}


def _state(cell: str) -> str:
    event, _, waits = cell.partition(",")
    if event == WAITS:
        return "pending"
    done = {"success", "redirect", "replaced", "not_stored"}
    state = "pending" if waits else "done" if event in done else "failed"
    return f"{event} {state}"


def _check_bounds(end: Ended) -> None:
    stats = end.crawl.stats
    assert end.crawl.code == 0
    assert stats[PEAK] < LEAST_MEMORY
    assert stats[GAP] < LONGEST_GAP
    assert end.tracebacks == []
    assert end.ordinary - end.fetched == set()


def test_every_behaviour_is_documented() -> None:
    """The page has a line for each behaviour and each special name, and none for anything else."""
    labels = {host.removesuffix(f".{HOST}") for host in all_hosts()}
    rows = set(documented(PAGE))
    assert set(BEHAVIOURS) <= rows <= labels


@pytest.mark.slow
@pytest.mark.parametrize("obey", [
    pytest.param(True, id="robots"), pytest.param(False, id="no robots", marks=pytest.mark.long),
])  # fmt: skip
def test_broad_crawl_of_everything_hostile(obey: bool, tmp_path: Path) -> None:
    """It ends by itself, has every ordinary page, and counts each behaviour as documented.

    Hosts with a hostile robots.txt have harmless pages: they are asked with robots.txt alone.
    """
    hosts = [h for h in all_hosts() if h in NAMES or h.startswith("robots-") is obey]
    end = hostile_crawl(
        "support.spiders.Bulk", tmp_path, hosts, JOBDIR=str(tmp_path / "job"),
        ROBOTSTXT_OBEY=obey, SUITE_HOST_DELAY=0.02, SUITE_IP_DELAY=0.01,
        SUITE_DEAD_HOST_FAILURES=2, SUITE_RETRY_TIMES=1, SUITE_HOST_MAX_PAGES=60,
    )  # fmt: skip
    assert end.crawl.reason == "waiting"  # for those that ask for an endless pause
    _check_bounds(end)
    wrong = {}
    for host, state in end.pages.items():
        label = host.removesuffix(f".{HOST}")
        if label == host:
            expected = _expected("first page", label)
        elif obey:
            row = label if label in BEHAVIOURS else label.removeprefix("robots-")
            expected = _expected("as robots.txt", row)
        else:
            expected = _expected("as a page", label)
        if state not in expected:
            wrong[host] = (state, expected)
    assert wrong == {}
    counted = {f"suite/outcome/{state.split()[0]}" for state in end.pages.values()}
    assert counted - {"suite/outcome/pending"} <= set(end.crawl.stats)


@pytest.mark.slow
@pytest.mark.long
def test_ten_megabytes_of_links_are_taken(tmp_path: Path) -> None:
    """With a larger limit for bodies the floods of links are read, and cost room on disk only."""
    floods = [f"{name}.{HOST}" for name in ("many-links", "many-hosts", "long-urls", "one-line")]
    end = hostile_crawl(
        "support.spiders.Bulk", tmp_path, floods, JOBDIR=str(tmp_path / "job"),
        ROBOTSTXT_OBEY=False, SUITE_HOST_DELAY=0.02, SUITE_IP_DELAY=0.01,
        DOWNLOAD_MAXSIZE=16 << 20, DOWNLOAD_TIMEOUT=20, SUITE_IP_FAMILY="4",
    )  # fmt: skip
    assert end.crawl.reason == "finished"
    _check_bounds(end)
    assert set(end.pages.values()) == {"success done"}
    assert end.crawl.stats["suite/outcome/no_such_host"] >= 20_000


@pytest.mark.slow
@pytest.mark.long
def test_ordinary_spider_meets_everything_hostile(tmp_path: Path) -> None:
    """In the spider profile every request ends in its callback or its errback, once.

    Endless hosts are bounded by pages, not by DEPTH_LIMIT: with Scrapy's, a page that is met first
    by a long way and then by a short one keeps the long one's depth, and its links are dropped. So
    which pages are in reach of a limit depends on the order in which pages come.
    """
    hosts = [host for host in all_hosts() if not host.startswith(("robots-", QUADRATIC))]
    end = hostile_crawl(
        "support.spiders.Careless", tmp_path, hosts, ROBOTSTXT_OBEY=False, SUITE_HOST_MAX_PAGES=60,
        DOWNLOAD_DELAY=0.01, DOWNLOAD_MAXSIZE=1 << 20, RETRY_TIMES=1,
    )  # fmt: skip
    assert end.crawl.reason == "waiting"
    _check_bounds(end)
    stats = end.crawl.stats
    seeds = (tmp_path / "seeds").read_text().splitlines()
    calls = {url: stats.get(f"seen/{url}", 0) for url in seeds}
    odd = {url for url, count in calls.items() if count != 1}
    silent = FILTERED | {"retry-after-huge"}
    assert {url.split("//")[1].split(".")[0] for url in odd} <= silent


@pytest.mark.slow
def test_ordinary_spider_is_told_of_silent_robots(tmp_path: Path) -> None:
    """Where robots.txt does not answer, requests end in their errbacks as often as with Scrapy."""
    hosts = ["refused.test", "hang.test", f"robots-reset.{HOST}", f"robots-redirect-private.{HOST}"]
    end = hostile_crawl(
        "support.spiders.Careless", tmp_path, hosts, ROBOTSTXT_OBEY=True, RETRY_TIMES=1,
        DOWNLOAD_DELAY=0.01,
    )  # fmt: skip
    assert end.crawl.reason == "finished"
    _check_bounds(end)
    seeds = (tmp_path / "seeds").read_text().splitlines()[-len(hosts) :]
    for url in seeds:
        assert end.crawl.stats[f"how/{url}"] == "RobotsUnavailable"
        assert end.crawl.stats[f"seen/{url}"] == 1
    assert end.crawl.stats["suite/outcome/host_dead"] == len(hosts)
