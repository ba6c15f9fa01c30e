"""The audit log of a job, ``JOBDIR/suite/audit.jsonl``: every action, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from scrapy_spider_suite.control.actions import Action, Answer
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.settings.values import SECRETS, RedisUrl, Secret


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
        lines = [_row(action, answer, wall, by) for action, answer in rows]
        files.append_json_lines(self.path, *lines)

    def rows(self) -> Iterator[dict[str, Any]]:
        """All that was written, the oldest first; lines that were torn are left out."""
        return files.read_json_lines(self.path)


def _discreet(action: Action) -> Mapping[str, Any]:
    """The arguments of *action*, without what nobody is to read some day: passwords, keys."""
    if action.verb != "set":
        return action.arguments
    name, value = action.arguments.get("name"), str(action.arguments.get("value"))
    kept = str(Secret(value) if name in SECRETS else RedisUrl(value))
    return {**action.arguments, "value": kept}


def _row(action: Action | str, answer: Answer, wall: float, by: str) -> dict[str, Any]:
    row: dict[str, Any] = {"done": round(wall, 3), "by": by, "id": answer.id}
    if isinstance(action, Action):
        row |= {
            "who": action.who, "when": action.when, "why": action.why, "verb": action.verb,
            "arguments": _discreet(action), "job": action.job,
        }  # fmt: skip
    return row | {"ok": answer.ok, "said": answer.said, "facts": answer.facts}
