"""What holds for the rest of a job's life, and no counter tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.core import CrawlCore

STORE: Final = "start"
STARTED: Final = b"started"
"""``start()`` ran to its end, and something came of it."""
ANSWERED: Final = b"answered"
"""A callback was given an answer that is no page by its status."""


def holds(core: CrawlCore, what: bytes) -> bool:
    """Whether *what* holds."""
    return core.store.kv(STORE).get(what) is not None


def note(core: CrawlCore, what: bytes) -> None:
    """From now on *what* holds."""
    core.store.kv(STORE).put(what, b"1")
