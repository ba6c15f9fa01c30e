"""What was taken out of a folder of packs, and when: a line of JSON each, for good."""

from __future__ import annotations

import hashlib
import json
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from scrapy_spider_suite import durable
from scrapy_spider_suite.packs.warc import date

RECEIPTS: Final = "redactions.jsonl"
"""What was taken out, when: the subject as a digest only."""
_UNFINISHED: Final = "unfinished"


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
        away: packs that were uploaded, are not here any more, and hold pages of the subject.
    """

    pages: int = 0
    revisits: int = 0
    mentions: int = 0
    notes: int = 0
    packs: int = 0
    damaged: int = 0
    open: list[str] = field(default_factory=list)
    away: list[str] = field(default_factory=list)


class Receipts:
    """The receipts of *folder*; of them those of the subject with this *name*."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / RECEIPTS
        self._digest = hashlib.sha256(name.encode()).hexdigest()

    def begin(self, receipt: Receipt, now: float) -> None:
        """Note what is away: nothing here says so any more once the indexes are written anew.

        What a call that was killed had noted is added to *receipt*. *now* in seconds since the
        epoch. Raises `OSError`.
        """
        noted = [url for line in self._lines() for url in self._row_of(line).get("away", ())]
        receipt.away = list(dict.fromkeys([*noted, *receipt.away]))
        self._put({_UNFINISHED: True, "away": receipt.away}, now)

    def finish(self, receipt: Receipt, now: float) -> None:
        """Write *receipt* in place of what was begun. Raises `OSError`."""
        self._put(asdict(receipt), now)

    def _put(self, facts: dict[str, Any], now: float) -> None:
        row = {"id": uuid.uuid4().hex, "time": date(now), "subject_sha256": self._digest, **facts}
        lines = [line for line in self._lines() if not self._row_of(line)]
        lines.append(json.dumps(row).encode())
        durable.replace(self._path, b"".join(line + b"\n" for line in lines))

    def _lines(self) -> list[bytes]:
        return self._path.read_bytes().splitlines() if self._path.exists() else []

    def _row_of(self, line: bytes) -> dict[str, Any]:
        """What was begun for this subject, and not finished; of any other line nothing."""
        with suppress(ValueError, TypeError, AttributeError):
            row: dict[str, Any] = json.loads(line)
            if row.get(_UNFINISHED) and row.get("subject_sha256") == self._digest:
                return row
        return {}
