"""Hand-over files over authenticated TCP, one connection each; a spool of whole files.

====== ===========================================================================
bytes  what, in network order
====== ===========================================================================
8, 32  both ways: `MAGIC`, and a random draw
32     both ways: the proof, keyed BLAKE2b (RFC 7693) of the role and both of these
4, 1   then frames, both ways: bytes of the body, `FrameKind`
n      body: at most `FRAME_MAX` bytes
16     keyed BLAKE2b of the frame's number in its direction, from 0, and the frame
====== ===========================================================================

Keys of both directions derive from the shared key and these draws, so forged, moved, lost or
repeated frames are noticed. Content is not encrypted.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import struct
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from enum import IntEnum
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec

from scrapy_spider_suite.cluster.handover.handover_file import (
    PIECE,
    FileCounters,
    FileReceiver,
    FileTransport,
    HandoverLabel,
    check_room,
    decode_label,
    error_text,
    intact_length,
    intact_prefix,
    quoted_name,
    read_label,
)
from scrapy_spider_suite.cluster.messages import WireError, derive_secret
from scrapy_spider_suite.errors import HandoverFileError, SuiteError, TransportError
from scrapy_spider_suite.runtime.tasks import cancel_tasks, logged_task
from scrapy_spider_suite.runtime.text import printable
from scrapy_spider_suite.settings.values import Endpoint, endpoint

logger = logging.getLogger(__name__)

T = TypeVar("T")
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

MAGIC: Final = b"SUITE-C\1"
FRAME_MAX: Final = 1 << 17  # bytes of a body
SILENCE: Final = 30.0  # seconds without a byte after which a connection counts as cut
HANDSHAKE_SECONDS: Final = 10.0  # seconds for the proofs
_DRAW: Final = 32
_MAC: Final = 16
_HEAD: Final = struct.Struct(">IB")
_NUMBER: Final = struct.Struct(">Q")
PURPOSE: Final = b"suite handover 1"
_CALLER, _CALLED = b"caller", b"called"


class FrameKind(IntEnum):
    OFFER = 1  # the sender's label and size of a file
    AT = 2  # the receiver wants it from that byte on
    DATA = 3
    KEPT = 4  # the receiver keeps all of it
    WAIT = 5  # the receiver is at work
    LATER = 6  # not now, with the reason
    REFUSED = 7  # never, with the reason


class ChannelFrame(NamedTuple):
    kind: FrameKind
    body: bytes


class SealedChannel:
    """A connection of two sides that have proved the key. Methods raise `WireError`."""

    def __init__(
        self, connection: Connection, secret: bytes, roles: tuple[bytes, bytes], draws: bytes,
        silence: float,
    ) -> None:  # fmt: skip
        self._reader, self._writer = connection
        self._own, self._theirs = (
            blake2b(key=_derived(b"frames ", role, draws, secret), digest_size=_MAC)
            for role in roles
        )
        self._silence = silence
        self._sent = self._received = 0

    async def send(self, kind: FrameKind, body: bytes = b"") -> None:
        frame = _HEAD.pack(len(body), kind) + body
        mac = _mac(self._own, self._sent, frame)
        self._sent += 1
        self._writer.write(frame + mac)
        await within(self._silence, self._writer.drain())

    async def receive(self) -> ChannelFrame:
        head = await within(self._silence, self._reader.readexactly(_HEAD.size))
        size, kind = _HEAD.unpack(head)
        if size > FRAME_MAX:
            raise WireError("oversized", f"a frame of {size:,} bytes")
        data = await within(self._silence, self._reader.readexactly(size + _MAC))
        body, mac = data[:size], data[size:]
        if not hmac.compare_digest(_mac(self._theirs, self._received, head + body), mac):
            raise WireError("forged", "a frame that its sender did not send, or not there")
        self._received += 1
        try:
            return ChannelFrame(FrameKind(kind), body)
        except ValueError as error:
            raise WireError("malformed", f"a frame of kind {kind}") from error


def _derived(purpose: bytes, role: bytes, draws: bytes, secret: bytes) -> bytes:
    return blake2b(purpose + role + draws, key=secret, digest_size=32).digest()


def _mac(keyed: blake2b, number: int, frame: bytes) -> bytes:
    mac = keyed.copy()
    mac.update(_NUMBER.pack(number) + frame)
    return mac.digest()


async def open_channel(
    connection: Connection, secret: bytes, silence: float = SILENCE, *, called: bool = False
) -> SealedChannel:
    """Return the channel of a connection, which the other side made if *called*.

    Raises `WireError`.
    """
    reader, writer = connection
    roles = (_CALLED, _CALLER) if called else (_CALLER, _CALLED)
    mine = MAGIC + os.urandom(_DRAW)
    if not called:
        writer.write(mine)
    theirs = await within(HANDSHAKE_SECONDS, reader.readexactly(len(mine)))
    if not theirs.startswith(MAGIC):
        raise WireError("malformed", "it is no agent of this version")
    if called:
        writer.write(mine)
    draws = theirs + mine if called else mine + theirs
    own, other = (_derived(b"proof ", role, draws, secret) for role in roles)
    writer.write(own)
    proof = await within(HANDSHAKE_SECONDS, reader.readexactly(len(other)))
    if not hmac.compare_digest(proof, other):
        raise WireError("forged", "it has another key")
    return SealedChannel(connection, secret, roles, draws, silence)


async def within(seconds: float, work: Awaitable[T]) -> T:
    """Await *work*. Raises `WireError` after *seconds*, or if the line is cut."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError as error:
        raise WireError("broken", f"nothing came for {seconds:g} s") from error
    except asyncio.IncompleteReadError as error:
        raise WireError("broken", "the connection was closed") from error
    except OSError as error:
        raise WireError("broken", error.strerror or str(error)) from error


