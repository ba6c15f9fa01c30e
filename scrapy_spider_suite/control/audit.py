"""The audit log of a job, ``JOBDIR/suite/audit.jsonl``: every action, and what came of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from scrapy_spider_suite.control.actions import Action, Answer


class AuditLog:
    """Lines of JSON that are only ever appended to. *folder* is the job's ``suite`` folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "audit.jsonl"

    def append(
        self, rows: Iterable[tuple[Action | str, Answer]], wall: float, by: str
    ) -> None:
        """Write what became of actions, or of files of such ids that are none, to the medium.

        All of them or none. *by* says who carried them out (``process 123``). Raises `OSError`.
        """
        data = b"".join(_line(action, answer, wall, by) for action, answer in rows)
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(file).st_size
            # What a full disk cut off must not spoil these lines too.
            if self._torn(file):
                data = b"\n" + data
            if os.write(file, data) < len(data):
                with suppress(OSError):  # a file that may only be appended to: a line is torn
                    os.ftruncate(file, size)
                raise OSError("the audit log could not be written to its end")
            os.fsync(file)
        finally:
            os.close(file)

    def _torn(self, file: int) -> bool:
        if os.fstat(file).st_size == 0:
            return False
        with self.path.open("rb") as reader:
            reader.seek(-1, os.SEEK_END)
            return reader.read(1) != b"\n"

    def rows(self) -> Iterator[dict[str, Any]]:
        """All that was written, the oldest first; lines that were torn are left out."""
        try:
            with self.path.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    try:
                        row = json.loads(line)
                    except ValueError:
                        continue
                    if isinstance(row, dict):
                        yield row
        except FileNotFoundError:
            return


def _line(action: Action | str, answer: Answer, wall: float, by: str) -> bytes:
    row: dict[str, Any] = {"done": round(wall, 3), "by": by, "id": answer.id}
    if isinstance(action, Action):
        row |= {
            "who": action.who, "when": action.when, "why": action.why, "verb": action.verb,
            "arguments": action.arguments, "job": action.job,
        }  # fmt: skip
    row |= {"ok": answer.ok, "said": answer.said, "facts": answer.facts}
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
