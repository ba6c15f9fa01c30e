"""The bytes of a host, a URL state and a queue row."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Annotated

import msgspec

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.frontier.entries import Entry, host_key
from scrapy_spider_suite.frontier.outcomes import Event, State

FORMAT = 1  # of the rows below: from the first release on, a change of a struct raises it
COUNT_MAX = 1 << 31  # the greatest count of a host that is taken from another agent
POLICY_MAX = 15  # the greatest number of a referrer policy for which a row has room

_ROW = struct.Struct(">BBHBiIII")
_PRIORITY = slice(5, 9)  # where the priority stands in it
_N_URL = slice(9, 13)  # where the length of the URL stands in it
_STATE = struct.Struct(">BBBHI")
_STATES = tuple(State)
_STATE_NUMBERS = {state: number for number, state in enumerate(State)}
_REFERRER_BITS = 28  # of the length of a referrer; above them stands its policy
_DEPTH_MAX = 63  # a state takes two bits of its byte
_EVENTS = tuple(Event)
_EVENT_NUMBERS: dict[Event | None, int] = {
    None: 0, **{event: number for number, event in enumerate(Event, 1)},
}  # fmt: skip
_FATES = {"", *(event.value for event in Event)}
_Count = Annotated[int, msgspec.Meta(ge=0)]


class HostRecord(msgspec.Struct, array_like=True, eq=False, gc=False):
    next_fetch: float = 0.0  # wall time
    due: float | None = None  # its time in the ``due`` family; None: nothing is pending
    crawl_delay: float = 0.0  # seconds
    failures: _Count = 0
    dead: str = ""  # the event for which it was given up
    why: str = ""  # the reason for *next_fetch*, if not the delay
    pending: _Count = 0
    done: _Count = 0
    failed: _Count = 0
    attempts: _Count = 0
    counted: bool = False  # whether its domain counts it
    entered: int | None = None  # depth of its first URL
    head: bytes = b""  # a lower bound of its first order key
    address: str = ""  # where its name led last, numeric
    resolved_until: float = 0.0  # wall time until which that holds

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> HostRecord:
        """Unpack a record. Raises `JobDamagedError` for anything else."""
        try:
            record = msgspec.msgpack.decode(data, type=cls)
        except ValueError as error:
            raise JobDamagedError(f"a host's row cannot be read ({error})") from error
        times = (record.next_fetch, record.due or 0.0, record.crawl_delay)
        if record.dead not in _FATES or not all(map(isfinite, times)):
            raise JobDamagedError("a host's row holds what was never written")
        return record


@dataclass(frozen=True, slots=True)
class UrlState:
    state: State
    event: Event | None = None
    attempts: int = 0
    status: int = 0
    when: int = 0  # of the last attempt, in seconds since the epoch; 0: never tried
    url: str = ""  # only for identities from which the URL cannot be read
    via: str = ""  # the page that it came from; only of URLs that failed without an answer
    depth: int = 0  # links from a seed, 63 at most; of new URLs 0

    def to_bytes(self) -> bytes:
        return pack_state(
            self.state, self.event, self.attempts, self.status, self.when, self.url, self.via,
            self.depth,
        )  # fmt: skip

    @classmethod
    def from_bytes(cls, data: bytes) -> UrlState:
        """Unpack a state. Raises `JobDamagedError` for anything else."""
        try:
            state, event, attempts, status, when = _STATE.unpack_from(data)
            url, _, via = data[_STATE.size :].decode().partition("\n")
            reason = _EVENTS[event - 1] if event else None
            return cls(_STATES[state & 3], reason, attempts, status, when, url, via, state >> 2)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise JobDamagedError(f"a URL's row cannot be read ({error})") from error


def pack_state(
    state: State, event: Event | None, attempts: int, status: int, when: int, url: str = "",
    via: str = "", depth: int = 0,
) -> bytes:  # fmt: skip
    """Pack a `UrlState` with these fields (9 bytes and the URLs); large numbers are clamped."""
    number, reason = _STATE_NUMBERS[state], _EVENT_NUMBERS[event]
    try:
        packed = _STATE.pack(number | depth << 2, reason, attempts, status, when)
    except struct.error:
        packed = _STATE.pack(
            number | max(0, min(depth, _DEPTH_MAX)) << 2, reason, max(0, min(attempts, 255)),
            max(0, min(status, 0xFFFF)), max(0, min(when, 0xFFFFFFFF)),
        )  # fmt: skip
    if via:
        url = f"{url}\n{via}"
    return packed + url.encode() if url else packed


_DONE, _SUCCESS = _STATE_NUMBERS[State.DONE], _EVENT_NUMBERS[Event.SUCCESS]
_OK = (200).to_bytes(2, "big")


def is_plain_success(state: bytes) -> bool:
    """Whether a packed `UrlState` says that its URL ended 200, and holds no URL."""
    # By its bytes: each pass of the archiver asks this for every row of the job.
    return (
        len(state) == _STATE.size and state[0] & 3 == _DONE and state[1] == _SUCCESS
        and state[3:5] == _OK
    )  # fmt: skip


PENDING = UrlState(State.PENDING).to_bytes()  # the state of a URL that was never tried


@lru_cache(16_384)  # every link asks, and most links lead to few hosts
def end_of_prefix(prefix: bytes) -> bytes:
    """The least key beyond all that begin with a *prefix* that ends in NUL."""
    return prefix[:-1] + b"\1"


def pack_row(entry: Entry) -> bytes:
    """The stored form of a pending entry; *payload* must be bytes or None."""
    url = entry.url.encode()
    referrer = entry.referrer.encode()
    identity = entry.stored_key
    if identity and identity == host_key(entry.host) + url:
        identity = b""
    hops = min(entry.hops, 15) | min(entry.hops_outside, 15) << 4
    n_referrer = len(referrer) | entry.referrer_policy << _REFERRER_BITS
    head = _ROW.pack(
        int(entry.flags), min(entry.attempts, 255), min(entry.depth, 0xFFFF), hops,
        _bounded(entry.priority), len(url), n_referrer, len(identity),
    )  # fmt: skip
    return head + url + referrer + identity + (entry.payload or b"")


def _bounded(priority: int) -> int:
    return max(-0x80000000, min(0x7FFFFFFF, priority))


def row_packer(template: Entry) -> Callable[[bytes, int], bytes]:
    """A quick `pack_row` of links with the same origin as *template*, by URL and priority."""
    row = pack_row(template)
    middle, end, begins = row[_N_URL.stop : _ROW.size], row[_ROW.size :], dict[int, bytes]()

    def pack(url: bytes, priority: int) -> bytes:
        begin = begins.get(priority)
        if begin is None:
            packed = _bounded(priority).to_bytes(4, "big", signed=True)
            begin = begins[priority] = row[: _PRIORITY.start] + packed
        return b"".join((begin, len(url).to_bytes(4, "big"), middle, url, end))

    return pack


def unpack_row(host: str, key: bytes, data: bytes) -> Entry:
    """The entry that `pack_row` packed. Raises `JobDamagedError` for anything else."""
    try:
        (
            flags, attempts, depth, hops, priority, n_url, n_referrer, n_identity,
        ) = _ROW.unpack_from(data)  # fmt: skip
        policy, n_referrer = divmod(n_referrer, 1 << _REFERRER_BITS)
        to_referrer = _ROW.size + n_url
        to_identity = to_referrer + n_referrer
        to_payload = to_identity + n_identity
        if to_payload > len(data):
            raise JobDamagedError(f"a queue row of {host} is cut short")
        return Entry(
            host, data[_ROW.size : to_referrer].decode(), data[to_identity:to_payload],
            priority=priority, depth=depth, hops=hops & 15, hops_outside=hops >> 4, flags=flags,
            attempts=attempts,
            referrer=data[to_referrer:to_identity].decode(), referrer_policy=policy,
            payload=data[to_payload:] or None, key=key,
        )  # fmt: skip
    except (struct.error, UnicodeDecodeError) as error:
        raise JobDamagedError(f"a queue row of {host} cannot be read ({error})") from error
