"""Sends one file, from packing to its end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from scrapy_spider_suite.cluster.assignment import Units as Numbers
from scrapy_spider_suite.cluster.handover.dump import DumpSettlement, HostDump
from scrapy_spider_suite.cluster.handover.handover_context import (
    ForeignUnits,
    HandoverContext,
    Mask,
    Steps,
    logger,
)
from scrapy_spider_suite.cluster.handover.handover_file import (
    HOST,
    KEPT,
    PRINTS,
    ROW,
    STATE,
    FileTransport,
    HandoverLabel,
)
from scrapy_spider_suite.cluster.registry import MovedUnits
from scrapy_spider_suite.errors import FencedError, HandoverFileError, RegistryError, TransportError
from scrapy_spider_suite.frontier.entries import UNITS
from scrapy_spider_suite.runtime.text import counted

SILENCE: Final = 30.0
"""Seconds without progress after which a file is called off."""

_LOOK: Final = 1.0  # seconds between two checks of whether a file is still wanted

GiveUnits = Callable[[Numbers, int, int], Awaitable[MovedUnits]]


@dataclass(slots=True, eq=False)
class OutgoingFile:
    label: HandoverLabel
    path: Path
    number: int
    mask: Mask
    size: int = 0  # bytes that the receiver keeps
    stale: bool = False  # this agent owns some of the units again: more rows may have come
    begun: float = field(default_factory=time.perf_counter)
    counts: Counter[int] = field(default_factory=Counter)


class Sender:
    """Sends files of the frontier of *context*.

    Args:
        give: `AgentRegistry.give`.
        look: updates the holders.

    Attributes:
        counts: files, units, hosts, urls, bytes, called_off.
    """

    def __init__(
        self, context: HandoverContext, file_transport: FileTransport, give: GiveUnits,
        look: Callable[[], Awaitable[None]], foreign: ForeignUnits,
    ) -> None:  # fmt: skip
        self.counts: Counter[str] = Counter()
        self._context = context
        self._foreign = foreign
        self._file_transport = file_transport
        self._give, self._look = give, look
        self._owner_masks = (-1, dict[int, Mask]())
        self._open: list[OutgoingFile] = []
        self._dropped: Mask = np.zeros(UNITS, np.bool_)

    # Who is to have what

    def masks_of_owners(self) -> dict[int, Mask]:
        """Return the units of each other owner, by its number."""
        ownership = self._context.ownership
        epoch, found = self._owner_masks
        if epoch != ownership.epoch:
            found = {}
            for number, units in ownership.units_of_others().items():
                found[number] = np.zeros(UNITS, np.bool_)
                found[number][units] = True
            self._owner_masks = ownership.epoch, found
        return found

    def is_wanted(self, outgoing: OutgoingFile) -> bool:
        """Whether the receiver still owns units of the file, and it is complete."""
        if outgoing.stale:
            return False
        owned = self.masks_of_owners().get(outgoing.number)
        return owned is not None and bool((owned & outgoing.mask).any())

    def note(self) -> None:
        """Members changed; called before any row comes."""
        own = self._context.ownership.own
        for outgoing in self._open:
            outgoing.stale = outgoing.stale or bool((own & outgoing.mask).any())

    # One file

    async def send(self, outgoing: OutgoingFile) -> bool:
        """Pack, send and settle one file; False: called off, or impossible now."""
        self._open.append(outgoing)
        try:
            self._context.hold_back(outgoing.mask)
            kept = await self._pack(outgoing) and await self._bring(outgoing)
            return await self._end(outgoing, kept=kept)
        except BaseException:  # a task that is cancelled, most of all
            self._dropped |= outgoing.mask
            raise
        finally:
            self._open.remove(outgoing)

    def let_go(self) -> None:
        self._context.release(self._dropped)
        self._dropped[:] = False

    async def _pack(self, outgoing: OutgoingFile) -> bool:
        context = self._context
        units = context.units(outgoing.mask)

        def pack() -> Steps:
            dump = HostDump(context, units)
            outgoing.counts = dump.counts
            return dump.pack(outgoing.path, outgoing.label)

        try:
            return await context.run_durably(pack, lambda: self.is_wanted(outgoing))
        except OSError as error:
            context.warnings.say("pack", f"{outgoing.path}: {error.strerror}")
            return False

    async def _bring(self, outgoing: OutgoingFile) -> bool:
        counts, by_host = outgoing.counts, self._context.ownership.assignment.by_host
        if not (_urls(outgoing) or (by_host and counts[HOST] + counts[KEPT])):
            return True
        logger.info(
            "sending hand-over file %s to %s: %s, %s, %s, %d bytes", outgoing.label.file_id,
            outgoing.label.receiver, counted(int(outgoing.mask.sum()), "unit"),
            counted(outgoing.counts[HOST], "host"), counted(_urls(outgoing), "URL"),
            outgoing.path.stat().st_size,
        )  # fmt: skip
        return await self._deliver(outgoing)

    async def call_off(self, outgoing: OutgoingFile) -> None:
        """Call off a file of an earlier process: more rows may have come since."""
        await self._end(outgoing, kept=False)

    async def _deliver(self, outgoing: OutgoingFile) -> bool:
        loop, counters = asyncio.get_running_loop(), self._file_transport.counters
        heard, sent, wait = loop.time(), counters.sent(outgoing.label), _LOOK
        while self.is_wanted(outgoing):
            try:
                if await self._try(outgoing):
                    return True
            except HandoverFileError as error:
                logger.warning(
                    "hand-over file %s cannot be received: %s", outgoing.label.file_id, error
                )
                return False
            except TransportError as error:
                self._context.warnings.say(f"to {outgoing.label.receiver}", error)
                if (now := counters.sent(outgoing.label)) != sent:
                    heard, sent, wait = loop.time(), now, _LOOK
                elif loop.time() - heard > SILENCE:
                    return False
                await asyncio.sleep(wait)
                wait = min(2 * wait, SILENCE / 2)
        return False

    async def _try(self, outgoing: OutgoingFile) -> bool:
        row = self._context.ownership.record(outgoing.number)
        if row is None:
            return False
        bringing = asyncio.ensure_future(
            self._file_transport.deliver(outgoing.path, outgoing.label, row.address)
        )
        try:
            while not (await asyncio.wait([bringing], timeout=_LOOK))[0]:
                if not self.is_wanted(outgoing):
                    return False
            bringing.result()
            outgoing.size = outgoing.path.stat().st_size
        finally:
            bringing.cancel()
            await asyncio.wait([bringing])
        return True

    # What comes of it

    async def _end(self, outgoing: OutgoingFile, *, kept: bool) -> bool:
        context = self._context
        ownership, mask = context.ownership, outgoing.mask
        if kept:
            await self._transfer_units(outgoing)
        # What is not forgotten, and not this agent's, is found and goes once more.
        stays = mask & ownership.mine if kept and not outgoing.stale else mask
        goes = mask & ~stays
        if stays.any():
            # First, since it is what must not be left out if a kill comes in between.
            await context.run_durably(lambda: self._settlement(stays).keep(outgoing.label.file_id))
        if goes.any():
            await self._forget(outgoing, goes)
        self._file_transport.withdraw(outgoing.label)
        with suppress(OSError):
            outgoing.path.unlink(missing_ok=True)
        context.release(mask)
        self._tell(outgoing, gone=bool(goes.any()))
        return bool(goes.any())

    async def _forget(self, outgoing: OutgoingFile, goes: Mask) -> None:
        context = self._context
        done = await context.run_durably(
            lambda: self._settlement(goes).forget(outgoing.label.file_id),
            lambda: not outgoing.stale,
        )
        if done:
            self._foreign.gone(goes)
        else:
            await context.run_durably(lambda: self._settlement(goes).keep(outgoing.label.file_id))

    def _settlement(self, mask: Mask) -> DumpSettlement:
        context = self._context
        return DumpSettlement(context, context.units(mask))

    async def _transfer_units(self, outgoing: OutgoingFile) -> None:
        ownership, wait = self._context.ownership, _LOOK / 4
        while not outgoing.stale:
            owned = self.masks_of_owners().get(outgoing.number, np.zeros(UNITS, np.bool_))
            units = np.flatnonzero(outgoing.mask & ownership.mine & owned).astype(np.uint16)
            if not len(units):
                return
            try:
                moved = await self._give(units, outgoing.number, ownership.epoch)
                await self._look()
            except FencedError as error:
                if not error.again:
                    raise
            except RegistryError as error:
                self._context.warnings.say("registry", error)
            else:
                self._context.warnings.over("registry")
                if not moved.why:
                    return
            # Others are members by now, which this agent is about to hear; or Redis is away.
            await asyncio.sleep(wait)
            wait = min(2 * wait, 5 * _LOOK)

    def _tell(self, outgoing: OutgoingFile, *, gone: bool) -> None:
        label, seconds = outgoing.label, time.perf_counter() - outgoing.begun
        if not gone:
            self.counts["called_off"] += 1
            logger.info("hand-over file %s to %s is called off", label.file_id, label.receiver)
            return
        hosts, urls, units = outgoing.counts[HOST], _urls(outgoing), int(outgoing.mask.sum())
        self.counts.update(
            files=int(outgoing.size > 0), units=units, hosts=hosts, urls=urls, bytes=outgoing.size
        )
        self._context.warnings.over(f"to {label.receiver}")
        logger.info(
            "sent hand-over file %s to %s: %s, %s, %s, in %.1f s", label.file_id, label.receiver,
            counted(units, "unit"), counted(hosts, "host"), counted(urls, "URL"), seconds,
        )  # fmt: skip


def _urls(outgoing: OutgoingFile) -> int:
    return outgoing.counts[ROW] + outgoing.counts[STATE] + outgoing.counts[PRINTS]
