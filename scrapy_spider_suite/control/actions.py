"""Actions and answers: what is asked of a job, and what came of it. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeGuard, TypeVar

from scrapy_spider_suite.errors import ActionError

T = TypeVar("T")

MAX_BYTES = 64 << 10
"""Longest action or answer; whatever is longer (URLs) comes in a file beside it."""
_MAX_DEPTH = 16
LATEST = 253_402_300_799.0
"""The last time (seconds since the epoch) that can be shown as a date: the end of 9999."""


@dataclass(frozen=True, slots=True)
class Action:
    """Something that is to be done to a job.

    *job* is the id in ``job.json``, so that an action that was copied along with a folder, or left
    in the wrong one, changes nothing. *when* is in seconds since the epoch.
    """

    id: str
    verb: str
    arguments: Mapping[str, Any]
    job: str
    who: str
    when: float
    why: str = ""

    def to_bytes(self) -> bytes:
        """The file of the action. Raises `ActionError` if that would be too long."""
        return _written(asdict(self), f"the action {self.verb}")

    @classmethod
    def from_bytes(cls, data: bytes) -> Action:
        """Read what anybody may have written. Raises `ActionError` that says what is wrong."""
        fields = _read(data)
        unknown = set(fields) - set(cls.__slots__)
        if unknown:
            raise ActionError(f"an action has no field {min(unknown)!r}")
        when = fields.get("when")
        if not is_time(when):
            raise ActionError("the action's 'when' is no time")
        arguments = fields.get("arguments")
        if not isinstance(arguments, dict):
            raise ActionError("the action's 'arguments' are no object")
        texts = {name: _text(fields, name) for name in ("id", "verb", "job", "who")}
        why = _text(fields, "why") if "why" in fields else ""
        return cls(arguments=arguments, when=float(when), why=why, **texts)

    def get(self, name: str, kind: type[T], default: T | None = None) -> T:
        """The argument *name*, of exactly *kind*; without *default* it has to be there.

        Raises `ActionError`.
        """
        value = self.arguments.get(name, default)
        if kind is float and type(value) is int and abs(value) < 1 << 63:
            value = float(value)
        finite = not isinstance(value, float) or math.isfinite(value)
        if type(value) is not kind or not finite:
            raise ActionError(f"{self.verb}: the argument {name!r} is missing or no {_KINDS[kind]}")
        return value

    def expect(self, *names: str) -> None:
        """Raise `ActionError` if there are other arguments than *names*."""
        unknown = set(self.arguments) - set(names)
        if unknown:
            raise ActionError(f"{self.verb} has no argument {min(unknown)!r}")


_KINDS: dict[type, str] = {str: "text", float: "number", bool: "true or false", int: "number"}


FIRST = ""
"""What stands for the id of the job of an action that was left before there was one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an action: *said* in one line, and *facts* as plain values."""

    id: str
    ok: bool
    said: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The file of the answer. Raises `ActionError` if that would be too long."""
        return _written(asdict(self), "the answer")

    @classmethod
    def from_bytes(cls, data: bytes) -> Answer:
        """Read an answer. Raises `ActionError`."""
        fields = _read(data)
        ok, facts = fields.get("ok"), fields.get("facts")
        if not isinstance(ok, bool) or not isinstance(facts, dict):
            raise ActionError("this is no answer")
        return cls(_text(fields, "id"), ok, _text(fields, "said"), facts)


def is_time(value: object) -> TypeGuard[float]:
    """Whether *value* is a time in seconds since the epoch, of a year that has four digits."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LATEST


def _written(fields: dict[str, Any], what: str) -> bytes:
    data = json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    if len(data) > MAX_BYTES:
        raise ActionError(f"{what} is longer than {MAX_BYTES} bytes")
    return data


def _read(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_BYTES:
        raise ActionError(f"it is longer than {MAX_BYTES} bytes")
    try:
        fields = json.loads(data)
        deep = _depth(fields) > _MAX_DEPTH
    except RecursionError:
        deep = True
    except ValueError as error:
        raise ActionError(f"it is no JSON ({error})") from None
    if deep:
        raise ActionError("it nests too deep")
    if not isinstance(fields, dict):
        raise ActionError("it is no JSON object")
    return fields


def _depth(value: object) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise ActionError(f"its {name!r} is missing or no text")
    return value
