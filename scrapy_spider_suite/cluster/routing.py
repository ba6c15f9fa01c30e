"""The owner of each URL; rows for other agents wait in the outbox.

A row is stored with the commit of its page. Numbers of a receiver's rows start at random, with
random gaps between runs: rows of a lost directory have other numbers. Foreign rows are not trusted.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.errors import JobDamagedError, MessageError
from scrapy_spider_suite.frontier.entries import Entry, Flag, host_key
from scrapy_spider_suite.seen.fingerprint_cache import FingerprintCache
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.store.rows import POLICY_MAX, pack_row, unpack_row
from scrapy_spider_suite.store.seen_transfer import LinkOrigin, entry_of, host_of_state_key, url_of
from scrapy_spider_suite.store.url_states import is_seed_note
from scrapy_spider_suite.urls.normalize import host_of

_NUMBER: Final = struct.Struct(">Q")
FIRST_ROW_NUMBER: Final = 1 << 32  # the lowest number of a row; lower ones are notices
_BITS: Final = 62
_AHEAD: Final = 1_000  # numbers reserved at a time; a killed run leaves some unused
_GAP_BITS: Final = 40
_ROW, _NEXT = b"r", b"n"


class Outbox:
    """The rows in *kv* by receiver. Raises `JobDamagedError`.

    *put_in*: rows put in, or there at the start.
    """

    def __init__(self, kv: KV) -> None:
        self.put_in = self.dropped = 0
        self._kv = kv
        self._next: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        self._all = 0
        self._set_aside: dict[str, int] = {}
        for key, _ in kv.items(_ROW):
            self._count(_receiver(key[len(_ROW) : -_NUMBER.size - 1]), 1)
        for key, value in kv.items(_NEXT):
            name = _receiver(key[len(_NEXT) :])
            number = _number(value) + secrets.randbits(_GAP_BITS)
            self._next[name] = self._set_aside[name] = number
        self.put_in = len(self)

    def __len__(self) -> int:
        return self._all

    @property
    def receivers(self) -> dict[str, int]:
        return dict(self._waiting)

    def put(self, to: str, row: bytes) -> None:
        """Add *row* for *to* in the store's next batch."""
        number = self._next.get(to) or FIRST_ROW_NUMBER + secrets.randbits(_BITS)
        if number >= self._set_aside.get(to, 0):
            self._set_aside[to] = number + _AHEAD
            self._kv.put(_NEXT + to.encode(), _NUMBER.pack(number + _AHEAD))
        self._next[to] = number + 1
        self._kv.put(_prefix(to) + _NUMBER.pack(number), row)
        self._count(to, 1)
        self.put_in += 1

    def rows(self, to: str, since: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield rows for *to* from number *since* on, in order."""
        prefix = _prefix(to)
        for key, row in self._kv.items(prefix, _NUMBER.pack(since)):
            yield _number(key[len(prefix) :]), row

    def drop(self, to: str, first: int, last: int) -> int:
        """Delete the rows from *first* to *last*; return how many."""
        prefix, dropped = _prefix(to), 0
        for number, _ in self.rows(to, first):
            if number > last:
                break
            self._kv.delete(prefix + _NUMBER.pack(number))
            dropped += 1
        self._count(to, -dropped)
        self.dropped += dropped
        return dropped

    def _count(self, to: str, change: int) -> None:
        self._all += change
        self._waiting[to] = self._waiting.get(to, 0) + change
        if not self._waiting[to]:
            del self._waiting[to]


def _prefix(to: str) -> bytes:
    return _ROW + to.encode() + b"\0"


def _receiver(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise JobDamagedError(f"the outbox names no agent ({error})") from error


def _number(data: bytes) -> int:
    try:
        return int(_NUMBER.unpack(data)[0])
    except struct.error as error:
        raise JobDamagedError(f"the outbox has a number that is none ({error})") from error


def unpack_foreign_row(host: object, row: object, mark: object = "") -> Entry:
    """Return the entry of *host* in another agent's *row*, with its *mark*.

    Raises `ValueError`, or the errors of `unpack_row`.
    """
    if not isinstance(host, str) or "\0" in host or not isinstance(row, bytes):
        raise ValueError(f"{str(host)[:100]!r} has no such row")
    entry = unpack_row(host, b"", row)
    if not entry.url or entry.volatile:
        raise ValueError("a URL that is not pending")
    if entry.url.count("/") < 2:
        raise ValueError(f"{entry.url[:200]!r} is no URL")
    homes = {host}
    if entry.payload is not None:
        homes.add(host_of(entry.url))  # a spider may have chosen another slot than its host
    elif host_of(entry.url) != host:
        raise ValueError(f"{entry.url[:200]!r} is no URL of {host[:100]!r}")
    if not entry.identity.startswith(tuple(map(host_key, homes))):
        raise ValueError("a URL that is known by another host")
    if not (isinstance(mark, str) and is_seed_note(mark)):
        raise ValueError(f"{str(mark)[:100]!r} is nothing that is known of a seed")
    entry.seed_note = mark
    return entry


_A_ROW: Final = 50
_ROW_BYTES: Final = 4_000  # bytes of a row with several links: fits the largest datagram
_LINKS, _ENTRY = range(2)
# Plain integers: operators of flags are Python code.
_START, _DONT_FILTER = int(Flag.START), int(Flag.DONT_FILTER)
_WEB: Final = ("http://", "https://")

OwnerOf = Callable[[str, str], str]  # returns the owner of a URL: host, URL


class OwnerRouter:
    """Puts URLs of all agents but *own* into *outbox*.

    *by_host*: *owner* depends on the host alone. *cache*: bytes of recently sent URLs, which are
    not sent again. *shared_seeds*: each agent gets all seeds, and drops seeds of others.
    """

    def __init__(
        self, outbox: Outbox, owner: OwnerOf, own: str, *, by_host: bool = True, cache: int = 0,
        shared_seeds: bool = True,
    ) -> None:  # fmt: skip
        self.outbox = outbox
        self.own = own
        self.spared = 0  # URLs not sent again
        self.foreign_seeds = 0  # dropped
        self._owner = owner
        self._by_host = by_host
        self._shared_seeds = shared_seeds
        self._sent = FingerprintCache(cache)

    def reroute(self, owner: OwnerOf) -> None:
        self._owner = owner
        self._sent.clear()

    def own_links(self, way: LinkOrigin, keys: list[bytes], *, anyway: bool = False) -> list[bytes]:
        """Return the *keys* that stay here; *anyway* sends known ones again."""
        own: list[bytes] = []
        others: dict[str, list[bytes]] = {}
        prefix, owner = b"\0\0\0", ""  # no host has such a key, whatever its slot
        for key in keys:
            if not (self._by_host and key.startswith(prefix)):  # most lead to one host
                host = host_of_state_key(key)
                prefix, owner = host_key(host), self._owner(host, url_of(key))
            if owner == self.own:
                own.append(key)
            else:
                others.setdefault(owner, []).append(key)
        for to, foreign in others.items():
            new = foreign if anyway else self._sent.new(foreign)
            self.spared += len(foreign) - len(new)
            for row in _rows_of(new):
                self.outbox.put(to, msgpack.packb([_LINKS, *way, *row]))
        return own

    def owns(self, entry: Entry) -> bool:
        return not self.other(entry)

    def other(self, entry: Entry) -> str:
        """Return the owner of *entry*; "" for this agent."""
        owner = self._owner(entry.host, entry.url)
        return "" if owner == self.own or not entry.url.startswith(_WEB) else owner

    def keeps(self, entry: Entry, *, given: bool = False, anyway: bool = False) -> bool:
        """Whether *entry* stays here, as volatile ones do; otherwise it is in the outbox.

        *given*: it is a seed of this agent, not of a page or message.
        """
        owner = self._owner(entry.host, entry.url)
        if owner == self.own:
            return True
        if given and entry.flags & _START and self._shared_seeds:
            self.foreign_seeds += 1
            return False
        if entry.volatile or not entry.url.startswith(_WEB):
            return True
        more = anyway or entry.seed_note or entry.flags & _DONT_FILTER
        if more or self._sent.new([entry.identity]):
            row = [_ENTRY, entry.host, pack_row(entry)]
            row += [entry.seed_note] * bool(entry.seed_note)
            self.outbox.put(owner, msgpack.packb(row))
        else:
            self.spared += 1
        return False


def _rows_of(keys: list[bytes]) -> Iterator[list[bytes]]:
    row: list[bytes] = []
    size = 0
    for key in keys:
        if row and (len(row) == _A_ROW or size + len(key) > _ROW_BYTES):
            yield row
            row, size = [], 0
        row.append(key)
        size += len(key)
    if row:
        yield row


def unpack_rows(rows: Iterable[bytes]) -> Iterator[Entry]:
    """Yield the entries in *rows* of another agent's outbox. Raises `MessageError`.

    Identities of links are computed anew.
    """
    for row in rows:
        try:
            kind, *rest = msgpack.unpackb(row)
            if kind == _LINKS:
                yield from _links(rest)
            elif kind == _ENTRY:
                entry = unpack_foreign_row(*rest)
                if not entry.url.startswith(_WEB):
                    raise ValueError(f"{entry.url[:200]!r} is no URL of the web")
                yield entry
            else:
                raise ValueError(f"no kind of row has the number {kind!r}")
        except (ValueError, TypeError, msgpack.UnpackException, JobDamagedError) as error:
            raise MessageError(f"a row of another agent cannot be read ({error})") from error


def _links(rest: list[Any]) -> Iterator[Entry]:
    depth, referrer, priority, beyond, policy, *keys = rest
    numbers = (depth, priority, beyond, policy)
    whole = all(isinstance(number, int) for number in numbers)
    if not (whole and isinstance(referrer, str) and all(isinstance(key, bytes) for key in keys)):
        raise TypeError("links that are none")
    if min(depth, beyond) < 0 or not 0 <= policy <= POLICY_MAX:
        raise ValueError(f"links at depth {depth}, {beyond} beyond, by policy {policy}")
    way = LinkOrigin(depth, referrer, priority, beyond, policy)
    for key in keys:
        host, url = host_of_state_key(key), url_of(key)
        if not url.startswith(_WEB) or host_of(url) != host:
            raise ValueError(f"{url[:200]!r} is no link to {host[:200]!r}")
        yield entry_of(key, way)
