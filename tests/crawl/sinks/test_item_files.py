"""The files of item packs, when somebody else meddles with them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.crawl.sinks.commit_log import PlainLog
from scrapy_spider_suite.crawl.sinks.item_packs import ItemFiles
from scrapy_spider_suite.packs import open_items
from scrapy_spider_suite.packs.item_file import ItemBuffer


async def begun(folder: Path, files: int) -> ItemFiles:
    """As many *files*, full, each with an item."""
    settings = {"SUITE_PACKS_AGE": 1e-6, "SUITE_CRAWL_NAME": "news"}
    made = ItemFiles(PlainLog(get_crawler(settings_dict=settings)), folder)
    for number in range(files):
        pile = ItemBuffer()
        pile.add(b'{"n": %d}\n' % number)
        await made.write([pile])
        made.rotate()
    return made


@pytest.mark.parametrize("meddle", [Path.unlink, lambda path: path.rename(path.with_name("mine"))])
def test_a_file_that_is_gone_keeps_no_other_open(
    meddle: Callable[[Path], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is given up, with one line in the log."""

    async def crawl() -> None:
        files = await begun(tmp_path, 3)
        meddle(min(tmp_path.glob("*.open")))
        await files.close_full()
        assert not files.full
        await files.close()

    asyncio.run(crawl())
    assert not list(tmp_path.glob("*.open"))
    assert [item["n"] for item in open_items(tmp_path)] == [1, 2]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "is left as it is, if it is there: [Errno 2]" in caplog.text


def test_a_file_that_cannot_be_closed_yet_keeps_no_other_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again, and told of once."""
    rename = os.rename

    def refuse(old: Path, new: Path) -> None:
        if "-00001-" in str(new):
            raise PermissionError(1, "Operation not permitted")
        rename(old, new)

    async def crawl() -> None:
        files = await begun(tmp_path, 3)
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", refuse)
            for _ in range(3):
                await files.close_full()
        assert [path.name.split("-")[2] for path in tmp_path.glob("*.open")] == ["00001"]
        await files.close()

    asyncio.run(crawl())
    assert [item["n"] for item in open_items(tmp_path)] == [0, 1, 2]
    assert caplog.text.count("Cannot close") == 1
