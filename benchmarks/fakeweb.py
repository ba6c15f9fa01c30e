"""How many pages a second the in-vitro web serves from one core.

The server is a process of its own, held on one core where the system allows it; the load comes
from ``wrk`` if it is installed (``--client wrk``), or from a bare asyncio client in this process,
which costs as much as the server and so measures less. Every request asks for another page::

    python benchmarks/fakeweb.py
    python benchmarks/fakeweb.py --client own --seconds 5 --connections 16

Prints one line of JSON: pages per second by the clock, and per second of the server's own CPU
time, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from urllib.parse import urlsplit

from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess, SyntheticWeb
from scrapy_spider_suite.testing.fake_web import new_loop

_LUA = """\
local requests, at = {}, 0
init = function()
  for line in io.lines(%(file)s) do
    local host, path = line:match("(%%S+) (%%S+)")
    requests[#requests + 1] = wrk.format("GET", path, {Host = host})
  end
end
request = function()
  at = at %% #requests + 1
  return requests[at]
end
"""


def requests_of(web: SyntheticWeb, count: int) -> list[tuple[str, str]]:
    """(host with port, path) of *count* pages, spread over the whole web."""
    hosts, pages = web.config.hosts, web.config.pages
    bases = [urlsplit(web.base(host)).netloc for host in range(hosts)]
    return [(bases[k * 7919 % hosts], web.path(k * 104729 % pages)) for k in range(count)]


def with_wrk(web: FakeWebProcess, options: argparse.Namespace) -> int:
    """Load the server with wrk; the number of answers."""
    with tempfile.TemporaryDirectory() as folder:
        pages = Path(folder, "pages")
        lines = (f"{host} {path}\n" for host, path in requests_of(web.web, 20_000))
        pages.write_text("".join(lines))
        script = Path(folder, "load.lua")
        script.write_text(_LUA % {"file": json.dumps(str(pages))})
        output = subprocess.run(
            [
                *("wrk", "-t", "1", "-c", str(options.connections), "-d", f"{options.seconds}s"),
                *("-s", str(script), f"http://127.8.0.1:{web.ready.http_port}/"),
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    wrong = re.search(r"Non-2xx or 3xx responses: (\d+)", output)
    if wrong is not None:
        raise SystemExit(f"{wrong[1]} answers were not pages")
    return int(re.search(r"(\d+) requests in", output)[1])  # type: ignore[index]


class Client(asyncio.Protocol):
    """Asks for one page after the other on one connection and counts the answers."""

    def __init__(self, heads: Iterator[bytes]) -> None:
        self.answers = 0
        self._heads = heads
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the first page."""
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._transport.write(next(self._heads))

    def data_received(self, data: bytes) -> None:
        """Count down to the end of the answer, then ask for the next page."""
        if not self._missing:
            at = data.index(b"Content-Length: ") + 16
            self._missing = int(data[at : data.index(b"\r", at)]) + data.index(b"\r\n\r\n") + 4
        self._missing -= len(data)
        if self._missing <= 0:
            self._missing = 0
            self.answers += 1
            self._transport.write(next(self._heads))


async def with_own(web: FakeWebProcess, options: argparse.Namespace) -> int:
    """Load the server with :class:`Client`; the number of answers."""
    heads = cycle(
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        for host, path in requests_of(web.web, 20_000)
    )
    loop = asyncio.get_running_loop()
    address = web.ready.first_address
    made = [
        await loop.create_connection(lambda: Client(heads), address, web.ready.http_port)
        for _ in range(options.connections)
    ]
    await asyncio.sleep(options.seconds)
    for transport, _ in made:
        transport.close()
    return sum(client.answers for _, client in made)


def cpu_seconds(pid: int) -> float:
    """CPU time that process *pid* has used, NaN where /proc does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure, print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--client", choices=("wrk", "own"))
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--log", type=Path, help="also write the arrival log")
    options = parser.parse_args()
    client = options.client or ("wrk" if shutil.which("wrk") else "own")
    config = FakeWebConfig(hosts=options.hosts, addresses=10, log=options.log)
    with FakeWebProcess(config) as web:
        if hasattr(os, "sched_setaffinity"):
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(web.pid, cores[:1])
            os.sched_setaffinity(0, cores[1:] or cores)
        cpu, began = cpu_seconds(web.pid), time.perf_counter()
        if client == "wrk":
            answers = with_wrk(web, options)
        else:
            answers = new_loop().run_until_complete(with_own(web, options))
        took, cpu = time.perf_counter() - began, cpu_seconds(web.pid) - cpu
    report = {
        "client": client,
        "pages": answers,
        "pages_per_second": round(answers / took),
        "pages_per_cpu_second": round(answers / cpu),
        "log": options.log is not None,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
