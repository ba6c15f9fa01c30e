"""Times as indexes have them: 14 digits, UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime


def stamp(text: str, *, last: bool = False) -> str:
    """Return the 14 digits of a time: ``2026``, ``2026-11-22``, ``2026-11-22T10:15:00``.

    What is left out is the first moment of it, or the *last*. Raises ValueError: it is no time.
    """
    digits = re.sub(r"(\.\d+)?(Z|\+00:00)$|[-:T ]", "", text.strip())
    if not re.fullmatch(r"\d{4}(\d\d){0,5}", digits):
        raise ValueError(f"{text!r}: expected a time such as 2026-11-22 or 2026-11-22T10:15 (UTC)")
    rest = "1231235959" if last else "0101000000"
    full = digits + rest[len(digits) - 4 :]
    if last and len(digits) == 6:  # the last day of that month
        days = (f"{digits}{day}235959" for day in ("31", "30", "29", "28"))
        full = next(filter(_is_time, days), full)
    if not _is_time(full):
        raise ValueError(f"{text!r}: there is no such time")
    return full


def stamp_of(time: datetime | str) -> str:
    """Return the 14 digits of *time*: of a text, the last moment of it; without a zone, UTC.

    Raises ValueError: it is no time.
    """
    if isinstance(time, datetime):
        return (time if time.tzinfo is None else time.astimezone(UTC)).strftime("%Y%m%d%H%M%S")
    if isinstance(time, str):
        return stamp(time, last=True)
    raise ValueError(f"{time!r}: expected a datetime, or a text such as 2026-11-22")


def _is_time(digits: str) -> bool:
    try:
        datetime.strptime(digits, "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return False
    return True
