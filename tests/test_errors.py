"""The errors are one tree, and the tree in the docstring is the real one."""

from __future__ import annotations

import re

from scrapy_spider_suite import errors
from scrapy_spider_suite.errors import JobSettingsError, SettingsError, SuiteError


def drawn_tree() -> dict[str, str]:
    """Read class and parent from the drawing, by the column in which a name begins."""
    parents: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        if (found := re.match(r"([ │├└─]{4,})(\w+Error)\b", line)) is None:
            continue
        column, name = len(found[1]), found[2]
        path = [(c, n) for c, n in path if c < column]
        parents[name] = path[-1][1] if path else "Exception"
        path.append((column, name))
    return parents


def test_the_drawing_is_the_tree() -> None:
    """Every error class is drawn once, below its real parent, and nothing else is drawn."""
    real = {
        name: cls.__bases__[0].__name__
        for name, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, SuiteError)
    }
    assert drawn_tree() == real


def test_a_settings_error_names_setting_value_and_what_is_allowed() -> None:
    """The message is the one line that the user needs."""
    error = SettingsError.of("SUITE_REQUESTS_PER_VISIT", 99, "a whole number from 1 to 20")
    assert str(error) == "SUITE_REQUESTS_PER_VISIT = 99: expected a whole number from 1 to 20"


def test_a_job_settings_error_lists_the_settings() -> None:
    """The names can be read without taking the message apart."""
    assert JobSettingsError("changed", ["SUITE_SEEN_STORE"]).names == ("SUITE_SEEN_STORE",)
    assert JobSettingsError("changed").names == ()
