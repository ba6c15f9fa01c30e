"""Seeds that others push to Redis while the crawl runs, as with scrapy-redis; none is lost.

One step moves a batch to a list of the taker, which removes it once stored. The job stores the
batch's mark and progress, so a kill loses and repeats no message. A message is a URL or a JSON
object (``url``, ``method``, ``meta``, form fields).
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgpack  # type: ignore[import-untyped]
from scrapy import FormRequest, Request, signals

from scrapy_spider_suite.cluster.redis_server import RedisServer, load_script
from scrapy_spider_suite.crawl.context import make_durable
from scrapy_spider_suite.crawl.seeds import ScheduleSeeds, SeedCounts, bad_seed_table, note_bad_seed
from scrapy_spider_suite.errors import JobError, RegistryError
from scrapy_spider_suite.runtime.event_loop import TimeSlices
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.project import is_crawl
from scrapy_spider_suite.settings.scrapy_redis import PushedSeedsKey, redis_server
from scrapy_spider_suite.store.rocks_store import condemn_on_damage
from scrapy_spider_suite.urls.url_lists import BadLine, Seed, SeedLines

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_spider_suite.crawl.context import Crawl

logger = logging.getLogger(__name__)

LONGEST: Final = 1 << 20
"""Bytes of a message; longer ones are cut to one byte more."""
_ENOUGH: Final = 4 << 20  # bytes of messages in a batch
_TAKE, _STORED, _COUNT = load_script("take"), load_script("stored"), load_script("count")


class SeedBatch(NamedTuple):
    """Messages that are the taker's, until it removes them."""

    mark: bytes
    messages: list[bytes]


class PushedList:
    """The seeds at *key*: a ``list`` (left end first), ``set`` or ``zset`` (highest first).

    *taker*: a name of this job alone. Methods raise `RegistryError`.
    """

    def __init__(self, server: RedisServer, key: str, kind: str, taker: str) -> None:
        self._server = server
        self._kind = kind
        self.key = key
        self.taken_key = f"{key}:taken:{taker}"

    async def take(self, count: int) -> SeedBatch | None:
        """Take up to *count* messages, or None. Unremoved messages come again."""
        found = await self._server.run(
            _TAKE, [self.key, self.taken_key], self._kind, str(count), str(_ENOUGH), str(LONGEST),
            uuid.uuid4().hex,
        )  # fmt: skip
        return SeedBatch(found[0], found[1:]) if found else None

    async def remove(self, mark: bytes) -> None:
        await self._server.run(_STORED, [self.taken_key], mark)

    async def count(self, key: str) -> int:
        """Return the length of the list or sorted set *key*; 0 for other types."""
        return int((await self._server.run(_COUNT, [key]))[0])

    async def close(self) -> None:
        await self._server.close()


_WEB = ("http://", "https://")


