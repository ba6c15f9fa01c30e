"""What is left in the inbox is taken, in order, and gone only when it is committed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scrapy_spider_suite.inbox import Inbox, leave


def files(folder: Path) -> list[str]:
    """What lies in the inbox."""
    return sorted(path.suffix for path in (folder / "inbox").iterdir())


def test_what_is_left_is_taken_in_order(tmp_path: Path) -> None:
    """The first file first; it goes when all of it was taken and committed."""
    assert leave(tmp_path, ["http://a/", "http://b/"]) == 2
    assert leave(tmp_path, ["http://c/"]) == 1
    inbox = Inbox(tmp_path)
    assert inbox.waits()
    assert list(inbox.take(10)) == ["http://a/", "http://b/"]
    assert inbox
    assert inbox.waits()
    assert files(tmp_path) == [".urls", ".urls"]
    inbox.finish()
    assert not inbox
    assert files(tmp_path) == [".urls"]
    assert list(inbox.take(10)) == ["http://c/"]
    inbox.finish()
    assert files(tmp_path) == []
    assert list(inbox.take(10)) == []


def test_a_long_file_is_taken_in_parts(tmp_path: Path) -> None:
    """So many lines each time; the file stays until the last is committed."""
    leave(tmp_path, [f"http://a/{n}" for n in range(5)])
    inbox = Inbox(tmp_path)
    taken = []
    for left in ([".urls"], [".urls"], []):
        taken.append(list(inbox.take(2)))
        inbox.finish()
        assert files(tmp_path) == left
    assert [len(part) for part in taken] == [2, 2, 1]
    assert len({url for part in taken for url in part}) == 5


def test_a_crash_before_the_commit_gives_it_again(tmp_path: Path) -> None:
    """Another process begins with the same file; deduplication makes that harmless."""
    leave(tmp_path, ["http://a/"])
    for _ in range(2):
        inbox = Inbox(tmp_path)
        assert list(inbox.take(10)) == ["http://a/"]
        inbox.close()
        assert not inbox


def test_half_a_file_is_never_seen(tmp_path: Path) -> None:
    """It appears whole, or, if something fails on the way, not at all."""

    def urls() -> Iterator[str]:
        yield "http://a/"
        assert files(tmp_path) == [".new"]
        assert list(Inbox(tmp_path).take(10)) == []
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        leave(tmp_path, urls())
    assert files(tmp_path) == []


def test_nothing_was_ever_left(tmp_path: Path) -> None:
    """A job without an inbox has nothing to give, and nothing to finish."""
    inbox = Inbox(tmp_path)
    assert list(inbox.take(10)) == []
    inbox.finish()
    assert not inbox
    assert not inbox.waits()


def test_blank_lines_and_bad_bytes_stop_nothing(tmp_path: Path) -> None:
    """Whoever writes the file by hand may make mistakes."""
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "mine.urls").write_bytes(b"\nhttp://a/\xff\n\nhttp://b/")
    inbox = Inbox(tmp_path)
    assert list(inbox.take(10)) == ["http://a/\ufffd", "http://b/"]
    inbox.finish()
    assert files(tmp_path) == []
