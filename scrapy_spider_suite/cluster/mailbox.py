"""The owner of each URL; rows for other agents, and the messages that carry them.

A row waits in the outbox, stored with the commit of its page, until its receiver has it on disk.
Numbers of a receiver's rows start at random, with random gaps between runs: rows of a lost
directory have other numbers. Foreign rows are not trusted. Messages may come twice, so each row is
noted in the batch that keeps its content.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import struct
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import msgpack  # type: ignore[import-untyped]
import msgspec

from scrapy_spider_suite.cluster.messages import (
    Acknowledgement,
    Message,
    MessagePacker,
    MessageTransport,
)
from scrapy_spider_suite.crawl.queue.admission import PageLinks
from scrapy_spider_suite.errors import JobDamagedError, MessageError, MessageTooLargeError
from scrapy_spider_suite.frontier.entries import Entry, Flag, host_key
from scrapy_spider_suite.runtime.event_loop import portions
from scrapy_spider_suite.runtime.tasks import WarnOnce, cancel_tasks, logged_task, wait_at_most
from scrapy_spider_suite.seen.fingerprint_cache import FingerprintCache
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.store.rows import POLICY_MAX, pack_row, unpack_row
from scrapy_spider_suite.store.seen_transfer import (
    LinkOrigin,
    entry_of,
    host_of_state_key,
    keys_of,
    url_of,
)
from scrapy_spider_suite.store.url_states import is_seed_note
from scrapy_spider_suite.urls.normalize import host_of

if TYPE_CHECKING:
    from scrapy_spider_suite.cluster.agent import Agent

logger = logging.getLogger(__name__)

_NUMBER: Final = struct.Struct(">Q")
FIRST_ROW_NUMBER: Final = 1 << 32  # the lowest number of a row; lower ones are notices
_BITS: Final = 62
_AHEAD: Final = 1_000  # numbers reserved at a time; a killed run leaves some unused
_GAP_BITS: Final = 40
_ROW, _NEXT = b"r", b"n"


class Outbox:
    """The rows in *kv* by receiver; *put_in*: rows put in, or there at the start."""

    def __init__(self, kv: KV) -> None:
        self.put_in = self.dropped = 0
        self._kv = kv
        self._next: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        self._all = 0
        self._set_aside: dict[str, int] = {}
        for key, _ in kv.items(_ROW):
            self._count(key[len(_ROW) : -_NUMBER.size - 1].decode(), 1)
        for key, value in kv.items(_NEXT):
            name = key[len(_NEXT) :].decode()
            number = _NUMBER.unpack(value)[0] + secrets.randbits(_GAP_BITS)
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
            yield _NUMBER.unpack(key[len(prefix) :])[0], row

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


class RowBox(Protocol):
    """Where a router puts rows for others: an `Outbox`, or what else takes them."""

    def __len__(self) -> int: ...
    @property
    def receivers(self) -> dict[str, int]: ...
    def put(self, to: str, row: bytes) -> None: ...


def _prefix(to: str) -> bytes:
    return _ROW + to.encode() + b"\0"


def unpack_foreign_row(host: object, row: object, mark: object = "") -> Entry:
    """Return the entry of *host* in another agent's *row*. Raises `ValueError`, as `unpack_row`."""
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


_ROW_BYTES: Final = 4_000  # bytes of a row with several links: fits the largest datagram
_WAY_BYTES: Final = 24  # of what links of another page have in common, beside its URL
_LINKS, _ENTRY = b"L", b"E"  # the first byte of a row; msgpack follows
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Origin = tuple[_Count, str, int, _Count, Annotated[int, msgspec.Meta(ge=0, le=POLICY_MAX)]]
_EntryRow = tuple[str, bytes, str]
_LinkRow = Annotated[list[tuple[_Origin, list[bytes]]], msgspec.Meta(min_length=1)]
_WEB: Final = ("http://", "https://")
OwnerOf = Callable[[str, str], str]  # returns the owner of a URL: host, URL


