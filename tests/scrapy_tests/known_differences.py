"""pytest plugin: tests of Scrapy's that the suite is known to fail, each with its reason.

A line of the list is the name of a run (see `run`) or ``every``, a test's id and the reason. The
test must fail: one that passes, or is not there, is an error, so that the list stays true.
"""

from __future__ import annotations

from pathlib import Path

import pytest

LIST = Path(__file__).with_name("differences.txt")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--differences-of", help="the run whose known differences are expected")


def known(run: str) -> dict[str, str]:
    """Return the reason of each known difference of *run*, by the test's id."""
    rows = (line.split(maxsplit=2) for line in LIST.read_text().splitlines() if line[:1] != "#")
    return {test: reason for runs, test, reason in filter(None, rows) if run in runs.split(",")}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    expected = known(config.getoption("--differences-of"))
    for item in items:
        if reason := expected.pop(item.nodeid, None):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    if expected and not config.option.keyword:
        raise pytest.UsageError(f"{LIST.name} names tests that are not there: {sorted(expected)}")
