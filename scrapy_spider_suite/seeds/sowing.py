"""From the lines of a list to seeds in a job, which keeps how far it has come.

What was taken and the position behind it are put into the same batch of the store, or a later one:
whoever goes on from a stored position after a kill may see a line twice, which changes nothing,
but leaves none out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.frontier.entries import Entry, Flag, state_key
from scrapy_spider_suite.storage.frontier import Frontier
from scrapy_spider_suite.store.interface import KV, Store
from scrapy_spider_suite.store.url_states import mark_of
from scrapy_spider_suite.urls.normalize import host_of
from scrapy_spider_suite.urls.url_lists import LONGEST, BadLine, Seed, SeedLines

Plant = Callable[[Sequence[Seed]], int]
"""Makes seeds pending unless they are known; returns how many were new."""

_PIECE = 8
"""Lines between two looks at the clock."""
_KEPT = 10_000
"""Bad lines of a list that are kept; the others are counted."""
_SHOWN = 5
_LISTS, _BAD = "seed_lists", "bad_seeds"
_START = int(Flag.START)


@dataclass(slots=True)
class Sown:
    """How much of a list was taken in. All but *first_bad* are counts; *sent*: to other agents."""

    lines: int = 0
    seeds: int = 0
    new: int = 0
    bad: int = 0
    first_bad: list[str] = field(default_factory=list)
    sent: int = 0


class Sower:
    """Takes the text of one list, handed in in blocks, in pieces; *name* is what it is known by.

    *lines* reads it. Call `resume` first to go on where an earlier run was.
    """

    def __init__(self, store: Store, plant: Plant, lines: SeedLines, name: str) -> None:
        self.at = 0
        """Bytes of the text that were taken, to the end of a line."""
        self.sown = Sown()
        self.ended = False
        self._lists, self._bad = store.kv(_LISTS), bad_store(store)
        self._plant = plant
        self._lines = lines
        self.name = name
        self._key = name.encode("utf-8", "replace")
        self._of: list[int] = []
        self._rest = b""
        self._left_out = 0  # bytes of the last line, which is too long, that are not in _rest
        self._waiting: list[bytes] = []
        self._next = 0

    def resume(self, of: Sequence[int]) -> bool:
        """Go on from the stored position if it is one in the same file; whether it is.

        *of* tells files of one name apart (size, time of the last change).
        """
        self._of = list(of)
        data = self._lists.get(self._key)
        if data is None:
            return False
        kept = msgpack.unpackb(data)
        if kept["of"] != self._of:
            return False
        self.at, self.ended = kept["at"], kept["ended"]
        lines = self._lines
        lines.origin, lines.tag, lines.line = kept["lines"]
        self.sown = Sown(**kept["sown"])
        return True

    def save(self) -> None:
        """Put the position into the store's next batch."""
        lines = self._lines
        kept = {
            "of": self._of, "at": self.at, "ended": self.ended,
            "lines": [lines.origin, lines.tag, lines.line],
            "sown": asdict(self.sown),
        }  # fmt: skip
        self._lists.put(self._key, msgpack.packb(kept))

    def forget(self) -> None:
        """The list does not come again: its position goes, what was bad in it stays."""
        self._lists.delete(self._key)

    def feed(self, block: bytes) -> None:
        """Hand in the next *block* of the text; all that was handed in before must be taken."""
        first, *more = block.split(b"\n")
        room = max(0, LONGEST + 1 - len(self._rest))
        self._rest += first[:room]
        self._left_out += len(first) - len(first[:room])
        if more:
            self._waiting, self._next = [self._rest, *more[:-1]], 0
            self.at += self._left_out
            self._rest, self._left_out = more[-1], 0

    def end_of_text(self) -> None:
        """Nothing more is handed in: what is left is the last line."""
        if self._rest:
            self._waiting, self._next = [*self._waiting[self._next :], self._rest], 0
            self._rest = b""

    @property
    def more(self) -> bool:
        """Whether anything that was handed in is left to be taken."""
        return self._next < len(self._waiting)

    def take(self) -> None:
        """Take the next few lines."""
        seeds = []
        piece = self._waiting[self._next : self._next + _PIECE]
        self._next += len(piece)
        for raw in piece:
            self.at += len(raw) + 1
            read = self._lines.read(raw)
            if isinstance(read, Seed):
                seeds.append(read)
            elif read is not None:
                note_bad(self._bad, self._key, self.sown, read)
        self.sown.lines += len(piece)
        self.sown.seeds += len(seeds)
        if seeds:
            self.sown.new += self._plant(seeds)


def bad_store(store: Store) -> KV:
    """Where *store* keeps the lines that were no seeds."""
    return store.kv(_BAD)


def note_bad(kept: KV, key: bytes, sown: Sown, bad: BadLine) -> None:
    """Count *bad* in *sown*, and keep it among those of the list *key*, if there is room."""
    if len(sown.first_bad) < _SHOWN:
        sown.first_bad.append(str(bad))
    if sown.bad < _KEPT:
        # By its number, so that a line that is seen twice is kept once.
        row = key + b"\0" + sown.bad.to_bytes(4, "big")
        kept.put(row, msgpack.packb([bad.origin, bad.line, bad.text, bad.why]))
    sown.bad += 1


def bad_lines(store: Store) -> Iterator[BadLine]:
    """The lines of all lists that were no seeds, as far as they were kept."""
    for _, value in bad_store(store).items():
        yield BadLine(*msgpack.unpackb(value))


def planter(
    frontier: Frontier, now: Callable[[], float], priority: int = 0,
    given: Callable[[], bool] = lambda: True,
) -> Plant:  # fmt: skip
    """Make seeds pending as links without a page; *given* as in `Frontier.schedule`."""

    def plant(seeds: Sequence[Seed]) -> int:
        entries = []
        for seed in seeds:
            host, mark = host_of(seed.url), mark_of(seed.tag, guessed=seed.guessed)
            key = state_key(host, seed.url)
            entries.append(Entry(host, seed.url, key, priority, flags=_START, mark=mark))
        return frontier.schedule(entries, now(), given=given())

    return plant
