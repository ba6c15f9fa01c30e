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

What the ledger knows of a key, and what it says to who asks; ``lua/ledger.lua`` does the same.

Pure: the time is an argument, in milliseconds of whatever clock the ledger has. Times of 0 mean
never.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import Struct
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


def host_grant_key(host: str) -> str:
    """The key of a host, by the name under which it is paced."""
    return _bounded(f"host {host}")


def address_grant_key(address: str) -> str:
    """The key of an address in its usual spelling."""
    return _bounded(f"address {address}")


def _bounded(key: str) -> str:
    if len(key) <= KEY_MAX:
        return key
    return f"{key[:100]} {xxh3_128_hexdigest(key.encode(errors='surrogatepass'))}"


class FetchEnd(NamedTuple):
    """A fetch ended *ago*, and *delay* runs from there; the grant is over."""

    key: str
    serial: int
    ago: int
    delay: int


class ReturnedGrant(NamedTuple):
    """A grant that was not used, or that may have been given without the caller's knowledge."""

    key: str
    serial: int


class DelayWish(NamedTuple):
    """Nobody is to fetch for the next *wait*."""

    key: str
    wait: int


class LedgerLine(NamedTuple):
    """One key of an `Ask`. *serial* is that of the grant: the caller's own number, never used
    twice. Whoever asks again with it, because no answer came or because its visit goes on, has the
    same grant, and its window anew.
    """

    key: str
    serial: int
    delay: int


class LedgerBatch(NamedTuple):
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
    ends: tuple[FetchEnd, ...] = ()
    returns: tuple[ReturnedGrant, ...] = ()
    wishes: tuple[DelayWish, ...] = ()
    asks: tuple[tuple[LedgerLine, ...], ...] = ()
    """Each is answered for all its keys or none."""

    def all_keys(self) -> list[str]:
        """Every key in it, once."""
        asked = (line for ask in self.asks for line in ask)
        lines: Iterable[Any] = chain(self.ends, self.returns, self.wishes, asked)
        return list(dict.fromkeys(line.key for line in lines))


class LedgerAnswer(NamedTuple):
    """To one ask: fetches may start from *opens* to *closes* after now; or ask again in *wait*.

    It is granted if *closes* is not 0.
    """

    opens: int = 0
    closes: int = 0
    wait: int = 0


class LedgerReply(NamedTuple):
    """What the ledger says to a batch.

    *era*: another one means that the ledger may have lost what it knew. *longest* is the longest
    delay that anybody asked for. *damaged* are keys under which is what no ledger wrote: nothing is
    granted there until it is removed.
    """

    era: int
    longest: int
    answers: tuple[LedgerAnswer, ...]
    damaged: tuple[str, ...] = ()


class RateLedger(Protocol):
    """Where grants are kept."""

    where: str
    """For messages, without a password."""

    async def settle(self, batch: LedgerBatch) -> LedgerReply:
        """Do all of *batch* at one instant, and answer.

        Raises `LedgerError`: the ledger cannot be used now; what was asked for may have been done.
        Sending it again does no harm.
        """
        ...

    async def close(self) -> None:
        """Let go of it; never raises."""
        ...


def check_batch(batch: LedgerBatch) -> None:
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


