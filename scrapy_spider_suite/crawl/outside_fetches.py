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
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urljoin

import msgspec
from scrapy.exceptions import DownloadFailedError, DownloadTimeoutError

from scrapy_spider_suite.crawl.queue.frontier import FIRST
from scrapy_spider_suite.crawl.requests import StoppedError
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
HOSTS_MAX: Final = 100  # of one `pop`
WAIT_MAX: Final = 300.0  # seconds
_SOON: Final = 0.05  # seconds for which a `pop` with some fetches waits for more, and between looks
_TIMEOUT: Final = "timeout"
_TAG_MAX: Final = 500
_DEPTH_MAX: Final = 10_000
_OWN_FIELDS: Final = frozenset({"accept-encoding", "connection", "host"})  # of each program
_FRAMING: Final = frozenset({
    "connection", "content-encoding", "content-length", "keep-alive", "transfer-encoding",
})  # fmt: skip
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token (RFC 9110, 5.6.2)
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


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


class BusyError(Exception):
    """Nothing can be queued now; ask again later."""


class _Pop:
    def __init__(self, count: int, hosts: Sequence[str]) -> None:
        self.count = count
        self.hosts = dict.fromkeys(host.lower() for host in hosts)
        self.flights: list[LoopExchange] = []
        self.came = asyncio.Event()

    @property
    def lacks(self) -> int:
        return self.count - len(self.flights)

    def wants(self, host: str) -> bool:
        return self.lacks > 0 and (not self.hosts or host in self.hosts)


class FetchedUrl(NamedTuple):
    """What came of a URL; *status* 0: *error* says why there is none."""

    url: str
    status: int
    error: str
    body: bytes


