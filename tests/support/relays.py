"""What stands between processes and spoils what passes: a TCP relay that goes dead, and a network
that loses, repeats and reorders datagrams.

    python tests/support/relays.py HOST:PORT HOST:PORT LOSS SEED   # datagrams, one way
"""

from __future__ import annotations

import heapq
import random
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

Address = tuple[str, int]

LATE: Final = 0.05
"""Seconds that a datagram is held up at most; so long that others overtake it."""
_PIECE: Final = 1 << 16


class Relay:
    """Passes the bytes of TCP connections on to *target*, from a port of 127.0.0.1, until `cut`.

    Then it is dead, not closed: connections stay, and are still made, but nothing passes, and
    nobody is told. After `mend` all that was sent meanwhile passes.
    """

    def __init__(self, target: Address) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._flows = threading.Event()
        self._flows.set()
        self._open: list[socket.socket] = []
        self._ended = False
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._flows.set()
        for each in [self._listener, *self._open]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._thread.join()

    def cut(self) -> None:
        """Let nothing pass."""
        self._flows.clear()

    def mend(self) -> None:
        """Let everything pass."""
        self._flows.set()

    def _accept(self) -> None:
        while not self._ended:
            try:
                near, _ = self._listener.accept()
            except OSError:  # it was closed
                return
            self._open.append(near)
            try:
                far = socket.create_connection(self._target)
            except OSError:  # there is no server, as the caller will see
                near.close()
                continue
            self._open.append(far)
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_PIECE):
                self._flows.wait()
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def lossy(near: Address, far: Address, loss: float, chance: random.Random) -> None:
    """Pass datagrams from *near* to *far*, for ever.

    A share *loss* of them gets lost, as many come twice, and as many are overtaken by others.
    """
    held: list[tuple[float, int, bytes]] = []
    count = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire, selectors.DefaultSelector() as s:
        wire.bind(near)
        wire.setblocking(False)
        s.register(wire, selectors.EVENT_READ)
        while True:
            wait = held[0][0] - time.monotonic() if held else None
            for _ in s.select(None if wait is None else max(0.0, wait)):
                data = wire.recv(_PIECE)
                for _ in range(0 if chance.random() < loss else 1 + (chance.random() < loss)):
                    late = chance.uniform(0.0, LATE) if chance.random() < loss else 0.0
                    count += 1
                    heapq.heappush(held, (time.monotonic() + late, count, data))
            while held and held[0][0] <= time.monotonic():
                with suppress(OSError):  # nobody listens there now
                    wire.sendto(heapq.heappop(held)[2], far)


@contextmanager
def lossy_network(
    agents: dict[str, Address], loss: float, seed: int
) -> Iterator[dict[str, dict[str, Address]]]:
    """A relay for each direction between each two of *agents*.

    Gives what each agent is to be told of where all of them are.
    """
    names = sorted(agents)
    told = {name: dict(agents) for name in names}
    relays = []
    try:
        for number, (one, other) in enumerate((a, b) for a in names for b in names if a != b):
            near = f"127.0.9.{number + 1}", agents[other][1]
            told[one][other] = near
            texts = [f"{host}:{port}" for host, port in (near, agents[other])]
            command = [sys.executable, __file__, *texts, str(loss), str(seed + number)]
            relays.append(subprocess.Popen(command))
        yield told
    finally:
        for relay in relays:
            relay.kill()
            relay.wait()


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    lossy(
        _address(sys.argv[1]), _address(sys.argv[2]), float(sys.argv[3]),
        random.Random(int(sys.argv[4])),
    )  # fmt: skip
