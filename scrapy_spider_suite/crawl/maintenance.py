"""Once a second: gauges, writes, the flush of the sieve, end conditions.

A flush of the sieve reads all fingerprints on disk. It comes when enough links wait,
or while the crawl starves, if flushes have taken a tenth of the time at most.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from threading import Thread
from typing import Any, Final, Protocol

from scrapy import signals

from scrapy_spider_suite.crawl.assembly import CrawlParts
from scrapy_spider_suite.crawl.context import Crawl, Engine, stays_open
from scrapy_spider_suite.crawl.gate import CAP_UNITS
from scrapy_spider_suite.crawl.pulse import PULSE
from scrapy_spider_suite.crawl.queue.frontier import FrontierStatistics
from scrapy_spider_suite.crawl.visits import Visits
from scrapy_spider_suite.errors import JobDamagedError, StoreWriteError
from scrapy_spider_suite.runtime.event_loop import GcTuning
from scrapy_spider_suite.runtime.refusal import DAMAGED
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.seen.sieve import Flush
from scrapy_spider_suite.settings.declarations import setting_name
from scrapy_spider_suite.store.rocks_store import DamageGuard, RocksStore
from scrapy_spider_suite.store.seen_transfer import Archiver, make_archiver

logger = logging.getLogger(__name__)


def publish_stats(
    crawl: Crawl, statistics: FrontierStatistics, archiver: Archiver | None, queued_max: int
) -> None:
    frontier, stats = crawl.frontier, crawl.crawler.stats
    for name, number in crawl.counts.items():
        stats.inc_value(name, number)
    crawl.counts.clear()
    for name in ("pending", "leased", "hosts", "addresses", "unresolved"):
        stats.set_value(f"suite/frontier/{name}", getattr(statistics, name))
    for name in ("done", "failed", "filtered", "retried", "dead_hosts", "bytes"):
        stats.set_value(f"suite/job/{name}", getattr(frontier.counters, name))
    if (phases := crawl.policy_file.policy.phases) is not None:
        phase = phases.active(crawl.now() + frontier.wall_offset)
        stats.set_value("suite/frontier/phase", phase + 1)
    stats.set_value("suite/retry/found_again", frontier.admission.retry_failed.retried)
    for event, count in frontier.counters.events.items():
        stats.set_value(f"suite/outcome/{event.value}", count)
    for trap, count in frontier.traps.met.items():
        stats.set_value(f"suite/trap/{trap.value}", count)
    for name, count in frontier.traps.miner.found.items():
        stats.set_value(f"suite/guessed/{name}", count)
    if crawl.rates is not None:
        crawl.rates.publish()
    if crawl.agent is not None:
        crawl.agent.publish()
    stats.set_value("suite/seen/cache_hits", frontier.states.cache.hits)
    stats.set_value("suite/seen/cache_misses", frontier.states.cache.misses)
    if archiver is not None:
        stats.set_value("suite/seen/archived", len(archiver))
    if frontier.states.sieve_queue is not None:
        for name, value in frontier.states.sieve_queue.statistics.items():
            stats.set_value(f"suite/seen/{name}", value)
    if statistics.unextracted or crawl.settings.read_links != "eager":
        stats.set_value("suite/extract/waiting", statistics.unextracted)
    stats.max_value("suite/frontier/hosts_max", statistics.hosts)
    stats.max_value("suite/frontier/queued_max", queued_max)


_SHARE: Final = 10.0
"""While the crawl starves, a flush comes after so many times as long as the last one took."""
_RETRY: Final = 5.0  # seconds after which a flush that failed is tried again
_WORK: Final = 0.005
"""Seconds for which new links are scheduled before anyone else has a turn again."""
_PAUSE: Final = 0.005  # seconds for everyone else


class SieveFlusher:
    """Flushes the sieve in a thread, and schedules its new links by the portion."""

    def __init__(
        self, crawl: Crawl, visits: Visits, write: Callable[[], None], wake: Callable[[], None]
    ) -> None:
        self._crawl = crawl
        self._visits = visits
        self._write = write
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._thread: Thread | None = None
        self._busy = self._closing = False
        self._began = 0.0
        self._not_before = -math.inf
        self._said = ""

    def poll(self, *, starving: bool) -> None:
        sifter = self._crawl.frontier.states.sieve_queue
        if sifter is None or self._busy or self._closing or not sifter.waiting:
            return
        now = self._crawl.now()
        if sifter.decided:  # by an earlier run
            self._busy, self._began = True, now
            self._hand_out()
            return
        busy = self._said or self._crawl.frontier.pending or self._visits.outside
        on_time = now >= self._not_before and (starving or sifter.sieve.full)
        if on_time or (starving and not busy):
            self._begin(now)

    def _begin(self, now: float) -> None:
        store, sifter = self._crawl.store, self._crawl.frontier.states.sieve_queue
        self._write()
        if store.backlog or sifter is None or not isinstance(store, RocksStore):
            return  # the disk is full, or fails
        flush = sifter.begin()
        if flush is not None:
            self._busy, self._began = True, now
            self._thread = Thread(target=self._run, args=(flush, store), daemon=True)
            self._thread.start()

    def _run(self, flush: Flush, store: RocksStore) -> None:
        trouble = ""
        try:
            store.sync_log()
            while not self._closing and flush.step():
                pass
        except StoreWriteError as error:
            trouble = str(error)
        except JobDamagedError as error:  # the crawl ends
            store.damage = store.damage or str(error)
            return
        except Exception as error:  # or nobody would hear of it, and the crawl would never end
            trouble = f"a flush of the sieve failed: {error!r}"
        if not self._closing:
            self._loop.call_soon_threadsafe(self._ended, trouble)

    def _ended(self, trouble: str) -> None:
        if trouble:
            self._busy = False
            self._not_before = self._crawl.now() + _RETRY
            if trouble != self._said:
                logger.error("%s: the sieve goes on when that is over; nothing is lost", trouble)
        elif not self._closing:
            self._hand_out()
        self._said = trouble

    def _hand_out(self) -> None:
        if self._closing:
            return  # the next run goes on there
        with DamageGuard(self._crawl.store):
            self._hand_out_some()
        self._wake()

    def _hand_out_some(self) -> None:
        crawl, until = self._crawl, self._crawl.now() + _WORK
        for _ in crawl.frontier.admission.sift(crawl.now()):
            if crawl.now() >= until:
                self._write()  # small batches: a large one takes long
                wait = _RETRY if crawl.store.backlog else _PAUSE  # the disk is full, or fails
                self._loop.call_later(wait, self._hand_out)
                break
        else:
            self._busy = False
            now = crawl.now()
            self._not_before = now + (now - self._began) * _SHARE

    def stop(self) -> None:
        self._closing = True
        if self._thread is not None:
            self._thread.join()


_LOOK = 0.25  # seconds between two looks at whether the crawl is being stopped
_PULSE = 1.0  # seconds between two pulses; a pulse comes with a look
_HELD_FOR = 5.0
"""Seconds after which the requests that an unfinished page brought are stored without it."""
_NEVER = 1e11  # a wait (seconds) that ends only with the rule that is its reason
_PORTIONS = 0.05
"""Seconds between two portions of an action, or of what a change of the policy means."""
_COMING = 0.0125
"""Seconds between two portions of hosts that come from disk: 2,000 of them a second."""


class JobOperator(Protocol):
    @property
    def busy(self) -> bool: ...
    def poll(self) -> None: ...


class DiskWatch(Protocol):
    """Pauses the crawl while its disks are full; stuck after a write has failed."""

    stuck: bool

    @property
    def paused(self) -> bool: ...
    def pulse(self, now: float) -> None: ...
    def pause_for(self, why: str) -> None: ...


class CrawlWatch(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def beat(self) -> None: ...
    def pulse(self, now: float, status: dict[str, Any]) -> None: ...


class Maintenance:
    """Looks after a crawl once a second; *cut*: the stop cut fetches short."""

    def __init__(
        self, parts: CrawlParts, engine: Engine, operator: JobOperator | None, disk: DiskWatch,
        supervision: CrawlWatch,
    ) -> None:  # fmt: skip
        self._engine = engine
        self._crawl = crawl = parts.crawl
        self._parts = parts
        self._operator, self._disk, self._supervision = operator, disk, supervision
        self.cut = False
        self._loop = asyncio.get_running_loop()
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._last = self._pulsed = crawl.now()
        self._stop_seen: float | None = None
        self._most = 0  # URLs that were queued
        self._ended = False
        self._collector = GcTuning()
        self._collecting: asyncio.Task[None] | None = None
        self._operating = False
        self._archiver = make_archiver(crawl.store, crawl.frontier.counters, crawl.frontier.flush)
        self._flusher = SieveFlusher(crawl, parts.visits, self.flush, engine.wake)
        self._revising = self._admitting = self._archiving = False
        crawl.policy_file.changed = self._wake_all

    def start(self) -> None:
        if self._crawl.settings.broad:
            self._collector.start()
        self._supervision.start()
        self._call_later(_LOOK, self._poll)
        # Before the first fetch, once the feeds are open.
        self._crawl.crawler.signals.connect(self._poll_disks, signals.spider_opened)
        with DamageGuard(self._crawl.store):
            self._operate()  # what was asked before it began holds from the start

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._ended = True
        self._flusher.stop()
        self._parts.deferred_links.stop()
        if self._collecting is not None:
            self._collecting.cancel()
        self._collector.stop()
        now = self._crawl.now()
        self._crawl.frontier.waits.count(now, now + self._crawl.frontier.wall_offset)
        self._parts.pulses.take()
        self._publish(say=True)
        self._supervision.stop()

    def _call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers[call] = self._loop.call_later(seconds, call)

    def _poll_disks(self) -> None:
        self._disk.pulse(self._crawl.now())

    def _poll(self) -> None:
        self._call_later(_LOOK, self._poll)
        self._supervision.beat()
        with DamageGuard(self._crawl.store):
            self._poll_parts()

    def _poll_parts(self) -> None:
        if not self._operating:
            self._operate()
        self._crawl.policy_file.poll()
        self._crawl.filters.poll()
        if not self._revising:
            self._revise()
        self._end_at_caps()
        self.end_if_damaged()
        now = self._crawl.now()
        self._crawl.frontier.waits.step(now, now + self._crawl.frontier.wall_offset)
        self._parts.pulses.poll()
        wait = self._crawl.frontier.leases.wait(now)
        starving = not self._engine.paused and (wait is None or wait > 0)
        self.sift(starving=starving)
        if not (self._engine.closing or self._disk.paused):
            self._parts.revisits.poll(starving=starving)
        due = now - self._pulsed > _PULSE - _LOOK / 2
        if self._engine.closing or due:
            self._pulsed = now if due else self._pulsed
            self._pulse(say=due)
            # A pulse has brought in a portion of the hosts, and written: the rest has other turns.
            if not self._admitting:
                self._admitting = True
                self._call_later(_COMING, self._admit)
            if not self._archiving:
                self._archiving = True
                self._call_later(_PORTIONS, self._archive)
        else:
            self._collector.tidy()

    def _admit(self) -> None:
        crawl, now = self._crawl, self._crawl.now()
        self._admitting = not self._engine.closing and crawl.frontier.rotation.step(now)
        if self._admitting:
            self._call_later(_COMING, self._admit)
            self._engine.wake()

    def _archive(self) -> None:
        self._archiving = False
        crawl = self._crawl
        if self._archiver is None:  # it may have an archive from now on
            frontier = crawl.frontier
            self._archiver = make_archiver(crawl.store, frontier.counters, frontier.flush)
        if self._archiver is None or self._engine.closing or self._disk.paused:
            return
        self._archiving = self._archiver.step(moving=crawl.settings.seen_store == "trie")
        if self._archiving:
            self._call_later(_PORTIONS, self._archive)

    async def archive_rest(self, reason: str) -> None:
        """Archive the done URLs; an unfinished crawl only for half of SUITE_STOP_TIMEOUT."""
        crawl, archiver = self._crawl, self._archiver
        trie = crawl.settings.seen_store == "trie"
        wanted = crawl.job is not None and trie and reason != "shutdown"
        if archiver is None or not wanted or not archiver.begin():
            return
        limit = math.inf if reason == "finished" else crawl.settings.stop_timeout / 2
        end = crawl.now() + limit
        while archiver.step() and not self._disk.paused and crawl.now() < end:
            await asyncio.sleep(0.001)
        if not self._disk.paused:
            await asyncio.to_thread(archiver.finish)

    def sift(self, *, starving: bool) -> None:
        if not (self._engine.closing or self._disk.paused):
            self._flusher.poll(starving=starving)
            self._parts.deferred_links.poll(starving=starving)

    def _revise(self) -> None:
        update = self._crawl.frontier.policy_update
        self._revising = update.busy and not self._engine.closing
        if self._revising:
            update.step(self._crawl.now())
            self._call_later(_PORTIONS, self._revise)
            self._engine.wake()

    def _wake_all(self) -> None:
        if self._engine.gate is not None:
            self._engine.gate.wake()
        self._engine.wake()

    def _operate(self) -> None:
        self._operating = False
        if self._operator is None or self._engine.closing:
            return
        self._operator.poll()
        if self._operator.busy:
            self._operating = True
            self._call_later(_PORTIONS, self._operate)

    def _pulse(self, *, say: bool) -> None:
        crawl, now = self._crawl, self._crawl.now()
        crawl.frontier.wall_offset = time.time() - now
        crawl.frontier.counters.seconds += now - self._last
        self._last = now
        if self._engine.closing:
            self._watch_the_stop(now)
        else:
            for fetch in list(crawl.fetches.values()):
                if fetch.held_since is not None and now - fetch.held_since > _HELD_FOR:
                    crawl.frontier.admission.spill([fetch], now)
        self._disk.pulse(now)
        self._parts.revisits.pulse()
        if not self._disk.stuck:
            self._write(crawl.frontier.tick, now)
        # Each part of a pulse may take some ten milliseconds: the loop has a turn between them.
        self._loop.call_soon(partial(self._resolve, say=say))

    def _resolve(self, *, say: bool) -> None:
        if not self._ended:
            self._parts.preparation.resolve()
            for sink in self._parts.sinks:
                sink.pulse()
            self._loop.call_soon(partial(self._tell, say=say))

    def _tell(self, *, say: bool) -> None:
        if not self._ended:
            self._publish(say=say)
            self._end_if_only_waiting()
            self._engine.wake()
            if self._collector.due(self._crawl.now()):
                self._collecting = self._loop.create_task(self._collector.collect())

    def flush(self) -> None:
        frontier = self._crawl.frontier
        self._most = max(self._most, frontier.pending - frontier.leases.out)
        if not self._disk.stuck:
            self._write(lambda now: self._crawl.frontier.flush(), self._crawl.now())

    def _write(self, write: Any, now: float) -> None:
        try:
            write(now)
        except StoreWriteError as error:
            if not self.end_if_damaged():
                self._disk.pause_for(str(error))

    def _watch_the_stop(self, now: float) -> None:
        crawl = self._crawl
        gate = self._engine.gate
        if self._stop_seen is None:
            self._stop_seen = now
            crawl.stopping = True
            if self._parts.visits.outside_waiting:
                self.cut = True
            self._parts.preparation.cancel()
            self._parts.visits.put_back_waiting()
            if self._parts.loop is not None:
                self._parts.loop.put_back_aside()
            if self._parts.outside is not None:
                self._parts.outside.close()
            crawl.frontier.leases.permits.release_all()
        if gate is None:
            return
        gate.wake()
        if now - self._stop_seen > crawl.settings.stop_timeout * 0.75:
            self.cut = True
            gate.cut_short()
            if self._parts.loop is not None:
                self._parts.loop.cut_short()

    def _end_if_only_waiting(self) -> None:
        crawl = self._crawl
        if self._engine.closing:
            return
        wait = self._only_waits()
        if crawl.agent is not None:
            # It ends with the others: one of them may have something for this one.
            crawl.agent.only_waiting = wait is not None
            if crawl.agent.ended:
                crawl.agent.over("")
        elif wait is not None:
            logger.info(
                "only hosts remain that wait longer than SUITE_MAX_WAIT (%g s): the next %s, %s "
                "left; the job can be resumed", crawl.settings.max_wait,
                f"in {wait:.0f} s" if wait < _NEVER else "when a rule for it goes",
                counted(crawl.frontier.pending, "URL is", "URLs are"),
            )  # fmt: skip
            self._engine.stop("waiting")

    def _only_waits(self) -> float | None:
        """Seconds until anything may be visited, if they exceed SUITE_MAX_WAIT."""
        crawl = self._crawl
        limit = crawl.settings.max_wait
        if not limit or stays_open(crawl) or self._engine.paused:
            return None
        if self._engine.starting and not crawl.seeds.start_waits:
            return None
        statistics = crawl.frontier.statistics()
        parts = self._parts
        busy = statistics.leased or self._parts.visits.outside or statistics.in_sieve
        busy = busy or len(parts.preparation) or len(parts.deferred_links)
        busy = busy or bool(crawl.frontier.leases.foreign)
        if busy or not statistics.pending or statistics.unresolved or statistics.abandoning:
            return None
        wait = crawl.frontier.leases.next_visit_in(crawl.now())
        return wait if wait is not None and wait > limit else None

    def _end_at_caps(self) -> None:
        crawl = self._crawl
        reason = None if self._engine.closing else self._parts.visits.caps.reached()
        if reason is not None:
            logger.info(
                "the job has reached %s (%s): left are %s; with a higher cap it can be "
                "resumed", setting_name(reason), CAP_UNITS[reason],
                counted(crawl.frontier.pending, "URL"),
            )  # fmt: skip
            self._engine.stop(reason)

    def end_if_damaged(self) -> bool:
        """End the crawl if its store is damaged; return whether it is."""
        store = self._crawl.store
        if not isinstance(store, RocksStore) or not store.damage:
            return False
        if not self._engine.closing:
            logger.critical(
                "%s: the crawl ends; look at it with `scrapy frontier check`, restore a copy, or "
                "begin anew with another JOBDIR", store.damage,
            )  # fmt: skip
            self._engine.stop(DAMAGED)
        return True

    def _publish(self, *, say: bool) -> None:
        crawl = self._crawl
        counters, statistics = crawl.frontier.counters, crawl.frontier.statistics()
        publish_stats(crawl, statistics, self._archiver, self._most)
        self._parts.revisits.publish()
        if not say:
            return
        self._parts.status = {
            "when": time.time(), "closing": self._engine.closing,
            "paused": self._engine.paused, "path": self._parts.path,
            "done": counters.done, "failed": counters.failed,
            "seconds": round(counters.seconds, 1),
            "cache_hit_rate": round(crawl.frontier.states.cache.hit_rate, 3),
            **{name: getattr(statistics, name) for name in statistics.__slots__},
            "waits": [asdict(count) for count in crawl.frontier.waits.counts],
            "silent_name_servers": self._parts.trusted.resolver.silent_servers,
            "traps": crawl.frontier.traps.met, **self._parts.revisits.facts,
            PULSE: self._parts.pulses.facts(),
        }  # fmt: skip
        self._supervision.pulse(crawl.now(), self._parts.status)
