"""The runs that a fetcher holds: which of their URLs have ended, and what may be said of it.

Pure: the caller fetches, stores and keeps the time. A URL that ended is *reported* only once a
checkpoint is durable that has its links and its ending.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest
from typing import Final, NamedTuple

from scrapy_spider_suite.cluster.mailbox import unpack_foreign_row
from scrapy_spider_suite.cluster.run_blobs import Links, RunHosts, unpack_piece
from scrapy_spider_suite.cluster.run_owner import partition_of
from scrapy_spider_suite.cluster.run_queue import ENTRIES_MAX, Task
from scrapy_spider_suite.cluster.url_table import EVENT_NUMBERS, fingerprint
from scrapy_spider_suite.errors import BlobError, JobDamagedError
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.store.seen_transfer import host_of_state_key

LOW: Final = 100  # URLs of a slot that are left, with which its next run is asked for
LINGER: Final = 3.0  # seconds for which a slot without URLs is kept: its links may come back


class LinkBox:
    """Rows for the owners of partitions, in memory until a checkpoint takes them: *size* bytes."""

    def __init__(self) -> None:
        self._rows: defaultdict[int, list[bytes]] = defaultdict(list)
        self._count = self.size = 0

    def __len__(self) -> int:
        return self._count

    @property
    def receivers(self) -> dict[str, int]:
        return {f"partition {name}": len(rows) for name, rows in self._rows.items()}

    def put(self, to: str, row: bytes) -> None:
        self._rows[int(to)].append(row)
        self._count += 1
        self.size += len(row)

    def take(self) -> dict[int, list[bytes]]:
        rows, self._rows = self._rows, defaultdict(list)
        self._count = self.size = 0
        return rows


class HeldRun:
    """A run on the list of a fetcher. *reported*: a bit for each URL, as the server has them."""

    __slots__ = ("ended", "left", "reported", "task")

    def __init__(self, task: Task) -> None:
        urls = task.run.urls
        self.task = task
        self.left = urls  # URLs that have not ended
        self.ended: list[int] = []  # since the last checkpoint
        self.reported = bytearray(task.progress.ljust(-(-urls // 8), b"\0")[: -(-urls // 8)])

    def has(self, number: int) -> bool:
        return bool(self.reported[number >> 3] >> (number & 7) & 1)

    @property
    def finished(self) -> bool:
        return not (self.left or self.ended)


def _entries(hosts: RunHosts) -> Iterator[Entry]:
    try:
        for host, rows in hosts:
            for item in rows:
                row, mark = item if isinstance(item, tuple) else (item, "")
                yield unpack_foreign_row(host, row, mark)
    except (IndexError, ValueError, JobDamagedError) as error:
        raise BlobError(f"a run cannot be read: {error}", damaged=True) from error


def run_entries(task: Task, hosts: RunHosts) -> list[Entry]:
    """The URLs of a run with the rows of *hosts*, in order. Raises `BlobError`."""
    entries = list(_entries(hosts))
    if len(entries) != task.run.urls:
        text = f"a run of {counted(task.run.urls, 'URL')} has {len(entries)}"
        raise BlobError(text, damaged=True)
    return entries


def run_urls(slot: int, piece: bytes, progress: bytes) -> list[tuple[str, bool]]:
    """The URLs of a run, and whether each has ended by its *progress*. Raises `BlobError`."""
    bits = int.from_bytes(progress, "little")
    return [
        (entry.url, bool(bits >> number & 1))
        for number, entry in enumerate(_entries(unpack_piece(slot, piece)))
    ]


class RunCheckpoint(NamedTuple):
    """What becomes durable at once: *links* by partition; the URLs of *runs* that ended."""

    links: dict[int, Links]
    runs: list[tuple[HeldRun, list[int]]]


class HeldRuns:
    """The loaded runs of a fetcher, by their ids; *slots*: the ids of each slot."""

    def __init__(self) -> None:
        self.runs: dict[bytes, HeldRun] = {}
        self.slots: dict[int, set[bytes]] = {}
        self.changed: dict[bytes, None] = {}  # runs of which the server has not heard all
        self.done = Counter[str]()  # URLs by queue, since the start
        self.failed = Counter[str]()
        self._rows: dict[bytes, list[tuple[HeldRun, int]]] = {}  # by the keys of their URLs
        self._endings: defaultdict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
        self._asked: dict[int, float] = {}
        self._empty_since: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, task: Task, entries: Sequence[Entry]) -> list[Entry]:
        """Take a run of *entries*; those that are to be fetched: they have not ended, and are in no
        other run.
        """
        run = HeldRun(task)
        self.runs[task.run.id] = run
        self.slots.setdefault(task.slot, set()).add(task.run.id)
        self._empty_since.pop(task.slot, None)
        left: dict[bytes, Entry] = {}
        for number, entry in enumerate(entries):
            if run.has(number):
                run.left -= 1
            else:
                here = self._rows.setdefault(entry.identity, [])
                if not here:
                    left[entry.identity] = entry
                here.append((run, number))
        return list(left.values())

    def end(self, identity: bytes, event: Event | None, status: int, when: float) -> None:
        """A URL has ended: with *event* at *when* (wall), or it was forgotten (None)."""
        found = self._rows.pop(identity, None)
        if found is None:
            return  # of no run
        for run, number in found:
            run.left -= 1
            run.ended.append(number)
        if event is not None:
            failed = event.outcome.state is State.FAILED
            (self.failed if failed else self.done)[found[0][0].task.queue] += 1
            partition = partition_of(host_of_state_key(identity))
            row = (fingerprint(identity), EVENT_NUMBERS[event], status, int(when))
            self._endings[partition].append(row)

    def cut(self, rows: dict[int, list[bytes]]) -> RunCheckpoint:
        """What has come since the last checkpoint, with the *rows* for owners."""
        endings, self._endings = self._endings, defaultdict(list)
        links = {
            partition: Links(rows.get(partition, []), endings.get(partition, []))
            for partition in sorted(rows.keys() | endings.keys())
        }
        runs = []
        for run in self.runs.values():
            if run.ended:
                runs.append((run, run.ended))
                run.ended = []
        return RunCheckpoint(links, runs)

    def settle(self, checkpoint: RunCheckpoint) -> None:
        """*checkpoint* is durable: its URLs may be reported."""
        for run, numbers in checkpoint.runs:
            for number in numbers:
                run.reported[number >> 3] |= 1 << (number & 7)
            self.changed[run.task.run.id] = None

    @property
    def unsaid(self) -> bool:
        """Whether anything came since the last checkpoint."""
        return bool(self._endings) or any(run.ended for run in self.runs.values())

    def progress(self, most: int = ENTRIES_MAX) -> dict[bytes, bytes]:
        """Bits of some *most* unfinished runs of which the server has not heard all."""
        found = dict[bytes, bytes]()
        for id in list(self.changed):
            run = self.runs.get(id)
            if run is None or run.finished:
                del self.changed[id]
            elif len(found) < most:
                found[id] = bytes(run.reported)
        return found

    def said(self, ids: Sequence[bytes]) -> None:
        """The server has heard of the progress of runs."""
        for id in ids:
            self.changed.pop(id, None)

    # Slots

    def left(self, slot: int) -> int:
        return sum(self.runs[id].left for id in self.slots.get(slot, ()))

    def low(self, now: float, most: int = ENTRIES_MAX, *, spared: int = 0) -> list[int]:
        """Some *most* slots whose next run is to be asked for, those first not asked for long.

        *spared*: so many slots go to other fetchers once they are done.
        """
        left = {slot: self.left(slot) for slot in self.slots}
        given_up = set(nsmallest(spared, left, key=left.__getitem__))
        low = [slot for slot, count in left.items() if count <= LOW and slot not in given_up]
        low.sort(key=lambda slot: self._asked.get(slot, 0.0))
        for slot in low[:most]:
            self._asked[slot] = now
        return low[:most]

    def finished(self) -> Iterator[bytes]:
        """Runs that are done while their slot has others."""
        for ids in self.slots.values():
            done = [id for id in ids if self.is_done(id)]
            yield from done if len(done) < len(ids) else done[1:]

    def empty(self, now: float, linger: float = LINGER) -> list[int]:
        """Slots all of whose runs are done since *linger* seconds."""
        found = []
        for slot, ids in self.slots.items():
            if all(map(self.is_done, ids)):
                since = self._empty_since.setdefault(slot, now)
                if now - since >= linger:
                    found.append(slot)
        return found

    def is_done(self, id: bytes) -> bool:
        """Whether all URLs of a run have ended, and may be reported."""
        run = self.runs[id]
        urls = run.task.run.urls
        return run.finished and int.from_bytes(run.reported).bit_count() >= urls

    def remove(self, ids: Iterable[bytes]) -> None:
        """The runs are no longer on the list; their URLs are none of this fetcher's."""
        left = set[bytes]()  # runs with URLs that have not ended
        for id in list(ids):
            run = self.runs.pop(id, None)
            if run is None:
                continue
            slot = run.task.slot
            self.slots[slot].discard(id)
            if not self.slots[slot]:
                del self.slots[slot]
                self._asked.pop(slot, None)
                self._empty_since.pop(slot, None)
            self.changed.pop(id, None)
            if run.left:
                left.add(id)
        for key, found in list(self._rows.items()) if left else ():
            kept = [each for each in found if each[0].task.run.id not in left]
            if not kept:
                del self._rows[key]
            elif len(kept) < len(found):
                self._rows[key] = kept
