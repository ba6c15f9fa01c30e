"""The report as a page: nothing that a job says is more than text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lxml import html

from scrapy_spider_suite.analysis.time_series import Rows
from scrapy_spider_suite.crawl.pulse import COLUMNS
from scrapy_spider_suite.operate.report_page import CrawlReport, render_page

HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(2)>\u202e\x00'\"&amp;"
FACTS = {
    "spider": "news", "begun": 1_795_900_000, "seconds": 100, "pages": 500, "failed": 3,
    "pending": 7, "retried": 0, "dead_hosts": 0, "fetches": 600, "bytes": 5_000_000, "mean_ms": 12,
    "fetches_per_second": 6.0, "kilobytes_per_second": 50.0,
}  # fmt: skip


def rows(seconds: int = 100, width: float = 1.0) -> Rows:
    """Ten pages a second, with a minute in which nothing ran."""
    times = 1_795_900_000.0 + width * np.arange(seconds)
    values = np.array([COLUMNS.blank_row(when) for when in times])
    values[:, 1], values[:, COLUMNS.places("pages")[0]] = width, 10 * width
    if seconds > 60:
        values[20:40] = np.nan
    return Rows(times, width, COLUMNS, values)


def report(series: Rows | None = None, text: str = "news", **tables: Any) -> CrawlReport:
    """A crawl whose every text is *text*."""
    overview = {
        "job": text, "crawl": text, "words": text, "ended": 1_795_900_100, "agents": [],
        "processes": 1,
    }  # fmt: skip
    given = {
        "crawl": [{**FACTS, "spider": text}], "outcomes": [{"event": text, "urls": 5}],
        "statuses": [{"status": text, "fetches": 3}], "types": [{"type": text, "fetches": 3}],
        "hosts": [{"host": text, "done": 1, "failed": 2, "pending": 3, "attempts": 4}],
        "failing": [{"host": text, "done": 1, "failed": 2, "given_up": text}],
        "settings": [{"name": text, "value": text}],
        "languages": [{"language": text, "fetches": 1}],
        "politeness": [{"of": "hosts", "delay": 4.0, "compared": 9, "least": 4.0, "shorter": 0,
                        "classes": [0] * 6 + [9] + [0] * 5}],
        "degrees": [{"of": "out", "degree": 3, "count": 8}, {"of": "out", "degree": 0, "count": 1}],
    }  # fmt: skip
    return CrawlReport(overview, series or rows(), given | tables)


@pytest.mark.parametrize("number", [1, 2])
def test_what_a_job_says_is_text(number: int) -> None:
    """Alone and side by side: texts are escaped, cut, and cannot be turned round."""
    page = render_page([report(text=HOSTILE), report(text=HOSTILE * 50)][:number])
    found = html.fromstring(page)
    assert not found.xpath("//script | //img | //@onerror | //@href | //@src")
    assert "\u202e" not in page
    assert "\x00" not in page
    assert max(map(len, found.xpath("//td/text()"))) <= 120
    [policy] = found.xpath("//meta[@http-equiv='Content-Security-Policy']/@content")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_a_crawl_without_series_or_tables_is_a_page_too() -> None:
    """One that has just begun, or of which little is kept."""
    names = ("outcomes", "statuses", "types", "hosts", "failing", "settings", "languages",
             "politeness", "degrees")  # fmt: skip
    empty = Rows(np.empty(0), 1.0, COLUMNS, np.empty((0, COLUMNS.size)))
    page = html.fromstring(render_page([report(empty, **{name: [] for name in names})]))
    assert page.xpath("//h2/text()")[:2] == ["Summary", "Over time"]
    assert "Hosts" not in page.xpath("//h2/text()")
    assert "no values" in page.xpath("//text()")


def test_crawls_of_one_name_are_told_apart() -> None:
    page = html.fromstring(render_page([report(), report(), report(rows(40, 3_600.0))]))
    assert page.xpath("//h1/text()") == ["Crawls news, news (2), news (3)"]
    assert page.xpath("(//table)[1]//th/text()") == ["news", "news (2)", "news (3)"]
    assert "hours since the beginning" in page.xpath("//*[local-name() = 'text']/text()")


def test_the_mean_rate_leaves_out_the_time_between_two_runs() -> None:
    """Ten pages a second are ten in the mean, with a pause of the crawl or without."""
    page = html.fromstring(render_page([report()]))
    [chart] = page.xpath("//svg[@aria-label='Mean pages a second']")
    [line] = [each for each in chart.xpath(".//path/@d") if "L" in each]
    heights = {point.split(",")[1] for point in line.replace("M", "L").split("L") if point}
    assert len(heights) == 1
