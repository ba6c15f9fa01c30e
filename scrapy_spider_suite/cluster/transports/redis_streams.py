"""Messages through Redis streams: an inbox of each agent, and acknowledgements for it.

Each agent is the one consumer of one group: unacknowledged entries stay pending for its next
process. The sender checks now and then whether a message still lies in the inbox, and puts it
again; so streams or the whole memory may be lost. Scripts write only for the member
(``lua/fence.lua``).

`SendQueue` invariant: a message neither acknowledged nor cleared comes up in `due` again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from redis.exceptions import RedisError, ResponseError

from scrapy_spider_suite.cluster.messages import (
    Acknowledgement,
    MessageCounters,
    MessageLimits,
    OnAcknowledged,
    OnMessage,
    PackedMessage,
    encode_name,
    pack_acknowledgements,
    unpack_acknowledgements,
    unpack_message,
)
from scrapy_spider_suite.cluster.redis_server import (
    LOST,
    RedisKeys,
    connect,
    load_script,
    redis_error,
    server_place,
)
from scrapy_spider_suite.errors import FencedError, MessageError, MessageTooLargeError
from scrapy_spider_suite.runtime.tasks import WarnOnce, retry_forever, wait_at_most

logger = logging.getLogger(__name__)

_LOST: Final = "NOGROUP", "UNBLOCKED"  # how errors begin when stream or group are gone
GROUP: Final = "agents"
CONSUMER: Final = "agent"

StreamEntry = tuple[bytes, dict[bytes, bytes]]
"""Name and fields; no fields if it was removed while pending."""
FIRST_PAUSE, MOST_PAUSE = 0.25, 10.0
"""Seconds until a refused message is offered again: at first, and at most."""
MOST_CHECK: Final = 600.0  # most seconds between two checks of a message in an inbox


@dataclass(slots=True, eq=False)
class QueuedMessage:
    to: str
    message: PackedMessage
    entry: bytes = b""
    when: float = 0.0  # when to put it, or to check whether it lies there
    pause: float = FIRST_PAUSE
    check: float = 0.0


class SendQueue:
    """Messages for all receivers: *window* at most under way to one.

    A message is checked in its inbox after *check* seconds at first; they double each time.
    """

    def __init__(self, window: int, check: float, counters: MessageCounters) -> None:
        self._window, self._check, self._counters = window, check, counters
        self._posts: dict[str, dict[tuple[int, int], QueuedMessage]] = {}

    def __iter__(self) -> Iterator[QueuedMessage]:
        for posts in self._posts.values():
            yield from posts.values()

    def room(self, to: str) -> int:
        return self._window - len(self._posts.get(to, ()))

    def put(self, to: str, message: PackedMessage) -> bool:
        """Take *message*, once; False without room."""
        posts = self._posts.setdefault(to, {})
        key = message.first, message.last
        if key not in posts:
            if len(posts) >= self._window:
                return False
            posts[key] = QueuedMessage(to, message)
            self._counters.took(message)
        return True

    def due(self, now: float, most: int) -> list[QueuedMessage]:
        return list(islice((post for post in self if post.when <= now), most))

    def wake(self) -> float | None:
        return min((post.when for post in self), default=None)

    def accepted(self, post: QueuedMessage, entry: bytes, now: float) -> bool:
        moved = entry != post.entry
        post.check = self._check if moved else min(2 * post.check, MOST_CHECK)
        post.entry, post.when, post.pause = entry, now + post.check, FIRST_PAUSE
        return moved

    def refused(self, post: QueuedMessage, now: float) -> None:
        post.when = now + post.pause
        post.pause = min(2 * post.pause, MOST_PAUSE)

    def acknowledged(self, to: str, first: int, last: int) -> bool:
        return self._posts.get(to, {}).pop((first, last), None) is not None

    def clear(self, to: str) -> int:
        return len(self._posts.pop(to, ()))


BOUNDS: Final = MessageLimits(48 << 10, 1 << 20, 1 << 20)  # messages of some 1,500 URLs
BATCH: Final = 16  # messages put into inboxes by one call
RECEIPTS: Final = 200  # receipts sent, or read, by one call
RECEIPTS_MAX: Final = 10_000
_FENCED: Final = -1  # answer of a script that did nothing, since the process is not the member
_TROUBLE: Final = (RedisError, *LOST)

_Asked = tuple[str, str, tuple[Any, ...]]  # name of a script, its key, its arguments


class StreamLimits(NamedTuple):
    """Bounds of one agent's streams; durations are seconds."""

    window: int = 16  # messages to one receiver that may be on the way
    inbox: int = 500  # messages that an inbox holds
    unkept: int = 32  # messages that were handed on and are not acknowledged
    check: float = 15.0  # until an unacknowledged message is looked for in the inbox
    timeout: float = 10.0  # for which an answer of the server is waited for
    block: float = 2.0  # for which the server waits for something to read, less than *timeout*


