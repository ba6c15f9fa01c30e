"""Actions and answers are read as what anybody may have written: data, and not much of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scrapy_spider_suite.errors import ActionError
from scrapy_spider_suite.operate.actions import MAX_BYTES, Action, Answer

ACTION = Action("1-a", "block", {"subject": "a.test", "seconds": 60}, "job", "ops@h", 1.5, "ä why")
FIELDS = json.loads(ACTION.to_bytes())


def test_round_trips() -> None:
    """What was written is what is read."""
    assert Action.from_bytes(ACTION.to_bytes()) == ACTION
    answer = Answer("1-a", True, "done", {"urls": [1, None, "x"]})
    assert Answer.from_bytes(answer.to_bytes()) == answer
    assert Action.from_bytes(json.dumps(FIELDS | {"why": ""}).encode()).why == ""


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "truncated"),
        (b'{"verb": "pau', "truncated"),
        (b"\xff\xfe", "malformed"),
        (b"[1]", "Expected `object`"),
        (b"[" * 60_000, "Expected `object`"),
        (b'{"facts":' * 500 + b"1" + b"}" * 500, "unknown field"),
        (b" " * (MAX_BYTES + 1), "longer than"),
        (b"{}", "missing required field"),
        (json.dumps(FIELDS | {"when": True}).encode(), "when"),
        (json.dumps(FIELDS | {"when": float("nan")}).encode(), "malformed"),
        (json.dumps(FIELDS | {"when": 1e300}).encode(), "when"),
        (json.dumps(FIELDS | {"when": -1e17}).encode(), "when"),
        (json.dumps(FIELDS | {"when": 10**400}).encode(), "when|malformed|range"),
        (json.dumps(FIELDS | {"arguments": []}).encode(), "arguments"),
        (json.dumps(FIELDS | {"arguments": {"x": [[]]}}).encode(), "arguments"),
        (json.dumps(FIELDS | {"verb": 3}).encode(), "verb"),
        (json.dumps(FIELDS | {"run": "rm"}).encode(), "unknown field `run`"),
    ],
)
def test_what_is_no_action(data: bytes, said: str) -> None:
    """One line says what is wrong."""
    with pytest.raises(ActionError, match=said):
        Action.from_bytes(data)


@pytest.mark.parametrize("kind", [str, bool, int])
def test_arguments_have_types(kind: type[Any]) -> None:
    """Exactly: a number is no text, and 1 is not true."""
    other = {str: 5, bool: 1, int: "5"}[kind]
    action = Action("1", "set", {"x": other}, "j", "w", 0.0)
    with pytest.raises(ActionError, match="set: the argument 'x' is missing or no"):
        action.get("x", kind)
    with pytest.raises(ActionError, match="'y' is missing"):
        action.get("y", kind)


def test_arguments() -> None:
    """Whole numbers will do for numbers; there may be a default."""
    assert ACTION.get("seconds", float) == 60.0
    assert ACTION.get("drop", bool, False) is False
    with pytest.raises(ActionError, match="missing or no number"):
        Action("1", "x", {"n": float("inf")}, "j", "w", 0.0).get("n", float)


def test_what_is_too_long_is_not_written() -> None:
    """URLs belong into a file of their own."""
    with pytest.raises(ActionError, match="longer than"):
        Action("1", "add", {"urls": ["x" * 100] * 1000}, "j", "w", 0.0).to_bytes()
