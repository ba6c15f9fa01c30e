"""Fetches a second of the suite's download handlers and of Scrapy's, on one bare loopback server.

    python benchmarks/handlers.py [--fetches 20000] [--concurrency 32] [--rounds 3]

Every handler runs in its own process under uvloop (where that is installed) and fetches the same
6 KB page over keep-alive connections from a server in another process, which does nothing but
answer. "CPU" is the time that the fetching process computed, per fetch: what the handler costs a
crawl whose server is not the limit. Handlers take turns; the best round of each counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable
from typing import Any

LINE = b"<p><a href='/page'>a link</a> and some text</p>\n"
PAGE = b"<html><body>" + LINE * 125 + b"</body></html>"
ANSWER = (
    b"HTTP/1.1 200 OK\r\nServer: bare\r\nDate: Wed, 19 Nov 2025 10:00:00 GMT\r\n"
    b"Content-Type: text/html; charset=utf-8\r\nContent-Length: %d\r\n"
    b"Vary: Accept-Encoding\r\nCache-Control: max-age=0, private\r\nETag: \"abc\"\r\n"
    b"Set-Cookie: a=b; path=/\r\nX-Powered-By: nothing\r\n\r\n%b" % (len(PAGE), PAGE)
)
HANDLERS = {
    "suite": "scrapy_spider_suite.fetch.http1.Http1Handler",
    "Scrapy default": "scrapy.core.downloader.handlers.http11.HTTP11DownloadHandler",
    "Scrapy aiohttp": "scrapy.core.downloader.handlers._aiohttp.AiohttpDownloadHandler",
}
HEADERS = {
    "Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "Accept-Language": "en",
    "User-Agent": "benchmark (+https://example.com)",
    "Accept-Encoding": "gzip, deflate, br",
}


class Server(asyncio.Protocol):
    """Answers every request, of which it assumes that each comes in one piece."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer."""
        self.transport.write(ANSWER)  # type: ignore[attr-defined]


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop, uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def serve() -> None:
    """Listen on a free port of loopback, print it, and answer until killed."""
    loop = new_loop()
    server = loop.run_until_complete(loop.create_server(Server, "127.0.0.1", 0))
    print(server.sockets[0].getsockname()[1], flush=True)
    loop.run_forever()


def fetch(path: str, port: int, fetches: int, concurrency: int) -> None:
    """Fetch with the handler at the dotted *path*; print the times as JSON."""
    loop = new_loop()
    asyncio.set_event_loop(loop)
    from twisted.internet import asyncioreactor

    asyncioreactor.install(loop)  # type: ignore[no-untyped-call]
    from scrapy import Spider
    from scrapy.utils.defer import deferred_from_coro
    from scrapy.utils.misc import load_object
    from scrapy.utils.test import get_crawler

    settings = {
        "SUITE_ALLOW_PRIVATE_ADDRESSES": True,
        "CONCURRENT_REQUESTS": concurrency,
        "CONCURRENT_REQUESTS_PER_DOMAIN": concurrency,
    }
    from twisted.internet import reactor as installed

    reactor: Any = installed
    crawler = get_crawler(Spider, settings)
    crawler.spider = Spider("benchmark")

    async def run() -> None:
        try:
            times = await timed(load_object(path), crawler, port, fetches, concurrency)
            print(json.dumps(times))
        except Exception:
            traceback.print_exc()
        finally:
            reactor.stop()

    reactor.callWhenRunning(lambda: deferred_from_coro(run()))
    reactor.run()


async def timed(
    handler_class: Any, crawler: Any, port: int, fetches: int, concurrency: int
) -> dict[str, float]:
    """Fetch *fetches* pages after a warm-up; return wall and CPU seconds."""
    from scrapy import Request

    handler = handler_class.from_crawler(crawler)

    async def worker(todo: Iterable[int]) -> None:
        for number in todo:
            request = Request(f"http://127.0.0.1:{port}/page/{number}", headers=HEADERS)
            request.meta["suite_address"] = "127.0.0.1"
            request.meta["download_timeout"] = 60.0
            response = await handler.download_request(request)
            if response.status != 200 or len(response.body) != len(PAGE):
                raise RuntimeError(f"unexpected answer: {response}")

    async def run(count: int) -> None:
        numbers = iter(range(count))
        await asyncio.gather(*(worker(numbers) for _ in range(concurrency)))

    await run(max(fetches // 10, concurrency))
    wall, cpu = time.perf_counter(), time.process_time()
    await run(fetches)
    result = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    await handler.close()
    return result


def one_round(port: int, fetches: int, concurrency: int) -> dict[str, dict[str, float]]:
    """Run every handler that can be imported once."""
    results = {}
    for name, path in HANDLERS.items():
        command = [sys.executable, __file__, "--client", path, "--port", str(port)]
        command += ["--fetches", str(fetches), "--concurrency", str(concurrency)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not done.stdout:
            print(f"{name}: left out: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        else:
            results[name] = json.loads(done.stdout.splitlines()[-1])
    return results


def compare(fetches: int, concurrency: int, rounds: int) -> None:
    """Measure all handlers and print a table with ratios to Scrapy's default one."""
    here = os.path.abspath(__file__)
    with subprocess.Popen([sys.executable, here, "--serve"], stdout=subprocess.PIPE) as server:
        try:
            port = int(server.stdout.readline())  # type: ignore[union-attr]
            measured = [one_round(port, fetches, concurrency) for _ in range(rounds)]
        finally:
            server.kill()
    names = [name for name in HANDLERS if all(name in each for each in measured)]
    best = {
        name: {key: min(each[name][key] for each in measured) for key in ("wall", "cpu")}
        for name in names
    }
    base = best["Scrapy default"]
    print(f"{fetches} fetches, {concurrency} at a time, best of {rounds} rounds")
    print(f"{'handler':<16}{'fetches/s':>10}{'ratio':>7}{'CPU µs':>9}{'ratio':>7}")
    for name in names:
        wall, cpu = best[name]["wall"], best[name]["cpu"]
        rate, cost = fetches / wall, cpu / fetches * 1e6
        print(f"{name:<16}{rate:>10.0f}{base['wall'] / wall:>7.2f}{cost:>9.0f}", end="")
        print(f"{base['cpu'] / cpu:>7.2f}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fetches", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve()
    elif args.client:
        fetch(args.client, args.port, args.fetches, args.concurrency)
    else:
        compare(args.fetches, args.concurrency, args.rounds)


if __name__ == "__main__":
    main()
