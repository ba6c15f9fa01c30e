"""An agent that owes too much to others pauses: while they, or Redis, are away its outbox grows.

What waits there lies on the disk, where nothing else bounds it but SUITE_MIN_FREE. Letters come and
go in the pause, no more seeds are read, and what is under way ends: so there may be some rows more
than the bound.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from scrapy_spider_suite.storage.outbox import Outbox
from scrapy_spider_suite.wording import counted

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.context import CrawlCore
    from scrapy_spider_suite.scheduler import FrontierScheduler

logger = logging.getLogger(__name__)

OWED = "the outbox"
"""Why the scheduler is paused, among its other reasons."""
_LOOK = 1.0
"""Seconds between two looks whether it goes on."""


def owes_too_much(core: CrawlCore, scheduler: FrontierScheduler | None, outbox: Outbox) -> bool:
    """Whether nothing may be fetched, since *outbox* is full: then *scheduler* pauses until a tenth
    of SUITE_OUTBOX_ROWS is free again, which may be changed meanwhile."""
    if scheduler is None or len(outbox) < core.settings.outbox_rows:
        return False
    if OWED not in scheduler.pauses:
        most = sorted(outbox.receivers.items(), key=lambda each: -each[1])[:3]
        logger.warning(
            "SUITE_OUTBOX_ROWS: %s for other agents (%s): the crawl pauses until some are taken; "
            "nothing is lost", counted(len(outbox), "row waits", "rows wait"),
            ", ".join(f"{name} {rows:,}" for name, rows in most),
        )  # fmt: skip
        core.crawler.stats.inc_value("suite/outbox/pauses")
        scheduler.pause(OWED)
        _go_on_later(core, scheduler, outbox)
    return True


def _go_on_later(core: CrawlCore, scheduler: FrontierScheduler, outbox: Outbox) -> None:
    asyncio.get_running_loop().call_later(_LOOK, _look, core, scheduler, outbox)


def _look(core: CrawlCore, scheduler: FrontierScheduler, outbox: Outbox) -> None:
    if scheduler.closing:
        return
    if len(outbox) > core.settings.outbox_rows * 9 // 10:
        _go_on_later(core, scheduler, outbox)
        return
    waiting = counted(len(outbox), "row waits", "rows wait")
    logger.info("%s for other agents: the crawl goes on", waiting)
    scheduler.unpause(OWED)
