"""The project's score, and what the settings make of orders and windows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings
from scrapy.statscollectors import StatsCollector
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.crawl.crawl_policy import make_order, make_window
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.entries import BottomUp, BreadthFirst, Entry
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.store.interface import MemoryStore


def short_first(url: str, depth: int, referrer: str) -> float:
    """A score such as a project might have."""
    if "bad" in url:
        raise ValueError(url)
    return -len(url) + (100.0 if referrer == "http://a.t/" else 0.0)


def read(**values: Any) -> SuiteSettings:
    """The settings, of which *values* are set."""
    return SuiteSettings.from_settings(Settings({f"SUITE_{n.upper()}": values[n] for n in values}))


@pytest.fixture
def stats() -> StatsCollector:
    """A stats collector."""
    return StatsCollector(get_crawler())


def test_the_score_is_the_projects(stats: StatsCollector, caplog: pytest.LogCaptureFixture) -> None:
    """One that fails gives 0, is counted, and is logged once."""
    path = f"{__name__}.short_first"
    order = make_order(read(order="best-first", score=path), stats)
    entries = [
        Entry("a.t", "http://a.t/loooong"), Entry("a.t", "http://a.t/bad"), Entry("a.t", "http://a.t/s"),
        Entry("a.t", "http://a.t/bad/2"), Entry("a.t", "http://a.t/x", referrer="http://a.t/"),
    ]  # fmt: skip
    keys = {order.key(entry, n, b""): entry.url[11:] for n, entry in enumerate(entries)}
    assert [keys[key] for key in sorted(keys)] == ["x", "bad", "bad/2", "s", "loooong"]
    assert stats.get_value("suite/order/bad_scores") == 2
    assert len(caplog.records) == 1


def test_scores_of_a_file(stats: StatsCollector, tmp_path: Path) -> None:
    """A URL's own, or that of the host that it was found on; what is no such file is said."""
    path = tmp_path / "ranks.txt"
    path.write_text("http://a.t/known\t0.5\nbig.t\t0.25\nsmall.t\t0.125\n")
    order = make_order(read(order="best-first", score=str(path)), stats)
    entries = [
        Entry("a.t", "http://a.t/seed"), Entry("a.t", "http://a.t/s", referrer="http://small.t/"),
        Entry("a.t", "http://a.t/known"), Entry("a.t", "http://a.t/b", referrer="http://big.t/x"),
    ]  # fmt: skip
    keys = {order.key(entry, n, b""): entry.url[11:] for n, entry in enumerate(entries)}
    assert [keys[key] for key in sorted(keys)] == ["known", "b", "s", "seed"]
    for name, data in (("ranks.txt", b"no number\n"), ("ranks.txt.gz", b"no gzip"),
                       ("text.txt", b"\xff\t1\n")):  # fmt: skip
        (tmp_path / name).write_bytes(data)
        with pytest.raises(SettingsError, match=name):
            make_order(read(order="best-first", score=str(tmp_path / name)), stats)


def test_orders_and_windows_of_the_settings(stats: StatsCollector) -> None:
    """Breadth-first without a window unless asked otherwise."""
    assert isinstance(make_order(read(), stats), BreadthFirst)
    assert isinstance(make_order(read(order="bottom-up"), stats), BottomUp)
    store = MemoryStore()
    assert make_window(read(), store) is None
    with pytest.raises(SettingsError, match="without JOBDIR"):
        make_window(read(window="top"), store)
    store.durable = True
    top = make_window(read(window="top", window_size=7), store)
    leaf = make_window(read(window="leaf", order="bottom-up", window_size=7), store)
    assert top is not None
    assert leaf is not None
    assert (top.columns, top.rows, leaf.columns, leaf.rows) == (7, 1, math.inf, 7)


@pytest.mark.parametrize(
    ("path", "words"),
    [("no.such_module", "No module named"), (f"{__name__}.nothing", "nothing"),
     ("math.pi", "expected a callable")],
)  # fmt: skip
def test_a_score_that_is_none(stats: StatsCollector, path: str, words: str) -> None:
    """One line, before the crawl begins."""
    with pytest.raises(SettingsError, match=words):
        make_order(read(order="best-first", score=path), stats)
