"""The action folder of a job, ``JOBDIR/suite/actions/``: actions in, answers out.

==============  ================================================================================
``ID.new``      being written by whoever asks; nobody looks at it
``ID.urls``     URLs that belong to the action, one a line
``ID.action``   the action, renamed into place whole; it stays until it has been carried out, so
                that a crash in between has it carried on
``ID.answer``   what came of it, renamed into place whole; whoever asked takes it away
``ID.taken``    an answer that whoever asked is taking away
``ID.copy``     a copy of the store, for whoever asked for one to take away
``ID.refused``  something that was no action; kept for a day
==============  ================================================================================

An id begins with the time, so actions are read in the order in which they were left; those of
urgent ones come before, however many others there are.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from io import BufferedReader
from pathlib import Path

from scrapy_spider_suite.control.actions import MAX_BYTES, Action, Answer
from scrapy_spider_suite.errors import ActionError
from scrapy_spider_suite.runtime import files

_NAME = "actions"
_WRITING = 2.0
"""Seconds that somebody without a rename has for writing an action."""
_ID = re.compile(r"[0-9A-Za-z-]{1,80}")
_STALE = dict.fromkeys((".answer", ".taken", ".new", ".urls", ".copy", ".refused"), 86_400.0)
"""Seconds after which what nobody came for is removed (URLs: without their action)."""


def new_id(*, urgent: bool = False) -> str:
    """An id for an action that is made now; *urgent* ones come before all others."""
    first = "00-" if urgent else ""
    return f"{first}{time.time_ns():020}-{uuid.uuid4().hex[:8]}"


class ActionFolder:
    """The actions of the job whose ``suite`` folder is *folder*."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / _NAME

    # Whoever asks

    def leave(self, action: Action, urls: Iterable[str] | None = None) -> int:
        """Leave *action*, with the file of *urls* if it has one; return how many URLs.

        All of it or, if *urls* or the disk fails, nothing. Raises `ActionError` and `OSError`.
        """
        data = action.to_bytes()
        self.path.mkdir(exist_ok=True)
        count = 0
        payload = self.urls_of(action.id)
        try:
            if urls is not None:
                count = _write_lines(self._new(action.id), payload, urls)
            _write(self._new(action.id), self._file(action.id, ".action"), data)
        except BaseException:
            self._new(action.id).unlink(missing_ok=True)
            payload.unlink(missing_ok=True)
            raise
        return count

    def collect(self, id: str) -> Answer | None:
        """Take the answer to the action *id* away, or None: there is none yet."""
        taken = self._file(id, ".taken")
        try:
            # Either it is taken, or `retract` finds it.
            os.replace(self._file(id, ".answer"), taken)
        except FileNotFoundError:
            return None
        data = taken.read_bytes()
        taken.unlink(missing_ok=True)
        return Answer.from_bytes(data)

    def take_back(self, id: str) -> Answer | None:
        """Nobody waits for the action *id* any more; its answer, if it has come meanwhile.

        Without one it is not carried out, if it is not begun yet, and its copy is removed.
        """
        self.remove(id)
        return self.collect(id)

    # Whoever carries out

    def waiting(self) -> list[str]:
        """The ids of the actions that have not been answered, the first first."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return []
        return sorted(name.removesuffix(".action") for name in names if name.endswith(".action"))

    def read(self, id: str) -> Action:
        """The action *id*. Raises `ActionError` if it cannot be read, whatever it is."""
        if not _ID.fullmatch(id):
            raise ActionError(f"{id[:80]!r} is no id of an action")
        try:
            with _open(self._file(id, ".action")) as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise ActionError(f"it cannot be read: {error.strerror}") from None
        action = Action.from_bytes(data)
        if action.id != id:
            raise ActionError(f"its id is {action.id[:80]!r}, not that of its file")
        return action

    def answered(self, id: str) -> bool:
        """Whether there is an answer (and a crash kept the action from being removed)."""
        return self._file(id, ".answer").exists()

    def answer(self, answer: Answer) -> None:
        """Leave *answer*, not synced: the audit log has it. Raises `OSError`."""
        if _ID.fullmatch(answer.id):
            new = self._new(answer.id)
            new.write_bytes(answer.to_bytes())
            os.replace(new, self._file(answer.id, ".answer"))

    def retract(self, id: str) -> None:
        """Remove the answer to *id*, with its copy, unless somebody has come for it."""
        try:
            self._file(id, ".answer").unlink()
        except FileNotFoundError:
            return
        shutil.rmtree(self.copy_of(id), ignore_errors=True)

    def wanted(self, id: str) -> bool:
        """Whether the action *id* is still there: nobody has taken it back."""
        return self._file(id, ".action").exists()

    def remove(self, id: str) -> bool:
        """The action *id* was carried out and answered: it goes, with its URLs; whether it was
        there."""
        try:
            self._file(id, ".action").unlink()
        except FileNotFoundError:
            return False
        finally:
            self.urls_of(id).unlink(missing_ok=True)
        return True

    def put_aside(self, id: str) -> None:
        """What *id* names is no action: it is not looked at again."""
        with suppress(FileNotFoundError):
            os.replace(self._file(id, ".action"), self._file(id, ".refused"))

    def fresh(self, id: str, wall: float) -> bool:
        """Whether the action *id* may still be being written, by somebody who did not rename it."""
        try:
            return self._file(id, ".action").lstat().st_mtime > wall - _WRITING
        except OSError:
            return False

    def urls_of(self, id: str) -> Path:
        """The file of URLs that belongs to the action *id*."""
        return self._file(id, ".urls")

    def open_urls(self, id: str) -> BufferedReader:
        """The URLs that belong to the action *id*, to be read. Raises `OSError`."""
        return _open(self.urls_of(id))

    def copy_of(self, id: str) -> Path:
        """The folder of the copy that the action *id* had made."""
        return self._file(id, ".copy")

    def sweep(self, wall: float) -> None:
        """Remove what nobody came for."""
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

    def _new(self, id: str) -> Path:
        return self._file(id, ".new")


def _open(path: Path) -> BufferedReader:
    """Open what anybody may have put there. Raises `OSError`."""
    # Nobody waits here for the other end of a pipe, or follows a link out of the job.
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is no file")
    return open(number, "rb")


def _write(new: Path, path: Path, data: bytes) -> None:
    files.write_synced(new, data)
    os.replace(new, path)


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
