"""Hosts go from agent to agent while the crawl goes on: what one of them gives, and what it takes.

What an agent gives to the owner of units that is not itself:

- units that it holds: what it keeps of them in a file, then the units themselves in the registry;
- units that it does not hold, of which it has something all the same, since it was given up and is
  back, or since they became another's before they had come: only what it has.

A unit is held back here (`Shares.giving`) from before its file is packed until it is over; in the
same way while a file is merged. Nothing else stands still, and all of it goes on in portions.

Nothing is forgotten here before the taker has said that it keeps it, and everything bears to be
done twice: after a kill, or when the members change in between, a file is called off and what was
in it given anew; what was merged of it at the other end finds its way like all that lies there.
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

FILE_URLS: Final = 50_000
"""About how many URLs a file holds, unless one unit has more: so long hosts stand still, and so
much of a disk is in use."""

MAX_PASSES: Final = 8
"""Most files that all units go in, where each takes a pass over the whole store."""

_NONE: Final = HandoverLabel("", "", "", "", b"")
"""No outgoing."""

_LOOK: Final = 1.0
"""Seconds between two looks at who is to have what, if nothing is heard before."""
_FIRST, _MOST = 2.0, 60.0
"""Seconds until something is given again to an agent that could not take it."""


class Handover:
    """The hand-overs of one agent, both ways; `inbox` is for its *file_transport*.

    It is made before anything is fetched: what was on its way when a process was killed is held
    back from then on.

    Args:
        transport: brings hand-over files.
        folder: of this agent alone, for files that go; made if missing.
        give: `AgentRegistry.give`.
        look: has the ownership of *context* follow the registry; raises as the registry does.

    Raises:
        JobError: URLs are known by fingerprints, and those of a unit do not lie together.
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
        """Whether anything is to be given or taken, or it is not known yet."""
        if self._left or self._tasks or self._looking is not None or self.inbox.at_work:
            return True
        return bool(self._foreign.unknown().any()) or bool(self._due())

    @property
    def facts(self) -> dict[str, int]:
        """What there is to say, by names for the stats."""
        counts = Counter({f"sent_{name}": n for name, n in self._sender.counts.items()})
        counts.update({f"received_{name}": n for name, n in self.inbox.counts.items()})
        return dict(counts)

    @property
    def progress(self) -> int:
        """Another number whenever anything has got on, also in the midst of a outgoing."""
        counters = self._counters
        return self._context.runner.portions + counters.bytes_out + counters.signs

    def poke(self) -> None:
        """Others own, or hold, what they did not before: called at once, before anything comes."""
        self._foreign.note()
        self._sender.note()
        self._poked.set()

    # Life

    async def run(self, crawl: str) -> None:
        """Give and take, for the crawl with the id *crawl*, until it is cancelled; then once more.

        Raises `FencedError`: this process does not stand for its agent any more; and what a store
        does that is damaged.
        """
        self._context.crawl_id = crawl
        self.inbox.ready.set()
        try:
            await self._undo()
            while True:
                self._look()
                try:
                    async with asyncio.timeout(_LOOK):
                        await self._poked.wait()
                except TimeoutError:
                    pass
                self._poked.clear()
        finally:
            tasks = [*self._tasks.values(), *([self._looking] if self._looking else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._tasks.clear()
            self._looking = None
            self._left = self._begun()

    def _begun(self) -> dict[str, Mask]:
        """The files that were begun, and did not end."""
        found = unfinished_dumps(self._context.store)
        return {name: unit_mask(units) for name, units in found.items()}

    async def _undo(self) -> None:
        """Call off what an earlier process has begun, and end what it has broken off."""
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

    def _name(self, number: int) -> str:
        row = self._ownership.record(number)
        return "" if row is None else row.name

    # What is to go

    def _look(self) -> None:
        """Begin what is due. Raises what went wrong in what was begun before."""
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
                self._begin(self._sender.give(outgoing), number)

    def _due(self) -> dict[int, Mask]:
        """What each other owner is to have."""
        free = (self._ownership.mine | self._foreign.found) & ~self._ownership.in_transfer
        masks = {number: mask & free for number, mask in self._sender.masks_of_owners().items()}
        return {number: mask for number, mask in masks.items() if mask.any()}

    def _portion(self, mask: Mask) -> Mask:
        """As many of the units as go in one file."""
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
        label = self._label(secrets.token_hex(8), self._name(number), mask)
        return OutgoingFile(label, self._folder / label.file_id, number, mask)

    def _label(self, file_id: str, receiver: str, mask: Mask) -> HandoverLabel:
        units = pack_units(np.flatnonzero(mask).tolist())
        return HandoverLabel(file_id, self._context.crawl_id, self._ownership.name, receiver, units)

    def _begin(self, giving: Awaitable[bool], number: int) -> None:
        async def work() -> None:
            if await giving:
                self._waits.pop(number, None)
                return
            wait = min(_MOST, 2 * self._waits.get(number, (0.0, _FIRST / 2))[1])
            self._waits[number] = time.monotonic() + wait, wait

        task = asyncio.get_running_loop().create_task(work())
        task.add_done_callback(lambda done: self.poke())
        self._tasks[number] = task

    async def _find(self, unknown: Mask) -> None:
        """Look which of those units anything lies here of."""
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
