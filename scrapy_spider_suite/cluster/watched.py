"""Tasks that live as long as an agent: what nobody foresaw ends one of them, but not in silence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


def watched(work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
    """A task that does *work*; an error that ends it is logged as one of *what*."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical(
                "%s of this agent do not go on; start it again, and report this", what,
                exc_info=error,
            )  # fmt: skip

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(ended)
    return task
