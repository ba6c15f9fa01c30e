"""``scrapy packs search`` and ``index``: what they print, and how they end."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from scrapy.exceptions import UsageError
from support.packs import NOW
from support.packs_command import Packs
from support.text_index import contents, expected, page, write

from scrapy_spider_suite.analysis.search.index_place import IndexPlace
from scrapy_spider_suite.commands.packs_verbs import read_verbs
from scrapy_spider_suite.packs.pack_file import packs_to_upload
from scrapy_spider_suite.packs.upload import UploadTarget, upload_pack
from scrapy_spider_suite.runtime import files

ENGLISH = ("The size of towns and of countries is not always the same, as everybody knows, and "
           "the weather is not the same everywhere, but changes with the place.")  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Packs without an index."""
    write(tmp_path, page(1, ENGLISH, title="On\x1b[2J sizes"), page(2, "size", 100, host="b.test"))
    return tmp_path


def test_index_and_search(packs: Packs, folder: Path) -> None:
    """What is found, for people and for programs."""
    said = packs("index", folder, "--json")
    assert said.rows == [{"folder": str(folder), "pages": 2, "gone": 0, "skipped": 0, "damaged": 0,
                          "rebuilt": None}]  # fmt: skip
    assert contents(folder) == expected(folder)
    said = packs("search", "size towns", folder)
    assert said.code == 0
    assert said.lines[0].startswith("On")
    assert said.lines[1:3] == ["  http://a.test/1", said.lines[2]]
    assert said.lines[2].startswith("  2026-11-18 11:06:40  en  ")
    assert said.lines[3].startswith("  The **size** of **towns** and of")
    assert said.lines[-1] == "1 of 1 page"
    assert b"\x1b" not in said.out
    [row] = packs("search", "size", folder, "--host", "*.test", "--lang", "en", "--json").rows
    assert (row["url"], row["language"], row["status"]) == ("http://a.test/1", "en", 200)
    start, end = row["marks"][0]
    assert row["snippet"][start:end] == "size"
    assert [row["url"] for row in packs("search", "size", folder, "--from", "2026-11-18T11:08",
                                        "--json").rows] == ["http://b.test/2"]  # fmt: skip
    assert len(packs("search", "*", folder, "--limit", "1", "--json").rows) == 1
    assert len(packs("search", "*", folder, "--limit", "0", "--json").rows) == 2
    assert packs("search", "nowhere", folder).code == 1


def test_what_is_wrong(packs: Packs, folder: Path) -> None:
    """One line and exit code 2."""
    said = packs("search", "size", folder)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "scrapy packs index" in said.err
    assert packs("index", folder).code == 0
    said = packs("search", '"size', folder)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "not closed" in said.err
    with pytest.raises(UsageError, match="status"):
        packs("search", "size", folder, "--status", "many")
    assert packs("index", next(folder.glob("*.lzo"))).code == 2
    assert packs("search", "size", next(folder.glob("*.lzo"))).code == 2


def test_rebuild_and_damage(packs: Packs, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged packs and indexes are named; another one that writes is waited for, and named."""
    second = write(folder, page(3, "apple " * 3000), time=NOW + 1)
    assert packs("index", folder).code == 0
    first = IndexPlace(folder).current()
    assert packs("index", folder, "--rebuild").code == 0
    assert IndexPlace(folder).current() != first
    data = bytearray(second.read_bytes())
    data[len(data) // 2] ^= 1
    second.write_bytes(data)
    said = packs("index", folder, "--rebuild")
    assert said.code == 1
    assert second.name in said.err
    store = next(IndexPlace(folder).current().glob("*.store"))
    files.replace_file(store, store.read_bytes()[:-1])  # it may be mapped
    said = packs("index", folder, "--json")
    assert store.name in said.rows[0]["rebuilt"]
    assert contents(folder) == expected(folder)
    monkeypatch.setattr(read_verbs, "_WAIT", "0.2")
    with IndexPlace(folder).locked():
        said = packs("index", folder)
    assert said.code == 2
    assert "another process" in said.err


def test_rebuilding_what_is_elsewhere(packs: Packs, folder: Path) -> None:
    """The index keeps what packs say that were uploaded; where none is here it stays as it is."""
    write(folder, page(3, "apple"), time=NOW + 1)
    assert packs("index", folder).code == 0
    known, far = contents(folder), UploadTarget(str(folder / "far"))
    first, second = packs_to_upload(folder)
    assert upload_pack(first, far, NOW, keep=False)
    assert packs("index", folder, "--rebuild").code == 0
    assert contents(folder) == known
    store = next(IndexPlace(folder).current().glob("*.store"))
    files.replace_file(store, store.read_bytes()[:-1])
    said = packs("index", folder, "--rebuild", "--json")
    assert (said.code, "not here (1) is lost" in said.rows[0]["rebuilt"]) == (0, True)
    known = contents(folder)
    assert known == expected(folder)
    assert upload_pack(second, far, NOW, keep=False)
    said = packs("index", folder, "--rebuild")
    assert (said.code, said.err.count("\n"), "no pack is here" in said.err) == (2, 1, True)
    assert contents(folder) == known


def test_pages_that_end_the_process(
    packs: Packs, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one is started, some times."""
    started: list[object] = []

    class Dying(read_verbs.IndexProcess):
        def __init__(self, folder: Path, told: Any, ended: Any, **options: Any) -> None:
            self._end = ended
            started.append(self)

        def finish(self) -> None:
            self._end(-signal.SIGSEGV, "")

        def wait(self, timeout: float | None = None) -> bool:
            return True

    monkeypatch.setattr(read_verbs, "IndexProcess", Dying)
    said = packs("index", folder)
    assert said.code == 2
    assert "-11" in said.err
    assert len(started) == 10
