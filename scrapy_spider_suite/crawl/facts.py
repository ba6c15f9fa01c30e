"""What an agent says of itself to people: ``scrapy cluster ls`` shows it."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.context import CrawlCore

_SECONDS: Final = 10.0
"""Over which the rate of pages is told."""


class Facts:
    """Those of the agent of *core*, whose job lies at *path*."""

    def __init__(self, core: CrawlCore, path: str) -> None:
        self._core = core
        self._path = path
        self._rate = Rate()

    def now(
        self, *, paused: bool, skew: float | None
    ) -> dict[str, str | int | float | None]:  # fmt: skip
        """As of this moment."""
        core = self._core
        frontier, phases = core.frontier, core.overriding.policy.phases
        # Of what is done some comes, and goes, with its hosts.
        done, fetched = frontier.counters.done, frontier.statistics().fetched
        return {
            "machine": socket.gethostname(), "pid": os.getpid(), "job": self._path,
            "hosts": len(frontier.workbench.hosts), "pending": frontier.pending, "done": done,
            "failed": frontier.counters.failed, "rate": self._rate.of(core.now(), fetched),
            "lag": 0 if core.agency is None else len(core.agency.routing.outbox),
            "phase": None if phases is None else phases.active(time.time()) + 1,
            "paused": paused, "skew": skew,
        }  # fmt: skip


class Rate:
    """Pages by second, over the last ten seconds or so."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def of(self, now: float, fetched: int) -> float:
        """The rate, where *fetched* pages have been fetched at *now*."""
        self._seen.append((now, fetched))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _SECONDS:
            self._seen.pop(0)
        then, before = self._seen[0]
        return round((fetched - before) / (now - then), 2) if now > then else 0.0
