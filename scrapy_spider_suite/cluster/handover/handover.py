"""Hosts move between agents while the crawl goes on, both ways at once.

An agent sends units it holds (file, then registry), and rows of units it does not hold. A unit is
held back (`Ownership.in_transfer`) from packing, or while merging, until the end. The sender
forgets nothing before the receiver stores it; each step is idempotent, so a file can be called off.
The directory of a dead agent is handed over in the same way (`adopt_directory`).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from scrapy_spider_suite.cluster.assignment import Units
from scrapy_spider_suite.cluster.handover.dump import HostDump, unfinished_dumps
from scrapy_spider_suite.cluster.handover.handover_context import (
    WAIT,
    HandoverContext,
    Steps,
    logger,
)
from scrapy_spider_suite.cluster.handover.handover_file import (
    FileTransport,
    HandoverLabel,
    ItemKind,
    Mask,
    pack_units,
    read_label,
    unpack_units,
)
from scrapy_spider_suite.cluster.handover.load import Conflicts, HostLoad
from scrapy_spider_suite.cluster.mailbox import Outbox, unpack_rows
from scrapy_spider_suite.cluster.membership import Membership, MemberState, Ownership
from scrapy_spider_suite.cluster.registry import MovedUnits
from scrapy_spider_suite.crawl.queue.frontier import Frontier
from scrapy_spider_suite.errors import (
    ClusterError,
    FencedError,
    HandoverFileError,
    MessageError,
    RegistryError,
    StoreWriteError,
    TransportError,
)
from scrapy_spider_suite.frontier.entries import UNITS, Entry
from scrapy_spider_suite.runtime.tasks import cancel_tasks, wait_at_most
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.store.rocks_store import RocksStore

FILE_URLS: Final = 50_000
"""URLs of a file, unless one unit has more: bounds standstill of hosts and disk use."""
MAX_PASSES: Final = 8  # most files for all units where each file takes a pass over the store
SILENCE: Final = 30.0  # seconds without progress after which a file is called off
MAX_TRIES: Final = 5  # failed writes of the store after which a file is postponed
MAX_POSTPONED: Final = 4  # postponed files, each on this disk, after which no others are accepted
_CHECK: Final = 1.0  # seconds between two checks: for due hand-overs, and of a file under way
_FIRST, _MOST = 2.0, 60.0  # seconds until a failed receiver is tried again: at first, and at most

GiveUnits = Callable[[Units, int, int], Awaitable[MovedUnits]]


@dataclass(slots=True, eq=False)
class OutgoingFile:
    label: HandoverLabel
    path: Path
    number: int  # of the receiver
    mask: Mask
    size: int = 0  # bytes that the receiver stores
    stale: bool = False  # this agent owns some of the units again: more rows may have come
    begun: float = field(default_factory=time.perf_counter)
    counts: Counter[int] = field(default_factory=Counter)

    @property
    def urls(self) -> int:
        return _urls_in(self.counts)


class Handover:
    """The hand-overs of one agent; `inbox` receives for the transport.

    Made before any fetch: units under way at a kill are held back. *folder*: of outgoing files.
    *give*: `AgentRegistry.give`. Raises `OSError`; see `HandoverContext.refuse_sieve`.
    """

    def __init__(
        self, context: HandoverContext, transport: FileTransport, folder: Path, *,
        give: GiveUnits, update_holders: Callable[[], Awaitable[None]],
    ) -> None:  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        context.refuse_sieve(context.units(_no_units()))
        self.inbox = Receiver(context)
        self._context = context
        self._transport = transport
        self._folder = folder
        self._give, self._update_holders = give, update_holders
        ownership = self._ownership = context.ownership
        self._foreign = context.foreign_units
        self.sent: Counter[str] = Counter()  # files, units, hosts, urls, bytes, called_off
        self._open: list[OutgoingFile] = []
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by the number of the receiver
        self._search: asyncio.Task[None] | None = None
        self._waits: dict[int, tuple[float, float]] = {}
        self._poked = asyncio.Event()
        self._owner_masks = (-1, dict[int, Mask]())
        self._dropped = _no_units()  # of files whose sending failed
        self._left = unfinished_dumps(context)
        self._conflicts = Conflicts(context)
        self._broken_off = self._conflicts.left
        ownership.in_transfer[:] = self._broken_off
        for mask in self._left.values():
            ownership.in_transfer |= mask
        ownership.refresh()
        self.poke()

    @property
    def busy(self) -> bool:
        """Whether a hand-over is due or under way, or that is unknown yet."""
        if self._left or self._tasks or self._search is not None or self.inbox.at_work:
            return True
        return bool(self._foreign.unknown().any()) or bool(self._due())

    @property
    def facts(self) -> dict[str, int]:
        facts = {f"sent_{name}": n for name, n in self.sent.items()}
        return facts | {f"received_{name}": n for name, n in self.inbox.counts.items()}

    @property
    def progress(self) -> int:
        """A number that changes with any progress, also within a file."""
        transport = self._transport
        return self._context.portions + transport.counters.bytes_out + transport.signs

    def poke(self) -> None:
        """Ownership or holders changed: called at once, before any row comes."""
        own = self._ownership.own
        self._foreign.mark_arriving(own | self._ownership.mine)
        for outgoing in self._open:
            outgoing.stale = outgoing.stale or bool((own & outgoing.mask).any())
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
                self._begin_due()
                await wait_at_most(self._poked, _CHECK)
                self._poked.clear()
        finally:
            await cancel_tasks(*self._tasks.values(), self._search)
            self._tasks.clear()
            self._search = None
            self._left = unfinished_dumps(self._context)

    async def _undo(self) -> None:
        """Call off the files of an earlier run: more rows may have come since."""
        if self._broken_off:
            self._broken_off = False  # later marks belong to a merge under way
            await self._context.run_durably(self._conflicts.settle)
            held = np.logical_or.reduce([_no_units(), *self._left.values()])
            self._context.release(~held)
        for name, mask in list(self._left.items()):
            path = self._folder / name
            try:
                label = await asyncio.to_thread(read_label, path)
            except HandoverFileError:
                label = self._label(name, "", mask)
            await self._settle(OutgoingFile(label, path, 0, mask), stored=False)
            del self._left[name]
        self._context.release(self._dropped)
        self._dropped[:] = False
        for path in self._folder.iterdir():
            if path.is_file():
                path.unlink()

    # Due hand-overs

    def _begin_due(self) -> None:
        for number, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[number]
                task.result()
        if self._search is not None and self._search.done():
            done, self._search = self._search, None
            done.result()
        if self._search is None and (unknown := self._foreign.unknown()).any():
            self._search = asyncio.get_running_loop().create_task(self._search_rows(unknown))
        now = time.monotonic()
        for number, mask in self._due().items():
            row = self._ownership.records.get(number)
            waits = number in self._tasks or self._waits.get(number, (0.0, 0.0))[0] > now
            if row is not None and not waits:
                part = self._portion(mask)
                label = self._label(secrets.token_hex(8), row.name, part)
                outgoing = OutgoingFile(label, self._folder / label.file_id, number, part)
                task = asyncio.get_running_loop().create_task(self._send(outgoing))
                task.add_done_callback(lambda done: self.poke())
                self._tasks[number] = task

    def _due(self) -> dict[int, Mask]:
        free = (self._ownership.mine | self._foreign.found) & ~self._ownership.in_transfer
        masks = {number: mask & free for number, mask in self._masks_of_owners().items()}
        return {number: mask for number, mask in masks.items() if mask.any()}

    def _masks_of_owners(self) -> dict[int, Mask]:
        if self._owner_masks[0] != self._ownership.epoch:
            self._owner_masks = self._ownership.epoch, self._ownership.units_of_others()
        return self._owner_masks[1]

    def _portion(self, mask: Mask) -> Mask:
        counters, units = self._context.states.counters, self._context.units(mask)
        urls = counters.pending + counters.done + counters.failed
        held = max(1, int((self._ownership.mine | self._foreign.found).sum()))
        most = max(1, FILE_URLS * held // max(1, urls))
        if not units.slots:
            most = max(most, UNITS // MAX_PASSES)
        part = _no_units()
        part[np.flatnonzero(mask)[:most]] = True
        return part

    def _label(self, file_id: str, receiver: str, mask: Mask) -> HandoverLabel:
        units = pack_units(np.flatnonzero(mask).tolist())
        return HandoverLabel(file_id, self._context.crawl_id, self._ownership.name, receiver, units)

    async def _search_rows(self, unknown: Mask) -> None:
        self._foreign.begin_search()
        context, found = self._context, _no_units()
        units, unit = context.units(unknown), self._ownership.assignment.unit

        def steps() -> Steps:
            yield from context.drain_sieve()  # some hosts are known by links alone
            for host in HostDump(context, units).hosts():
                if host is None:
                    yield False
                elif units.by_host:
                    found[unit(host, f"https://{host}/")] = True
                else:
                    found[unknown] = True  # only packing shows which of them
                    return

        await context.run_durably(steps)
        self._foreign.end_search(unknown, found)

    # One file

    async def _send(self, outgoing: OutgoingFile) -> None:
        number = outgoing.number
        self._open.append(outgoing)
        try:
            self._context.hold_back(outgoing.mask)
            stored = await self._pack(outgoing) and await self._deliver(outgoing)
            done = await self._settle(outgoing, stored=stored)
        except BaseException:  # a cancellation, above all
            self._dropped |= outgoing.mask
            raise
        finally:
            self._open.remove(outgoing)
        if done:
            self._waits.pop(number, None)
        else:
            wait = min(_MOST, 2 * self._waits.get(number, (0.0, _FIRST / 2))[1])
            self._waits[number] = time.monotonic() + wait, wait

    def _is_wanted(self, outgoing: OutgoingFile) -> bool:
        """Whether the receiver still owns units of the file, and it is complete."""
        owned = self._masks_of_owners().get(outgoing.number, _no_units())
        return not outgoing.stale and bool((owned & outgoing.mask).any())

    async def _pack(self, outgoing: OutgoingFile) -> bool:
        context = self._context
        units = context.units(outgoing.mask)

        def pack() -> Steps:
            dump = HostDump(context, units)
            outgoing.counts = dump.counts
            return dump.pack(outgoing.path, outgoing.label)

        try:
            return await context.run_durably(pack, lambda: self._is_wanted(outgoing))
        except OSError as error:
            context.warnings.say("pack", f"{outgoing.path}: {error.strerror}")
            return False

    async def _deliver(self, outgoing: OutgoingFile) -> bool:
        counts, label, warnings = outgoing.counts, outgoing.label, self._context.warnings
        by_host = self._ownership.assignment.by_host
        if not (outgoing.urls or (by_host and counts[ItemKind.HOST] + counts[ItemKind.KEPT])):
            return True
        loop, transport = asyncio.get_running_loop(), self._transport
        heard, sent, wait = loop.time(), transport.sent(label), _CHECK
        while self._is_wanted(outgoing):
            try:
                if await self._try_once(outgoing):
                    return True
            except HandoverFileError as error:
                logger.warning("hand-over file %s cannot be received: %s", label.file_id, error)
                return False
            except TransportError as error:
                warnings.say(f"to {label.receiver}", error)
                if (now := transport.sent(label)) != sent:
                    heard, sent, wait = loop.time(), now, _CHECK
                elif loop.time() - heard > SILENCE:
                    return False
                await asyncio.sleep(wait)
                wait = min(2 * wait, SILENCE / 2)
        return False

    async def _try_once(self, outgoing: OutgoingFile) -> bool:
        row = self._ownership.records.get(outgoing.number)
        if row is None:
            return False
        delivery = asyncio.ensure_future(
            self._transport.deliver(outgoing.path, outgoing.label, row.address)
        )
        try:
            while not (await asyncio.wait([delivery], timeout=_CHECK))[0]:
                if not self._is_wanted(outgoing):
                    return False
            delivery.result()
            outgoing.size = outgoing.path.stat().st_size
        finally:
            delivery.cancel()
            await asyncio.wait([delivery])
        return True

    # After the transfer

    async def _settle(self, outgoing: OutgoingFile, *, stored: bool) -> bool:
        """Forget the rows that the receiver has *stored*, keep the others; False: called off."""
        context, mask, file_id = self._context, outgoing.mask, outgoing.label.file_id
        if stored:
            await self._transfer_units(outgoing)
        # Rows that stay, in units of other agents, are found by a search and sent again.
        stays = mask & self._ownership.mine if stored and not outgoing.stale else mask
        goes = mask & ~stays
        if stays.any():
            # First: a kill in between must not leave these hosts without a place in the queue.
            kept = HostDump(context, context.units(stays))
            await context.run_durably(partial(kept.keep, file_id))
        if goes.any():
            dump = HostDump(context, context.units(goes))
            forget = partial(dump.forget, file_id)
            if await context.run_durably(forget, lambda: not outgoing.stale):
                self._foreign.mark_empty(goes)
            else:
                await context.run_durably(partial(dump.keep, file_id))
        self._transport.withdraw(outgoing.label)
        with suppress(OSError):
            outgoing.path.unlink(missing_ok=True)
        context.release(mask)
        gone = bool(goes.any())
        self._report(outgoing, gone=gone)
        return gone

    async def _transfer_units(self, outgoing: OutgoingFile) -> None:
        ownership, warnings = self._ownership, self._context.warnings
        wait = _CHECK / 4
        while not outgoing.stale:
            owned = self._masks_of_owners().get(outgoing.number, _no_units())
            units = np.flatnonzero(outgoing.mask & ownership.mine & owned).astype(np.uint16)
            if not len(units):
                return
            try:
                moved = await self._give(units, outgoing.number, ownership.epoch)
                await self._update_holders()
            except FencedError as error:
                if not error.again:
                    raise
            except RegistryError as error:
                warnings.say("registry", error)
            else:
                warnings.over("registry")
                if not moved.why:
                    return
            # The members have changed, and this agent will hear of it; or Redis is away.
            await asyncio.sleep(wait)
            wait = min(2 * wait, 5 * _CHECK)

    def _report(self, outgoing: OutgoingFile, *, gone: bool) -> None:
        label, seconds = outgoing.label, time.perf_counter() - outgoing.begun
        if not gone:
            self.sent["called_off"] += 1
            logger.info("hand-over file %s to %s is called off", label.file_id, label.receiver)
            return
        hosts, urls, units = outgoing.counts[ItemKind.HOST], outgoing.urls, int(outgoing.mask.sum())
        self.sent.update(
            files=int(outgoing.size > 0), units=units, hosts=hosts, urls=urls, bytes=outgoing.size
        )
        self._context.warnings.over(f"to {label.receiver}")
        logger.info(
            "sent hand-over file %s to %s: %s, %s, %s, in %.1f s", label.file_id, label.receiver,
            counted(units, "unit"), counted(hosts, "host"), counted(urls, "URL"), seconds,
        )  # fmt: skip


class Receiver:
    """A `FileReceiver` that merges into the frontier of *context*."""

    def __init__(self, context: HandoverContext) -> None:
        self.at_work = 0  # files being merged
        self.counts: Counter[str] = Counter()  # files, hosts, urls, bytes
        self.ready = asyncio.Event()
        self._context = context
        self._failed = _no_units()  # units held back by files that failed
        self._open: set[str] = set()  # files that are not fully merged
        self._late: set[str] = set()  # open files whose last merge failed

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
                await asyncio.sleep(WAIT)  # until outgoing files of these units are settled
            context.hold_back(mask)
            self._failed &= ~mask
            context.foreign_units.mark_arriving(mask)
            await self._merge(label, path, mask)
            context.foreign_units.mark_arriving(mask)
            # Not after a cancellation: half-merged hosts must not be fetched.
            self._close(label, mask)
        except HandoverFileError as error:
            logger.warning(
                "refused hand-over file %s from %s: %s", label.file_id, label.sender, error
            )
            self._close(label, mask)
            raise
        except Exception as error:
            self._failed |= mask  # the file, or its successor, comes again
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
        units, fronts = context.units(mask), context.residents.fronts
        while units.by_host and any(map(units.has_host, fronts.hosts_leased())):
            await asyncio.sleep(WAIT)  # until no host of the units is being fetched
        load = HostLoad(context, units, path, label)

        def steps() -> Steps:
            yield from load.merge()
            yield from context.sync()

        try:
            await context.run_durably(steps, tries=MAX_TRIES)
        except StoreWriteError as error:
            raise TransportError(str(error)) from error
        hosts, urls = load.counts[ItemKind.HOST], _urls_in(load.counts)
        self.counts.update(files=1, hosts=hosts, urls=urls, bytes=size)
        logger.info(
            "received hand-over file %s from %s: %s, %s, in %.1f s", label.file_id, label.sender,
            counted(hosts, "host"), counted(urls, "URL"), time.perf_counter() - begin,
        )  # fmt: skip

    def _check(self, label: HandoverLabel) -> None:
        own = self._context.ownership.name
        if (label.crawl, label.receiver) != (self._context.crawl_id, own):
            raise HandoverFileError(
                f"a hand-over file for agent {label.receiver} of the crawl {label.crawl}; this is "
                f"{own} of {self._context.crawl_id}"
            )


def _urls_in(counts: Counter[int]) -> int:
    return counts[ItemKind.ROW] + counts[ItemKind.STATE] + counts[ItemKind.PRINTS]


def _no_units() -> Mask:
    return np.zeros(UNITS, np.bool_)


# The directory of a dead agent

PATIENCE: Final = 120.0  # seconds without progress after which an adoption fails
_CALLED_OFF: Final = "called_off"
_OUTBOX_ROWS: Final = 200

FetchMembership = Callable[[], Awaitable[Membership]]


class AdoptionResult(NamedTuple):
    files: int
    hosts: int
    urls: int
    links: int  # rows of the outbox that were put back into the queues
    unread: int  # rows of the outbox that cannot be read


async def adopt_directory(
    frontier: Frontier, store: RocksStore, ownership: Ownership, file_transport: FileTransport,
    folder: Path, *,
    crawl: str, view: FetchMembership, say: Callable[[str], None] = logger.info,
    patience: float = PATIENCE,
) -> AdoptionResult:  # fmt: skip
    """Give all hosts of *store*, locked as by a crawl, to their owners, by files in *folder*.

    *ownership* and *file_transport* are new, by the dead agent's name; *crawl* is the id. Raises
    `ClusterError`: the agent is still a member, or there is no other; `TransportError`: no progress
    for *patience* seconds; see `HandoverContext.refuse_sieve`. Idempotent.
    """
    await _update_members(ownership, view)

    async def give(units: Units, to: int, epoch: int) -> MovedUnits:
        raise ClusterError(f"{ownership.name} holds units: it is not dead")

    async def update_holders() -> None: ...

    offset = frontier.wall_offset
    context = HandoverContext(
        frontier, store, ownership, lambda: (time.time() - offset, time.time())
    )  # fmt: skip
    handover = Handover(context, file_transport, folder, give=give, update_holders=update_holders)
    links, unread = await _requeue_outbox(frontier, Outbox(store.kv("outbox")))
    running = asyncio.create_task(handover.run(crawl))
    try:
        await _until_empty(handover, running, ownership, view, say, patience)
    finally:
        await cancel_tasks(running)
        frontier.flush()
    sent = handover.sent
    return AdoptionResult(sent["files"], sent["hosts"], sent["urls"], links, unread)


async def _update_members(ownership: Ownership, view: FetchMembership) -> None:
    known = await view()
    row = known.row(ownership.name)
    if row is not None and row.state in (MemberState.ACTIVE, MemberState.LEAVING):
        raise ClusterError(
            f"agent {ownership.name} is still a member: remove it first, once its process is gone"
        )
    if not known.members:
        raise ClusterError("no agent is there that could take anything")
    ownership.set_membership(known)


async def _requeue_outbox(frontier: Frontier, outbox: Outbox) -> tuple[int, int]:
    """Queue the rows for others here; return the numbers of links, and of unreadable rows."""
    links = unread = 0
    for to in outbox.receivers:
        while rows := list(islice(outbox.rows(to), _OUTBOX_ROWS)):
            for _, row in rows:
                try:
                    entries = list[Entry](unpack_rows([row]))
                    frontier.admission.schedule(entries, time.time() - frontier.wall_offset)
                    links += len(entries)
                except MessageError as error:
                    logger.warning("a row of the outbox: %s", error)
                    unread += 1
            outbox.drop(to, rows[0][0], rows[-1][0])
            frontier.flush()
            await asyncio.sleep(0)
    return links, unread


async def _until_empty(
    handover: Handover, running: asyncio.Future[None], ownership: Ownership, view: FetchMembership,
    say: Callable[[str], None], patience: float,
) -> None:  # fmt: skip
    sent, progress = Counter[str](), handover.progress
    sent_at = moved_at = time.monotonic()
    while handover.busy:
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(running), _CHECK)
        known = await view()
        if known.epoch != ownership.epoch:
            await _update_members(ownership, view)
            handover.poke()
            sent_at = moved_at = time.monotonic()
        if handover.progress != progress:
            progress, moved_at = handover.progress, time.monotonic()
        before, sent = sent, handover.sent.copy()
        if sent[_CALLED_OFF] != before[_CALLED_OFF]:
            moved_at = sent_at  # a called-off file is no progress
        if sent["units"] != before["units"]:
            sent_at = time.monotonic()
            say(", ".join(f"{name}: {n:,}" for name, n in sent.items()))
        elif time.monotonic() - max(sent_at, moved_at) > patience:
            raise TransportError(f"nobody has taken anything for {patience:g} s")
