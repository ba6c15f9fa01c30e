"""The audit log of a job, ``JOBDIR/suite/audit.jsonl``: every action, and what came of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scrapy_spider_suite.control.actions import Action, Answer


class AuditLog:
    """Lines of JSON that are only ever appended to. *folder* is the job's ``suite`` folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "audit.jsonl"

    def append(self, action: Action | str, answer: Answer, wall: float, by: str) -> None:
        """Write what became of *action*, or of a file of that id that is none, to the medium.

        *by* says who carried it out (``process 123``). Raises `OSError`.
        """
        row: dict[str, Any] = {"done": round(wall, 3), "by": by, "id": answer.id}
        if isinstance(action, Action):
            row |= {
                "who": action.who, "when": action.when, "why": action.why, "verb": action.verb,
                "arguments": action.arguments, "job": action.job,
            }  # fmt: skip
        row |= {"ok": answer.ok, "said": answer.said, "facts": answer.facts}
        line = json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            # What a full disk cut off must not spoil this line too.
            if self._torn(file):
                line = b"\n" + line
            if os.write(file, line) < len(line):
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
