"""Hosts move between agents while the crawl goes on, both ways at once.

An agent sends units it holds (file, then registry), and rows of units it does not hold. A unit is
held back (`Ownership.in_transfer`) from packing, or while merging, until the end. The sender
forgets nothing before the receiver keeps it; each step is idempotent, so a file can be called off.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import numpy as np

from scrapy_spider_suite.cluster.handover.dump import HostDump, unfinished_dumps
from scrapy_spider_suite.cluster.handover.handover_context import (
    ForeignUnits,
    HandoverContext,
    Mask,
    Steps,
    drain_sieve,
    refuse_sieve,
    unit_mask,
)
from scrapy_spider_suite.cluster.handover.handover_file import (
    FileTransport,
    HandoverLabel,
    pack_units,
    read_label,
)
from scrapy_spider_suite.cluster.handover.load import HostLoad
from scrapy_spider_suite.cluster.handover.receiver import Receiver
from scrapy_spider_suite.cluster.handover.sender import GiveUnits, OutgoingFile, Sender
from scrapy_spider_suite.errors import HandoverFileError
from scrapy_spider_suite.frontier.entries import UNITS
from scrapy_spider_suite.runtime.tasks import cancel_tasks, wait_at_most

FILE_URLS: Final = 50_000
"""URLs of a file, unless one unit has more: bounds standstill of hosts and disk use."""

MAX_PASSES: Final = 8
"""Most files for all units where each file takes a pass over the store."""

_NONE: Final = HandoverLabel("", "", "", "", b"")

_LOOK: Final = 1.0  # seconds between two checks for due hand-overs
_FIRST, _MOST = 2.0, 60.0  # seconds until a failed receiver is tried again: at first, and at most


class Handover:
    """The hand-overs of one agent; `inbox` receives for the transport.

    Made before any fetch: units under way at a kill are held back.

    Args:
        folder: of this agent alone, for outgoing files.
        give: `AgentRegistry.give`.
        look: updates the holders; raises as the registry does.

    Raises:
        JobError: see `refuse_sieve`.
        OSError: the folder cannot be made.
    """

    def __init__(
        self, context: HandoverContext, transport: FileTransport, folder: Path, *,
        give: GiveUnits, look: Callable[[], Awaitable[None]],
    ) -> None:  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        refuse_sieve(context, context.units(np.zeros(UNITS, np.bool_)))
        self._context = context
        ownership = self._ownership = context.ownership
        self._folder = folder
        self._foreign = ForeignUnits(ownership)
        self._counters = transport.counters
        self._sender = Sender(context, transport, give, look, self._foreign)
        self.inbox = Receiver(context, self._foreign)
        self._left = self._begun()
        self._merged = HostLoad(context, context.units(np.ones(UNITS, np.bool_)), Path(), _NONE)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._waits: dict[int, tuple[float, float]] = {}
        self._poked = asyncio.Event()
        self._broken = self._merged.broken_off
        ownership.in_transfer[:] = self._broken
        for mask in self._left.values():
            ownership.in_transfer |= mask
        ownership.refresh()
        self.poke()

    # What is asked

    @property
    def busy(self) -> bool:
        """Whether a hand-over is due or under way, or that is unknown yet."""
        if self._left or self._tasks or self._looking is not None or self.inbox.at_work:
            return True
        return bool(self._foreign.unknown().any()) or bool(self._due())

    @property
    def facts(self) -> dict[str, int]:
        counts = Counter({f"sent_{name}": n for name, n in self._sender.counts.items()})
        counts.update({f"received_{name}": n for name, n in self.inbox.counts.items()})
        return dict(counts)

    @property
    def progress(self) -> int:
        """A number that changes with any progress, also within a file."""
        counters = self._counters
        return self._context.runner.portions + counters.bytes_out + counters.signs

    def poke(self) -> None:
        """Ownership or holders changed: called at once, before any row comes."""
        self._foreign.note()
        self._sender.note()
        self._poked.set()

    # Life

    async def run(self, crawl: str) -> None:
        """Send and receive until cancelled, for the crawl id *crawl*; may run again.

        Raises `FencedError`, and errors of a damaged store.
        """
        self._context.crawl_id = crawl
        self.inbox.ready.set()
        try:
            await self._undo()
            while True:
                self._look()
                await wait_at_most(self._poked, _LOOK)
                self._poked.clear()
        finally:
            await cancel_tasks(*self._tasks.values(), self._looking)
            self._tasks.clear()
            self._looking = None
            self._left = self._begun()

    def _begun(self) -> dict[str, Mask]:
        found = unfinished_dumps(self._context.store)
        return {name: unit_mask(units) for name, units in found.items()}

    async def _undo(self) -> None:
        if self._broken:
            self._broken = False  # what is marked later is of a merge that goes on
            await self._context.run_durably(self._merged.settle)
            held = np.logical_or.reduce([np.zeros(UNITS, np.bool_), *self._left.values()])
            self._context.release(~held)
        for name, mask in list(self._left.items()):
            path = self._folder / name
            try:
                label = await asyncio.to_thread(read_label, path)
            except HandoverFileError:
                label = self._label(name, "", mask)
            await self._sender.call_off(OutgoingFile(label, path, 0, mask))
            del self._left[name]
        self._sender.let_go()
        for path in self._folder.iterdir():
            if path.is_file():
                path.unlink()

    # What is to go

    def _look(self) -> None:
        for number, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[number]
                task.result()
        if self._looking is not None and self._looking.done():
            done, self._looking = self._looking, None
            done.result()
        if self._looking is None and (unknown := self._foreign.unknown()).any():
            self._looking = asyncio.get_running_loop().create_task(self._find(unknown))
        now = time.monotonic()
        for number, mask in self._due().items():
            if number not in self._tasks and self._waits.get(number, (0.0, 0.0))[0] <= now:
                outgoing = self._outgoing_file(number, self._portion(mask))
                self._begin(self._sender.send(outgoing), number)

    def _due(self) -> dict[int, Mask]:
        free = (self._ownership.mine | self._foreign.found) & ~self._ownership.in_transfer
        masks = {number: mask & free for number, mask in self._sender.masks_of_owners().items()}
        return {number: mask for number, mask in masks.items() if mask.any()}

    def _portion(self, mask: Mask) -> Mask:
        counters, units = self._context.states.counters, self._context.units(mask)
        urls = counters.pending + counters.done + counters.failed
        held = max(1, int((self._ownership.mine | self._foreign.found).sum()))
        most = max(1, FILE_URLS * held // max(1, urls))
        if not units.slots:
            most = max(most, UNITS // MAX_PASSES)
        part = np.zeros(UNITS, np.bool_)
        part[np.flatnonzero(mask)[:most]] = True
        return part

    def _outgoing_file(self, number: int, mask: Mask) -> OutgoingFile:
        row = self._ownership.record(number)
        label = self._label(secrets.token_hex(8), "" if row is None else row.name, mask)
        return OutgoingFile(label, self._folder / label.file_id, number, mask)

    def _label(self, file_id: str, receiver: str, mask: Mask) -> HandoverLabel:
        units = pack_units(np.flatnonzero(mask).tolist())
        return HandoverLabel(file_id, self._context.crawl_id, self._ownership.name, receiver, units)

    def _begin(self, sending: Awaitable[bool], number: int) -> None:
        async def work() -> None:
            if await sending:
                self._waits.pop(number, None)
                return
            wait = min(_MOST, 2 * self._waits.get(number, (0.0, _FIRST / 2))[1])
            self._waits[number] = time.monotonic() + wait, wait

        task = asyncio.get_running_loop().create_task(work())
        task.add_done_callback(lambda done: self.poke())
        self._tasks[number] = task

    async def _find(self, unknown: Mask) -> None:
        self._foreign.begin()
        context, found = self._context, np.zeros(UNITS, np.bool_)
        units, unit = context.units(unknown), self._ownership.assignment.unit

        def steps() -> Steps:
            yield from drain_sieve(context)  # of some hosts nothing else is known
            for host in HostDump(context, units).hosts():
                if host is None:
                    yield False
                elif units.by_host:
                    found[unit(host, f"https://{host}/")] = True
                else:
                    found[unknown] = True  # which of them takes a packing to say
                    return

        await context.run_durably(steps)
        self._foreign.looked(unknown, found)
