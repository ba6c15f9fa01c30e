"""Receives hand-over files: one after the other is merged."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Final

import numpy as np

from scrapy_spider_suite.cluster.handover.handover_context import (
    RETRY,
    WAIT,
    HandoverContext,
    logger,
)
from scrapy_spider_suite.cluster.handover.handover_file import (
    HOST,
    PRINTS,
    ROW,
    STATE,
    HandoverLabel,
    Mask,
    unpack_units,
)
from scrapy_spider_suite.cluster.handover.load import HostLoad
from scrapy_spider_suite.errors import HandoverFileError, StoreWriteError, TransportError
from scrapy_spider_suite.frontier.entries import UNITS
from scrapy_spider_suite.runtime.text import counted

MAX_TRIES: Final = 5
"""Failed writes of the store after which a file is postponed."""

MAX_POSTPONED: Final = 4
"""Postponed files, each on this disk, after which no others are accepted."""


class Receiver:
    """A `FileReceiver` that merges into the frontier of *context*.

    Attributes:
        at_work: files being merged.
        counts: files, hosts, urls, bytes.
    """

    def __init__(self, context: HandoverContext) -> None:
        self.at_work = 0
        self.counts: Counter[str] = Counter()
        self.ready = asyncio.Event()
        self._context = context
        self._failed: Mask = np.zeros(UNITS, np.bool_)  # held back by files that failed
        self._open: set[str] = set()  # files that are not over yet, however much is merged
        self._late: set[str] = set()  # those of them that could not be merged of late

    def is_stored(self, label: HandoverLabel) -> bool:
        if not self.ready.is_set():
            raise TransportError("this agent has only just begun")
        self._check(label)
        if label.file_id in self._open:
            return False
        units = self._context.units(unpack_units(label.units))
        if HostLoad(self._context, units, Path(), label).done:
            try:
                self._context.flush()
            except StoreWriteError as error:
                raise TransportError(str(error)) from error
            return True
        if len(self._late) >= MAX_POSTPONED:
            raise TransportError(
                f"{len(self._late)} hand-over files that came before wait to be merged"
            )
        return False

    async def merge(self, label: HandoverLabel, path: Path) -> None:
        await self.ready.wait()
        self._check(label)
        context, mask = self._context, unpack_units(label.units)
        self.at_work += 1
        self._open.add(label.file_id)
        try:
            while (context.ownership.in_transfer & mask & ~self._failed).any():
                await asyncio.sleep(WAIT)  # until what goes from here is gone
            context.hold_back(mask)
            self._failed &= ~mask
            context.foreign_units.mark_arriving(mask)
            await self._merge(label, path, mask)
            context.foreign_units.mark_arriving(mask)
            # Not if it was cancelled: what is half merged is not to be fetched.
            self._close(label, mask)
        except HandoverFileError as error:
            logger.warning(
                "refused hand-over file %s from %s: %s", label.file_id, label.sender, error
            )
            self._close(label, mask)
            raise
        except Exception as error:
            self._failed |= mask  # it comes again, or what takes its place does
            self._late.add(label.file_id)
            if not isinstance(error, TransportError):
                logger.error(
                    "hand-over file %s from %s was not merged, its hosts stand still here until it "
                    "is: %r", label.file_id, label.sender, error,
                )  # fmt: skip
            raise
        finally:
            self.at_work -= 1

    def _close(self, label: HandoverLabel, mask: Mask) -> None:
        self._context.release(mask)
        self._open.discard(label.file_id)
        self._late.discard(label.file_id)

    async def _merge(self, label: HandoverLabel, path: Path, mask: Mask) -> None:
        begin, size, context = time.perf_counter(), path.stat().st_size, self._context
        logger.info(
            "receiving hand-over file %s from %s: %s, %d bytes", label.file_id, label.sender,
            counted(int(mask.sum()), "unit"), size,
        )  # fmt: skip
        units, fronts = context.units(mask), context.residents.fronts
        while units.by_host and any(map(units.has_host, fronts.hosts_leased())):
            await asyncio.sleep(WAIT)  # until no host of the units is being fetched
        load = HostLoad(context, units, path, label)
        try:
            await context.run_durably(load.merge, tries=MAX_TRIES)
            await self._sync_store()
        except StoreWriteError as error:
            raise TransportError(str(error)) from error
        counts = load.counts
        hosts, urls = counts[HOST], counts[ROW] + counts[STATE] + counts[PRINTS]
        self.counts.update(files=1, hosts=hosts, urls=urls, bytes=size)
        logger.info(
            "received hand-over file %s from %s: %s, %s, in %.1f s", label.file_id, label.sender,
            counted(hosts, "host"), counted(urls, "URL"), time.perf_counter() - begin,
        )  # fmt: skip

    async def _sync_store(self) -> None:
        """Have the rows on the medium: the sender forgets them."""
        for tries in range(MAX_TRIES, 0, -1):
            try:
                await asyncio.to_thread(self._context.store.sync_log)
            except StoreWriteError as error:
                self._context.warnings.say("store", error)
                if tries == 1:
                    raise
                await asyncio.sleep(RETRY)
            else:
                return

    def _check(self, label: HandoverLabel) -> None:
        own = self._context.ownership.name
        if (label.crawl, label.receiver) != (self._context.crawl_id, own):
            raise HandoverFileError(
                f"a hand-over file for agent {label.receiver} of the crawl {label.crawl}; this is "
                f"{own} of {self._context.crawl_id}"
            )
