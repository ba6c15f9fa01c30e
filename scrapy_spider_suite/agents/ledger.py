"""The ledger: one politeness for several processes, about hosts and addresses that they share.

A *key* is a host or an address. Who wants to fetch there asks for a *grant*: leave to start one
fetch within a window of time. Nobody else gets one for that key until the holder has said when its
fetch ended, and then a delay runs from that end (promise 1); or until the grant has run out, at the
end of its window and as long after as a fetch may last, so that a holder that was killed blocks a
key no longer than that. Delays may differ: who asks waits for its own after anybody's end, and for
that of who fetched. A wish (Retry-After, a back-off) that one of them heard holds for all.

Two implementations: `ledger_redis.RedisLedger` and `ledger_file.FileLedger`, a file that the
processes of one machine share. Both decide in one way (`accounts`, ``lua/ledger.lua``).
What a process does with it is in `grants`, without a clock or a connection, and in `lending`.

Times are whole milliseconds, and none is a time of day: the two clocks of a ledger and of a process
need not agree. What a process says lies so long ago, what it is told so far ahead of when its call
was answered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from xxhash import xxh3_128_hexdigest

from scrapy_spider_suite.frontier.politeness import LONGEST_WISH

KEY_MAX: Final = 300
"""Characters of a key."""

BATCH: Final = 500
"""Lines of one call; some milliseconds of Redis's time."""

WISH_MAX: Final = round(LONGEST_WISH * 1000)
"""Milliseconds that a delay or a wish may have."""

HOLD_MAX: Final = 86_400_000
"""Milliseconds that a fetch may last."""


NOBODY: Final = "0" * 16
"""The process that there is none of."""

_PROCESS: Final = re.compile(r"[0-9a-f]{16}")


def host_key(host: str) -> str:
    """The key of a host, by the name under which it is paced."""
    return _bounded(f"host {host}")


def address_key(address: str) -> str:
    """The key of an address in its usual spelling."""
    return _bounded(f"address {address}")


def _bounded(key: str) -> str:
    if len(key) <= KEY_MAX:
        return key
    return f"{key[:100]} {xxh3_128_hexdigest(key.encode(errors='surrogatepass'))}"


class End(NamedTuple):
    """A fetch ended *ago*, and *delay* runs from there; the grant is over."""

    key: str
    serial: int
    ago: int
    delay: int


class Return(NamedTuple):
    """A grant that was not used, or that may have been given without the caller's knowledge."""

    key: str
    serial: int


class Wish(NamedTuple):
    """Nobody is to fetch for the next *wait*."""

    key: str
    wait: int


class Line(NamedTuple):
    """One key of an `Ask`. *serial* is that of the grant: the caller's own number, never used
    twice. Whoever asks again with it, because no answer came or because its visit goes on, has the
    same grant, and its window anew.
    """

    key: str
    serial: int
    delay: int


class Batch(NamedTuple):
    """One call: what ended and what was returned come first, and can be asked for at once.

    *process* are 16 hexadecimal digits, drawn at random; *era* is that of the last reply (0: none
    yet). *longest* is the longest delay that the caller knows of, its own or told. A grant has a
    *window* in which a fetch may start, and runs out *hold* after it. It is given up to *ahead*
    before it begins.
    """

    process: str
    era: int
    longest: int
    window: int
    hold: int
    ahead: int
    ends: tuple[End, ...] = ()
    returns: tuple[Return, ...] = ()
    wishes: tuple[Wish, ...] = ()
    asks: tuple[tuple[Line, ...], ...] = ()
    """Each is answered for all its keys or none."""

    def all_keys(self) -> list[str]:
        """Every key in it, once."""
        asked = (line for ask in self.asks for line in ask)
        lines: Iterable[Any] = chain(self.ends, self.returns, self.wishes, asked)
        return list(dict.fromkeys(line.key for line in lines))


class Answer(NamedTuple):
    """To one ask: fetches may start from *opens* to *closes* after now; or ask again in *wait*.

    It is granted if *closes* is not 0.
    """

    opens: int = 0
    closes: int = 0
    wait: int = 0


class Reply(NamedTuple):
    """What the ledger says to a batch.

    *era*: another one means that the ledger may have lost what it knew. *longest* is the longest
    delay that anybody asked for. *damaged* are keys under which is what no ledger wrote: nothing is
    granted there until it is removed.
    """

    era: int
    longest: int
    answers: tuple[Answer, ...]
    damaged: tuple[str, ...] = ()


class Ledger(Protocol):
    """Where grants are kept."""

    where: str
    """For messages, without a password."""

    async def settle(self, batch: Batch) -> Reply:
        """Do all of *batch* at one instant, and answer.

        Raises `LedgerError`: the ledger cannot be used now; what was asked for may have been done.
        Sending it again does no harm.
        """
        ...

    async def close(self) -> None:
        """Let go of it; never raises."""
        ...


def check(batch: Batch) -> None:
    """Raise `ValueError` if *batch* is none that a ledger takes."""
    spans = [line.delay for ask in batch.asks for line in ask]
    spans += [wish.wait for wish in batch.wishes] + [end.delay for end in batch.ends]
    spans += [end.ago for end in batch.ends] + [batch.longest]
    grants = (batch.window, batch.hold, batch.ahead)
    good = all(0 <= span <= WISH_MAX for span in spans)
    if not _PROCESS.fullmatch(batch.process) or batch.process == NOBODY:
        raise ValueError(f"{batch.process!r} is no name of a process: 16 hexadecimal digits")
    if not good or not all(0 <= span <= HOLD_MAX for span in grants) or not batch.window:
        raise ValueError("a time in a batch is below 0 or too long")
    if any(not 0 < len(key) <= KEY_MAX for key in batch.all_keys()):
        raise ValueError("a key is empty or too long")


class Said(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What comes from Redis, before it is believed."""

    era: int
    longest: int
    answers: list[tuple[int, int, int]]
    damaged: list[int]


def pack(batch: Batch, indexes: dict[str, int]) -> bytes:
    """*batch* for Lua, with the number of each key in place of it."""

    def numbered(lines: Any) -> list[list[Any]]:
        return [[indexes[line.key], *line[1:]] for line in lines]

    given = [
        *batch[:6], numbered(batch.ends), numbered(batch.returns), numbered(batch.wishes),
        [numbered(ask) for ask in batch.asks],
    ]  # fmt: skip
    return msgspec.msgpack.encode(given)


def unpack(data: bytes, batch: Batch, keys: list[str]) -> Reply:
    """What Lua answered to *batch*. Raises `ValueError`: it is no answer."""
    said = msgspec.msgpack.decode(data, type=Said)
    spans = [span for answer in said.answers for span in answer]
    bound = 2 * WISH_MAX + 2 * HOLD_MAX
    if len(said.answers) != len(batch.asks) or not all(0 <= span <= bound for span in spans):
        raise ValueError("answers that fit no question")
    if not all(0 <= index < len(keys) for index in said.damaged) or said.era <= 0:
        raise ValueError("keys or an era that cannot be")
    if not 0 <= said.longest <= WISH_MAX:
        raise ValueError("a delay that cannot be")
    answers = tuple(Answer(*answer) for answer in said.answers)
    return Reply(said.era, said.longest, answers, tuple(keys[index] for index in said.damaged))
