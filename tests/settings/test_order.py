"""What comes next: the settings that go together, and jobs of releases without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.settings.suite import SuiteSettings


def read(**values: Any) -> SuiteSettings:
    """The settings, of which *values* are set."""
    return SuiteSettings.from_settings(Settings({f"SUITE_{n.upper()}": values[n] for n in values}))


def test_what_does_not_go_together() -> None:
    """A score is of use to one order only, and the leaf window needs the order of leaves."""
    for values, words in (
        ({"order": "best-first"}, "an import path or a file with SUITE_ORDER = 'best-first'"),
        ({"score": "a.b"}, "'' but for SUITE_ORDER = 'best-first'"),
        ({"score": __file__}, "'' but for SUITE_ORDER = 'best-first'"),
        ({"window": "leaf"}, "'bottom-up' with SUITE_WINDOW = 'leaf'"),
        ({"window": "leaf", "order": "best-first", "score": "a.b"}, "'bottom-up' with"),
    ):
        with pytest.raises(SettingsError, match=words):
            read(**values)
    assert read(order="best-first", score="a.b", window="top").score == "a.b"
    assert read(order="best-first", score=__file__).score == Path(__file__)
    assert read(order="bottom-up", window="leaf", window_size=3).window_size == 3
