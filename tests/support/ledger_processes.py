"""Real processes that fetch the same keys through one ledger, and write down when.

    python tests/support/ledger_processes.py LEDGER LOG PROCESSES FETCHES KEYS DELAY TIMEOUT [SLAIN]

LEDGER is a URL of Redis or a path. Each line of LOG: process, key, "start" or "end", nanoseconds of
the boot clock. With SLAIN the first process kills itself in the midst of its SLAINth fetch.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from scrapy_spider_suite.cluster.ledger.grants import Grants, Need
from scrapy_spider_suite.cluster.ledger.rate_ledger import FileLedger, RateLedger, RedisLedger
from scrapy_spider_suite.cluster.ledger.shared_limits import LedgerClient
from scrapy_spider_suite.runtime.clock import boottime


class Fetch(NamedTuple):
    """One line of the log for each of two: nanoseconds; *end* is 0 if there was none."""

    process: str
    key: str
    start: int
    end: int


def ledger_of(where: str) -> RateLedger:
    """In Redis or in a file."""
    return RedisLedger(where, "town", 30.0) if "://" in where else FileLedger(Path(where), 30.0)


def fetches_in(log: Path) -> dict[str, list[Fetch]]:
    """What *log* has of each key, by its start."""
    begun: dict[tuple[str, str], int] = {}
    found: dict[str, list[Fetch]] = {}
    for line in log.read_text().splitlines():
        process, key, what, at = line.split("\t")
        if what == "start":
            begun[process, key] = int(at)
        else:
            fetch = Fetch(process, key, begun.pop((process, key)), int(at))
            found.setdefault(key, []).append(fetch)
    for (process, key), start in begun.items():
        found.setdefault(key, []).append(Fetch(process, key, start, 0))
    return {key: sorted(fetches, key=lambda each: each.start) for key, fetches in found.items()}


def gaps(fetches: list[Fetch]) -> Iterator[float]:
    """Seconds from each end to the next start."""
    for one, two in pairwise(fetches):
        if one.end:
            yield (two.start - one.end) / 1e9


async def begin_fetch(grants: Grants, needs: list[Need], poke: Callable[[], None]) -> None:
    """Wait until a fetch may start, and start it."""
    while (at := grants.ready(needs, now := boottime())) > now:
        poke()
        await asyncio.sleep(min(at - now, 0.005))
    grants.start(needs, now)


class Contender:
    """One process."""

    def __init__(self, number: int, arguments: list[str]) -> None:
        self.number = number
        self.fetches, self.keys = int(arguments[3]), int(arguments[4])
        self.delay, self.timeout = float(arguments[5]), float(arguments[6])
        self.slain = int(arguments[7]) if len(arguments) > 7 and not number else 0
        self.log = os.open(arguments[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.where = arguments[0]
        self.left = self.fetches

    def note(self, keys: list[Need], what: str) -> None:
        """Write it down; what is written is there, though the process is killed."""
        at = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        text = "".join(f"{self.number}\t{need.key}\t{what}\t{at}\n" for need in keys)
        os.write(self.log, text.encode())

    async def visit(self, grants: Grants, client: LedgerClient, host: int) -> None:
        """Fetch one host and its address again and again."""
        needs = [Need(f"host {host}", self.delay), Need(f"address {host % 3}", self.delay / 2)]
        while self.left > 0:
            await begin_fetch(grants, needs, client.poke)
            self.note(needs, "start")
            self.left -= 1
            await asyncio.sleep(random.uniform(0, 0.01))
            if self.slain and self.fetches - self.left >= self.slain:
                os.kill(os.getpid(), signal.SIGKILL)
            self.note(needs, "end")
            grants.end(needs, boottime())
            client.poke()

    async def run(self) -> None:
        """Until all is fetched."""
        name = f"{self.number + 1:016x}"
        grants = Grants(name, timeout=self.timeout, window=0.5)
        client = LedgerClient(ledger_of(self.where), grants, pause=0.002)
        running = asyncio.create_task(client.run())
        async with asyncio.TaskGroup() as visits:
            for host in range(self.keys):
                visits.create_task(self.visit(grants, client, host))
        await client.close()
        await running


def main(arguments: list[str]) -> int:
    """Start the processes, and wait for them; 1 if any of those that were not slain failed."""
    children = []
    for number in range(int(arguments[2])):
        if not (child := os.fork()):
            asyncio.run(Contender(number, arguments).run())
            os._exit(0)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    slain = len(arguments) > 7
    return any(statuses[slain:]) or slain != (statuses[0] == signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
