"""What was taken out of a folder of packs, and when: a line of JSON each, for good."""

from __future__ import annotations

import hashlib
import json
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from scrapy_spider_suite.packs.warc import date
from scrapy_spider_suite.runtime import files

RECEIPTS: Final = "redactions.jsonl"
"""What was taken out, when: the subject as a digest only."""
_UNFINISHED: Final = "unfinished"
_ELSEWHERE: Final = ("away", "uploaded")


@dataclass(slots=True)
class Receipt:
    """What was taken out.

    Attributes:
        pages: pages of the subject, revisits of them included.
        revisits: revisits elsewhere whose body was that of such a page.
        mentions: pages elsewhere that name it; *removed* with it only if that was asked for.
        notes: links to it, and requests that came from it, in records that stay.
        packs: packs that were written anew.
        damaged: bytes that could not be read and were left out of them.
        open: packs that are being written: they were left as they are.
        away: where packs are that were uploaded, are not here any more, and hold pages of the
            subject; or were, if they are missing.
        uploaded: where packs of these are that were uploaded before they were written anew: what
            is there holds it until they go up again, and replace that.
    """

    pages: int = 0
    revisits: int = 0
    mentions: int = 0
    notes: int = 0
    packs: int = 0
    damaged: int = 0
    open: list[str] = field(default_factory=list)
    away: list[str] = field(default_factory=list)
    uploaded: list[str] = field(default_factory=list)


class Receipts:
    """The receipts of *folder*; of them those of the subject with this *name*."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / RECEIPTS
        self._digest = hashlib.sha256(name.encode()).hexdigest()

    def note(self, receipt: Receipt, now: float) -> None:
        """Note what is elsewhere: nothing here says so once indexes and packs are written anew.

        What was noted before, by a call that was killed too, is added to *receipt*. *now* in
        seconds since the epoch. Raises `OSError`.
        """
        rows = list(filter(None, map(self._row_of, self._lines())))
        for name in _ELSEWHERE:
            urls = [url for row in rows for url in row.get(name, ())]
            setattr(receipt, name, list(dict.fromkeys([*urls, *getattr(receipt, name)])))
        noted = {name: getattr(receipt, name) for name in _ELSEWHERE}
        self._put({_UNFINISHED: True, **noted}, now)

    def finish(self, receipt: Receipt, now: float) -> None:
        """Write *receipt* in place of what was noted. Raises `OSError`."""
        self._put(asdict(receipt), now)

    def _put(self, facts: dict[str, Any], now: float) -> None:
        row = {"id": uuid.uuid4().hex, "time": date(now), "subject_sha256": self._digest, **facts}
        lines = [line for line in self._lines() if not self._row_of(line)]
        lines.append(json.dumps(row).encode())
        files.replace(self._path, b"".join(line + b"\n" for line in lines))

    def _lines(self) -> list[bytes]:
        return self._path.read_bytes().splitlines() if self._path.exists() else []

    def _row_of(self, line: bytes) -> dict[str, Any]:
        """What was noted for this subject, and not finished; of any other line nothing."""
        with suppress(ValueError, TypeError, AttributeError):
            row: dict[str, Any] = json.loads(line)
            if row.get(_UNFINISHED) and row.get("subject_sha256") == self._digest:
                return row
        return {}
