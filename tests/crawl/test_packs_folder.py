"""The folder for packs, before a crawl begins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scrapy_spider_suite.crawl.packing import require_writable
from scrapy_spider_suite.errors import PackError


def test_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, rather than when the first page comes; one that is not there is made later."""
    require_writable(tmp_path)
    require_writable(tmp_path / "new")
    asked: list[tuple[Path, int]] = []

    def no(path: Path, mode: int) -> bool:  # as on a read-only file system, for root too
        asked.append((path, mode))
        return False

    monkeypatch.setattr(os, "access", no)
    require_writable(tmp_path / "new")
    with pytest.raises(PackError, match="cannot be written"):
        require_writable(tmp_path)
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]
