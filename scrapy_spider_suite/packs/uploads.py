"""Uploads packs as they are closed, in a thread of its own, for as long as it takes.

What there is to do is read from the folder: packs that are closed and not marked. So a restart
goes on where a kill was, and what one crawl did not get done the next one does, or ``scrapy packs
upload``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from scrapy_spider_suite.errors import PackError
from scrapy_spider_suite.packs.away import Uploaded, waiting
from scrapy_spider_suite.packs.upload import Target, upload

logger = logging.getLogger(__name__)

_LONGEST: Final = 300.0
"""Seconds between two attempts at a target that does not answer."""


class Uploads:
    """The packs of an *agent* in *folder* to *target*, the oldest first.

    *told* is called, in the thread, with every pack and what became of it: where it is, or why it
    could not be uploaded now. *rest* waits for so many seconds, or until its event is set.
    """

    def __init__(
        self,
        folder: Path,
        agent: str,
        target: Target,
        *,
        keep: bool,
        told: Callable[[Path, Uploaded | Exception], None],
        clock: Callable[[], float] = time.time,
        rest: Callable[[threading.Event, float | None], object] = threading.Event.wait,
    ) -> None:
        self._folder = folder
        self._agent = agent
        self._target = target
        self._keep = keep
        self._told = told
        self._clock = clock
        self._rest = rest
        self._closed, self._ending = threading.Event(), threading.Event()
        self._failed: Counter[Path] = Counter()
        self._thread = threading.Thread(target=self._run, name="uploads", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Another pack is closed."""
        self._closed.set()

    def finish(self, timeout: float) -> list[Path]:
        """Upload what waits, once more if it failed, for *timeout* seconds at most; what is left.

        An upload that takes longer ends with the process; nothing of it counts.
        """
        self._ending.set()
        self._closed.set()
        self._thread.join(timeout)
        return self.left()

    def left(self) -> list[Path]:
        """The packs that wait."""
        try:
            return waiting(
                self._folder, self._agent, keep=self._keep, target=self._target.url
            )
        except OSError:  # the folder is gone, and they with it
            return []

    def _run(self) -> None:
        while True:
            self._closed.clear()
            last = self._ending.is_set()
            wait = self._round()
            if last:
                return
            if wait is None:
                self._rest(self._closed, None)
            else:
                self._rest(self._ending, wait)

    def _round(self) -> float | None:
        """Upload what waits, until something fails; return in how many seconds to try again."""
        left = self.left()
        for path in sorted(left, key=lambda path: (self._failed[path], path)):
            try:
                done = upload(path, self._target, self._clock(), keep=self._keep)
            except (PackError, OSError) as error:
                # Others come before it next time: it may be this one alone.
                self._failed[path] += 1
                self._told(path, error)
                return min(_LONGEST, 2.0 ** min(9, self._failed.total()))
            if done is None:
                return 1.0
            self._failed.clear()
            self._told(path, done)
        return None
