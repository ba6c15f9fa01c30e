"""An owner of URLs: tests the links that come for its partitions, and builds runs of the new ones.

An owner keeps nothing: what a partition knows lies in blobs, which its manifest in Redis names. So
whoever owns the partition next goes on there. A partition has 1,024 slots.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
import numpy as np

from scrapy_spider_suite.cluster.assignment import Member, Owners, Ring
from scrapy_spider_suite.cluster.mailbox import unpack_row_of_agent
from scrapy_spider_suite.cluster.run_blobs import (
    BlobFolder,
    Links,
    Place,
    RunHosts,
    RunRow,
    pack_piece,
    pack_waiting,
    unpack_links,
    unpack_waiting,
)
from scrapy_spider_suite.cluster.run_queue import (
    ENTRIES_MAX,
    URLS_MAX,
    PartitionCommit,
    Run,
    RunQueue,
)
from scrapy_spider_suite.cluster.url_table import EVENTS, Ending, UrlTable, fingerprint
from scrapy_spider_suite.errors import BlobError, FencedError, MessageError, RegistryError
from scrapy_spider_suite.frontier.entries import UNITS, Entry, Flag, slot_of, state_key
from scrapy_spider_suite.runtime.tasks import WarnOnce
from scrapy_spider_suite.store.rows import pack_row
from scrapy_spider_suite.store.seen_transfer import LinkOrigin, entry_of

logger = logging.getLogger(__name__)

PARTITIONS: Final = 64
SLOTS: Final = UNITS // PARTITIONS  # of a partition
QUEUE: Final = "bulk"  # of links
OPEN_MAX: Final = 300.0  # seconds for which a URL waits until a run is cut all the same
ROWS_MAX: Final = 65_536  # rows of a partition that wait; with more, runs are cut earlier
_FREE: Final = 64  # slots with runs: with fewer, fetchers may soon have nothing to do
_SEGMENTS: Final = 8  # of waiting rows, from which on they may be written anew as one
_NEWER: Final = 4  # they are, once a quarter of the rows came since the last time
_SEGMENTS_MAX: Final = 16  # with which they are in any case: a commit names their blobs
_INLINE: Final = 100  # bytes of a piece that lies in the entry itself
_CYCLE, _CLEAR, _RETRY = 1.0, 5.0, 2.0  # seconds
_NEW: Final = Ending(None, 0, 0)
_ASKED = Flag.DONT_FILTER | Flag.START


def partition_of(host: str) -> int:
    return slot_of(host) // SLOTS


class Partitions(Ring):
    """`Assignment` by which all units of a partition have one owner."""

    def table(self, members: Sequence[Member]) -> Owners:
        middle = super().table(members)[SLOTS // 2 :: SLOTS]
        return np.repeat(middle, SLOTS)


class Manifest(msgspec.Struct, array_like=True):
    """What a partition knows: places of segments, the oldest first.

    *waiting*: of rows in no run yet, each with the number of its commit. *cut*: by slot a number of
    a commit; of the segments up to there all rows of the slot went into runs, or came again.
    """

    known: list[bytes] = []
    waiting: list[tuple[int, bytes]] = []
    cut: dict[int, int] = {}


@dataclass(slots=True)
class WaitingRows:
    """Rows of a slot by host, that came *since* then."""

    since: float
    hosts: dict[str, list[RunRow]] = field(default_factory=dict)
    count: int = 0

    def add(self, host: str, row: RunRow) -> None:
        self.hosts.setdefault(host, []).append(row)
        self.count += 1


RunOf = tuple[int, RunHosts]
"""The slot and the hosts of a run, each with its rows."""


class Partition:
    """What the owner of a partition knows, and its next commit.

    Each step changes it; whoever cannot commit reads it again from the last manifest.
    """

    def __init__(
        self, number: int, commits: int, manifest: Manifest, folder: Path,
        read: Callable[[bytes], bytes], now: float,
    ) -> None:  # fmt: skip
        """*read* reads a place. Raises `BlobError`, `OSError`."""
        self.number, self.commits, self.manifest = number, commits, manifest
        self.table = UrlTable(folder, map(read, manifest.known))
        self.waiting: dict[int, WaitingRows] = {}
        self.open = 0  # rows in no run yet
        for commit, place in manifest.waiting:
            for slot, hosts in unpack_waiting(number, read(place)):
                if commit > manifest.cut.get(slot, 0):
                    self._keep(slot, ((host, row) for host, rows in hosts for row in rows), now)
        self._fresh: dict[int, WaitingRows] = {}  # that came since the last commit
        self._newer = self.open  # rows that came since all were written anew
        self._endings: list[tuple[int, Ending]] = []

    def _keep(self, slot: int, rows: Iterable[tuple[str, RunRow]], now: float) -> None:
        waiting = self.waiting.setdefault(slot, WaitingRows(now))
        for host, row in rows:
            waiting.add(host, row)
            self.open += 1

    def take(self, links: Links, now: float) -> int:
        """Take *links*; how many of the URLs were new. Raises `MessageError`: nothing was taken."""
        came: dict[int, Entry | tuple[bytes, LinkOrigin]] = {}
        for row in links.rows:
            found = unpack_row_of_agent(row)
            if isinstance(found, Entry):
                came[fingerprint(found.identity)] = found
                continue
            for origin, keys in found:
                for key in keys:  # of a request and a link to its page the request is kept
                    came.setdefault(fingerprint(key), (key, origin))
        endings = [
            (key, Ending(EVENTS[number], status, when))
            for key, number, status, when in links.endings
        ]
        known = self.table.known(np.fromiter(came, np.uint64, len(came))).tolist()
        # URLs of this commit are not in the table yet.
        lately = {key for key, _ in self._endings}
        before = len(self._endings)
        for (print_, item), there in zip(came.items(), known, strict=True):
            met = there or print_ in lately
            if isinstance(item, Entry):
                # Each fetcher makes the requests of ``start()``.
                if not met or item.flags & _ASKED == Flag.DONT_FILTER:
                    self._add(print_, item, now)
            elif not met:
                self._add(print_, entry_of(*item), now)
        new = len(self._endings) - before
        self._endings += endings
        return new

    def _add(self, print_: int, entry: Entry, now: float) -> None:
        slot, row = slot_of(entry.host), pack_row(entry)
        item: RunRow = (row, entry.seed_note) if entry.seed_note else row
        self._endings.append((print_, _NEW))
        self._keep(slot, [(entry.host, item)], now)
        self._newer += 1
        self._fresh.setdefault(slot, WaitingRows(now)).add(entry.host, item)

    def due(self, now: float, *, hungry: bool) -> list[int]:
        """Slots of which runs are to be cut now, the longest first.

        A slot has a full run; or there are *hungry* fetchers; or its rows wait for long; or too
        many wait.
        """
        everything = hungry or self.open > ROWS_MAX
        slots = [
            slot for slot, rows in self.waiting.items()
            if everything or rows.count >= URLS_MAX or now - rows.since >= OPEN_MAX
        ]  # fmt: skip
        return sorted(slots, key=lambda slot: -self.waiting[slot].count)

    def cut(self, slots: Iterable[int], most: int) -> list[RunOf]:
        """Cut *most* runs of *slots*, or fewer."""
        runs: list[RunOf] = []
        for slot in slots:
            if len(runs) == most:
                break
            rows = self.waiting.pop(slot)
            self.open -= rows.count
            self._fresh.pop(slot, None)
            self.manifest.cut[slot] = self.commits
            for run in _pieces(rows.hosts):
                if len(runs) < most:
                    runs.append((slot, run))
                    continue
                rest = [(host, row) for host, found in run for row in found]
                self._keep(slot, rest, rows.since)
                self._fresh[slot] = self.waiting[slot]
        return runs

    def segments(self) -> tuple[bytes | None, bytes | None, int]:
        """New segments of known and of waiting rows; how many of the known ones go for it.

        The waiting segment stands for all earlier ones if `manifest.waiting` is empty.
        """
        known, merged = None, 0
        if self._endings:
            known = self.table.add(self._endings)
            if (found := self.table.merge()) is not None:
                merged, known = found[0] - 1, found[1]
        segments = len(self.manifest.waiting)
        outgrown = segments >= _SEGMENTS and self._newer * _NEWER >= self.open
        if outgrown or segments >= _SEGMENTS_MAX or not self.waiting:
            self._fresh, self._newer = self.waiting, 0
            self.manifest.waiting, self.manifest.cut = [], {}
        waiting = None
        if self._fresh:
            rows = [(slot, list(each.hosts.items())) for slot, each in self._fresh.items()]
            waiting = pack_waiting(self.number, rows)
        return known, waiting, merged

    def committed(self) -> None:
        self.commits += 1
        self._fresh = {}
        self._endings = []


def _pieces(hosts: Mapping[str, list[RunRow]]) -> Iterator[RunHosts]:
    """Runs of `URLS_MAX` rows: of each host some, so that a run has many hosts."""
    left = {host: iter(rows) for host, rows in hosts.items()}
    count = sum(map(len, hosts.values()))
    runs = -(-count // URLS_MAX)
    shares = {host: -(-len(rows) // runs) for host, rows in hosts.items()}
    run: RunHosts = []
    size = 0
    while left:
        for host in list(left):
            rows = list(islice(left[host], min(shares[host], URLS_MAX - size)))
            if rows:
                run.append((host, rows))
                size += len(rows)
            if size == URLS_MAX:
                yield run
                run, size = [], 0
            elif len(rows) < shares[host]:
                del left[host]
    if run:
        yield run


class Owner:
    """Works for the partitions that the agent *who* (name, incarnation) owns and holds.

    *mine*: their numbers. *folder*: for copies of segments.
    """

    def __init__(
        self, queue: RunQueue, blobs: BlobFolder, who: tuple[str, str], folder: Path,
        mine: Callable[[], set[int]], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self.new = self.cut = self.lost = 0  # URLs, runs, and blobs of links that cannot be read
        self._queue, self._blobs, self._who = queue, blobs, who
        self._folder, self._mine, self._clock = folder, mine, clock
        self._partitions: dict[int, Partition] = {}
        self._cleared = 0.0
        self.one = asyncio.Lock()  # held while it works
        self._warnings = WarnOnce(logger, "the shared queue")

    async def run(self) -> None:
        """Work until cancelled."""
        self._folder.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                async with self.one:
                    busy = await self.work()
                self._warnings.over("owner")
            except (RegistryError, FencedError, BlobError, OSError) as error:
                self._partitions.clear()
                if not isinstance(error, FencedError):  # of which the heartbeat tells
                    self._warnings.say("owner", error)
                await asyncio.sleep(_RETRY)
            else:
                await asyncio.sleep(0 if busy else _CYCLE)

    def let_go(self) -> None:
        """Forget all partitions: others may have them, or had them."""
        self._partitions.clear()

    async def work(self) -> bool:
        """Take what came, commit what came of it; whether more waits.

        Raises `RegistryError`, `FencedError`, `BlobError`, `OSError`: call `let_go`.
        """
        mine = self._mine()
        for number in self._partitions.keys() - mine:
            del self._partitions[number]
        if missing := sorted(mine - self._partitions.keys()):
            await self._load(missing)
        if not self._partitions:
            return False
        came = await self._queue.take(list(self._partitions))
        hungry = came.free.get(QUEUE, 0) < _FREE
        drafts, busy = await asyncio.to_thread(self._draft, came.places, hungry)
        if drafts:
            await self._commit(drafts)
        if self._clock() - self._cleared >= _CLEAR:
            self._cleared = self._clock()
            await self._clear()
        return busy or len(came.places) == ENTRIES_MAX

    async def _load(self, numbers: list[int]) -> None:
        found = await self._queue.owned(numbers)
        for number, (commits, packed) in zip(numbers, found, strict=True):
            manifest = _manifest(packed)
            self._partitions[number] = await asyncio.to_thread(
                Partition, number, commits, manifest, self._folder, self._read, self._clock()
            )

    def _read(self, place: bytes) -> bytes:
        return self._blobs.read(Place.from_bytes(place))

    def _draft(
        self, places: Mapping[int, Sequence[bytes]], hungry: bool
    ) -> tuple[list[Draft], bool]:
        drafts, room, now, busy = list[Draft](), ENTRIES_MAX, self._clock(), False
        for number, partition in list(self._partitions.items()):
            taken = places.get(number, ())
            for place in taken:
                self._take(partition, place, now)
            runs = partition.cut(partition.due(now, hungry=hungry), room) if room else []
            room -= len(runs)
            busy = busy or not room
            if taken or runs:
                drafts.append(Draft(partition, len(taken), runs))
            if len(drafts) == ENTRIES_MAX:
                busy = True
                break
        return drafts, busy

    def _take(self, partition: Partition, place: bytes, now: float) -> None:
        try:
            links = unpack_links(partition.number, self._read(place))
            self.new += partition.take(links, now)
        except (BlobError, MessageError) as error:
            if isinstance(error, BlobError) and not (error.missing or error.damaged):
                raise  # the folder is away: it stays where it is
            self.lost += 1
            logger.error("%s: the links in it are lost", error)

    async def _commit(self, drafts: list[Draft]) -> None:
        blob, parts = await asyncio.to_thread(self._write, drafts)
        while True:
            try:
                done = await self._queue.commit(*self._who, parts)
                break
            except RegistryError as error:  # it may have run
                self._warnings.say("owner", error)
                await asyncio.sleep(_RETRY)
        for draft, ok in zip(drafts, done, strict=True):
            if ok:
                draft.partition.committed()
                self.cut += len(draft.runs)
            else:  # another agent owns it
                self._partitions.pop(draft.partition.number, None)
        if blob is not None and not any(done):
            await asyncio.to_thread(self._blobs.remove, blob)

    def _write(self, drafts: list[Draft]) -> tuple[bytes | None, list[PartitionCommit]]:
        pieces: list[bytes] = []
        for draft in drafts:
            draft.pack(pieces)
        places = self._blobs.write(pieces) if pieces else []
        parts = [draft.commit(places) for draft in drafts]
        return places[0].blob if places else None, parts

    async def _clear(self) -> None:
        """Remove blobs that nothing uses."""
        left = []
        for blob in await self._queue.litter():
            try:
                await asyncio.to_thread(self._blobs.remove, blob)
            except BlobError as error:
                self._warnings.say("litter", error)
                left.append(blob)
        if left:
            await self._queue.litter(left)


async def read_ending(
    queue: RunQueue, blobs: BlobFolder, host: str, url: str
) -> Ending | None:  # fmt: skip
    """How *url* ended, by all segments of its partition; None: its owner does not know it.

    Raises `RegistryError`, `BlobError`.
    """
    [(_, packed)] = await queue.owned([partition_of(host)])
    manifest = _manifest(packed)
    with TemporaryDirectory() as name:
        read = (blobs.read(Place.from_bytes(place)) for place in manifest.known)
        table = await asyncio.to_thread(UrlTable, Path(name), read)
        return table.ending(fingerprint(state_key(host, url)))


def _manifest(packed: bytes) -> Manifest:
    try:
        return msgspec.msgpack.decode(packed, type=Manifest) if packed else Manifest()
    except (ValueError, RecursionError) as error:
        text = f"Redis holds a manifest that the suite did not write: {error}"
        raise RegistryError(text, "damaged") from error


class Draft:
    """What a commit of *partition* is made of, after *taken* places of links and with *runs*."""

    def __init__(self, partition: Partition, taken: int, runs: list[RunOf]) -> None:
        self.partition, self.taken, self.runs = partition, taken, runs
        self._before = list(partition.manifest.known), list(partition.manifest.waiting)
        known, waiting, self._merged = partition.segments()
        self._segments = known, waiting
        self._inline: list[bytes] = []
        self._at: list[int | None] = []  # of the pieces in the blob: of runs, known, waiting

    def pack(self, pieces: list[bytes]) -> None:
        """Add to the *pieces* of a blob."""
        for slot, hosts in self.runs:
            piece = pack_piece(slot, hosts)
            self._inline.append(piece)
            self._at.append(None if len(piece) <= _INLINE else len(pieces))
            if len(piece) > _INLINE:
                pieces.append(piece)
        for segment in self._segments:
            self._at.append(None if segment is None else len(pieces))
            if segment is not None:
                pieces.append(segment)

    def commit(self, places: Sequence[Place]) -> PartitionCommit:
        """The commit, with the pieces at *places*."""
        partition, manifest = self.partition, self.partition.manifest
        *at, known, waiting = self._at
        number = partition.commits + 1
        if self._merged:
            del manifest.known[-self._merged :]
        if known is not None:
            manifest.known.append(places[known].to_bytes())
        if waiting is not None:
            manifest.waiting.append((number, places[waiting].to_bytes()))
        before = {*self._before[0], *(place for _, place in self._before[1])}
        after = {*manifest.known, *(place for _, place in manifest.waiting)}
        return PartitionCommit(
            partition.number, partition.number * SLOTS, number, secrets.token_bytes(8),
            msgspec.msgpack.encode(manifest), partition.open, self.taken,
            [
                (QUEUE, slot, Run(
                    secrets.token_bytes(8), sum(len(rows) for _, rows in hosts),
                    b"\0" + piece if place is None else b"\1" + places[place].to_bytes(),
                ))
                for (slot, hosts), piece, place in zip(self.runs, self._inline, at, strict=True)
            ],
            [place[:8] for place in after - before], [place[:8] for place in before - after],
        )  # fmt: skip
