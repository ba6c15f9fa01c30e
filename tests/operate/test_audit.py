"""The audit log is appended to, and a torn line spoils no other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scrapy_spider_suite.operate.actions import Action, Answer, AuditLog


def row(id: str) -> tuple[Action, Answer]:
    """A refused action, to be written down."""
    return Action(id, "pause", {}, "job", "ops@h", 5.0), Answer(id, False, "no")


def test_every_action_has_a_line(tmp_path: Path) -> None:
    """Who, when, why, what was said."""
    log = AuditLog(tmp_path)
    assert list(log.rows()) == []
    asked = Action("1", "pause", {"x": 1}, "job", "ops@h", 5.0, "noise\nat night")
    log.append([(asked, Answer("1", True, "paused", {"paused": True}))], 7.0, "process 1")
    log.append([row("bad")], 8.0, "process 1")
    first, second = log.rows()
    assert first == {
        "done": 7.0, "by": "process 1", "id": "1", "who": "ops@h", "when": 5.0,
        "why": "noise\nat night", "verb": "pause", "arguments": {"x": 1}, "job": "job",
        "ok": True, "said": "paused", "facts": {"paused": True},
    }  # fmt: skip
    assert (second["id"], second["ok"], second["said"]) == ("bad", False, "no")


def test_a_torn_line_is_left_alone(tmp_path: Path) -> None:
    """What a full disk cut off stays as it is; the next line is whole."""
    log = AuditLog(tmp_path)
    log.path.write_text('{"done": 1}\n{"done": 2, "by')
    log.append([row("x")], 3.0, "me")
    assert [each["done"] for each in log.rows()] == [1, 3.0]


def test_many_lines_are_written_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk that takes some of them leaves none, so that none is there twice later."""
    log = AuditLog(tmp_path)
    rows = [row(str(n)) for n in range(3)]
    log.append(rows[:1], 1.0, "me")
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: write(file, data[:150]))
        with pytest.raises(OSError, match="to its end"):
            log.append(rows, 2.0, "me")
    log.append(rows[1:], 3.0, "me")
    assert [each["id"] for each in log.rows()] == ["0", "1", "2"]