AGAIN: Final = 60.0  # most seconds until a failed file is merged again, offered or not
_WHOLE = ".handover"


class Spool:
    """Whole files in *folder*, merged even without another offer: their hosts stand still."""

    inbox: FileReceiver

    def __init__(self, folder: Path, counters: FileCounters) -> None:
        self._folder, self._counters = folder, counters
        self._merges: dict[str, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

    def open(self, inbox: FileReceiver) -> None:
        self.inbox = inbox
        self._task = logged_task(self._merge_all(), "hand-overs")

    async def close(self) -> None:
        await cancel_tasks(self._task, *self._merges.values())

    async def _merge_all(self) -> None:
        while True:
            for path in sorted(self._folder.glob(f"*{_WHOLE}")):
                try:
                    self.merge(read_label(path))
                except HandoverFileError as error:
                    logger.warning("hand-over: %s; it is removed", error_text(error))
                    path.unlink()
            await asyncio.sleep(AGAIN)

    def place(self, label: HandoverLabel) -> Path:
        return self._folder / f"{quoted_name(label.sender)}.{label.file_id}{_WHOLE}"

    def merge(self, label: HandoverLabel) -> asyncio.Task[None]:
        """Merge a file; the task raises as `FileReceiver.merge`."""
        if (task := self._merges.get(label.file_id)) is None:
            task = asyncio.get_running_loop().create_task(self._merge_and_remove(label))
            self._merges[label.file_id] = task
            # The connection may be cut by then: read the error, or asyncio complains.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _merge_and_remove(self, label: HandoverLabel) -> None:
        path = self.place(label)
        try:
            await self.inbox.merge(label, path)
            self._counters.received += 1
            path.unlink(missing_ok=True)
        except HandoverFileError:
            path.unlink(missing_ok=True)
            raise
        except (SuiteError, OSError):
            raise
        except Exception as error:
            logger.exception("hand-over file %s cannot be merged; report this", label.file_id)
            raise TransportError(f"an error in taking it: {error_text(error)}") from error
        finally:
            del self._merges[label.file_id]


MOST: Final = 64  # connections of proved agents, and as many unproved ones
_BUSY: Final = 5.0  # seconds between two signs of life of a receiver at work
_AT: Final = struct.Struct(">Q")
_PART: Final = ".part"
_Size = Annotated[int, msgspec.Meta(ge=1)]


class TcpTransport(FileTransport):
    """A `FileTransport` over TCP. Raises `ValueError`: *key* is too short.

    Others reach this agent at *host*; *port* 0: any free one. *folder*: for incoming files.
    """

    def __init__(
        self, host: str, port: int, key: bytes, folder: Path, rate: float = 0.0, *,
        silence: float = SILENCE,
    ) -> None:  # fmt: skip
        super().__init__(rate)
        self._host, self._port = host, port
        self._secret = derive_secret(key, PURPOSE)
        self._folder = folder
        self._silence = silence
        self._server: asyncio.Server | None = None
        self._spool = Spool(folder, self.counters)
        # The oldest first, with the file that comes; "": not known yet; None: not proved yet.
        self._connections: dict[asyncio.Task[None], str | None] = {}

    async def start(self, inbox: FileReceiver) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._server = await asyncio.start_server(self._connected, self._host, self._port)
        port = self._server.sockets[0].getsockname()[1]
        self.address = str(Endpoint(self._host, port))
        self._spool.open(inbox)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await cancel_tasks(*self._connections)
        await self._spool.close()

    # Sending

    async def deliver(self, path: Path, label: HandoverLabel, address: str) -> None:
        try:
            connection = await _connect(address)
            async with _closing(connection[1]):
                line = await open_channel(connection, self._secret, self._silence)
                await self._offer(line, path, label)
        except WireError as error:
            self.counters.refuse(error.kind)
            raise TransportError(f"{label.receiver} at {address}: {error}") from error
        except OSError as error:
            raise TransportError(f"{path}: {error.strerror}") from error
        self.counters.delivered += 1

    async def _offer(self, line: SealedChannel, path: Path, label: HandoverLabel) -> None:
        size = path.stat().st_size
        await line.send(FrameKind.OFFER, msgspec.msgpack.encode((size, label)))
        wanted = False
        while (frame := await line.receive()).kind is not FrameKind.KEPT:
            if frame.kind is FrameKind.AT and not wanted:
                wanted = True
                if len(frame.body) != _AT.size or (at := _AT.unpack(frame.body)[0]) > size:
                    raise WireError("malformed", "a place behind the end, or none")
                with path.open("rb") as file:
                    file.seek(at)
                    async for _, portion in self._portions(label, at, size, PIECE):
                        await line.send(FrameKind.DATA, file.read(portion))
            elif frame.kind is FrameKind.LATER:
                raise TransportError(f"{label.receiver}: {_reason(frame)}")
            elif frame.kind is FrameKind.REFUSED:
                self.counters.bad += 1
                raise HandoverFileError(f"{label.receiver}: {_reason(frame)}")
            elif frame.kind is FrameKind.WAIT:
                self.signs += 1
            else:
                raise _unexpected(frame)

    # Receiving

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:
            writer.close()
            return
        unproved = [task for task, file_id in self._connections.items() if file_id is None]
        if len(unproved) >= MOST:  # callers without the key keep no agent out
            del self._connections[unproved[0]]
            unproved[0].cancel()
            self.counters.refuse("crowded")
        task = asyncio.get_running_loop().create_task(self._serve((reader, writer)))
        self._connections[task] = None

        def served(done: asyncio.Task[None]) -> None:
            self._connections.pop(done, None)
            writer.close()  # a task that is cancelled before it begins does not close it

        task.add_done_callback(served)

    async def _serve(self, connection: Connection) -> None:
        own = asyncio.current_task()
        assert own is not None
        async with _closing(connection[1]):
            try:
                line = await open_channel(connection, self._secret, self._silence, called=True)
                if sum(known is not None for known in self._connections.values()) >= MOST:
                    raise WireError("crowded", f"{MOST} hand-over files are coming already")
                self._connections[own] = ""
                await self._receive(line, own)
            except WireError as error:
                self._refuse(error.kind, error)
            except Exception:
                logger.exception("hand-over: an agent was not served; report this")

    async def _receive(self, line: SealedChannel, own: asyncio.Task[None]) -> None:
        try:
            size, label = _read_offer(await line.receive())
            file_id = label.file_id
            older = [task for task, known in self._connections.items() if known == file_id]
            await cancel_tasks(*older)
            self._connections[own] = file_id
            await self._fetch_and_merge(line, label, size)
        except HandoverFileError as error:
            self._refuse("bad", error)
            await line.send(FrameKind.REFUSED, error_text(error).encode())
        except (OSError, SuiteError) as error:
            self._once.say("later", f"cannot receive a hand-over file now: {error_text(error)}")
            await line.send(FrameKind.LATER, error_text(error).encode())
        else:
            self._once.over("later")
            await line.send(FrameKind.KEPT)

    async def _fetch_and_merge(self, line: SealedChannel, label: HandoverLabel, size: int) -> None:
        if self._spool.inbox.is_stored(label):
            return
        whole = self._spool.place(label)
        if not whole.is_file():
            await self._fetch(line, label, size, whole.with_suffix(_PART))
            whole.with_suffix(_PART).replace(whole)
        # A whole file is merged even if the connection is cut.
        await self._waiting(line, asyncio.shield(self._spool.merge(label)))

    async def _fetch(
        self, line: SealedChannel, label: HandoverLabel, size: int, path: Path
    ) -> None:
        for old in self._folder.glob(f"{quoted_name(label.sender)}.*{_PART}"):
            if old != path:
                old.unlink(missing_ok=True)
        at = await self._waiting(line, asyncio.to_thread(intact_prefix, path, label, size))
        check_room(self._folder, size - at)
        self.counters.resumed += at > 0
        await line.send(FrameKind.AT, _AT.pack(at))
        with path.open("ab") as file:
            while at < size:
                frame = await line.receive()
                if frame.kind is not FrameKind.DATA or not 0 < len(frame.body) <= size - at:
                    raise _unexpected(frame)
                file.write(frame.body)
                at += len(frame.body)
                self.counters.bytes_in += len(frame.body)
        if await self._waiting(line, asyncio.to_thread(intact_length, path, label)) != size:
            path.unlink(missing_ok=True)
            raise HandoverFileError("it is damaged, or another one than was offered")

    async def _waiting(self, line: SealedChannel, work: Awaitable[Any]) -> Any:
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait([task], timeout=min(_BUSY, self._silence / 3)))[0]:
                await line.send(FrameKind.WAIT)
        except BaseException:
            task.cancel()
            raise
        return task.result()


@asynccontextmanager
async def _closing(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    try:
        yield
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _connect(address: str) -> Connection:
    try:
        host, port = endpoint(address, whole=True)
        return await within(HANDSHAKE_SECONDS, asyncio.open_connection(host, port))
    except ValueError as error:  # also raised by the codec of host names
        raise TransportError(f"{address!r} is no address to bring anything to") from error


def _read_offer(frame: ChannelFrame) -> tuple[int, HandoverLabel]:
    if frame.kind is not FrameKind.OFFER:
        raise _unexpected(frame)
    try:
        size, row = msgspec.msgpack.decode(frame.body, type=tuple[_Size, list[Any]])
    except (ValueError, RecursionError) as error:
        raise WireError("malformed", f"an offer that cannot be read ({error})") from error
    return size, decode_label(row)


def _unexpected(frame: ChannelFrame) -> WireError:
    return WireError("malformed", f"a frame out of its turn: {frame.kind.name}")


def _reason(frame: ChannelFrame) -> str:
    return printable(frame.body[:300].decode("utf-8", "replace"))[:300]