class OutsideFetches:
    """Hands fetches out, and takes what came of them.

    Invariant: a fetch is here only while a program has it, or waits for it.
    """

    def __init__(self, parts: CrawlParts, engine: Engine) -> None:
        self._parts = parts
        self._crawl = parts.crawl
        self._engine = engine
        self._pops: deque[_Pop] = deque()
        self._coming: set[Fetch] = set()  # acquired for pops, and not offered yet
        self._out: dict[str, LoopExchange] = {}
        self._awaited: dict[str, list[asyncio.Future[FetchedUrl]]] = {}  # by URL
        self._closed = False
        self.timeout = 0.0  # seconds for which a fetch may be out
        self._crawl.observers.append(self._note_end)

    # For the loop

    def acquire(self, source: RequestSource) -> Fetch | None:
        """The next fetch that a program waits for."""
        self._coming = {fetch for fetch in self._coming if not fetch.settled}
        if len(self._coming) >= sum(pop.lacks for pop in self._pops):
            return None
        for pop in self._pops:
            for host in (pop.hosts or ("",)) if pop.lacks else ():
                if (fetch := source.acquire(host)) is not None:
                    self._coming.add(fetch)
                    return fetch
        return None

    def offer(self, flight: LoopExchange) -> None:
        """Hand *flight* out to whoever waits; its URL stays in the queue if nobody does."""
        self._coming.discard(flight.fetch)
        for pop in self._pops:
            if pop.wants(flight.visit.host.key):
                pop.flights.append(flight)
                pop.came.set()
                return
        self._put_back([flight])

    @staticmethod
    def _put_back(flights: Iterable[LoopExchange]) -> None:
        for flight in flights:
            flight.fail(StoppedError("no program waits for it"))

    # For programs

    async def pop(self, count: int, wait: float, hosts: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Up to *count* fetches, at most one of a host, those first that have waited longest.

        *hosts*: of these alone. Waits up to *wait* seconds for the first one.
        """
        pop = _Pop(count, hosts)
        self._pops.append(pop)
        until = time.monotonic() + max(wait, _SOON)
        try:
            while not self._is_over and pop.lacks:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._engine.wake()
                pop.came.clear()
                patience = _SOON if pop.flights or pop.hosts else left
                with suppress(TimeoutError):
                    await asyncio.wait_for(pop.came.wait(), min(left, patience))
                if pop.flights and not pop.came.is_set():
                    break
        except asyncio.CancelledError:
            self._put_back(pop.flights)
            raise
        finally:
            self._pops.remove(pop)
        if self._is_over:
            self._put_back(pop.flights)
        return [self._hand_out(flight) for flight in pop.flights if not flight.over]

    @property
    def _is_over(self) -> bool:
        return self._closed or self._engine.closing

    def close(self) -> None:
        """The crawl ends: whoever waits gets nothing more; what is out may be completed."""
        self._closed = True
        for pop in self._pops:
            pop.came.set()
        for futures in self._awaited.values():
            for future in futures:
                future.cancel()

    def _hand_out(self, flight: LoopExchange) -> dict[str, Any]:
        self._out = {id: each for id, each in self._out.items() if not each.over}
        id, entry, crawl = secrets.token_hex(8), flight.fetch.entry, self._crawl
        self._out[id] = flight
        flight.deadline = crawl.now() + self.timeout
        flight.began = time.time()
        if flight.leaves is not None:
            flight.leaves.gone(time.monotonic())
        fields = [
            line.decode("latin-1").partition(": ")[::2]
            for line in flight.request.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
        ]
        return {
            "id": id, "url": entry.url, "host": entry.host,
            "address": flight.visit.host.connect_to, "seconds": self.timeout,
            "headers": [pair for pair in fields if pair[0].lower() not in _OWN_FIELDS],
            "depth": entry.depth, "referrer": entry.referrer,
            "tag": seed_tag(crawl.store, entry.identity) or "",
        }  # fmt: skip

    def take_back(self, ids: Iterable[str]) -> None:
        """Nobody heard of these fetches: their URLs stay in the queue."""
        self._put_back([self._out.pop(id) for id in ids if id in self._out])

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
            chosen = dict.fromkeys(self._normal(flight.url, link) for link in result.links)
            chosen.pop("", None)
            self._parts.pages.follower.give_links(flight.fetch, flight, [*chosen])
        return True

    def _normal(self, page: str, link: str) -> str:
        """The normal form of *link* on *page*; "": it leads nowhere."""
        with suppress(ValueError):
            return self._crawl.normalizer(urljoin(page, link)) or ""
        return ""

    def push(self, urls: Iterable[PushedUrl]) -> list[bool]:
        """Queue *urls*; whether each is new, as far as this process knows.

        Raises `ValueError`: nothing is queued; `BusyError`.
        """
        self._require_room()
        entries = [self._entry_of(pushed) for pushed in urls]
        return [self._engine.enqueue_entry(entry, None) for entry in entries]

    def _require_room(self) -> None:
        agent = self._crawl.agent
        if agent is not None and not agent.outbox_has_room():
            raise BusyError("too many URLs wait for other agents")

    def _entry_of(self, pushed: PushedUrl) -> Entry:
        normal, referrer = self._normal("", pushed.url), self._normal("", pushed.referrer)
        if not normal:
            raise ValueError(f"{pushed.url[:200]!r} is no http or https URL")
        if not 0 <= pushed.depth <= _DEPTH_MAX:
            raise ValueError(f"depth {pushed.depth}: expected 0 to {_DEPTH_MAX}")
        if len(pushed.tag) > _TAG_MAX or not pushed.tag.isprintable():
            raise ValueError(f"{pushed.tag[:100]!r} is no tag: a line of {_TAG_MAX} characters")
        return Entry(
            host_of(normal), normal, depth=pushed.depth, referrer=referrer,
            priority=FIRST if pushed.first else 0,
            seed_note=make_seed_note(pushed.tag, guessed=False) if pushed.tag else "",
        )  # fmt: skip

    async def fetch(self, pushed: PushedUrl, wait: float) -> FetchedUrl | None:
        """Have a URL fetched once more, before all others of its host, by a program that pops.

        None: not within *wait* seconds, as of a URL that is refused. Raises as `push`.
        """
        self._require_room()
        entry = self._entry_of(pushed)
        entry.priority, entry.flags = FIRST, Flag.DONT_FILTER
        future: asyncio.Future[FetchedUrl] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(entry.url, []).append(future)
        try:
            if not self._engine.enqueue_entry(entry, None):
                why = "it is refused: `scrapy frontier why` says why"
                return FetchedUrl(entry.url, 0, why, b"")
            async with asyncio.timeout(wait):
                return await future
        except TimeoutError:
            return None
        except asyncio.CancelledError:
            if not self._closed:
                raise
            return None
        finally:
            waiting = self._awaited[entry.url]
            waiting.remove(future)
            if not waiting:
                del self._awaited[entry.url]

    def _note_end(self, fetch: Fetch) -> None:
        exchange = fetch.exchange
        if exchange is None or isinstance(exchange.error, StoppedError):
            return
        for future in self._awaited.get(fetch.entry.url, ()):
            if not future.done():
                error = "" if exchange.error is None else str(exchange.error)
                future.set_result(FetchedUrl(exchange.url, exchange.status, error, exchange.body))

    def extract(self, hosts: Iterable[str]) -> dict[str, int]:
        """Read the links of stored pages of *hosts* next; how many pages of each are unread.

        Raises `ValueError` without SUITE_READ_LINKS = on-demand.
        """
        if self._crawl.settings.read_links != "on-demand":
            raise ValueError("links are read at once: SUITE_READ_LINKS is eager")
        waiting = self._crawl.frontier.stored_links
        found = {host: waiting.waiting.count_of(host) for host in hosts}
        for host, count in found.items():
            if count:
                waiting.demand.ask(host)
        self._engine.flush_soon()
        return found

    def status(self) -> dict[str, int]:
        """How much there is to do."""
        frontier = self._crawl.frontier
        return {
            "pending": self._crawl.pending, "hosts": len(frontier.workbench.hosts),
            "out": sum(not flight.over for flight in self._out.values()),
            "pages": frontier.counters.pages, "failed": frontier.counters.failures,
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
