"""The pulse of a crawl: its counters and gauges, its pace, and its cost."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scrapy import Spider
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.analysis.time_series import SeriesReader
from scrapy_spider_suite.crawl.assembly import open_crawl
from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.crawl.pulse import COLUMNS, RATES, SERIES_FOLDER, CrawlPace, Pulses
from scrapy_spider_suite.crawl.requests import seed_entry
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.operate.judge import end_in_words
from scrapy_spider_suite.store.rows import UrlState


def pace_of(*samples: tuple[float, int], began: float = 0.0) -> str:
    """In words, when a crawl ends whose queue had so many URLs at these times."""
    pace = CrawlPace(began)
    for now, pending in samples:
        pace.note(now, pending, np.zeros(len(RATES)))
    return end_in_words(*pace.seconds_left())


def test_when_it_ends() -> None:
    """By how the queue shrank in the last minute; not at all while it grows."""
    assert pace_of((0, 1_000), (30, 1_100)) == "the queue grows"
    assert pace_of((0, 1_000), (30, 1_100), (60, 1_000), (90, 500)) == "about 50 s"
    assert pace_of((90, 500), (150, 0)) == "the queue is empty"
    assert pace_of((90, 500), (150, 500)) == "no end in sight"
    assert pace_of() == "no end in sight"
    assert end_in_words("max_pages", 3 * 3_600.0) == "about 3 h, by SUITE_MAX_PAGES"


def test_when_it_ends_at_the_beginning() -> None:
    """Only the later half counts: a crawl that opens empty grows while its seeds come."""
    pending = [0, 500, 1_000, 960, 920, 880, 840, 800, 760]
    samples = [(100.0 + second, each) for second, each in enumerate(pending)]
    said = [pace_of(*samples[: count + 1], began=100.0) for count in range(len(samples))]
    assert set(said[1:3]) == {"the queue grows"}
    assert (said[5], said[8]) == ("about 22 s", "about 19 s")  # 120 less in three seconds


def test_rates_are_of_the_last_minute() -> None:
    """What was before it does not count."""
    pace = CrawlPace(0.0)
    for second in range(121):
        pace.note(second, 0, np.full(len(RATES), 10.0 * max(0, second - 60)))
    assert pace.rates() == dict.fromkeys(RATES, 10.0)


class Named(Spider):
    """A spider with a name."""

    name = "named"


@pytest.fixture
def crawler(tmp_path: Path) -> Iterator[Any]:
    """A crawler with a job, whose frontier knows three URLs."""
    crawler = get_crawler(Named, {"SUITE_PROFILE": "broad", "JOBDIR": str(tmp_path / "job")})
    crawler.crawling = True  # or it would not use the job
    crawl = get_crawl(crawler)
    entries = [seed_entry(f"http://h{n}.test/") for n in range(3)]
    crawl.frontier.admission.schedule([each for each in entries if each is not None], crawl.now())
    yield crawler
    crawl.close_job()


def test_what_it_counts(crawler: Any, tmp_path: Path) -> None:
    """What happens counts, whatever becomes of the URLs afterwards."""
    crawl, pulses = get_crawl(crawler), open_crawl(crawler).pulses
    frontier, now = crawl.frontier, crawl.now()
    frontier.counters.bytes = 1_000
    crawler.stats.set_value("downloader/response_status_count/404", 4)
    crawl.counts["downloader/response_status_count/429"] += 1
    states, touch, wall = frontier.states, frontier.residents.records.touch, frontier.wall(now)

    def end(url: str, event: Event, *, again: bool = False) -> None:
        """An attempt to fetch a URL ends; then an operator has it fetched *again*."""
        entry = seed_entry(url)
        assert entry is not None
        record = touch(entry.host)
        if event is Event.TIMEOUT:
            states.note_pending(entry, event, 0, wall)
            return
        states.conclude(entry, record, event, 0, wall)
        if again:
            state = crawl.store.state(entry.identity)
            assert state is not None
            states.uncount(entry.host, record, UrlState.from_bytes(state))

    end("http://h0.test/", Event.SUCCESS, again=True)
    end("http://h1.test/", Event.CLIENT_ERROR, again=True)
    pulses.take()
    end("http://h0.test/", Event.CALLBACK_ERROR)
    end("http://h1.test/", Event.CLIENT_ERROR)
    end("http://h2.test/", Event.TIMEOUT)
    pulses.take()
    # Known URLs, and those of other agents, are not new.
    entries = [seed_entry(f"http://h{n}.test/") for n in range(4)]
    frontier.admission.schedule([each for each in entries if each is not None], now)
    host = "h9.test"
    states.import_state(b"x", host, touch(host), UrlState(State.FAILED, Event.DNS))
    pulses.take()
    facts = pulses.facts()
    assert facts["gauges"]["pending"] == 4
    assert facts["gauges"]["phase"] is None
    assert facts["gauges"]["memory"] > 1 << 20
    found = {name: n for name, n in facts["counters"].items() if n and "cache" not in name}
    assert found == {
        "pages": 2, "bytes": 1_000, "failed": 2, "new_urls": 4, "filtered": 3,
        "errors.client_error": 2, "errors.callback_error": 1, "errors.timeout": 1,
        "status.4xx": 5, "status.429": 1,
    }  # fmt: skip
    rows = SeriesReader(tmp_path / "job" / "suite" / SERIES_FOLDER)
    now = time.time()
    assert np.nansum(rows.read(now - 60, now, 60).total("failed")) == 2


def test_the_next_start_goes_on(crawler: Any, tmp_path: Path) -> None:
    """Totals are of the job, over its starts: what the store has, it has to the last batch."""
    from scrapy_spider_suite.store.job_reader import StatusFile

    totals = dict.fromkeys(COLUMNS.counters, 7)
    StatusFile(tmp_path / "job" / "suite").update(pulse={"counters": totals})
    found = Pulses(open_crawl(crawler)).facts()["counters"]
    assert {name for name, total in found.items() if total >= 7} == {
        "cache_hits", "cache_misses", "dns_lookups", "status.2xx", "status.3xx", "status.4xx",
        "status.5xx", "status.429",
    }  # fmt: skip
    assert found["new_urls"] == 3
    alone = get_crawler(Named, {"SUITE_PROFILE": "spider"})
    pulses = open_crawl(alone).pulses
    pulses.take()
    assert math.isnan(pulses.gauges[COLUMNS.gauges.index("disk_free")])
    get_crawl(alone).close_job()


def test_a_disk_that_fails_is_no_trouble(
    crawler: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """It is logged once; the crawl and its numbers go on."""
    folder = tmp_path / "job" / "suite" / SERIES_FOLDER
    folder.write_text("")
    pulses = open_crawl(crawler).pulses
    for _ in range(3):
        pulses.take()
    assert len([line for line in caplog.messages if "series" in line]) == 1
    folder.unlink()
    pulses.take()
    assert (folder / "second").exists()


def test_its_cost(crawler: Any) -> None:
    """A pulse takes half a millisecond; four are allowed to a busy machine."""
    pulses, spent = open_crawl(crawler).pulses, []
    for _ in range(50):
        began = time.thread_time()
        pulses.take()
        spent.append(time.thread_time() - began)
    assert sorted(spent)[25] < 0.002
