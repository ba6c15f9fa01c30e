"""Fetches that other programs do (Erachnid's API): handed out by `pop`, ended by `complete`.

A fetch that is handed out is one of the fetch loop, without a connection: delays, robots.txt,
filters, retries, links and packs are those of any fetch.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin

import msgspec
from scrapy.exceptions import DownloadFailedError, DownloadTimeoutError

from scrapy_spider_suite.crawl.queue.frontier import FIRST
from scrapy_spider_suite.frontier.entries import Entry, Flag
from scrapy_spider_suite.store.url_states import make_seed_note, seed_tag
from scrapy_spider_suite.urls.normalize import host_of

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.assembly import CrawlParts
    from scrapy_spider_suite.crawl.context import Engine
    from scrapy_spider_suite.crawl.loop_exchange import LoopExchange
    from scrapy_spider_suite.crawl.queue.leases import Fetch
    from scrapy_spider_suite.crawl.visits import RequestSource

COUNT_MAX: Final = 1_000  # fetches of one `pop`, results or URLs of a call
WAIT_MAX: Final = 300.0  # seconds
_SOON: Final = 0.05  # seconds for which a `pop` with some fetches waits for more
_TIMEOUT: Final = "timeout"
_FRAMING: Final = frozenset({
    "connection", "content-encoding", "content-length", "keep-alive", "transfer-encoding",
})  # fmt: skip
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token (RFC 9110, 5.6.2)
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_ASKED: Final = int(Flag.DONT_FILTER)


class PushedUrl(msgspec.Struct, forbid_unknown_fields=True):
    """A URL from outside; *tag*: a text that comes back with it."""

    url: str
    tag: str = ""
    depth: int = 0
    referrer: str = ""
    first: bool = False  # before all others of its host


class FetchResult(msgspec.Struct, forbid_unknown_fields=True):
    """What came of the fetch *id*: an answer with *status*, or an *error* in words.

    *body*: in base64, without content codings; its links are read. *links*: where the program has
    read them.
    """

    id: str
    status: int = 0
    headers: list[tuple[str, str]] = []
    body: bytes = b""
    links: list[str] = []
    error: str = ""


class _Pop:
    def __init__(self, count: int, hosts: Sequence[str]) -> None:
        self.count = count
        self.hosts = dict.fromkeys(hosts)
        self.flights: list[LoopExchange] = []
        self.came = asyncio.Event()

    @property
    def lacks(self) -> int:
        return self.count - len(self.flights)

    def wants(self, flight: LoopExchange) -> bool:
        return self.lacks > 0 and (not self.hosts or flight.visit.host.key in self.hosts)


class OutsideFetches:
    """Hands fetches out, and takes what came of them.

    Invariant: a fetch that was handed out has an id until it is completed, or its time is over.
    """

    def __init__(self, parts: CrawlParts, engine: Engine) -> None:
        self._parts = parts
        self._crawl = parts.crawl
        self._engine = engine
        self._pops: deque[_Pop] = deque()
        self._ready: deque[LoopExchange] = deque()  # that no program waits for
        self._out: dict[str, LoopExchange] = {}
        self._awaited: dict[str, list[asyncio.Future[Fetch]]] = {}  # by URL
        self._closed = False
        self.timeout = 0.0  # seconds for which a fetch may be out
        self._crawl.observers.append(self._note_end)

    # For the loop

    def acquire(self, source: RequestSource) -> Fetch | None:
        """The next fetch that a program waits for."""
        if len(self._ready) >= sum(pop.lacks for pop in self._pops):
            return None
        for pop in self._pops:
            if not pop.lacks:
                continue
            for host in pop.hosts or ("",):
                if (fetch := source.acquire(host)) is not None:
                    return fetch
        return None

    def offer(self, flight: LoopExchange) -> None:
        """Hand *flight* out to whoever waits."""
        for pop in self._pops:
            if pop.wants(flight):
                pop.flights.append(flight)
                pop.came.set()
                return
        flight.deadline = float("inf")
        self._ready.append(flight)

    # For programs

    async def pop(self, count: int, wait: float, hosts: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Up to *count* fetches, at most one of a host, those first that have waited longest.

        *hosts*: of these alone. Waits up to *wait* seconds for the first one.
        """
        pop = _Pop(count, hosts)
        for flight in list(self._ready):
            if pop.wants(flight):
                self._ready.remove(flight)
                pop.flights.append(flight)
        self._pops.append(pop)
        try:
            until = time.monotonic() + wait
            while not self._closed and pop.lacks and (left := until - time.monotonic()) > 0:
                self._engine.wake()
                pop.came.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(pop.came.wait(), min(left, _SOON))
                if pop.flights and not pop.came.is_set():
                    break
        except asyncio.CancelledError:
            for flight in pop.flights:
                flight.deadline = float("inf")
            self._ready.extend(pop.flights)
            raise
        finally:
            self._pops.remove(pop)
        return [self._hand_out(flight) for flight in pop.flights if not flight.over]

    def close(self) -> None:
        """The crawl has ended: whoever waits gets nothing more."""
        self._closed = True
        for pop in self._pops:
            pop.came.set()

    def _hand_out(self, flight: LoopExchange) -> dict[str, Any]:
        id, entry, crawl = secrets.token_hex(8), flight.fetch.entry, self._crawl
        self._out[id] = flight
        flight.deadline = crawl.now() + self.timeout
        flight.began = time.time()
        fields = [
            line.decode("latin-1").partition(": ")[::2]
            for line in flight.request.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
        ]
        return {
            "id": id, "url": entry.url, "host": entry.host,
            "address": flight.visit.host.connect_to, "headers": fields, "seconds": self.timeout,
            "depth": entry.depth, "referrer": entry.referrer,
            "tag": seed_tag(crawl.store, entry.identity) or "",
        }  # fmt: skip

    def take_back(self, ids: Iterable[str]) -> None:
        """Nobody heard of these fetches: others get them."""
        for id in ids:
            flight = self._out.pop(id, None)
            if flight is not None and not flight.over:
                self.offer(flight)

    def complete(self, results: Iterable[FetchResult]) -> list[bool]:
        """Take *results*; whether each fetch was out still. Raises `ValueError`: nothing is taken.
        """
        answers = [(result, _answer_of(result)) for result in results]
        return [self._complete(result, answer) for result, answer in answers]

    def _complete(self, result: FetchResult, answer: bytes) -> bool:
        flight = self._out.pop(result.id, None)
        if flight is None or flight.over:
            return False
        if result.error:
            kind = DownloadTimeoutError if result.error == _TIMEOUT else DownloadFailedError
            flight.fail(kind(f"another program: {result.error}"))
            return True
        flight.received(answer)
        if not flight.over:  # a body where none may be, among others
            flight.disconnected(None)
        if result.links and flight.error is None:
            links = (
                self._crawl.normalizer(urljoin(flight.url, link)) for link in result.links
            )
            chosen = list(dict.fromkeys(filter(None, links)))
            self._parts.pages.follower.give_links(flight.fetch, flight, chosen)
        return True

    def push(self, urls: Iterable[PushedUrl]) -> list[bool]:
        """Queue *urls*; whether each is new. Raises `ValueError`: nothing is queued."""
        entries = [self._entry_of(pushed) for pushed in urls]
        return [self._engine.enqueue_entry(entry, None) for entry in entries]

    def _entry_of(self, pushed: PushedUrl) -> Entry:
        normal = self._crawl.normalizer(pushed.url)
        if normal is None or not 0 <= pushed.depth < 1 << 16 or not pushed.tag.isprintable():
            raise ValueError(f"{pushed.url!r} cannot be queued: expected an http or https URL")
        return Entry(
            host_of(normal), normal, depth=pushed.depth, referrer=pushed.referrer,
            priority=FIRST if pushed.first else 0,
            seed_note=make_seed_note(pushed.tag, guessed=False) if pushed.tag else "",
        )  # fmt: skip

    async def fetch(self, pushed: PushedUrl, wait: float) -> Fetch | None:
        """Fetch a URL once more, before all others of its host; None: not within *wait* seconds.

        It is a program that fetches it, by `pop`.
        """
        entry = self._entry_of(pushed)
        entry.priority, entry.flags = FIRST, _ASKED
        future = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(entry.url, []).append(future)
        try:
            self._engine.enqueue_entry(entry, None)
            async with asyncio.timeout(wait):
                found: Fetch = await future
                return found
        except TimeoutError:
            return None
        finally:
            waiting = self._awaited[entry.url]
            waiting.remove(future)
            if not waiting:
                del self._awaited[entry.url]

    def _note_end(self, fetch: Fetch) -> None:
        for future in self._awaited.get(fetch.entry.url, ()):
            if not future.done():
                future.set_result(fetch)

    def extract(self, hosts: Iterable[str]) -> dict[str, int]:
        """Read the links of stored pages of *hosts* next; how many pages of each are unread.

        With SUITE_READ_LINKS = on-demand.
        """
        waiting = self._crawl.frontier.stored_links
        found = {}
        for host in hosts:
            waiting.demand.ask(host)
            found[host] = waiting.waiting.count_of(host)
        return found

    def status(self) -> dict[str, int]:
        """How much there is to do."""
        frontier = self._crawl.frontier
        return {
            "pending": self._crawl.pending, "out": len(self._out), "hosts": len(
                frontier.workbench.hosts
            ), "pages": frontier.counters.pages, "failed": frontier.counters.failures,
        }  # fmt: skip


def _answer_of(result: FetchResult) -> bytes:
    """The answer as a server would have sent it. Raises `ValueError`."""
    if result.error:
        return b""
    if not 200 <= result.status <= 599:
        raise ValueError(f"{result.id}: expected a status from 200 to 599, or an error")
    lines = [f"HTTP/1.1 {result.status} -"]
    for name, value in result.headers:
        if not (_NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            raise ValueError(f"{result.id}: {name!r}: {value!r} is no header field")
        if name.lower() not in _FRAMING:
            lines.append(f"{name}: {value}")
    lines += [f"Content-Length: {len(result.body)}", "", ""]
    return "\r\n".join(lines).encode("latin-1") + result.body
