"""Actions and answers, their folder in a job, and the audit log."""

from __future__ import annotations

import errno
import getpass
import json
import math
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from scrapy_spider_suite.errors import ActionError
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.settings.values import SECRETS, RedisUrl, Secret

T = TypeVar("T")

MAX_BYTES = 64 << 10  # bytes of the longest action or answer; a list of URLs is a file of its own
_MAX_DEPTH = 16
LATEST = 253_402_300_799.0
"""The end of the year 9999 in seconds since the epoch: later times have no date."""


@dataclass(frozen=True, slots=True)
class Action:
    """A change of a job; *when* is in seconds since the epoch.

    *job* is the id in ``job.json``: an action in the folder of another job changes nothing.
    """

    id: str
    verb: str
    arguments: Mapping[str, Any]
    job: str
    who: str
    when: float
    why: str = ""

    def to_bytes(self) -> bytes:
        """Raises `ActionError`: it is too long."""
        return _to_json(asdict(self), f"the action {self.verb}")

    @classmethod
    def from_bytes(cls, data: bytes) -> Action:
        """Decode untrusted bytes. Raises `ActionError`."""
        fields = _from_json(data)
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
        """The argument *name*. Raises `ActionError`: it is missing, or not of exactly *kind*."""
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


FIRST = ""  # the job of an action that was left before the job began


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of an action: *said* in one line, and *facts* as plain values."""

    id: str
    ok: bool
    said: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Raises `ActionError`: it is too long."""
        return _to_json(asdict(self), "the answer")

    @classmethod
    def from_bytes(cls, data: bytes) -> Answer:
        """Decode untrusted bytes. Raises `ActionError`."""
        fields = _from_json(data)
        ok, facts = fields.get("ok"), fields.get("facts")
        if not isinstance(ok, bool) or not isinstance(facts, dict):
            raise ActionError("this is no answer")
        return cls(_text(fields, "id"), ok, _text(fields, "said"), facts)


def is_time(value: object) -> TypeGuard[float]:
    """Whether *value* is a time in seconds since the epoch, of a year that has four digits."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LATEST


def _to_json(fields: dict[str, Any], what: str) -> bytes:
    data = json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    if len(data) > MAX_BYTES:
        raise ActionError(f"{what} is longer than {MAX_BYTES} bytes")
    return data


def _from_json(data: bytes) -> dict[str, Any]:
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


class AuditLog:
    """Lines of JSON that are only ever appended to. *folder* is the job's ``suite`` folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "audit.jsonl"

    def append(
        self, rows: Iterable[tuple[Action | str, Answer]], wall: float, by: str
    ) -> None:
        """Write the answers to actions, or to files of such ids that are none: all, durably.

        *by* says who carried them out (``process 123``). Raises `OSError`: none was written.
        """
        lines = []
        for action, answer in rows:
            line: dict[str, Any] = {"done": round(wall, 3), "by": by, "id": answer.id}
            if isinstance(action, Action):
                line |= {
                    "who": action.who, "when": action.when, "why": action.why,
                    "verb": action.verb, "arguments": _without_secrets(action), "job": action.job,
                }  # fmt: skip
            # A drop of an unknown host has a receipt, but dropped nothing.
            ok = answer.ok and answer.facts.get("known") is not False
            lines.append(line | {"ok": ok, "said": answer.said, "facts": answer.facts})
        files.append_json_lines(self.path, *lines)

    def rows(self) -> Iterator[dict[str, Any]]:
        """All rows, the oldest first, without torn lines."""
        return files.read_json_lines(self.path)


def _without_secrets(action: Action) -> Mapping[str, Any]:
    if action.verb != "set":
        return action.arguments
    name, value = action.arguments.get("name"), str(action.arguments.get("value"))
    kept = str(Secret(value) if name in SECRETS else RedisUrl(value))
    return {**action.arguments, "value": kept}


_FOLDER = "actions"
_ID = re.compile(r"[0-9A-Za-z-]{1,80}")
_STALE = dict.fromkeys((".answer", ".taken", ".new", ".urls", ".copy", ".refused"), 86_400.0)
"""Seconds after which files that no asker took are removed (URLs: without their action)."""


def new_id(*, urgent: bool = False) -> str:
    """An id for an action or a call of this moment; *urgent* ones sort before all others."""
    first = "00-" if urgent else ""
    return f"{first}{time.time_ns():020}-{secrets.token_hex(8)}"


