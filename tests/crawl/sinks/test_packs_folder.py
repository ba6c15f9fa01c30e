"""The folder for packs, before a crawl begins."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.crawl.sinks.commit_log import PlainLog
from scrapy_spider_suite.crawl.sinks.page_packs import PagePacks, prepare_folder
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.packs.pack_file import Damage
from scrapy_spider_suite.packs.writer import PackRecovery


def test_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, rather than when the first page comes; one that is not there is made."""
    prepare_folder("packs_dir", tmp_path)
    prepare_folder("packs_dir", tmp_path / "new")
    assert (tmp_path / "new").is_dir()
    asked: list[tuple[Path, int]] = []

    def no(path: Path, mode: int) -> bool:  # as on a read-only file system, for root too
        asked.append((path, mode))
        return False

    monkeypatch.setattr(os, "access", no)
    with pytest.raises(SettingsError, match=r"SUITE_PACKS_DIR = .*cannot be written"):
        prepare_folder("packs_dir", tmp_path)
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]


@pytest.mark.parametrize(
    ("settings", "line"),
    [({}, "SUITE_PACKS_DIR = '{}': Not a directory"),
     ({"SUITE_PACKS_UPLOAD": "odd://a/b"}, "SUITE_PACKS_UPLOAD = 'odd://a/b': Protocol not")],
)  # fmt: skip
def test_what_is_wrong_is_said_in_words(
    settings: dict[str, Any], line: str, tmp_path: Path
) -> None:
    """Not as Python shows errors of the system."""
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "packs"

    async def begin() -> None:
        known = {"SUITE_PACKS_DIR": str(folder), **settings}
        PagePacks(PlainLog(get_crawler(settings_dict=known)), folder)

    with pytest.raises(SettingsError) as caught:
        asyncio.run(begin())
    assert str(caught.value).startswith(line.format(folder))


@pytest.mark.parametrize("url", ["{}", "file://{}", "{}/far"])
def test_packs_are_not_uploaded_to_where_they_are(url: str, tmp_path: Path) -> None:
    """Each would replace itself, again and again; under another name of the folder, too."""
    (tmp_path / "far").symlink_to(tmp_path)
    url = url.format(tmp_path)

    async def begin() -> None:
        settings = {"SUITE_PACKS_UPLOAD": url, "SUITE_PACKS_DIR": str(tmp_path)}
        crawler = get_crawler(settings_dict=settings)
        PagePacks(PlainLog(crawler), tmp_path)

    with pytest.raises(SettingsError) as caught:
        asyncio.run(begin())
    assert str(caught.value) == (
        f"SUITE_PACKS_UPLOAD = {url!r}: the packs are in that folder: name another one"
    )


def test_damage_that_recovery_meets_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pages that are done are in it; a torn end, where none is, is what every kill leaves."""
    crawler = get_crawler()
    done: Future[list[PackRecovery]] = Future()
    damage = [Damage(40, 7, "its checksum is another", False), Damage(90, 3, "it ends", True)]
    done.set_result([PackRecovery(tmp_path / "a.warc.lzo", 10, damage)])

    async def told() -> None:
        packs = PagePacks(PlainLog(crawler), tmp_path)
        packs._recovered(done)
        await packs.finish()
        await packs.close()

    asyncio.run(told())
    [line] = [each for each in caplog.messages if "lost" in each]
    assert line.endswith("a.warc.lzo: lost, 7 bytes at 40: its checksum is another")
