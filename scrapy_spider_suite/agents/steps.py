"""Work that is done again and again for as long as an agent lives, whatever happens to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

FIRST_PAUSE, MOST_PAUSE = 0.1, 5.0
"""Seconds until what failed is tried again: at first, and at most."""

_UNFORESEEN: Final = "unforeseen"

logger = logging.getLogger(__name__)


async def forever(
    step: Callable[[], Awaitable[None]], failed: Callable[[Exception], str],
    over: Callable[[str], None], what: str,
) -> None:  # fmt: skip
    """Do *step* until it is cancelled, and after a pause where it fails.

    *failed* takes note of an error and returns of what kind it is; "" for one that nobody foresaw,
    which is logged as one of *what*. *over* is told the kind when the next step does not fail.
    """
    pause, kind = FIRST_PAUSE, ""
    while True:
        try:
            await step()
        except Exception as error:  # without what it does the crawl would stand still, in silence
            before, kind = kind, failed(error) or _UNFORESEEN
            if kind == _UNFORESEEN != before:
                logger.critical("%s: %r; tried again, report this", what, error, exc_info=error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, MOST_PAUSE)
        else:
            if kind:
                over(kind)
            pause, kind = FIRST_PAUSE, ""
