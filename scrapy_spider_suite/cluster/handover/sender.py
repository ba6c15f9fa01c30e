"""The side of a hand-over that gives: one file, from its packing to its end."""

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
"""Seconds in which nothing more of a parcel goes, after which it is called off: its hosts are
fetched here."""

_LOOK: Final = 1.0
"""Seconds between two looks at whether a parcel is still to go."""

GiveUnits = Callable[[Numbers, int, int], Awaitable[MovedUnits]]
"""`registry.Registry.give`."""


@dataclass(slots=True, eq=False)
class OutgoingFile:
    """What is to go to the member *number*."""

    label: HandoverLabel
    path: Path
    number: int
    mask: Mask
    size: int = 0
    """Bytes that the receiver has said it keeps."""

    stale: bool = False
    """This agent has become the owner of some of it since: more may have come here."""

    begun: float = field(default_factory=time.perf_counter)
    counts: Counter[int] = field(default_factory=Counter)


class Sender:
    """Gives parcels of the frontier of *moving*.

    Args:
        give: has another agent hold units.
        look: has `Shares` know who holds what by now. Both raise as `Registry` does.

    Attributes:
        counts: parcels, units, hosts, urls, bytes; and how many were called_off.
    """

    def __init__(
        self, moving: HandoverContext, courier: FileTransport, give: GiveUnits, look: Callable[[],
        Awaitable[None]],
        traces: ForeignUnits,
    ) -> None:  # fmt: skip
        self.counts: Counter[str] = Counter()
        self._moving = moving
        self._traces = traces
        self._courier = courier
        self._give, self._look = give, look
        self._heir = (-1, dict[int, Mask]())
        self._open: list[OutgoingFile] = []
        self._dropped: Mask = np.zeros(UNITS, np.bool_)

    # Who is to have what

    def heirs(self) -> dict[int, Mask]:
        """The units of each other owner, by its number."""
        shares = self._moving.shares
        epoch, found = self._heir
        if epoch != shares.epoch:
            found = {}
            for number, units in shares.heirs().items():
                found[number] = np.zeros(UNITS, np.bool_)
                found[number][units] = True
            self._heir = shares.epoch, found
        return found

    def is_wanted(self, parcel: OutgoingFile) -> bool:
        """Whether its receiver is still the owner of some of it, and all of that is in it."""
        if parcel.stale:
            return False
        heir = self.heirs().get(parcel.number)
        return heir is not None and bool((heir & parcel.mask).any())

    def note(self) -> None:
        """Others are members than before: called before anything can come for their units."""
        own = self._moving.shares.own
        for parcel in self._open:
            parcel.stale = parcel.stale or bool((own & parcel.mask).any())

    # A parcel

    async def give(self, parcel: OutgoingFile) -> bool:
        """From its packing to its end; False: it was called off, or cannot go now."""
        self._open.append(parcel)
        try:
            self._moving.hold_back(parcel.mask)
            kept = await self._pack(parcel) and await self._bring(parcel)
            return await self._end(parcel, kept=kept)
        except BaseException:  # a task that is cancelled, most of all
            self._dropped |= parcel.mask
            raise
        finally:
            self._open.remove(parcel)

    def let_go(self) -> None:
        """What was dropped in the middle has been called off."""
        self._moving.let_go(self._dropped)
        self._dropped[:] = False

    async def _pack(self, parcel: OutgoingFile) -> bool:
        """Whether it is packed."""
        moving = self._moving
        units = moving.units(parcel.mask)

        def pack() -> HostDump:
            giving = HostDump(moving.hands, units, moving.clock)
            parcel.counts = giving.counts
            return giving

        try:
            return await moving.through(
                lambda: pack().pack(parcel.path, parcel.label), lambda: self.is_wanted(parcel)
            )
        except OSError as error:
            moving.once.say("pack", f"{parcel.path}: {error.strerror}")
            return False

    async def _bring(self, parcel: OutgoingFile) -> bool:
        """Whether the receiver keeps it; or there is nothing in it."""
        if self._is_empty(parcel):
            return True
        logger.info(
            "giving parcel %s to %s: %s, %s, %s, %d bytes", parcel.label.parcel,
            parcel.label.receiver, counted(int(parcel.mask.sum()), "unit"),
            counted(parcel.counts[HOST], "host"), counted(_urls(parcel), "URL"),
            parcel.path.stat().st_size,
        )  # fmt: skip
        return await self._deliver(parcel)

    async def call_off(self, parcel: OutgoingFile) -> None:
        """What an earlier process has begun does not go on: more may have come since."""
        await self._end(parcel, kept=False)

    def _is_empty(self, parcel: OutgoingFile) -> bool:
        """Whether nothing in it is of use to anybody."""
        counts = parcel.counts
        whole = self._moving.shares.assignment.by_host
        return not (_urls(parcel) or (whole and counts[HOST] + counts[KEPT]))

    async def _deliver(self, parcel: OutgoingFile) -> bool:
        """Whether the receiver keeps it."""
        loop, counters = asyncio.get_running_loop(), self._courier.counters
        heard, sent, wait = loop.time(), counters.sent(parcel.label), _LOOK
        while self.is_wanted(parcel):
            try:
                if await self._try(parcel):
                    return True
            except HandoverFileError as error:
                logger.warning("parcel %s cannot be taken: %s", parcel.label.parcel, error)
                return False
            except TransportError as error:
                self._moving.once.say(f"to {parcel.label.receiver}", error)
                if (now := counters.sent(parcel.label)) != sent:
                    heard, sent, wait = loop.time(), now, _LOOK
                elif loop.time() - heard > SILENCE:
                    return False
                await asyncio.sleep(wait)
                wait = min(2 * wait, SILENCE / 2)
        return False

    async def _try(self, parcel: OutgoingFile) -> bool:
        """Bring it, while it is wanted."""
        row = self._moving.shares.row(parcel.number)
        if row is None:
            return False
        bringing = asyncio.ensure_future(
            self._courier.deliver(parcel.path, parcel.label, row.address)
        )
        try:
            while not (await asyncio.wait([bringing], timeout=_LOOK))[0]:
                if not self.is_wanted(parcel):
                    return False
            bringing.result()
            parcel.size = parcel.path.stat().st_size
        finally:
            bringing.cancel()
            await asyncio.wait([bringing])
        return True

    # What comes of it

    async def _end(self, parcel: OutgoingFile, *, kept: bool) -> bool:
        """The receiver keeps it, or it is called off; whether the units are gone."""
        moving = self._moving
        shares, mask = moving.shares, parcel.mask
        if kept:
            await self._hand_tokens(parcel)
        # What is not forgotten, and not this agent's, is found and goes once more.
        stays = mask & shares.mine if kept and not parcel.stale else mask
        goes = mask & ~stays
        if stays.any():
            # First, since it is what must not be left out if a kill comes in between.
            await moving.through(lambda: self._forgetting(stays).keep(parcel.label.parcel))
        if goes.any():
            await self._forget(parcel, goes)
        self._courier.withdraw(parcel.label)
        with suppress(OSError):
            parcel.path.unlink(missing_ok=True)
        moving.let_go(mask)
        self._tell(parcel, gone=bool(goes.any()))
        return bool(goes.any())

    async def _forget(self, parcel: OutgoingFile, goes: Mask) -> None:
        """Forget it, unless this agent is to have some of it again: then more comes in."""
        moving = self._moving
        done = await moving.through(
            lambda: self._forgetting(goes).forget(parcel.label.parcel), lambda: not parcel.stale
        )
        if done:
            self._traces.gone(goes)
        else:
            await moving.through(lambda: self._forgetting(goes).keep(parcel.label.parcel))

    def _forgetting(self, mask: Mask) -> DumpSettlement:
        moving = self._moving
        return DumpSettlement(moving.hands, moving.units(mask), moving.clock)

    async def _hand_tokens(self, parcel: OutgoingFile) -> None:
        """Have the receiver hold what this agent holds of it, as far as that is its by now."""
        shares, wait = self._moving.shares, _LOOK / 4
        while not parcel.stale:
            heir = self.heirs().get(parcel.number, np.zeros(UNITS, np.bool_))
            units = np.flatnonzero(parcel.mask & shares.mine & heir).astype(np.uint16)
            if not len(units):
                return
            try:
                moved = await self._give(units, parcel.number, shares.epoch)
                await self._look()
            except FencedError as error:
                if not error.again:
                    raise
            except RegistryError as error:
                self._moving.once.say("registry", error)
            else:
                self._moving.once.over("registry")
                if not moved.why:
                    return
            # Others are members by now, which this agent is about to hear; or Redis is away.
            await asyncio.sleep(wait)
            wait = min(2 * wait, 5 * _LOOK)

    def _tell(self, parcel: OutgoingFile, *, gone: bool) -> None:
        label, seconds = parcel.label, time.perf_counter() - parcel.begun
        if not gone:
            self.counts["called_off"] += 1
            logger.info("parcel %s to %s is called off", label.parcel, label.receiver)
            return
        hosts, urls, units = parcel.counts[HOST], _urls(parcel), int(parcel.mask.sum())
        self.counts.update(
            parcels=int(parcel.size > 0), units=units, hosts=hosts, urls=urls, bytes=parcel.size
        )
        self._moving.once.over(f"to {label.receiver}")
        logger.info(
            "gave parcel %s to %s: %s, %s, %s, in %.1f s", label.parcel, label.receiver,
            counted(units, "unit"), counted(hosts, "host"), counted(urls, "URL"), seconds,
        )  # fmt: skip


def _urls(parcel: OutgoingFile) -> int:
    return parcel.counts[ROW] + parcel.counts[STATE] + parcel.counts[PRINTS]
