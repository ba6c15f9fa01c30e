"""The process that follows packs: it ends as it is told to, and a kill costs nothing."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from scrapy.utils.test import get_crawler
from support.packs import hand_in, plan
from support.text_index import contents, expected, followed, page, write

from scrapy_spider_suite.analysis.search.index_follower import IndexFollower
from scrapy_spider_suite.analysis.search.index_process import IndexProcess
from scrapy_spider_suite.packs import PackWriter
from scrapy_spider_suite.pipelines import IndexPipeline


class Following:
    """A process, and what it said."""

    def __init__(self, folder: Path) -> None:
        self.rows: list[dict[str, Any]] = []
        self.end: list[tuple[int, str]] = []
        self.heard = threading.Event()
        self.process = IndexProcess(folder, self._hear, lambda *end: self.end.append(end))

    def _hear(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.heard.set()


def test_it_follows_until_it_is_told_to_end(tmp_path: Path) -> None:
    """What is written is indexed while it is written; the rest at the end."""
    writer = PackWriter(plan(tmp_path))
    hand_in(writer, page(1, "apple"))
    writer.flush().result()
    following = Following(tmp_path)
    assert following.heard.wait(60)
    assert set(contents(tmp_path)) == {"http://a.test/1"}
    hand_in(writer, page(2, "apple"))
    writer.close()
    following.process.finish()
    assert following.process.wait(60)
    assert following.end == [(0, "")]
    assert sum(row["pages"] for row in following.rows) == 2
    assert contents(tmp_path) == expected(tmp_path)


def test_it_ends_on_sigterm_and_says_why_it_cannot(tmp_path: Path) -> None:
    """Exit code 1 and a line where it cannot write."""
    write(tmp_path, page(1, "apple"))
    (tmp_path / "search").write_bytes(b"")
    following = Following(tmp_path)
    assert following.process.wait(60)
    [(code, words)] = following.end
    assert code == 1
    assert "search" in words
    (tmp_path / "search").unlink()
    following = Following(tmp_path)
    assert following.heard.wait(60)
    following.process.stop()
    assert following.process.wait(60)
    assert following.end == [(0, "")]


@pytest.mark.slow
def test_kills(tmp_path: Path) -> None:
    """Killed at random moments while packs are written: the index is that of a rebuild."""
    chance = random.Random(3)
    writer = PackWriter(plan(tmp_path, max_bytes=1 << 15))
    for number in range(8):
        following = Following(tmp_path)
        for place in range(150):
            url, words = chance.randrange(600), [f"word{chance.randrange(999)}" for _ in range(60)]
            status = 404 if url % 9 == 1 else 200
            time = 150.0 * number + place
            hand_in(writer, page(url, " ".join(words), time, status=status))
            if place % 50 == 0:
                writer.flush().result()
        following.process.wait(chance.uniform(0.0, 1.0))
        following.process.kill()
        assert following.process.wait(60)
        assert following.end[0][0] == -9
    writer.close()
    before = IndexFollower(tmp_path).step()
    assert before.rebuilt == ""
    known = followed(tmp_path)
    assert known == expected(tmp_path)
    IndexFollower(tmp_path).rebuild(lambda progress: None)
    assert contents(tmp_path) == known


def test_a_process_that_ends_for_days(tmp_path: Path) -> None:
    """As on a full disk: it is started again every five minutes, however often it has ended."""
    indexing, waits = IndexPipeline(get_crawler(), tmp_path), []
    indexing._loop = Mock(call_later=lambda wait, start: waits.append(wait))
    for indexing._failures in (0, 3, 2_000):
        indexing._restart_later(1, "No space left on device")
    assert waits == [1.0, 8.0, 300.0]
