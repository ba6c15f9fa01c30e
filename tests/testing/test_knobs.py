"""Kinds of knobs: text read, values checked, one line for what is wrong."""

from __future__ import annotations

import pytest

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.testing.config import check, parse


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("count", "12", 12),
        ("bytes", "6000", 6000),
        ("bytes", "4k", 4096),
        ("bytes", "2M", 2 << 20),
        ("secs", "0.25", 0.25),
        ("share", "1", 1.0),
        ("sigma", "0.5", 0.5),
        ("text", "fake.test", "fake.test"),
    ],
)
def test_text_becomes_a_value(kind: str, text: str, value: object) -> None:
    """What a person types is read by the kind of the knob."""
    assert parse("knob", kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("count", "1.5"),
        ("count", "many"),
        ("bytes", "-1"),
        ("bytes", "1T"),
        ("bytes", "\u00b2K"),
        ("secs", "nan"),
        ("secs", "inf"),
        ("secs", "1s"),
        ("share", "half"),
    ],
)
def test_unreadable_text_is_refused(kind: str, text: str) -> None:
    """The message names the knob, the text, and what is allowed."""
    with pytest.raises(SettingsError, match=r"^knob = .*: expected a") as caught:
        parse("knob", kind, text)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("count", -1),
        ("count", True),
        ("count", 1.0),
        ("bytes", "6000"),
        ("secs", -0.1),
        ("secs", float("nan")),
        ("secs", 1e10),
        ("share", 1.01),
        ("sigma", 6),
        ("flag", 1),
        ("text", 1),
        ("file", "log"),
        ("table", []),
    ],
)
def test_values_out_of_range_are_refused(kind: str, value: object) -> None:
    """Types and ranges are checked whatever the value came from."""
    with pytest.raises(SettingsError, match=r"^knob = "):
        check("knob", kind, value)


def test_minimum_binds_counts() -> None:
    """A knob can ask for at least one."""
    check("knob", "count", 1, 1)
    with pytest.raises(SettingsError, match="at least 1"):
        check("knob", "count", 0, 1)
