"""Seeds that others push to Redis while the crawl runs, as with scrapy-redis; none is lost.

One script moves a batch to a list of this job, which removes it once stored. The job stores the
batch's mark and progress, so a kill loses and repeats no message.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgpack  # type: ignore[import-untyped]
from scrapy import FormRequest, Request, signals

from scrapy_spider_suite.cluster.redis_server import RedisServer, load_script
from scrapy_spider_suite.crawl.context import make_durable
from scrapy_spider_suite.crawl.seeds import ScheduleSeeds, SeedCounts, bad_seed_table, note_bad_seed
from scrapy_spider_suite.errors import JobError, RegistryError
from scrapy_spider_suite.runtime.event_loop import TimeSlices
from scrapy_spider_suite.runtime.tasks import cancel_tasks
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.project import is_crawl
from scrapy_spider_suite.settings.scrapy_redis import PushedSeedsKey, redis_server
from scrapy_spider_suite.store.rocks_store import DamageGuard
from scrapy_spider_suite.urls.url_lists import BadLine, Seed, SeedLines

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_spider_suite.cluster.agent import ClusterAgent
    from scrapy_spider_suite.crawl.context import Crawl

logger = logging.getLogger(__name__)

LONGEST: Final = 1 << 20  # bytes of a message; longer ones are cut to one byte more
_ENOUGH: Final = 4 << 20  # bytes of messages in a batch
_NEXT_BATCH, _STORED, _COUNT = map(load_script, ("next_batch", "stored", "count"))


class SeedBatch(NamedTuple):
    mark: bytes
    messages: list[bytes]


class PushedList:
    """The seeds at *key*: a ``list`` (left end first), ``set`` or ``zset`` (highest first).

    *job*: a name of this job alone. Methods raise `RegistryError`.
    """

    def __init__(self, server: RedisServer, key: str, kind: str, job: str) -> None:
        self._server, self._key, self._kind = server, key, kind
        self._taken = f"{key}:taken:{job}"

    async def next_batch(self, count: int) -> SeedBatch | None:
        """Return up to *count* messages, or None; the same ones until `remove`."""
        found = await self._server.run(
            _NEXT_BATCH, [self._key, self._taken], self._kind, str(count), str(_ENOUGH),
            str(LONGEST), uuid.uuid4().hex,
        )  # fmt: skip
        return SeedBatch(found[0], found[1:]) if found else None

    async def remove(self, mark: bytes) -> None:
        await self._server.run(_STORED, [self._taken], mark)

    async def count(self, key: str) -> int:
        return int((await self._server.run(_COUNT, [key]))[0])

    async def close(self) -> None:
        await self._server.close()


_WEB = ("http://", "https://")


def read_request(text: str) -> Request | None:
    """Return the request of a JSON object: ``url``, ``method``, ``meta`` and form fields.

    None if *text* is no object. Raises `ValueError`.
    """
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
    form = {
        name: [str(each) for each in value] if isinstance(value, list) else str(value)
        for name, value in said.items()
    }
    return FormRequest(url, method=method.upper(), meta=meta, formdata=form)


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
        if not each.url.lower().startswith(_WEB):  # messages must not reach local files
            raise ValueError("no web address")
        if not each.method.isascii() or not each.method.isalpha():
            raise ValueError("no method")
    return cast(list[Request], found)


_LOOK = 0.5  # seconds between two looks for messages
_AWAY = 5.0  # most seconds between two looks while Redis cannot be used
_ANSWER = 10.0  # seconds that Redis has to answer
_IN_MEMORY = 10_000  # pending requests beyond which a crawl without a store takes no more
_SHOWN = 300  # characters of a bad message that are kept
_LOGGED = 5  # bad messages of a run that are logged


def pushed_seeds(crawl: Crawl, plant: ScheduleSeeds) -> PushedSeeds | None:
    """Return the pushed seeds of *crawl*, or None. Raises `SettingsError`."""
    crawler, spider = crawl.crawler, crawl.crawler.spider
    key = None if spider is None else PushedSeedsKey.for_spider(crawler.settings, spider)
    return None if key is None or not is_crawl(crawler) else PushedSeeds(crawl, key, plant)


class PushedSeeds:
    def __init__(self, crawl: Crawl, key: PushedSeedsKey, plant: ScheduleSeeds) -> None:
        # Without a job nobody comes back for the messages of this process.
        job = uuid.uuid4().hex if crawl.job is None else crawl.job.file.id
        self._crawl, self._key, self._plant = crawl, key, plant
        url = crawl.settings.redis_url or redis_server(crawl.crawler.settings)
        self._pushed = PushedList(RedisServer(url.url, _ANSWER), key.key, key.kind, job)
        self._lines = SeedLines(key.key, normal=crawl.normalizer)
        self._row, self._notes = key.key.encode(), crawl.store.kv("pushed_seeds")
        self._bad = bad_seed_table(crawl.store)
        self._mark, self._done, self._sown = b"", 0, SeedCounts()
        if (note := self._notes.get(self._row)) is not None:
            self._mark, self._done, sown = msgpack.unpackb(note)
            self._sown = SeedCounts(**sown)
        self._turns, self._active = TimeSlices(), crawl.now()
        self._logged = 0
        self._trouble = ""  # what is wrong with Redis
        self._first = True
        self._task: asyncio.Task[None] | None = None
        self.busy = False  # messages are to become requests

    def begin(self) -> None:
        crawler = self._crawl.crawler
        self._crawl.seeds.awaited = True
        self._read = _take_over(crawler)
        crawler.signals.connect(self._spider_closed, signals.spider_closed)
        self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """Stop; unstored messages come again in another run of the job."""
        if self._task is not None:
            self._task.cancel()

    async def _spider_closed(self) -> None:
        await cancel_tasks(self._task)

    async def _run(self) -> None:
        pause = _LOOK
        try:
            while not self._crawl.stopping:
                more = False
                try:
                    if self._has_room:
                        more = await self._read_batch()
                        if self._trouble:
                            key = self._key.key
                            logger.info("Redis is back: seeds of %s are taken again", key)
                        self._trouble, pause = "", _LOOK
                except Exception as error:  # or nobody would take seeds, nor end the crawl
                    self._note_trouble(error)
                    away = isinstance(error, RegistryError)
                    pause = min(2 * pause, _AWAY) if away else _AWAY
                self._check_idleness()
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
        if crawl.agent is not None and not cast("ClusterAgent", crawl.agent).ownership.own.any():
            return False  # it leaves, and would have to wait until others have stored them
        if not crawl.store.durable and pending > _IN_MEMORY:
            return False
        wait = crawl.frontier.leases.wait(crawl.now())
        return pending < crawl.settings.project.most_requests or wait is None or wait > 0

    async def _read_batch(self) -> bool:
        if self._first:
            if number := await self._pushed.count(self._key.requests):
                logger.warning(
                    "%s holds %s of scrapy-redis's scheduler, pickled, which the suite does not "
                    "read: let that scheduler fetch what is there, or push the URLs to %s",
                    self._key.requests, counted(number, "request"), self._key.key,
                )  # fmt: skip
            self._first = False
        batch = await self._pushed.next_batch(self._key.batch)
        if batch is None:
            return False
        self.busy, stored = True, False
        self._active = self._crawl.now()  # also for seeds of another agent, and bad ones
        try:
            with DamageGuard(self._crawl.store):
                stored = await self._store(batch)
        finally:
            self.busy = False
        if stored:
            await self._pushed.remove(batch.mark)
        return stored

    async def _store(self, batch: SeedBatch) -> bool:
        crawl = self._crawl
        if batch.mark != self._mark:
            self._mark, self._done = batch.mark, 0
        while self._done < len(batch.messages) and not crawl.stopping:
            self._handle(batch.messages[self._done])
            self._done += 1
            if self._turns.is_over or self._done == len(batch.messages):
                note = [self._mark, self._done, asdict(self._sown)]
                self._notes.put(self._row, msgpack.packb(note))
                await make_durable(crawl)
                await self._turns.yield_turn()
        return self._done == len(batch.messages) and not crawl.store.backlog

    def _handle(self, message: bytes) -> None:
        crawl, stats = self._crawl, self._crawl.crawler.stats
        self._sown.lines += 1
        stats.inc_value("suite/redis/taken")
        # Whoever pushes is not the operator: private addresses are for those that settings allow.
        crawl.seeds.pushed = True
        try:
            if len(message) > LONGEST:
                raise ValueError(f"longer than {LONGEST} bytes")
            found = self._read_message(message)
            engine = crawl.crawler.engine
            if isinstance(found, Seed):
                self._sown.new += self._plant([found])
            elif engine is not None:  # as it is while seeds are read
                for request in found:
                    engine.crawl(request)
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

    def _note_bad(self, message: bytes, why: str) -> None:
        text = message[: 4 * _SHOWN].decode("utf-8", "replace")[:_SHOWN]
        # An error may quote half a character, which no store takes.
        why = " ".join(why.split())[:_SHOWN].encode("utf-8", "replace").decode()
        bad = BadLine(self._key.key, self._sown.lines, text, why)
        note_bad_seed(self._bad, self._row, self._sown, bad)
        self._crawl.crawler.stats.inc_value("suite/redis/bad")
        self._logged += 1
        if self._logged <= _LOGGED:
            last = "; others are in `scrapy frontier report bad-seeds`" * (self._logged == _LOGGED)
            logger.warning("no seed, and left out: %s%s", bad, last)

    def _note_trouble(self, error: Exception) -> None:
        self._active = self._crawl.now()  # nobody can know whether there is nothing to do
        trouble = error.kind if isinstance(error, RegistryError) else repr(error)
        if trouble == self._trouble:
            return
        self._trouble = trouble
        if isinstance(error, RegistryError):
            self._crawl.crawler.stats.inc_value("suite/redis/away")
            logger.warning("%s (%s); the crawl goes on with what it has", error, self._key.key)
        else:
            logger.exception("seeds of %s cannot be taken; it is tried again", self._key.key)

    def _check_idleness(self) -> None:
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
