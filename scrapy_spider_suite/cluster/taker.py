"""The side of a hand-over that takes, as an agent at work."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import numpy as np

from scrapy_spider_suite.agents.tables import UNITS
from scrapy_spider_suite.cluster.moving import RETRY, Mask, Moving, logger, mask_of
from scrapy_spider_suite.cluster.traces import Traces
from scrapy_spider_suite.cluster.turns import WAIT
from scrapy_spider_suite.errors import CourierError, ParcelError, StoreWriteError
from scrapy_spider_suite.storage.parcels import HOST, PRINTS, ROW, STATE, Label
from scrapy_spider_suite.storage.taking import Taking
from scrapy_spider_suite.storage.units import unpacked


class Taker:
    """A `courier.Inbox` that merges what comes into the frontier of *moving*.

    Attributes:
        at_work: how many parcels are being taken.
        counts: parcels, hosts, urls, bytes.
    """

    def __init__(self, moving: Moving, traces: Traces) -> None:
        self.at_work = 0
        self.counts: Counter[str] = Counter()
        self.ready = asyncio.Event()
        self._moving = moving
        self._traces = traces
        self._failed: Mask = np.zeros(UNITS, np.bool_)  # held back by what was not taken

    def kept(self, label: Label) -> bool:
        """See `courier.Inbox`."""
        if not self.ready.is_set():
            raise CourierError("this agent has only just begun")
        self._check(label)
        done = self._taking(label, Path()).done
        try:
            if done:
                self._moving.hands.flush()
        except StoreWriteError as error:
            raise CourierError(str(error)) from error
        return done

    async def take(self, label: Label, path: Path) -> None:
        """See `courier.Inbox`."""
        await self.ready.wait()
        self._check(label)
        moving, mask = self._moving, mask_of(unpacked(label.units))
        self.at_work += 1
        try:
            while (moving.shares.giving & mask & ~self._failed).any():
                await asyncio.sleep(WAIT)  # until what goes from here is gone
            moving.hold_back(mask)
            self._failed &= ~mask
            self._traces.come(mask)
            await self._take(label, path, mask)
            self._traces.come(mask)
            # Not if it was cancelled: what is half merged is not to be fetched.
            moving.let_go(mask)
        except ParcelError as error:
            logger.warning("refused parcel %s of %s: %s", label.parcel, label.sender, error)
            moving.let_go(mask)
            raise
        except OSError:
            self._failed |= mask  # it comes again, or what takes its place does
            raise
        finally:
            self.at_work -= 1

    async def _take(self, label: Label, path: Path, mask: Mask) -> None:
        begin, size = time.perf_counter(), path.stat().st_size
        logger.info(
            "taking parcel %s of %s: %d units, %d bytes", label.parcel, label.sender,
            mask.sum(), size,
        )  # fmt: skip
        await self._nothing_is_out(mask)
        taking = self._taking(label, path)
        await self._moving.through(taking.take)
        await self._on_the_medium()
        counts = taking.counts
        hosts, urls = counts[HOST], counts[ROW] + counts[STATE] + counts[PRINTS]
        self.counts.update(parcels=1, hosts=hosts, urls=urls, bytes=size)
        logger.info(
            "took parcel %s of %s: %d hosts, %d URLs, in %.1f s", label.parcel, label.sender,
            hosts, urls, time.perf_counter() - begin,
        )  # fmt: skip

    async def _on_the_medium(self) -> None:
        """The other side forgets it all: also a power failure must leave it here."""
        while True:
            try:
                await asyncio.to_thread(self._moving.hands.store.sync_log)
            except StoreWriteError as error:
                self._moving.once.say("store", error)
                await asyncio.sleep(RETRY)
            else:
                return

    async def _nothing_is_out(self, mask: Mask) -> None:
        """Wait until nothing of the units is being fetched, where that goes by host."""
        units, fronts = self._moving.units(mask), self._moving.hands.residents.fronts
        while units.by_host and any(map(units.has_host, fronts.hosts_leased())):
            await asyncio.sleep(WAIT)

    def _taking(self, label: Label, path: Path) -> Taking:
        moving = self._moving
        units = moving.units(mask_of(unpacked(label.units)))
        return Taking(moving.hands, units, moving.clock, path, label)

    def _check(self, label: Label) -> None:
        own = self._moving.shares.name
        if (label.crawl, label.receiver) != (self._moving.crawl, own):
            raise ParcelError(
                f"a parcel for agent {label.receiver} of the crawl {label.crawl}; this is {own} of "
                f"{self._moving.crawl}"
            )