def read_request(text: str) -> Request | None:
    """Return the request of the JSON object *text*, or None. Raises `ValueError`."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        said: dict[str, Any] = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    url, method = said.pop("url", None), said.pop("method", "GET")
    meta = said.pop("meta", None) or {}
    if not isinstance(url, str) or not isinstance(method, str) or not isinstance(meta, dict):
        raise ValueError("expected texts as url and method, and an object as meta")
    if not said:
        return Request(url, method=method.upper(), meta=meta)
    form = {name: _field(value) for name, value in said.items()}
    return FormRequest(url, method=method.upper(), meta=meta, formdata=form)


def _field(value: Any) -> str | list[str]:
    return [str(each) for each in value] if isinstance(value, list) else str(value)


def checked_requests(made: object) -> list[Request]:
    """Return the requests that a spider's ``make_request_from_data()`` has *made*.

    Raises `ValueError` for other than web requests: messages must not reach local files.
    """
    if made is None:
        return []
    found = [made] if isinstance(made, Request) else list(cast(Iterable[object], made))
    for each in found:
        if not isinstance(each, Request):
            raise ValueError(f"a {type(each).__name__} is no request")
        if not each.url.lower().startswith(_WEB):
            raise ValueError("no web address")
        if not each.method.isascii() or not each.method.isalpha():
            raise ValueError("no method")
    return cast(list[Request], found)


_LOOK = 0.5  # seconds between two looks for messages
_AWAY = 5.0  # most seconds between two looks while Redis cannot be used
_ANSWER = 10.0  # seconds that Redis has to answer
_IN_MEMORY = 10_000  # pending requests beyond which a crawl without a store takes no more
_SHOWN = 300  # characters of a bad message that are kept
_TOLD = 5  # bad messages of a run that are logged


def pushed_seeds(crawl: Crawl, plant: ScheduleSeeds) -> PushedSeeds | None:
    """Return the pushed seeds of *crawl*, or None. Raises `SettingsError`."""
    crawler = crawl.crawler
    spider = crawler.spider
    key = None if spider is None else PushedSeedsKey.for_spider(crawler.settings, spider)
    if key is None or not is_crawl(crawler):
        return None
    return PushedSeeds(crawl, key, plant)


class PushedSeeds:
    """Stats: ``suite/redis/taken``, ``suite/redis/bad``, ``suite/redis/away``.

    Attributes:
        busy: messages are to become requests.
    """

    def __init__(self, crawl: Crawl, key: PushedSeedsKey, plant: ScheduleSeeds) -> None:
        # Without a job nobody comes back for what this process has taken.
        taker = uuid.uuid4().hex if crawl.job is None else crawl.job.file.id
        self._crawl, self._key, self._plant = crawl, key, plant
        url = crawl.settings.redis_url or redis_server(crawl.crawler.settings)
        self._pushed = PushedList(RedisServer(url.url, _ANSWER), key.key, key.kind, taker)
        self._lines = SeedLines(key.key, normal=crawl.normalizer)
        self._row, self._notes = key.key.encode(), crawl.store.kv("pushed_seeds")
        self._bad = bad_seed_table(crawl.store)
        self._mark, self._done, self._sown = b"", 0, SeedCounts()
        if (note := self._notes.get(self._row)) is not None:
            self._mark, self._done, sown = msgpack.unpackb(note)
            self._sown = SeedCounts(**sown)
        self._turns = TimeSlices()
        self._told = 0
        self._lost = ""  # what is wrong with Redis
        self._first = True
        self._active = crawl.now()
        self._task: asyncio.Task[None] | None = None
        self.busy = False

    def begin(self) -> None:
        crawler = self._crawl.crawler
        self._crawl.seeds.awaited = True
        self._read = _take_over(crawler)
        crawler.signals.connect(self._ended, signals.spider_closed)
        self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """Stop; unstored messages come again in another run of the job."""
        if self._task is not None:
            self._task.cancel()

    async def _ended(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        pause = _LOOK
        try:
            while not self._crawl.stopping:
                more = False
                try:
                    if self._has_room:
                        more = await self._take()
                        self._is_there()
                        pause = _LOOK
                except RegistryError as error:
                    self._is_lost(error)
                    pause = min(2 * pause, _AWAY)
                except Exception as error:  # or nobody would take seeds, nor end the crawl
                    self._failed(error)
                    pause = _AWAY
                self._mind_idleness()
                if not more:
                    await asyncio.sleep(pause)
        finally:
            await self._pushed.close()

    @property
    def _has_room(self) -> bool:
        crawl = self._crawl
        engine, pending = crawl.crawler.engine, crawl.frontier.pending
        if engine is None or engine.paused:
            return False
        if crawl.agent is not None and not crawl.agent.owns:
            return False  # it leaves, and would have to wait until others have taken them
        if not crawl.store.durable and pending > _IN_MEMORY:
            return False
        wait = crawl.frontier.leases.wait(crawl.now())
        return pending < crawl.settings.project.most_requests or wait is None or wait > 0

    async def _take(self) -> bool:
        if self._first:
            await self._tell_of_requests()
            self._first = False
        taken = await self._pushed.take(self._key.batch)
        if taken is None:
            return False
        self.busy, stored = True, False
        self._active = self._crawl.now()  # also for what is another agent's, or no seed
        try:
            with condemn_on_damage(self._crawl.store):
                stored = await self._store(taken)
        finally:
            self.busy = False
        if stored:
            await self._pushed.remove(taken.mark)
        return stored

    async def _tell_of_requests(self) -> None:
        number = await self._pushed.count(self._key.requests)
        if number:
            logger.warning(
                "%s holds %s of scrapy-redis's scheduler, pickled, which the suite does not read: "
                "let that scheduler fetch what is there, or push the URLs to %s",
                self._key.requests, counted(number, "request"), self._key.key,
            )  # fmt: skip

    async def _store(self, taken: SeedBatch) -> bool:
        crawl = self._crawl
        if taken.mark != self._mark:
            self._mark, self._done = taken.mark, 0
        while self._done < len(taken.messages) and not crawl.stopping:
            self._take_in(taken.messages[self._done])
            self._done += 1
            if self._turns.is_over or self._done == len(taken.messages):
                note = [self._mark, self._done, asdict(self._sown)]
                self._notes.put(self._row, msgpack.packb(note))
                await make_durable(crawl)
                await self._turns.yield_turn()
        return self._done == len(taken.messages) and not crawl.store.dirty

    # One message

    def _take_in(self, message: bytes) -> None:
        crawl, stats = self._crawl, self._crawl.crawler.stats
        self._sown.lines += 1
        stats.inc_value("suite/redis/taken")
        # Whoever pushes is not the operator: private addresses are for those that settings allow.
        crawl.seeds.pushed = True
        try:
            if len(message) > LONGEST:
                raise ValueError(f"longer than {LONGEST} bytes")
            self._make_pending(self._read_message(message))
        except JobError:
            raise
        except Exception as error:  # whatever a message has the project's code do, or its meta ours
            self._note_bad(message, str(error) or type(error).__name__)
        else:
            self._sown.seeds += 1
        finally:
            crawl.seeds.pushed = False

    def _read_message(self, message: bytes) -> Seed | Sequence[Request]:
        if self._read is not None:
            text = message.decode(self._key.encoding) if self._key.decoded else message
            return checked_requests(self._read(text))
        text = message.decode(self._key.encoding)
        request = read_request(text)
        if request is not None:
            return checked_requests(request)
        read = self._lines.read(text.encode())
        if isinstance(read, Seed):
            return read
        raise ValueError("no seed" if read is None else read.why)

    def _make_pending(self, found: Seed | Sequence[Request]) -> None:
        if isinstance(found, Seed):
            self._sown.new += self._plant([found])
            return
        engine = self._crawl.crawler.engine
        for request in found:
            if engine is not None:  # as it is while seeds are taken
                engine.crawl(request)

    def _note_bad(self, message: bytes, why: str) -> None:
        text = message[: 4 * _SHOWN].decode("utf-8", "replace")[:_SHOWN]
        # An error may quote half a character, which no store takes.
        why = " ".join(why.split())[:_SHOWN].encode("utf-8", "replace").decode()
        bad = BadLine(self._key.key, self._sown.lines, text, why)
        note_bad_seed(self._bad, self._row, self._sown, bad)
        self._crawl.crawler.stats.inc_value("suite/redis/bad")
        self._told += 1
        if self._told <= _TOLD:
            last = "; others are in `scrapy frontier report bad-seeds`" * (self._told == _TOLD)
            logger.warning("no seed, and left out: %s%s", bad, last)

    # Redis, and the end

    def _is_lost(self, error: RegistryError) -> None:
        self._active = self._crawl.now()  # nobody can know whether there is nothing to do
        if self._lost != error.kind:
            self._crawl.crawler.stats.inc_value("suite/redis/away")
            logger.warning("%s (%s); the crawl goes on with what it has", error, self._key.key)
        self._lost = error.kind

    def _failed(self, error: Exception) -> None:
        self._active = self._crawl.now()
        if self._lost != repr(error):
            logger.exception("seeds of %s cannot be taken; it is tried again", self._key.key)
        self._lost = repr(error)

    def _is_there(self) -> None:
        if self._lost:
            logger.info("Redis is back: seeds of %s are taken again", self._key.key)
        self._lost = ""

    def _mind_idleness(self) -> None:
        crawl, limit = self._crawl, self._key.max_idle
        if crawl.frontier.pending:
            self._active = crawl.now()
        awaits = not limit or crawl.now() - self._active < limit
        if crawl.seeds.awaited and not awaits:
            crawl.wake()
        crawl.seeds.awaited = awaits


def _take_over(crawler: Crawler) -> Any:
    """Disable the spider's own, blocking calls to Redis; return its reader of messages, if any."""
    spider: Any = crawler.spider
    if "fetch_data" in vars(spider):
        spider.fetch_data = lambda key, number: ()
        spider.count_size = lambda key: 0
        idle = getattr(spider, "spider_idle", None)
        if getattr(idle, "__module__", "").startswith("scrapy_redis."):
            crawler.signals.disconnect(idle, signals.spider_idle)
    return getattr(spider, "make_request_from_data", None)
