"""What it costs to send URLs from one agent to another.

    python benchmarks/messages.py [--lists FOLDER] [--small]

URLs are packed into messages as an agent packs its outbox, and unpacked again: alone, through Redis
Streams, and over UDP on loopback. Sender and receiver are a process each; the receiver keeps what
it has every 50 ms, in memory. FOLDER holds ``mixed_500k.txt.xz`` and ``sitemaps_300k.txt.xz``, one
URL a line; without it, made-up URLs are taken.

URLs a second are by the clock, from the first message to the last one that was acknowledged; times
are CPU of each process by URL, that of Redis too. Bytes are those of messages, over UDP of
datagrams without what IP and UDP add; as a part of the URLs' own length.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from growing import LISTS, urls_of
from support.redis_servers import RedisServer

from scrapy_spider_suite.cluster.messages import (
    Message,
    MessageLimits,
    MessagePacker,
    MessageTransport,
    unpack_message,
)
from scrapy_spider_suite.cluster.transports import redis_streams, udp
from scrapy_spider_suite.cluster.transports.udp import UdpTransport
from scrapy_spider_suite.cluster.transports.udp_protocol import OVERHEAD
from scrapy_spider_suite.settings.values import Endpoint

KEEP = 0.05
AHEAD = 5_000
"""Rows that the packer is shown."""

Opener = Callable[[str], MessageTransport]
Rows = list[tuple[int, bytes]]


def alone(rows: Rows, bounds: MessageLimits) -> str:
    """Packing and unpacking alone."""
    began = time.process_time()
    messages, size, left = [], 0, 0
    packer = MessagePacker("a", 1, bounds)
    while left < len(rows):
        message = packer.pack(rows[left : left + AHEAD], 1)
        messages.append(message.data)
        left += message.rows
        size += len(message.data)
    packed = time.process_time()
    count = sum(len(unpack_message(message, bounds).rows) for message in messages)
    unpacked = time.process_time()
    assert count == len(rows)
    return line(rows, size, None, packed - began, unpacked - packed, len(messages))


def line(
    rows: Rows, size: int, seconds: float | None, sender: float, receiver: float, messages: int
) -> str:
    """A line of the table."""
    count, own = len(rows), sum(len(row) for _, row in rows)
    rate = f"{count / seconds:10,.0f}" if seconds else " " * 10
    return (
        f"{rate} {size / count:6.1f} {size / own:6.3f} {sender / count * 1e6:7.2f} "
        f"{receiver / count * 1e6:7.2f} {count / messages:9.0f}"
    )


def receive(open_: Opener, count: int, end: Connection) -> None:
    """The receiver's process: until *count* rows are kept, and whoever started it says so."""

    async def main() -> None:
        transport, waiting, kept = open_("b"), [], 0
        spent = [0.0]

        def received(message: Message) -> None:
            nonlocal kept
            if not kept:
                spent[0] = time.process_time()
            kept += len(message.rows)
            waiting.append(message.receipt)

        await transport.start(received, lambda *_: None)
        end.send("ready")
        while not end.poll():
            await asyncio.sleep(KEEP)
            for receipt in waiting:
                transport.acknowledge(receipt)
            waiting.clear()
        assert kept >= count, (kept, count)
        end.send(time.process_time() - spent[0])
        await transport.close()

    asyncio.run(main())


async def send(transport: MessageTransport, rows: Rows) -> tuple[float, float]:
    """Send *rows* and wait until all are acknowledged: seconds, and CPU of this process."""
    done = asyncio.Event()
    left = len(rows)
    acknowledged = 0
    on_the_way: dict[int, int] = {}

    def told(to: str, first: int, last: int) -> None:
        nonlocal acknowledged
        acknowledged += on_the_way.pop(first)
        done.set()

    await transport.start(lambda message: None, told)
    packer, begin = MessagePacker("a", 1, transport.bounds), 0
    began, spent = time.monotonic(), time.process_time()
    while acknowledged < left:
        while begin < left and transport.room("b"):
            message = packer.pack(rows[begin : begin + AHEAD], 1)
            transport.send("b", message)
            on_the_way[message.first] = message.rows
            begin += message.rows
        done.clear()
        await done.wait()
    took = time.monotonic() - began, time.process_time() - spent
    await transport.close()
    return took


def through(open_: Opener, rows: Rows, overhead: int) -> str:
    """From this process to another one."""
    here, there = multiprocessing.get_context("fork").Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=receive, args=(open_, len(rows), there)
    )
    process.start()
    here.recv()
    sender: list[MessageTransport] = []

    async def main() -> tuple[float, float]:
        sender.append(open_("a"))
        return await send(sender[0], rows)

    seconds, spent = asyncio.run(main())
    here.send("over")
    receiver = here.recv()
    process.join()
    counters = sender[0].counters
    size = counters.bytes + overhead * counters.taken
    again = f" {counters.resent / counters.sent:7.4f}"
    return line(rows, size, seconds, spent, receiver, counters.taken) + again


def addresses() -> dict[str, Endpoint]:
    """Two ports of loopback."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    found = {name: each.getsockname() for name, each in zip("ab", sockets, strict=True)}
    for each in sockets:
        each.close()
    return found


def through_redis(rows: Rows) -> str:
    """Through a server of its own; what that took is added to the line."""
    with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder)) as server:

        def open_(agent: str) -> MessageTransport:
            with server.client() as client:  # as if it had joined
                row = {"incarnation": f"{1:016x}", "state": "active", "ends": 0}
                client.hset("suite:{crawl}:members", agent, json.dumps(row))
            return redis_streams.RedisStreams(server.url, "crawl", agent, 1)

        text = through(open_, rows, 0)
        with server.client() as client:
            used = client.info("cpu")
        cpu = used["used_cpu_user"] + used["used_cpu_sys"]
        return f"{text} {cpu / len(rows) * 1e6:8.2f}"


def measure(name: str, rows: Rows) -> None:
    """All ways for one list."""
    length = sum(len(row) for _, row in rows) / len(rows)
    print(f"{name}: {len(rows):,} URLs of {length:.1f} bytes")
    print("                 URLs/s  bytes   part  sender receiver URLs/message  again    Redis")
    key, places = bytes(32), addresses()
    ways: dict[str, Callable[[], str]] = {
        "messages, 48 KiB": lambda: alone(rows, redis_streams.BOUNDS),
        "messages, 1.4 kB": lambda: alone(rows, udp.BOUNDS),
        "streams": lambda: through_redis(rows),
        "UDP": lambda: through(lambda agent: UdpTransport(agent, places, key), rows, OVERHEAD),
    }
    for way, run in ways.items():
        print(f"{way:15} {run()}", flush=True)


def main() -> None:
    """A table for each list."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--lists", type=Path, help="a folder with real URLs")
    parser.add_argument("--small", action="store_true", help="a few thousand URLs")
    options = parser.parse_args()
    for name in LISTS[:1] if options.small else LISTS:
        urls = urls_of(options.lists, name, 5_000 if options.small else None)
        measure(name, list(enumerate((url.encode("utf-8", "surrogateescape") for url in urls), 1)))


if __name__ == "__main__":
    main()
