"""Messages of one agent: rows from its outbox to others, and into its frontier.

A row leaves the outbox once its receiver has it on disk. Messages may come twice, so each row is
noted in the batch that keeps its content.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.cluster.messages import Acknowledgement, Message, MessagePacker
from scrapy_spider_suite.cluster.routing import FIRST_ROW_NUMBER, unpack_rows
from scrapy_spider_suite.errors import MessageError, MessageTooLargeError
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.runtime.tasks import WarnOnce, cancel_tasks, logged_task, wait_at_most
from scrapy_spider_suite.store.interface import KV

if TYPE_CHECKING:
    from scrapy_spider_suite.cluster.agent import Agent
    from scrapy_spider_suite.cluster.mode import ClusterMode

logger = logging.getLogger(__name__)

_INTERVAL: Final = struct.Struct(">QQ")
_MOST: Final = 256  # intervals of a sender; earlier ones are forgotten
_SENDERS: Final = 500  # whose intervals are in memory, 30 KB each at most: names can be made up
_GAP: Final = 10_000  # numbers that a message may leave out; a killed sender leaves out a thousand


class ReceivedRows:
    """Numbers of received rows, as intervals by sender in *kv*."""

    def __init__(self, kv: KV) -> None:
        self._kv = kv
        self._intervals: OrderedDict[str, list[tuple[int, int]]] = OrderedDict()

    def has(self, sender: str, first: int, last: int) -> bool:
        return any(each[0] <= first and last <= each[1] for each in self._known(sender))

    def add(self, message: Message) -> None:
        """Note the rows of *message* in the next batch."""
        if message.last - message.first < len(message.rows) + _GAP:
            self.put(message.sender, message.first, message.last)
        # Otherwise no agent sends that; it would hide what is sent later.

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
        self._kv.put(sender.encode(), b"".join(_INTERVAL.pack(*each) for each in known))

    def _known(self, sender: str) -> list[tuple[int, int]]:
        known = self._intervals.get(sender)
        if known is None:
            data = self._kv.get(sender.encode()) or b""
            whole = len(data) - len(data) % _INTERVAL.size
            known = self._intervals[sender] = list(_INTERVAL.iter_unpack(data[:whole]))
            if len(self._intervals) > _SENDERS:
                self._intervals.popitem(last=False)
        self._intervals.move_to_end(sender)
        return known


BEAT: Final = 0.5  # seconds in which rows for a message gather
_PORTION: Final = 100  # rows, or URLs, between two turns of the loop: some milliseconds
_MESSAGES_AT_ONCE: Final = 8  # messages made durable at once
_SPARE: Final = 32  # room for notices to one receiver, beside rows
_UNPACKED: Final = 8  # bytes of rows read for each byte of a message: they are packed to a fifth


class Mailbox:
    """Exchanges the messages of *agent* by the rules and the transport of *mode*.

    *unread*: unreadable received rows. *too_large*: rows that fit into no message; their URLs are
    not fetched. *stored*: received rows that are stored.
    """

    def __init__(self, agent: Agent, mode: ClusterMode) -> None:
        self.unread = self.too_large = self.stored = 0
        self.transport = mode.transport
        self._agent, self._mode = agent, mode
        self._ownership, self._outbox = agent.ownership, agent.routing.outbox
        self._packer = MessagePacker(agent.name, agent.incarnation, mode.transport.bounds)
        self._received_rows = ReceivedRows(agent.crawl.store.kv("received"))
        self._spare = _SPARE if mode.listens else 0
        self._notices = 0
        self._messages: deque[Message] = deque()
        self._stored: list[Acknowledgement] = []
        self._next: dict[str, int] = {}
        self._arrived, self._due = asyncio.Event(), asyncio.Event()
        self._open = asyncio.Event()
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
        self._agent.routing.reroute(self._ownership.owner)
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
        whole = message.last - message.first == len(message.rows) - 1
        for number, row in enumerate(message.rows, message.first):
            if whole and self._received_rows.has(message.sender, number, number):
                continue  # an earlier process died within the message
            entries = self._entries(row)
            # An entry and its number go in one batch; several links come before their number.
            if whole and len(entries) == 1:
                self._received_rows.put(message.sender, number, number)
            self._schedule(entries)
            if whole and len(entries) != 1:
                self._received_rows.put(message.sender, number, number)
            if len(entries) > 1 or number % _PORTION == 0:
                await asyncio.sleep(0)
        self._received_rows.add(message)
        self.stored += len(message.rows)
        await asyncio.sleep(0)

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

    def _entries(self, row: bytes) -> list[Entry]:
        try:
            return list(unpack_rows([row]))
        except MessageError as error:
            self.unread += 1
            self._once.say("unread", error)
            return []

    async def _acknowledge_stored(self) -> None:
        await self._agent.write_durably()
        for receipt in self._stored:
            self.transport.acknowledge(receipt)
        self._stored.clear()
        self._agent.crawl.wake()

    def _acknowledged(self, to: str, first: int, last: int) -> None:
        self._outbox.drop(to, first, last)
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
        while self.transport.room(to) > self._spare:
            # What is sent stands in the database: no number is given twice.
            await self._agent.write_durably()
            rows = self._next_rows(to)
            if not rows or not self._mode.agrees(to):
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
                self._schedule(self._entries(row))
                self._outbox.drop(to, number, number)
            await asyncio.sleep(0)
        self._agent.crawl.wake()

    def _withdraw(self, to: str) -> None:
        self.transport.withdraw(to)
        self._next.pop(to, None)
