"""The folder: whole or not at all, in order, and nothing in it can stop whoever looks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrapy_spider_suite.errors import ActionError
from scrapy_spider_suite.operate.actions import MAX_BYTES, Action, ActionFolder, Answer, new_id


def action(id: str = "") -> Action:
    """An action as a command makes it."""
    return Action(id or new_id(), "pause", {}, "job", "ops@h", 1.0)


def names(folder: ActionFolder) -> list[str]:
    """The endings of what lies there."""
    return sorted(path.suffix for path in folder.path.iterdir())


def test_actions_are_read_in_the_order_in_which_they_were_left(tmp_path: Path) -> None:
    """Two people at once: first come, first served."""
    folder = ActionFolder(tmp_path)
    assert folder.waiting() == []
    left = [action() for _ in range(3)]
    for each in left:
        folder.submit(each)
    assert folder.waiting() == [each.id for each in left]
    assert [folder.read(id) for id in folder.waiting()] == left


def test_an_answer_is_taken_once(tmp_path: Path) -> None:
    """And the action goes with its URLs."""
    folder, asked = ActionFolder(tmp_path), action()
    assert folder.submit(asked, ["http://a/", "http://b/"]) == 2
    assert folder.urls_path(asked.id).read_text() == "http://a/\nhttp://b/\n"
    assert folder.pop_answer(asked.id) is None
    answer = Answer(asked.id, True, "paused")
    folder.answer(answer)
    assert folder.is_answered(asked.id)
    folder.remove(asked.id)
    assert folder.pop_answer(asked.id) == answer
    assert folder.pop_answer(asked.id) is None
    assert names(folder) == []


def test_all_or_nothing(tmp_path: Path) -> None:
    """If the URLs cannot be had, there is no action."""
    folder = ActionFolder(tmp_path)

    def urls() -> Iterator[str]:
        yield "http://a/"
        assert folder.waiting() == []
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        folder.submit(action(), urls())
    assert names(folder) == []


def test_what_cannot_be_read(tmp_path: Path) -> None:
    """Too long, a folder, a pipe, a link: each is an error."""
    folder = ActionFolder(tmp_path)
    path = folder.path
    path.mkdir()
    (path / "long.action").write_bytes(b" " * (MAX_BYTES + 5))
    (path / "folder.action").mkdir()
    os.mkfifo(path / "pipe.action")
    secret = tmp_path / "elsewhere"
    secret.write_bytes(action("link").to_bytes())
    (path / "link.action").symlink_to(secret)
    assert len(folder.waiting()) == 4
    for id in folder.waiting():
        with pytest.raises((ActionError, OSError)):
            folder.read(id)


def test_what_nobody_came_for_is_swept(tmp_path: Path) -> None:
    """After a day, but never an action, nor the URLs of one."""
    folder, asked = ActionFolder(tmp_path), action()
    folder.submit(asked, ["http://a/"])
    folder.answer(Answer("old", True, "x"))
    for name in ("torn.new", "alone.urls"):
        (folder.path / name).write_text("")
    folder.sweep(time.time())
    assert len(names(folder)) == 5
    folder.sweep(time.time() + 90_000)
    assert names(folder) == [".action", ".urls"]


def test_urls_are_a_file_of_the_folder(tmp_path: Path) -> None:
    """No link out of the job is followed, and nobody waits for a pipe."""
    folder = ActionFolder(tmp_path)
    folder.submit(action("mine"), ["http://a.test/"])
    with folder.open_urls("mine") as file:
        assert file.read() == b"http://a.test/\n"
    (tmp_path / "secret").write_text("http://b.test/\n")
    folder.urls_path("link").symlink_to(tmp_path / "secret")
    os.mkfifo(folder.urls_path("pipe"))
    folder.urls_path("folder").mkdir()
    for id in ("link", "pipe", "folder", "nowhere"):
        with pytest.raises(OSError, match=r"symbolic|no file|No such"):
            folder.open_urls(id)
