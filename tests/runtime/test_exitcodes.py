"""Which exit code a finish reason or a refusal has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scrapy_spider_suite.errors import (
    JobDamagedError,
    JobError,
    JobFormatError,
    JobInUseError,
    SettingsError,
)
from scrapy_spider_suite.runtime.refusal import (
    ExitCode,
    exit_code_for_error,
    exit_code_for_reason,
)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("finished", 0), ("waiting", 3), ("no_pages", 3), ("closespider_pagecount", 3),
        ("cancelled", 3), ("max_pages", 3), ("max_bytes", 3), ("max_time", 3),
        ("a spider's own", 3), ("shutdown", 4), ("stalled", 7),
        ("disk_error", 6), ("damaged", 6),
    ],
)  # fmt: skip
def test_reasons(reason: str, code: int) -> None:
    """Only ``finished`` leaves nothing."""
    assert exit_code_for_reason(reason) == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (JobInUseError(""), 5), (JobDamagedError(""), 6), (JobFormatError(""), 2),
        (JobError(""), 2), (SettingsError(""), 2), ("in words", 2),
    ],
)  # fmt: skip
def test_refusals(error: object, code: int) -> None:
    """What is in use is not damaged, and neither is a bad setting."""
    assert exit_code_for_error(error) == code


def test_every_code_is_explained() -> None:
    """In the order of the numbers."""
    page = Path(__file__).parents[2] / "docs" / "running.md"
    rows = re.findall(r"^\| (\d) \|", page.read_text(), re.MULTILINE)
    assert [int(row) for row in rows] == list(ExitCode)
