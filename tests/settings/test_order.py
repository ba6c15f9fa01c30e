"""What comes next: the settings that go together, and jobs of releases without them."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy.settings import Settings

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.settings.declarations import Change, Kind
from scrapy_spider_suite.settings.suite import SuiteSettings


def read(**values: Any) -> SuiteSettings:
    """The settings, of which *values* are set."""
    return SuiteSettings.from_settings(Settings({f"SUITE_{n.upper()}": values[n] for n in values}))


def test_what_does_not_go_together() -> None:
    """A score is of use to one order only, and the leaf window needs the order of leaves."""
    for values, words in (
        ({"order": "best-first"}, "an import path with SUITE_ORDER = 'best-first'"),
        ({"score": "a.b"}, "'' but for SUITE_ORDER = 'best-first'"),
        ({"scores": __file__}, "'' but for SUITE_ORDER = 'best-first'"),
        ({"order": "best-first", "score": "a.b", "scores": __file__}, "'' beside SUITE_SCORE"),
        ({"window": "leaf"}, "'bottom-up' with SUITE_WINDOW = 'leaf'"),
        ({"window": "leaf", "order": "best-first", "score": "a.b"}, "'bottom-up' with"),
    ):
        with pytest.raises(SettingsError, match=words):
            read(**values)
    assert read(order="best-first", score="a.b", window="top").score == "a.b"
    assert read(order="best-first", scores=__file__).scores is not None
    assert read(order="bottom-up", window="leaf", window_size=3).window_size == 3


def test_a_job_of_a_release_without_orders_is_breadth_first() -> None:
    """Its keys are: another order is refused, the same one is no change."""
    old = {"host_delay": 0.0}
    assert "SUITE_ORDER" not in {change.name for change in read().diff(old)}
    assert Change("SUITE_ORDER", "breadth-first", "bottom-up", Kind.FIXED) in read(
        order="bottom-up"
    ).diff(old)