class RedisReply(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What comes from Redis, before it is believed."""

    era: int
    longest: int
    answers: list[tuple[int, int, int]]
    damaged: list[int]


def pack_batch(batch: LedgerBatch, indexes: dict[str, int]) -> bytes:
    """*batch* for Lua, with the number of each key in place of it."""

    def numbered(lines: Any) -> list[list[Any]]:
        return [[indexes[line.key], *line[1:]] for line in lines]

    given = [
        *batch[:6], numbered(batch.ends), numbered(batch.returns), numbered(batch.wishes),
        [numbered(ask) for ask in batch.asks],
    ]  # fmt: skip
    return msgspec.msgpack.encode(given)


def unpack_reply(data: bytes, batch: LedgerBatch, keys: list[str]) -> LedgerReply:
    """What Lua answered to *batch*. Raises `ValueError`: it is no answer."""
    said = msgspec.msgpack.decode(data, type=RedisReply)
    spans = [span for answer in said.answers for span in answer]
    bound = 2 * WISH_MAX + 2 * HOLD_MAX
    if len(said.answers) != len(batch.asks) or not all(0 <= span <= bound for span in spans):
        raise ValueError("answers that fit no question")
    if not all(0 <= index < len(keys) for index in said.damaged) or said.era <= 0:
        raise ValueError("keys or an era that cannot be")
    if not 0 <= said.longest <= WISH_MAX:
        raise ValueError("a delay that cannot be")
    answers = tuple(LedgerAnswer(*answer) for answer in said.answers)
    return LedgerReply(
        said.era, said.longest, answers, tuple(keys[index] for index in said.damaged)
    )


MAGIC: Final = b"L1"
KEEP_MAX: Final = 3_600_000
"""An end is remembered for the longest delay that anybody asked for, and no longer than an hour for
those who did not fetch: a single host with a delay of a day would have every key kept for a day."""

CLAIM_SLACK: Final = 250
"""How late who is next may come back before another is."""

DAMAGED_WAIT: Final = 60_000
"""When to ask again for what is damaged."""

SOONEST, LATEST = 50, 2_000
"""When to ask again for what somebody holds: half a delay, within these bounds. Who comes before
the delay is over loses nothing of it."""

_RECORD: Final = struct.Struct(">2s8d16s16s")
_MARKER: Final = struct.Struct(">2s4d40s")
_FUTURE: Final = 2 * (WISH_MAX + HOLD_MAX)


class Account(Struct):
    """What is known of one key.

    *due*: nobody before it, for the delay of who fetched, or a wish. *until*: when the grant of
    *holder* runs out, whose fetches take *delay*. *claimant* is next, until *claimed*.
    """

    ended: float = 0
    due: float = 0
    opens: float = 0
    closes: float = 0
    until: float = 0
    delay: float = 0
    serial: float = 0
    claimed: float = 0
    holder: str = NOBODY
    claimant: str = NOBODY

    def pack(self) -> bytes:
        """As it is stored."""
        return _RECORD.pack(
            MAGIC, self.ended, self.due, self.opens, self.closes, self.until, self.delay,
            self.serial, self.claimed, self.holder.encode(), self.claimant.encode(),
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: object, now: int) -> Account:
        """Raises `ValueError`: it was not written by a ledger."""
        if not isinstance(data, bytes) or len(data) != _RECORD.size:
            raise ValueError("no account")
        magic, *numbers, holder, claimant = _RECORD.unpack(data)
        serial = numbers[6]
        times = (*numbers[:6], numbers[7])
        if magic != MAGIC or not all(0 <= time <= now + _FUTURE for time in times):
            raise ValueError("no account")
        if not (0 <= serial <= 2**53 and holder.isalnum() and claimant.isalnum()):
            raise ValueError("no account")
        return cls(*(*numbers, holder.decode(), claimant.decode()))

    def has(self, process: str, serial: int, now: int) -> bool:
        """Is that the grant that has not run out?"""
        return self.held(now) and self.holder == process and self.serial == serial

    def held(self, now: int) -> bool:
        """Has somebody a grant that has not run out?"""
        return self.holder != NOBODY and self.until > now

    def expires(self, keep: float) -> float:
        """When nothing of it is needed any more, if ends are to be known for *keep*."""
        held = self.until + max(self.delay, keep) if self.holder != NOBODY else 0
        ended = self.ended + keep if self.ended else 0
        return max(self.due, ended, held, self.claimed)

    def end(self, process: str, end: FetchEnd, now: int) -> None:
        """A fetch of *process* ended."""
        at = max(0, now + 1 - end.ago)  # the millisecond has begun: no gap is short of one
        self.ended, self.due = max(self.ended, at), max(self.due, at + end.delay)
        self.drop(process, end.serial)

    def drop(self, process: str, serial: int) -> None:
        """A grant is over, if it is still that one."""
        if self.holder == process and self.serial == serial:
            self.holder = NOBODY
            self.opens = self.closes = self.until = self.delay = self.serial = 0


class LedgerMarker(Struct):
    """What is known of all keys.

    *run*: of the server, or of the machine. Nothing is granted before *quiet*, after a loss. A key
    of which nothing is known may have seen the end of a fetch at *floor*. *longest* is the longest
    delay so far.
    """

    era: float = 0
    quiet: float = 0
    floor: float = 0
    longest: float = 0
    run: str = ""

    @property
    def keep(self) -> float:
        """How long ends are remembered."""
        return min(self.longest, KEEP_MAX)

    def pack(self) -> bytes:
        """As it is stored."""
        run = self.run.encode().ljust(40)
        return _MARKER.pack(MAGIC, self.era, self.quiet, self.floor, self.longest, run)

    @classmethod
    def unpack(cls, data: object) -> LedgerMarker:
        """Raises `ValueError`: it was not written by a ledger."""
        if not isinstance(data, bytes) or len(data) != _MARKER.size:
            raise ValueError("no ledger")
        magic, *numbers, run = _MARKER.unpack(data)
        # Those of another run of the machine say nothing, and may be larger than its clock.
        if magic != MAGIC or not all(0 <= number < 2**53 for number in numbers):
            raise ValueError("no ledger")
        return cls(*(*numbers, run.decode("latin-1").rstrip()))


def updated_marker(
    marker: LedgerMarker | None, batch: LedgerBatch, now: int, run: str, uptime: int
) -> LedgerMarker:
    """The marker as of a call at *now*, *uptime* after the server or the machine began its *run*.

    An era ends when it cannot be known what was lost: in another run, or when the marker is gone.
    Then fetches may be out of which nothing is known, until a grant and a delay have passed.
    """
    span = batch.window + batch.hold + batch.longest
    if marker is None or marker.run != run:
        since = now if marker is None and batch.era else max(0, now - uptime)
        marker = LedgerMarker(max(now, batch.era + 1), 0, 0, batch.longest, run)
        if since + span > now:
            marker.quiet, marker.floor = since + span, since + batch.window + batch.hold
    elif batch.era and batch.era != marker.era:
        # It comes from before a loss, of which who began the era may not have known.
        marker.quiet = max(marker.quiet, marker.era + span)
        marker.floor = max(marker.floor, marker.era + batch.window + batch.hold)
    if batch.longest > marker.longest:
        marker.floor = max(marker.floor, now - marker.keep)
        marker.longest = batch.longest
    return marker


def apply_batch(
    account_of: Callable[[str], Account | None], batch: LedgerBatch, marker: LedgerMarker, now: int
) -> tuple[LedgerAnswer, ...]:
    """Do *batch* to the accounts of its keys, None for damaged ones, and answer what it asks."""
    for end in batch.ends:
        if (account := account_of(end.key)) is not None:
            account.end(batch.process, end, now)
    for returned in batch.returns:
        if (account := account_of(returned.key)) is not None:
            account.drop(batch.process, returned.serial)
    for wish in batch.wishes:
        if (account := account_of(wish.key)) is not None:
            account.due = max(account.due, now + wish.wait)
    answers = []
    for lines in batch.asks:
        known = [account_of(line.key) for line in lines]
        whole = [account for account in known if account is not None]
        if len(whole) == len(lines):
            answers.append(_asked(whole, lines, marker, batch, now))
        else:
            answers.append(LedgerAnswer(wait=DAMAGED_WAIT))
    return tuple(answers)


def _asked(
    accounts: Sequence[Account],
    lines: Sequence[LedgerLine],
    marker: LedgerMarker,
    batch: LedgerBatch,
    now: int,
) -> LedgerAnswer:
    """The answer to *lines*, whose *accounts* are changed with it."""
    process, opens, claimed, waits = batch.process, float(now), False, []
    for account, line in zip(accounts, lines, strict=True):
        wait = 0.0
        if account.has(process, line.serial, now):
            opens = max(opens, account.opens)
        else:
            poll = min(max(line.delay // 2, SOONEST), LATEST)
            if account.claimed > now and account.claimant != process:
                claimed = True
                wait = max(2 * poll, account.claimed - CLAIM_SLACK - now)
            if account.held(now):
                wait = max(wait, poll + max(0, account.opens - now))
            else:
                free = _free(account, line.delay, marker)
                opens, wait = max(opens, free), max(wait, free - now - batch.ahead)
        waits.append(wait)
    wait = max(0.0, opens - now - batch.ahead, *waits)
    if wait > 0:
        late = [each for each, own in zip(accounts, waits, strict=True) if own > wait - CLAIM_SLACK]
        _claim(accounts if claimed else late, process, now + wait, claimed)
        return LedgerAnswer(wait=math.ceil(wait))
    for account, line in zip(accounts, lines, strict=True):
        if account.claimant == process:
            account.claimed, account.claimant = 0, NOBODY
        if not account.held(now):
            account.opens = opens
        account.closes = opens + batch.window
        account.until = max(account.until, account.closes + batch.hold)
        account.holder, account.serial, account.delay = process, line.serial, line.delay
    ahead = round(opens - now)
    return LedgerAnswer(ahead, ahead + batch.window)


def _free(account: Account, delay: int, marker: LedgerMarker) -> float:
    """When who has a delay of *delay* may fetch, where nobody holds a grant."""
    at = max(account.due, marker.quiet)
    if marker.floor:
        at = max(at, marker.floor + min(delay, KEEP_MAX))
    if account.ended:
        at = max(at, account.ended + delay)
    if account.holder != NOBODY:  # it ran out, as if its fetch had ended then
        at = max(at, account.until + max(account.delay, delay))
    return at


def _claim(accounts: Sequence[Account], process: str, until: float, claimed: bool) -> None:
    """Make *process* the next at those keys, unless another is at one of its own: two who wait
    for each other would wait for good. A claim lasts until it is to ask again; a key that is free
    long before the others is not claimed, since nobody would fetch there meanwhile.
    """
    for account in accounts:
        if not claimed:
            account.claimant, account.claimed = process, until + CLAIM_SLACK
        elif account.claimant == process:
            account.claimed, account.claimant = 0, NOBODY