class ActionFolder:
    """The actions of the job whose ``suite`` folder is *folder*."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / _FOLDER

    def submit(self, action: Action, urls: Iterable[str] | None = None) -> int:
        """Write *action* and the file of *urls*, if any; return the number of URLs.

        Writes all or nothing. Raises `ActionError`, `OSError`.
        """
        data = action.to_bytes()
        self.path.mkdir(exist_ok=True)
        count, payload, new = 0, self.urls_path(action.id), self._file(action.id, ".new")
        try:
            if urls is not None:
                count = _write_lines(new, payload, urls)
            files.write_synced(new, data)
            os.replace(new, self._file(action.id, ".action"))
        except BaseException:
            new.unlink(missing_ok=True)
            payload.unlink(missing_ok=True)
            raise
        return count

    def pop_answer(self, id: str) -> Answer | None:
        """Remove and return the answer to the action *id*; None before it is answered."""
        taken = self._file(id, ".taken")
        try:
            # Either it is taken, or `retract` finds it.
            os.replace(self._file(id, ".answer"), taken)
        except FileNotFoundError:
            return None
        data = taken.read_bytes()
        taken.unlink(missing_ok=True)
        return Answer.from_bytes(data)

    def withdraw(self, id: str) -> Answer | None:
        """Remove the action *id*; return its answer, if it was answered meanwhile.

        An action that was not begun is not carried out. A copy that was made for it is removed.
        """
        self.remove(id)
        return self.pop_answer(id)

    def waiting(self) -> list[str]:
        """Return the ids of the actions without an answer, the oldest first."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return []
        return sorted(name.removesuffix(".action") for name in names if name.endswith(".action"))

    def read(self, id: str) -> Action:
        """The action *id*. Raises `ActionError`: it cannot be read."""
        if not _ID.fullmatch(id):
            raise ActionError(f"{id[:80]!r} is no id of an action")
        try:
            with _open_regular(self._file(id, ".action")) as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise ActionError(f"it cannot be read: {error.strerror}") from None
        action = Action.from_bytes(data)
        if action.id != id:
            raise ActionError(f"its id is {action.id[:80]!r}, not that of its file")
        return action

    def is_answered(self, id: str) -> bool:
        """Whether the action has an answer: a crash may leave both files."""
        return self._file(id, ".answer").exists()

    def answer(self, answer: Answer) -> None:
        """Write *answer*, not synced: the audit log has it. Raises `OSError`."""
        if _ID.fullmatch(answer.id):
            new = self._file(answer.id, ".new")
            new.write_bytes(answer.to_bytes())
            os.replace(new, self._file(answer.id, ".answer"))

    def retract(self, id: str) -> None:
        """Remove the answer to *id* and its copy, unless the asker took the answer."""
        try:
            self._file(id, ".answer").unlink()
        except FileNotFoundError:
            return
        shutil.rmtree(self.copy_path(id), ignore_errors=True)

    def is_pending(self, id: str) -> bool:
        """Whether the action *id* is neither withdrawn nor carried out."""
        return self._file(id, ".action").exists()

    def remove(self, id: str) -> bool:
        """Remove the action *id* and its URLs; False if it did not exist."""
        try:
            self._file(id, ".action").unlink()
        except FileNotFoundError:
            return False
        finally:
            self.urls_path(id).unlink(missing_ok=True)
        return True

    def mark_refused(self, id: str) -> None:
        """Rename the file *id*, which is no action, so that it is not read again."""
        with suppress(FileNotFoundError):
            os.replace(self._file(id, ".action"), self._file(id, ".refused"))

    def urls_path(self, id: str) -> Path:
        return self._file(id, ".urls")

    def open_urls(self, id: str) -> BufferedReader:
        """Raises `OSError`."""
        return _open_regular(self.urls_path(id))

    def copy_path(self, id: str) -> Path:
        return self._file(id, ".copy")

    def sweep(self, wall: float) -> None:
        """Remove stale files: answers, copies and lists that no asker took."""
        waiting = set(self.waiting())
        for path in self.path.iterdir() if self.path.is_dir() else ():
            stale = _STALE.get(path.suffix)
            if stale is None or (path.suffix == ".urls" and path.stem in waiting):
                continue
            try:
                if path.lstat().st_mtime < wall - stale:
                    shutil.rmtree(path) if path.suffix == ".copy" else path.unlink()
            except OSError:
                continue  # its owner came after all

    def _file(self, id: str, suffix: str) -> Path:
        return self.path / f"{id}{suffix}"


def _open_regular(path: Path) -> BufferedReader:
    """Raises `OSError`, also for an untrusted file that is none."""
    # Do not wait for the other end of a pipe, or follow a link out of the job.
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is no file")
    return open(number, "rb")


def _write_lines(new: Path, path: Path, lines: Iterable[str]) -> int:
    count = 0
    with new.open("w", encoding="utf-8", errors="replace") as file:
        for line in lines:
            file.write(line + "\n")
            count += 1
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    return count


def whoami() -> str:
    """``user@host``, as far as the machine knows."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container with a user that has no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
