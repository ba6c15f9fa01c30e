"""When the sieve is flushed, in a thread; and what is new of it, scheduled a portion at a time.

A flush reads all fingerprints on disk, so it is to be worth it: it comes when as many links wait as
are to (``SUITE_SIEVE_WAITING``), or when the crawl starves: there is room for a request, and no
host may be visited. Then it comes when flushes have taken a tenth of the time at most, or when
nothing else is left to do.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from threading import Thread
from typing import TYPE_CHECKING, Final

from scrapy_spider_suite.errors import JobDamagedError, StoreWriteError
from scrapy_spider_suite.seen.sieve import Flush
from scrapy_spider_suite.store.rocks_store import RocksStore, reading

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.core import CrawlCore

logger = logging.getLogger(__name__)

_SHARE: Final = 10.0
"""While the crawl starves, a flush comes after so many times as long as the last one took."""
_RETRY: Final = 5.0
"""Seconds after which a flush that failed is tried again."""
_WORK: Final = 0.005
"""Seconds for which new links are scheduled before anyone else has a turn again."""
_PAUSE: Final = 0.005
"""Seconds for everyone else."""


class Flusher:
    """One per crawl; see the module. *write* makes everything durable, if it can."""

    def __init__(
        self, core: CrawlCore, write: Callable[[], None], wake: Callable[[], None]
    ) -> None:
        self._core = core
        self._write = write
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._thread: Thread | None = None
        self._busy = self._closing = False
        self._began = 0.0
        self._not_before = -math.inf
        self._said = ""

    def look(self, *, starving: bool) -> None:
        """Begin a flush if it is time for one; *starving*: nothing can be fetched at present."""
        sifter = self._core.frontier.sifter
        if sifter is None or self._busy or self._closing or not sifter.waiting:
            return
        now = self._core.now()
        if sifter.decided:  # by an earlier run
            self._busy, self._began = True, now
            self._hand_out()
        elif (starving and self._alone) or (
            now >= self._not_before and (starving or sifter.full)
        ):
            self._begin(now)

    @property
    def _alone(self) -> bool:
        """Whether there is nothing else to wait for, and the last flush did not fail."""
        core = self._core
        return not (self._said or core.frontier.pending or core.outside)

    def _begin(self, now: float) -> None:
        store, sifter = self._core.store, self._core.frontier.sifter
        self._write()
        if store.dirty or sifter is None or not isinstance(store, RocksStore):
            return  # the disk is full, or fails
        flush = sifter.begin()
        if flush is not None:
            self._busy, self._began = True, now
            self._thread = Thread(target=self._run, args=(flush, store), daemon=True)
            self._thread.start()

    def _run(self, flush: Flush, store: RocksStore) -> None:
        """In the thread: all steps of *flush*, after all that it is about is on the medium."""
        trouble = ""
        try:
            store.sync_log()
            while not self._closing and flush.step():
                pass
        except StoreWriteError as error:
            trouble = str(error)
        except JobDamagedError as error:  # the crawl ends
            store.damage = store.damage or str(error)
            return
        except Exception as error:  # or nobody would hear of it, and the crawl would never end
            trouble = f"a flush of the sieve failed: {error!r}"
        if not self._closing:
            self._loop.call_soon_threadsafe(self._ended, trouble)

    def _ended(self, trouble: str) -> None:
        if trouble:
            self._busy = False
            self._not_before = self._core.now() + _RETRY
            if trouble != self._said:
                logger.error("%s: the sieve goes on when that is over; nothing is lost", trouble)
        elif not self._closing:
            self._hand_out()
        self._said = trouble

    def _hand_out(self) -> None:
        """Schedule a portion of what is new."""
        if self._closing:
            return  # the next run goes on there
        with reading(self._core.store):
            self._hand_out_some()
        self._wake()

    def _hand_out_some(self) -> None:
        core, until = self._core, self._core.now() + _WORK
        for _ in core.frontier.sift(core.now()):
            if core.now() >= until:
                self._write()  # small batches: a large one takes long
                wait = _RETRY if core.store.dirty else _PAUSE  # the disk is full, or fails
                self._loop.call_later(wait, self._hand_out)
                break
        else:
            self._busy = False
            now = core.now()
            self._not_before = now + (now - self._began) * _SHARE

    def stop(self) -> None:
        """Begin nothing more. A flush under way is given up: what waited waits on."""
        self._closing = True
        if self._thread is not None:
            self._thread.join()
