"""Who writes what no agent would write: into inboxes in Redis, or to the ports of agents."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import cycle
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from scrapy_spider_suite.cluster.transports.udp_protocol import Packet, PacketKind, PacketSealer
from support.relays import Address

Deed = Callable[[], object]
PAUSE = 0.25
"""Seconds between two deeds."""


@contextmanager
def vandal(deeds: Iterable[Deed]) -> Iterator[None]:
    """Do one of *deeds* after the other, all over again, in a thread, until the block ends."""
    ended = threading.Event()

    def act() -> None:
        for deed in cycle(deeds):
            with suppress(RedisError, OSError):  # nobody is there at the moment
                deed()
            if ended.wait(PAUSE):
                return

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def in_streams(client: Redis[bytes], crawl: str, name: str, seed: int = 1) -> list[Deed]:
    """Entries for the agent *name* that are malformed, too large, or of no kind there is."""
    chance = random.Random(seed)
    inbox, receipts = (f"suite:{{{crawl}}}:{kind}:{name}" for kind in ("inbox", "receipts"))

    def add(key: str, fields: dict[str, Any]) -> Deed:
        return lambda: client.xadd(key, fields, maxlen=1000)

    return [
        add(inbox, {"message": b"what is this"}),
        add(inbox, {"message": chance.randbytes(300)}),
        add(inbox, {"message": chance.randbytes(2 << 20)}),
        add(inbox, {"text": "hello"}),
        add(receipts, {"receipts": chance.randbytes(100)}),
        add(receipts, {"text": "hello"}),
    ]


def in_datagrams(places: Mapping[str, Address], seed: int = 1) -> list[Deed]:
    """Datagrams to the agents at *places*: of no kind, too large, or sealed with another key."""
    chance = random.Random(seed)

    def send(data: bytes, place: Address) -> Deed:
        def deed() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire:
                wire.sendto(data, place)

        return deed

    deeds = []
    for name, place in places.items():
        other = next(each for each in places if each != name)
        sealer = PacketSealer(other, [name], b"not what they share")
        forged = sealer.seal(name, Packet(PacketKind.HELLO, chance.randbytes(8)))
        data = [forged, *(chance.randbytes(size) for size in (0, 1, 60, 1_400, 60_000))]
        deeds += [send(each, place) for each in data]
    return deeds