class RedisStreams:
    """A `MessageTransport` over Redis, with three connections. Raises `ValueError`."""

    bounds = BOUNDS

    def __init__(
        self, url: str, crawl: str, name: str, incarnation: int, limits: StreamLimits | None = None
    ) -> None:
        limits = self._limits = limits or StreamLimits()
        encode_name(name)
        self.counters = MessageCounters()
        self._client, self._where = connect(url, limits.timeout), server_place(url)
        self._name, self._incarnation = name, incarnation
        self._keys = RedisKeys(crawl)
        self._fence = self._keys.members, name, f"{incarnation:016x}"
        self._scripts = {
            each: load_script("world", "rows", "fence", each)
            for each in ("post", "tell", "drop")
        }
        self._inbox, self._mine = self._keys.inbox(name), self._keys.receipts(name)
        self._remade = {self._inbox: -1, self._mine: -1}  # groups that were lost, by stream
        self._posts = SendQueue(limits.window, limits.check, self.counters)
        self._after: str | bytes = "0"  # what is pending is read first, and looked at again then
        self._recheck_at = 0.0
        self._handed: dict[Acknowledgement, set[bytes]] = {}  # unkept messages, with their entries
        self._kept: list[Acknowledgement] = []  # not yet sent
        self._done: dict[bytes, None] = {}  # entries to be removed, in order
        self._work, self._space = asyncio.Event(), asyncio.Event()
        self._what = f"messages through Redis, agent {name}"
        self._once = WarnOnce(logger, self._what)
        self._received: OnMessage | None = None
        self._acknowledged: OnAcknowledged | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, received: OnMessage, acknowledged: OnAcknowledged) -> None:
        self._received, self._acknowledged = received, acknowledged
        steps = {"": self._write, self._inbox: self._read_messages, self._mine: self._read_receipts}
        for key, step in steps.items():
            failed = partial(self._failed, key=key)
            work = retry_forever(step, failed, self._once.over, self._what)
            self._tasks.append(asyncio.create_task(work))

    def room(self, to: str) -> int:
        return self._posts.room(to)

    def send(self, to: str, message: PackedMessage) -> bool:
        self._work.set()
        return self._posts.put(to, message)

    def acknowledge(self, receipt: Acknowledgement) -> None:
        entries = self._handed.pop(receipt, None)
        if entries is not None:
            self._done |= dict.fromkeys(entries)
            self._kept.append(receipt)
            self.counters.receipts += 1
            self._work.set()

    def withdraw(self, to: str) -> None:
        self.counters.withdrawn += self._posts.clear(to)

    async def close(self, seconds: float = 5.0) -> None:
        self._received = self._acknowledged = None
        tasks, self._tasks = self._tasks, []
        left = set(tasks)
        # Until Python 3.12 wait_for(), which redis-py sends with, may swallow a cancellation.
        while left:
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=0.1)
        if tasks and seconds > 0:
            with suppress(FencedError, *_TROUBLE):
                async with asyncio.timeout(seconds):
                    while self._kept or self._done:
                        await self._acknowledge()
        with suppress(*_TROUBLE):
            async with asyncio.timeout(self._limits.timeout):
                await self._client.aclose()

    def _failed(self, error: Exception, key: str = "") -> str:
        """Count and log an error about *key*; return its kind, "" if not the server's."""
        self.counters.failed += 1
        if isinstance(error, FencedError):
            self._once.say("fenced", error)
            return "fenced"
        if not isinstance(error, _TROUBLE):
            return ""
        trouble = redis_error(error, self._where, key)
        self._once.say(trouble.kind, trouble)
        return trouble.kind

    # Writing

    async def _write(self) -> None:
        now = asyncio.get_running_loop().time()
        when = 0.0 if self._kept or self._done else self._posts.wake()
        await wait_at_most(self._work, None if when is None else max(0.0, when - now))
        self._work.clear()
        await self._acknowledge()
        await self._post()

    async def _acknowledge(self) -> None:
        done, kept = list(self._done)[:RECEIPTS], self._kept[:RECEIPTS]
        asked: list[_Asked] = [("drop", self._inbox, (GROUP, *done))] if done else []
        for sender in dict.fromkeys(receipt.sender for receipt in kept):
            own = [each for each in kept if each.sender == sender]
            data = pack_acknowledgements(self._name, own)
            asked.append(("tell", self._keys.receipts(sender), (RECEIPTS_MAX, data)))
        if asked:
            # What the server refuses is not tried again: the message comes again, or its sender
            # finds it gone from the inbox and sends it again.
            await self._ask(asked)
            del self._kept[: len(kept)]
            for entry in done:
                del self._done[entry]
            self._space.set()

    async def _post(self) -> None:
        clock = asyncio.get_running_loop().time
        posts, inbox = self._posts.due(clock(), BATCH), self._limits.inbox
        if posts:
            answers = await self._ask(
                ("post", self._keys.inbox(post.to), (inbox, post.message.data, post.entry))
                for post in posts
            )
            for post, answer in zip(posts, answers, strict=True):
                again = bool(post.entry)
                if not isinstance(answer, bytes):
                    self.counters.full += answer is None
                    self._posts.refused(post, clock())
                elif self._posts.accepted(post, answer, clock()):
                    self.counters.sent += 1
                    self.counters.resent += again

    async def _ask(self, asked: Iterable[_Asked]) -> list[Any]:
        members, *who = self._fence
        pipe, keys = self._client.pipeline(transaction=False), []
        for name, key, given in asked:
            pipe.eval(self._scripts[name], 2, members, key, *who, *given)
            keys.append(key)
        async with asyncio.timeout(self._limits.timeout):
            answers: list[Any] = await pipe.execute(raise_on_error=False)
        for answer, key in zip(answers, keys, strict=True):
            if isinstance(answer, Exception):
                self._failed(answer, key)
        if _FENCED in answers:
            why = f"this process is not the member {self._name} any more, says Redis at"
            raise FencedError(f"{why} {self._where}: its messages wait", again=True)
        return answers

    # Reading

    async def _read(self, key: str, count: int, after: str | bytes = ">") -> list[StreamEntry]:
        """Return up to *count* new entries of a stream, or the pending ones behind *after*."""
        block = int(1000 * self._limits.block) if after == ">" else None
        try:
            async with asyncio.timeout(self._limits.timeout):
                answer = await self._client.xreadgroup(
                    GROUP, CONSUMER, {key: after}, count=count, block=block, noack=key == self._mine
                )
        except ResponseError as error:
            if not str(error).startswith(_LOST):
                raise
            await self._make_group(key)
            return []
        return [(name, fields or {}) for _, entries in answer for name, fields in entries]

    async def _make_group(self, key: str) -> None:
        try:
            async with asyncio.timeout(self._limits.timeout):
                await self._client.xgroup_create(key, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):  # another process was faster
                raise
        self._remade[key] += 1
        self.counters.remade = sum(max(0, times) for times in self._remade.values())

    async def _read_messages(self) -> None:
        unkept = self._limits.unkept
        while (space := unkept - len(self._handed) - len(self._done)) <= 0:
            self._space.clear()
            await self._space.wait()
        now = asyncio.get_running_loop().time()
        if now >= self._recheck_at:
            self._recheck_at, self._after = now + self._limits.check, "0"
        entries = await self._read(self._inbox, space, self._after)
        if self._after != ">":
            self._after = entries[-1][0] if entries else ">"
        for entry in entries:
            self._receive(*entry)

    def _receive(self, entry: bytes, fields: dict[bytes, bytes]) -> None:
        if entry in self._done:
            return
        try:
            if fields.keys() != {b"message"}:
                raise MessageError("an entry of the inbox that is no message")
            message = unpack_message(fields[b"message"], BOUNDS)
        except MessageError as error:
            self._refuse(error)
            self._done[entry] = None
            self._work.set()
            return
        known = self._handed.setdefault(message.receipt, set())
        if known:
            self.counters.repeated += entry not in known
        elif self._received is not None:
            self.counters.received += 1
            self._received(message)
        known.add(entry)

    async def _read_receipts(self) -> None:
        entries = await self._read(self._mine, RECEIPTS)
        for _, fields in entries:
            try:
                self._release(fields)
            except MessageError as error:
                self._refuse(error)
        if entries:
            await self._ask([("drop", self._mine, (GROUP, *(entry for entry, _ in entries)))])

    def _release(self, fields: dict[bytes, bytes]) -> None:
        if fields.keys() != {b"receipts"}:
            raise MessageError("an entry that holds no receipts")
        receiver, numbers = unpack_acknowledgements(fields[b"receipts"])
        for incarnation, first, last in numbers:
            mine = incarnation == self._incarnation  # a lost directory may have had the numbers
            if mine and self._posts.acknowledged(receiver, first, last):
                self.counters.acknowledged += 1
                if self._acknowledged is not None:
                    self._acknowledged(receiver, first, last)

    def _refuse(self, error: MessageError) -> None:
        kind = "oversized" if isinstance(error, MessageTooLargeError) else "malformed"
        self.counters.refuse(kind)
        self._once.say(kind, f"refused {error}")
