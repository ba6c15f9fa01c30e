"""Parcels over TCP, from agent to agent, each a connection of its own (see `channel`)."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.cluster import channel
from scrapy_spider_suite.cluster.channel import Channel, ChannelError, Frame, Kind, Secret, within
from scrapy_spider_suite.cluster.courier import (
    PIECE,
    CourierCounters,
    Inbox,
    Throttle,
    as_file,
    check_room,
    label_in,
    label_of,
    one_line,
    part_of,
)
from scrapy_spider_suite.cluster.landing import Landing
from scrapy_spider_suite.errors import CourierError, ParcelError, SuiteError
from scrapy_spider_suite.runtime.tasks import Once
from scrapy_spider_suite.settings.values import endpoint
from scrapy_spider_suite.storage.parcels import Label, intact

MOST: Final = 64
"""Connections of other agents at once, and as many of those of whom it is not known yet."""

_BUSY: Final = 5.0
"""Seconds after which a taker that is at work says so."""
_AT: Final = struct.Struct(">Q")
_PART: Final = ".part"

logger = logging.getLogger(__name__)


class TcpCourier:
    """A `courier.Courier` over TCP.

    Args:
        host: where others reach this agent, a name or an address.
        port: 0 for any that is free.
        key: what all agents share, 16 bytes or more.
        folder: of this agent alone, for what comes; made if it is not there.
        rate: bytes a second that go out, 0 for any number.
        listen: the address to listen at, if it is not that of *host*: "" for all of this machine.

    Raises:
        ValueError: the key is too short.
    """

    def __init__(
        self, host: str, port: int, key: bytes, folder: Path, rate: float = 0.0, *,
        listen: str | None = None, silence: float = channel.SILENCE,
    ) -> None:  # fmt: skip
        self.counters = CourierCounters()
        self._host, self._port = host, port
        self._listen = host if listen is None else listen
        self._secret = Secret(key)
        self._folder = folder
        self._throttle = Throttle(rate)
        self._silence = silence
        self._server: asyncio.Server | None = None
        self._landing = Landing(folder, self.counters)
        self._connections: set[asyncio.Task[None]] = set()
        self._unproved: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._serving: dict[asyncio.Task[None], str] = {}  # the parcel, once it is known
        self._once = Once(logger, "hand-over")

    @property
    def address(self) -> str:
        """See `courier.Courier`: ``HOST:PORT``."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port}"

    async def start(self, inbox: Inbox) -> None:
        """See `courier.Courier`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._server = await asyncio.start_server(self._connected, self._listen, self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self._landing.open(inbox)

    async def close(self) -> None:
        """See `courier.Courier`."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._landing.close()

    def withdraw(self, label: Label) -> None:
        """See `courier.Courier`: a receiver removes what it has of one when another one comes."""
        self.counters.withdraw(label)

    # Giving

    async def deliver(self, path: Path, label: Label, address: str) -> None:
        """See `courier.Courier`."""
        try:
            connection = await _connection(address)
            async with _closing(connection[1]):
                line = await channel.call(*connection, self._secret, self._silence)
                await self._offer(line, path, label)
        except ChannelError as error:
            self.counters.refuse(error.kind)
            raise CourierError(f"{label.receiver} at {address}: {error}") from error
        except OSError as error:
            raise CourierError(f"{path}: {error.strerror}") from error
        self.counters.delivered += 1

    async def _offer(self, line: Channel, path: Path, label: Label) -> None:
        size = path.stat().st_size
        row = [getattr(label, name) for name in Label.__slots__]
        await line.send(Kind.OFFER, msgpack.packb([size, *row]))
        wanted = False
        while (frame := await line.receive()).kind is not Kind.KEPT:
            if frame.kind is Kind.AT and not wanted:
                wanted = True
                await self._send(line, path, label, _number(frame, size), size)
            elif frame.kind is Kind.LATER:
                raise CourierError(f"{label.receiver}: {_text(frame)}")
            elif frame.kind is Kind.REFUSED:
                self.counters.bad += 1
                raise ParcelError(f"{label.receiver}: {_text(frame)}")
            elif frame.kind is Kind.WAIT:
                self.counters.signs += 1
            else:
                raise ChannelError("malformed", f"a frame out of its turn: {frame.kind.name}")

    async def _send(
        self, line: Channel, path: Path, label: Label, at: int, size: int
    ) -> None:  # fmt: skip
        self.counters.resumed += at > 0
        loop = asyncio.get_running_loop()
        with path.open("rb") as file:
            file.seek(at)
            while at < size:
                piece = file.read(min(PIECE, size - at))
                if not piece:
                    raise CourierError(f"{path} has become shorter")
                await asyncio.sleep(self._throttle.wait(len(piece), loop.time()))
                await line.send(Kind.DATA, piece)
                self.counters.send(label, at, len(piece))
                at += len(piece)

    # Taking

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:
            writer.close()
            return
        if len(self._unproved) >= MOST:  # who has not the key keeps nobody out
            oldest = next(iter(self._unproved))
            del self._unproved[oldest]
            oldest.cancel()
            self.counters.refuse("crowded")
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        self._unproved[task] = None

        def served(done: asyncio.Task[None]) -> None:
            self._connections.discard(done)
            self._unproved.pop(done, None)
            self._serving.pop(done, None)
            writer.close()  # one that is cancelled before it began has not closed it

        task.add_done_callback(served)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection. Never raises, unless it is cancelled."""
        async with _closing(writer):
            try:
                line = await channel.answer(reader, writer, self._secret, self._silence)
                self._admit()
                await self._receive(line)
            except ChannelError as error:
                self._refuse(error.kind, error)
            except Exception:
                logger.exception("hand-over: an agent was not served; report this")

    def _admit(self) -> None:
        """The connection of this task is of who has the key. Raises `ChannelError`: too many are.
        """
        own = asyncio.current_task()
        assert own is not None
        self._unproved.pop(own, None)
        if len(self._serving) >= MOST:
            raise ChannelError("crowded", f"{MOST} parcels are coming already")
        self._serving[own] = ""

    async def _receive(self, line: Channel) -> None:
        try:
            size, label = _offer_in(await line.receive())
            await self._alone(label.parcel)
            await self._fetch_and_take(line, label, size)
        except ParcelError as error:
            self._refuse("bad", error)
            await line.send(Kind.REFUSED, one_line(error).encode())
        except (OSError, SuiteError) as error:
            self._once.say("later", f"cannot take a parcel now: {one_line(error)}")
            await line.send(Kind.LATER, one_line(error).encode())
        else:
            self._once.over("later")
            await line.send(Kind.KEPT)

    async def _alone(self, parcel: str) -> None:
        """Whoever offers a parcel again has no use for the connection before."""
        own = asyncio.current_task()
        others = [task for task, known in self._serving.items() if known == parcel]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if own is not None:
            self._serving[own] = parcel

    async def _fetch_and_take(self, line: Channel, label: Label, size: int) -> None:
        if self._landing.kept(label):
            return
        whole = self._landing.place(label)
        if not whole.is_file():
            await self._fetch(line, label, size, whole.with_suffix(_PART))
            whole.with_suffix(_PART).replace(whole)
        # A connection that is cut does not keep what is whole from being taken.
        await self._waiting(line, asyncio.shield(self._landing.take(label)))

    async def _fetch(self, line: Channel, label: Label, size: int, path: Path) -> None:
        """Have all of the parcel at *path*. Raises `ParcelError`: it is none."""
        for old in self._folder.glob(f"{as_file(label.sender)}.*{_PART}"):
            if old != path:
                old.unlink(missing_ok=True)
        at = await self._waiting(line, asyncio.to_thread(part_of, path, label, size))
        check_room(self._folder, size - at)
        self.counters.resumed += at > 0
        await line.send(Kind.AT, _AT.pack(at))
        with path.open("ab") as file:
            while at < size:
                frame = await line.receive()
                if frame.kind is not Kind.DATA or not 0 < len(frame.body) <= size - at:
                    raise ChannelError("malformed", f"a frame out of its turn: {frame.kind.name}")
                file.write(frame.body)
                at += len(frame.body)
                self.counters.bytes_in += len(frame.body)
        if await self._waiting(line, asyncio.to_thread(_is_whole, path, label, size)):
            return
        path.unlink(missing_ok=True)
        raise ParcelError("it is damaged, or another one than was offered")

    async def _waiting(self, line: Channel, work: Awaitable[Any]) -> Any:
        """What *work* comes to; meanwhile the other side is told to wait."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait([task], timeout=min(_BUSY, self._silence / 3)))[0]:
                await line.send(Kind.WAIT)
        except BaseException:
            task.cancel()
            raise
        return task.result()

    def _refuse(self, kind: str, why: Exception) -> None:
        self.counters.refuse(kind)
        self._once.say(kind, f"refused: {one_line(why)}")