class OwnerRouter:
    """Puts URLs of all agents but *own* into *outbox*.

    *by_host*: *owner* depends on the host alone. *by_slot*: it stands there, by the slot of the
    host. *cache*: bytes of recently sent URLs. *shared_seeds*: each agent gets all seeds, and drops
    seeds of others.
    """

    def __init__(
        self, outbox: RowBox, owner: OwnerOf, own: str, *, by_host: bool = True, cache: int = 0,
        shared_seeds: bool = True, by_slot: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        self.outbox, self.own = outbox, own
        self.spared = 0  # URLs not sent again
        self.foreign_seeds = 0  # dropped
        self._owner = owner
        self._by_host, self._by_slot = by_host, by_slot
        self._shared_seeds = shared_seeds
        self._sent = FingerprintCache(cache)

    def reroute(self, owner: OwnerOf, by_slot: Sequence[str] | None = None) -> None:
        self._owner, self._by_slot = owner, by_slot
        self._sent.clear()

    def own_links(self, pages: Iterable[PageLinks], *, anyway: bool = False) -> list[PageLinks]:
        """Return the links of *pages* that stay here; *anyway* sends known ones again."""
        kept: list[PageLinks] = []
        sent = defaultdict[str, list[PageLinks]](list)
        for way, keys in pages:
            own, others = self._sort_out(keys)
            kept.append((way, own))
            for to, foreign in others.items():
                new = foreign if anyway else self._sent.new(foreign)
                self.spared += len(foreign) - len(new)
                if new:
                    sent[to].append((way, new))
        for to, found in sent.items():
            for row in _rows_of(found):
                self.outbox.put(to, row)
        return kept

    def _sort_out(self, keys: list[bytes]) -> tuple[list[bytes], dict[str, list[bytes]]]:
        """The *keys* that stay here, and those of other owners."""
        own: list[bytes] = []
        others: dict[str, list[bytes]] = {}
        names, prefix, owner = self._by_slot, b"\0\0\0", ""  # no host has such a key
        for key in keys:
            if names is not None:
                owner = names[key[0] << 8 | key[1]]
            elif not (self._by_host and key.startswith(prefix)):  # most lead to one host
                host = host_of_state_key(key)
                prefix, owner = host_key(host), self._owner(host, url_of(key))
            if owner == self.own:
                own.append(key)
            else:
                others.setdefault(owner, []).append(key)
        return own, others

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
        if given and entry.flags & Flag.START and self._shared_seeds:
            self.foreign_seeds += 1
            return False
        if entry.volatile or not entry.url.startswith(_WEB):
            return True
        more = anyway or entry.seed_note or entry.flags & Flag.DONT_FILTER
        if more or self._sent.new([entry.identity]):
            row = entry.host, pack_row(entry), entry.seed_note
            self.outbox.put(owner, _ENTRY + msgspec.msgpack.encode(row))
        else:
            self.spared += 1
        return False


def _rows_of(pages: Iterable[PageLinks]) -> Iterator[bytes]:
    """Rows of the links of *pages*, each small enough to be sent alone."""
    row: list[PageLinks] = []
    size = 0
    for way, keys in pages:
        page: list[bytes] = []  # of this row
        for key in keys:
            begins = 0 if page or not size else _WAY_BYTES + len(way.referrer)
            if size and size + begins + len(key) > _ROW_BYTES:
                yield _LINKS + msgspec.msgpack.encode(row)
                row, size, page, begins = [], 0, [], 0
            if not page:
                row.append((way, page))
            page.append(key)
            size += begins + len(key)
    if size:
        yield _LINKS + msgspec.msgpack.encode(row)


def unpack_row_of_agent(row: bytes) -> Entry | list[PageLinks]:
    """The entry, or the links of some pages, in a row of another agent's outbox.

    Raises `MessageError`.
    """
    kind, body = row[:1], memoryview(row)[1:]
    try:
        if kind == _LINKS:
            pages = msgspec.msgpack.decode(body, type=_LinkRow)
            return [(LinkOrigin(*origin), _own_keys(keys)) for origin, keys in pages]
        if kind != _ENTRY:
            raise ValueError(f"no kind of row is called {kind!r}")
        entry = unpack_foreign_row(*msgspec.msgpack.decode(body, type=_EntryRow))
        if not entry.url.startswith(_WEB):
            raise ValueError(f"{entry.url[:200]!r} is no URL of the web")
        return entry
    except (ValueError, JobDamagedError) as error:
        raise MessageError(f"a row of another agent cannot be read ({error})") from error


def unpack_rows(rows: Iterable[bytes]) -> Iterator[Entry]:
    """Yield the entries in *rows* of another agent's outbox. Raises `MessageError`."""
    for row in rows:
        found = unpack_row_of_agent(row)
        if isinstance(found, Entry):
            yield found
        else:
            yield from (entry_of(key, origin) for origin, keys in found for key in keys)


def _own_keys(foreign: list[bytes]) -> list[bytes]:
    """The keys of these links, made anew."""
    urls = [url_of(key) for key in foreign]
    for url in urls:
        if not url.startswith(_WEB):
            raise ValueError(f"{url[:200]!r} is no URL of the web")
    keys = keys_of(urls)
    for key, other in zip(keys, foreign, strict=True):
        if key[2:] != other[2:]:
            raise ValueError(f"{url_of(key)[:200]!r} is no link to {other[2:200]!r}")
    return keys


# What the values of SUITE_CLUSTER have in common

HAS_ENDED: Final = (
    "the crawl has ended: this agent has nothing to do, and ends unless it finds more; give it "
    "URLs with `scrapy frontier add`, or begin another crawl with other values of "
    "SUITE_CRAWL_NAME and JOBDIR"
)
"""Logged by an agent that is started after the end."""


class ClusterMode:
    """One agent among the other agents."""

    transport: MessageTransport
    ended = False  # all agents are idle: the crawl is over
    listens = False  # notices are expected

    async def open(self) -> None:
        """Join; learn owners and holders. Raises `ClusterError`, `SettingsError`."""

    async def meet(self) -> None:
        """Wait until fetches may begin. Raises `JoinRefusedError`."""

    def start(self) -> None:
        """Begin to exchange news with the other agents."""

    async def close(self, *, over: bool = False) -> None:
        """Stop; the agent will be back unless the crawl is *over* for it."""

    def may_fetch(self, delay: float = 0.0) -> bool:
        """Whether a fetch started now, and *delay* seconds after it, end in time."""
        return True

    def drain(self) -> None:
        """Hand over all hosts, then end."""

    @property
    def busy(self) -> bool:
        """Whether a hand-over is under way, or due."""
        return False

    @property
    def stats(self) -> dict[str, int | float]:
        """By their names without ``suite/``."""
        return {}

    # Messages

    def heard(self, sender: str, message: Sequence[Any]) -> None:
        """Take a notice. Raises `ValueError` or `TypeError` for invalid ones."""
        raise ValueError("no messages are expected")

    def accepts(self, message: Message) -> bool:
        """Whether to store the rows of *message*; otherwise they stay with their sender."""
        return True

    def agrees(self, to: str) -> bool:
        """Whether the agent *to* stores rows of this agent."""
        return True


# Messages

_MOST: Final = 256  # intervals of a sender; earlier ones are forgotten
_SENDERS: Final = 500  # whose intervals are in memory, 30 KB each at most: names can be made up


class ReceivedRows:
    """Numbers of received rows, as intervals by sender in *kv*."""

    def __init__(self, kv: KV) -> None:
        self._kv = kv
        self._intervals: OrderedDict[str, list[tuple[int, int]]] = OrderedDict()

    def has(self, sender: str, first: int, last: int) -> bool:
        return any(each[0] <= first and last <= each[1] for each in self._known(sender))

    def put(self, sender: str, first: int, last: int) -> None:
        known = self._known(sender)
        if known and known[-1][1] + 1 == first:
            known[-1] = known[-1][0], last
        else:
            kept = []
            for each in known:
                if each[1] + 1 < first or each[0] > last + 1:
                    kept.append(each)
                else:
                    first, last = min(first, each[0]), max(last, each[1])
            known[:] = sorted([*kept, (first, last)])[-_MOST:]
        self._kv.put(sender.encode(), msgspec.msgpack.encode(known))

    def _known(self, sender: str) -> list[tuple[int, int]]:
        known = self._intervals.get(sender)
        if known is None:
            data = self._kv.get(sender.encode()) or b"\x90"
            known = msgspec.msgpack.decode(data, type=list[tuple[int, int]])
            self._intervals[sender] = known
            if len(self._intervals) > _SENDERS:
                self._intervals.popitem(last=False)
        self._intervals.move_to_end(sender)
        return known


BEAT: Final = 0.5  # seconds in which rows for a message gather
_PORTION: Final = 10  # rows between two turns of the loop: some milliseconds
_STORED: Final = 16_000  # bytes of received rows that are stored together: some 300 URLs
_MESSAGES_AT_ONCE: Final = 8  # messages made durable at once
_SPARE: Final = 32  # room for notices to one receiver, beside rows
_UNPACKED: Final = 8  # bytes of rows read for each byte of a message: they are packed to a fifth


class Mailbox:
    """Exchanges the messages of *agent* by the rules and the transport of *mode*."""

    def __init__(self, agent: Agent, mode: ClusterMode) -> None:
        self.unread = self.stored = 0  # received rows
        self.too_large = 0  # rows that fit into no message; their URLs are not fetched
        self.transport = mode.transport
        self._agent, self._mode = agent, mode
        self._ownership, self._outbox = agent.ownership, agent.outbox
        self._packer = MessagePacker(agent.name, agent.incarnation, mode.transport.bounds)
        self._received_rows = ReceivedRows(agent.crawl.store.kv("received"))
        self._spare = _SPARE if mode.listens else 0
        self._notices = 0
        self._messages: deque[Message] = deque()
        self._stored: list[Acknowledgement] = []
        self._next: dict[str, int] = {}
        self._full = set[str]()  # agents for which more waits than may be under way
        self._arrived, self._due, self._open = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._open.set()
        self._tasks: list[asyncio.Task[None]] = []
        self._once = WarnOnce(logger, f"messages, agent {agent.name}")

    async def start(self) -> None:
        """Begin. Raises `OSError`: the transport cannot."""
        await self.transport.start(self._arrive, self._acknowledged)
        self._tasks = [logged_task(step(), "messages") for step in (self._receive, self._send)]

    async def close(self) -> None:
        """Stop; unacknowledged rows are sent again by the next run."""
        await cancel_tasks(*self._tasks)
        await self.transport.close()

    @property
    def idle(self) -> bool:
        """Whether no row waits for others, and all received rows are on disk."""
        return not (len(self._outbox) or self._messages or self._stored)

    @property
    def counters(self) -> dict[str, int]:
        own = {"rows_taken": self.stored, "unread": self.unread, "too_large": self.too_large}
        return asdict(self.transport.counters) | own

    def send_notice(self, to: str, notice: Sequence[Any]) -> bool:
        """Send *notice* if there is room; withdraws rows under way to an agent that disagrees."""
        if to in self._next and not self._mode.agrees(to):
            self._withdraw(to)
        self._notices += 1
        row = self._notices, msgpack.packb(list(notice))
        return self.transport.send(to, self._packer.pack([row], self._ownership.epoch))

    def set_receiving(self, on: bool) -> None:
        if on:
            self._open.set()
        else:
            self._open.clear()

    def readdress_outbox(self) -> None:
        self._agent.routing.reroute(self._ownership.owner, self._ownership.by_slot)
        self._due.set()

    def _arrive(self, message: Message) -> None:
        self._messages.append(message)
        self._arrived.set()

    async def _receive(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._messages:
                await self._open.wait()
                if self._messages[0].last < FIRST_ROW_NUMBER:
                    self._hear_notice(self._messages.popleft())
                    continue
                message = self._messages[0]  # there until it is stored: the mailbox is not idle
                if self._mode.accepts(message):
                    await self._store_rows(message)
                    self._stored.append(message.receipt)
                self._messages.popleft()
                if len(self._stored) >= _MESSAGES_AT_ONCE:
                    await self._acknowledge_stored()
            if self._stored:
                await self._acknowledge_stored()

    async def _store_rows(self, message: Message) -> None:
        if self._received_rows.has(message.sender, message.first, message.last):
            return
        rows = [
            (number, row) for number, row in enumerate(message.rows, message.first)
            # An earlier process may have died within the message.
            if not self._received_rows.has(message.sender, number, number)
        ]  # fmt: skip
        for portion in portions(rows, lambda each: len(each[1]), _STORED):
            self._store(message.sender, portion)
            await asyncio.sleep(0)
        self.stored += len(message.rows)
        await asyncio.sleep(0)

    def _store(self, sender: str, rows: list[tuple[int, bytes]]) -> None:
        pages: list[PageLinks] = []
        for number, row in rows:
            found = self._read(row)
            if isinstance(found, Entry):
                # An entry and its number go in one batch; links come before their numbers.
                self._received_rows.put(sender, number, number)
                self._schedule([found])
            elif found is not None:
                pages += found
        if pages:
            crawl = self._agent.crawl
            crawl.frontier.admission.add_links(pages, crawl.now(), came=True)
        for number, _ in rows:
            if not self._received_rows.has(sender, number, number):
                self._received_rows.put(sender, number, number)

    def _hear_notice(self, message: Message) -> None:
        self.transport.acknowledge(message.receipt)
        for row in message.rows:
            try:
                notice = msgpack.unpackb(row)
                if not isinstance(notice, list) or not notice:
                    raise TypeError("a notice that is none")
                self._mode.heard(message.sender, notice)
            except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
                self.unread += 1
                self._once.say("unread", f"a notice of {message.sender}: {error}")

    def _schedule(self, entries: list[Entry]) -> None:
        crawl = self._agent.crawl
        crawl.frontier.admission.schedule(entries, crawl.now(), came=True)

    def _read(self, row: bytes) -> Entry | list[PageLinks] | None:
        try:
            return unpack_row_of_agent(row)
        except MessageError as error:
            self.unread += 1
            self._once.say("unread", error)
            return None

    async def _acknowledge_stored(self) -> None:
        await self._agent.write_durably()
        for receipt in self._stored:
            self.transport.acknowledge(receipt)
        self._stored.clear()
        self._agent.crawl.wake()

    def _acknowledged(self, to: str, first: int, last: int) -> None:
        self._outbox.drop(to, first, last)
        if to in self._full or to not in self._outbox.receivers:
            self._full.discard(to)
            self._due.set()

    async def _send(self) -> None:
        while True:
            await wait_at_most(self._due, BEAT)
            self._due.clear()
            for to in self._outbox.receivers:
                table = self._ownership.table
                names = {to} if table is None else {member.name for member in table.members}
                if to not in names or (table is not None and to == self._agent.name):
                    await self._readdress(to)
                elif self._mode.agrees(to):
                    await self._send_to(to)

    async def _send_to(self, to: str) -> None:
        self._full.add(to)  # until it turns out that there is room for all
        while self.transport.room(to) > self._spare:
            # What is sent stands in the database: no number is given twice.
            await self._agent.write_durably()
            rows = self._next_rows(to)
            if not rows or not self._mode.agrees(to):
                self._full.discard(to)
                break
            try:
                message = self._packer.pack(rows, self._ownership.epoch)
            except MessageTooLargeError as error:
                self.too_large += 1
                logger.error("%s: what is in it is not fetched", error)
                self._outbox.drop(to, rows[0][0], rows[0][0])
                continue
            if not self.transport.send(to, message):
                break
            self._next[to] = message.last + 1
            await asyncio.sleep(0)

    def _next_rows(self, to: str) -> list[tuple[int, bytes]]:
        bounds = self.transport.bounds
        left = min(bounds.raw, _UNPACKED * bounds.packed)
        found: list[tuple[int, bytes]] = []
        for number, row in self._outbox.rows(to, self._next.get(to, 0)):
            if found and number != found[-1][0] + 1:
                break  # a message says that it holds all from its first to its last
            found.append((number, row))
            left -= len(row)
            if left < 0:
                break
        return found

    async def _readdress(self, to: str) -> None:
        self._withdraw(to)
        while rows := list(islice(self._outbox.rows(to), _PORTION)):
            for number, row in rows:
                # In one turn of the loop, so in one batch.
                with suppress(MessageError):
                    self._schedule(list(unpack_rows([row])))
                self._outbox.drop(to, number, number)
            await asyncio.sleep(0)
        self._agent.crawl.wake()

    def _withdraw(self, to: str) -> None:
        self.transport.withdraw(to)
        self._next.pop(to, None)
