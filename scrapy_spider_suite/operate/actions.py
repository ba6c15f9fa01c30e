"""Actions and answers, their folder in a job, and the audit log."""

from __future__ import annotations

import errno
import getpass
import json
import math
import os
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import msgspec

from scrapy_spider_suite.errors import ActionError
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.settings.values import SECRETS, RedisUrl, Secret

T = TypeVar("T")

MAX_BYTES = 64 << 10  # bytes of the longest action or answer; a list of URLs is a file of its own
LATEST = 253_402_300_799.0
"""The end of the year 9999 in seconds since the epoch: later times have no date."""
PlainValue = str | int | float | bool | None


class _Message(msgspec.Struct, frozen=True):
    """A line of JSON, of `MAX_BYTES` at most."""

    def to_bytes(self) -> bytes:
        """Raises `ActionError`: it is too long."""
        fields = msgspec.structs.asdict(self)
        data = json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        if len(data) > MAX_BYTES:
            raise ActionError(f"the {type(self).__name__.lower()} is longer than {MAX_BYTES} bytes")
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode untrusted bytes. Raises `ActionError`."""
        if len(data) > MAX_BYTES:
            raise ActionError(f"it is longer than {MAX_BYTES} bytes")
        try:
            return msgspec.json.decode(data, type=cls)
        except (ValueError, RecursionError) as error:
            raise ActionError(str(error)) from None


class Action(_Message, frozen=True, forbid_unknown_fields=True):
    """A change of a job; *when* is in seconds since the epoch.

    *job* is the id in ``job.json``: an action in the folder of another job changes nothing.
    """

    id: str
    verb: str
    arguments: Mapping[str, PlainValue]
    job: str
    who: str
    when: Annotated[float, msgspec.Meta(ge=0, le=LATEST)]
    why: str = ""

    def get(self, name: str, kind: type[T], default: T | None = None) -> T:
        """The argument *name*. Raises `ActionError`: it is missing, or not of exactly *kind*."""
        value: Any = self.arguments.get(name, default)
        if kind is float and type(value) is int:
            value = float(value)
        finite = not isinstance(value, float) or math.isfinite(value)
        if type(value) is not kind or not finite:
            raise ActionError(f"{self.verb}: the argument {name!r} is missing or no {_KINDS[kind]}")
        found: T = value
        return found


_KINDS: dict[type, str] = {str: "text", float: "number", bool: "true or false", int: "number"}


FIRST = ""  # the job of an action that was left before the job began


class Answer(_Message, frozen=True):
    """The result of an action: *said* in one line, and *facts* as plain values."""

    id: str
    ok: bool
    said: str
    facts: Mapping[str, Any] = {}


class AuditLog:
    """Lines of JSON that are only ever appended to. *folder* is the job's ``suite`` folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "audit.jsonl"

    def append(self, rows: Iterable[tuple[Action, Answer]], wall: float, by: str) -> None:
        """Write the answers, all or none, durably; *by*: ``process 123``. Raises `OSError`."""
        files.append_json_lines(self.path, *(
            {
                "done": round(wall, 3), "by": by, "id": action.id, "who": action.who,
                "when": action.when, "why": action.why, "verb": action.verb,
                "arguments": _without_secrets(action), "job": action.job,
                # A drop of an unknown host has a receipt, but dropped nothing.
                "ok": answer.ok and answer.facts.get("known") is not False,
                "said": answer.said, "facts": answer.facts,
            }
            for action, answer in rows
        ))  # fmt: skip

    def rows(self) -> Iterator[dict[str, Any]]:
        return files.read_json_lines(self.path)


def _without_secrets(action: Action) -> Mapping[str, Any]:
    if action.verb != "set":
        return action.arguments
    name, value = action.arguments.get("name"), str(action.arguments.get("value"))
    kept = str(Secret(value) if name in SECRETS else RedisUrl(value))
    return {**action.arguments, "value": kept}


_FOLDER = "actions"
_STALE = dict.fromkeys((".answer", ".taken", ".new", ".urls", ".copy"), 86_400.0)
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
                with new.open("w", encoding="utf-8", errors="replace") as file:
                    for count, url in enumerate(urls, 1):  # noqa: B007
                        file.write(f"{url}\n")
                files.sync_path(new)
                os.replace(new, payload)
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
        """The action *id*. Raises `ActionError`, `OSError`."""
        with _open_regular(self._file(id, ".action")) as file:
            return Action.from_bytes(file.read(MAX_BYTES + 1))

    def is_answered(self, id: str) -> bool:
        """Whether the action has an answer: a crash may leave both files."""
        return self._file(id, ".answer").exists()

    def answer(self, answer: Answer) -> None:
        """Write *answer*, not synced: the audit log has it. Raises `OSError`."""
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

    def urls_path(self, id: str) -> Path:
        return self._file(id, ".urls")

    def open_urls(self, id: str) -> BufferedReader:
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
    # Do not wait for the other end of a pipe, or follow a link out of the job.
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is no file")
    return open(number, "rb")


def whoami() -> str:
    """``user@host``, as far as the machine knows."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container with a user that has no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