@asynccontextmanager
async def _closing(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    try:
        yield
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _connection(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to *address*. Raises `ChannelError`; `CourierError`: there can be none."""
    try:
        host, port = endpoint(address, whole=True)
        return await within(channel.GREETING, asyncio.open_connection(host, port))
    except ValueError as error:  # also of what turns a name into one for name servers
        raise CourierError(f"{address!r} is no address to bring anything to") from error


def _offer_in(frame: Frame) -> tuple[int, Label]:
    if frame.kind is not Kind.OFFER:
        raise ChannelError("malformed", f"a frame out of its turn: {frame.kind.name}")
    try:
        size, *row = msgpack.unpackb(frame.body)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ChannelError("malformed", f"an offer that cannot be read ({error})") from error
    if type(size) is not int or size < 1:
        raise ChannelError("malformed", "an offer of nothing")
    return size, label_of(row)


def _number(frame: Frame, most: int) -> int:
    try:
        (at,) = _AT.unpack(frame.body)
    except struct.error as error:
        raise ChannelError("malformed", "a place that is none") from error
    if at > most:
        raise ChannelError("malformed", "a place behind the end")
    return int(at)


def _text(frame: Frame) -> str:
    """What the other side says, fit to be shown."""
    text = frame.body[:300].decode("utf-8", "replace")
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _is_whole(path: Path, label: Label, size: int) -> bool:
    """Whether the parcel at *path* is that one, all of it. Raises `OSError`."""
    if path.stat().st_size != size or intact(path) != size:
        return False
    try:
        return label_in(path) == label
    except ParcelError:
        return False
