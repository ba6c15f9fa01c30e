"""Mode ``shared-queue``: fetchers that own nothing, and take runs from a queue in Redis.

Each fetcher is an owner of some partitions, too. A URL is done once a checkpoint is durable that
has its links and its ending; what a fetcher has on its disk may vanish.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np

from scrapy_spider_suite.cluster.agent import ClusterAgent
from scrapy_spider_suite.cluster.handover.handover_context import HandoverContext
from scrapy_spider_suite.cluster.handover.handover_file import Item
from scrapy_spider_suite.cluster.held_runs import HeldRuns, LinkBox, RunCheckpoint, run_entries
from scrapy_spider_suite.cluster.mailbox import OwnerRouter
from scrapy_spider_suite.cluster.membership import (
    Candidate,
    Heartbeat,
    folder_identity,
    shared_settings,
)
from scrapy_spider_suite.cluster.peers import RedisMode
from scrapy_spider_suite.cluster.run_blobs import (
    BlobFolder,
    Place,
    pack_links,
    unpack_hosts,
    unpack_piece,
)
from scrapy_spider_suite.cluster.run_hosts import SlotHosts
from scrapy_spider_suite.cluster.run_owner import (
    PARTITIONS,
    QUEUE,
    SLOTS,
    Owner,
    Partitions,
    partition_of,
)
from scrapy_spider_suite.cluster.run_queue import (
    ENTRIES_MAX,
    LITTER_AGE,
    FailedRun,
    FetcherReport,
    RunQueue,
    Task,
    TaskList,
)
from scrapy_spider_suite.crawl.context import Crawl, Engine, stays_open
from scrapy_spider_suite.crawl.queue.admission import AdmissionBatch
from scrapy_spider_suite.crawl.sinks.page_packs import PagePacks
from scrapy_spider_suite.errors import (
    BlobError,
    FencedError,
    PackError,
    RegistryError,
    SettingsError,
)
from scrapy_spider_suite.exceptions import HostExcluded
from scrapy_spider_suite.frontier.entries import UNITS, Entry, slot_of
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.runtime.event_loop import portions
from scrapy_spider_suite.runtime.tasks import WarnOnce, cancel_tasks, logged_task
from scrapy_spider_suite.urls.hosts import lies_in

if TYPE_CHECKING:
    from scrapy_spider_suite.analysis.time_series import Array
    from scrapy_spider_suite.crawl.queue.leases import Fetch
    from scrapy_spider_suite.store.job_directory import Job

logger = logging.getLogger(__name__)

A = TypeVar("A")
T = TypeVar("T")
ROWS_MAX: Final = 50_000  # URLs of runs in a fetcher, above which it asks for no more
TASKS_MAX: Final = 1_000
_BOX_MAX: Final = 8 << 20  # bytes of links in memory, at which the crawl waits for a checkpoint
_PERIOD: Final = 1.0  # seconds between two calls of a fetcher
_SOON: Final = 0.1  # while there is more to say than one call holds
_SWEEP: Final = 5.0
_SWEEPS: Final = 10  # at a time, at most
_RETRY: Final = 2.0
_MARKING: Final = 10  # looks for the mark of a folder, a second apart
_TRIES: Final = 5  # of a run that cannot be read, before it is set aside
_TRY_AGAIN: Final = 10.0  # seconds after the first of these
_LOADED: Final = 2_000  # URLs of runs that are loaded together, some milliseconds
_LEAST: Final = 125  # what a short run counts for


class Said(NamedTuple):
    """What this fetcher said to Redis at *when*, in case that Redis forgets it."""

    when: float
    posts: Sequence[tuple[int, bytes]] = ()
    done: Sequence[Task] = ()


class Fetcher(ClusterAgent):
    """A fetcher of the shared queue."""

    _mode: SharedQueueMode | None

    def __init__(self, crawl: Crawl, job: Job) -> None:
        super().__init__(crawl, job, Partitions())
        settings = crawl.settings
        self.box = LinkBox()
        # What it routes goes to owners, also to this process as one of them.
        self.routing = OwnerRouter(
            self.box, lambda host, url: str(partition_of(host)), "",
            cache=settings.seen_cache // 4, shared_seeds=False,
            by_slot=[str(slot // SLOTS) for slot in range(UNITS)],
        )  # fmt: skip
        self.held = HeldRuns()
        crawl.frontier.states.on_ended = self._ended
        self._tasks: list[asyncio.Task[None]] = []
        self._checkpoint: RunCheckpoint | None = None  # that is not durable yet
        self._posts: list[tuple[int, bytes]] = []  # places of its links that are to be posted
        self._post = self._posts_number = self._checkpointed = 0
        self._source = f"{self.name}:{self.incarnation:016x}"
        self._to_load: dict[bytes, Task] = {}
        self._held_back: dict[int, float] = {}  # slots that are loaded after that time
        self._failed: list[FailedRun] = []
        self._loads = WarnOnce(logger, f"the shared queue, fetcher {self.name}")
        self._left: int | None = None  # of the whole crawl, by the last answer since a checkpoint
        self._draining = False
        self._troubled: dict[int, int] = {}  # failures of the hosts of a slot, as they are saved
        self._renewed: dict[int, None] = {}  # slots with other cookies than are saved
        self._renewed_at = 0.0  # wall time of the last look
        self._places: dict[int, bytes] = {}  # of what is saved of slots that stay here
        self._lapses = 0  # of the lease, after which it has let go of its runs
        self._era = 0  # of the registry: another one begins when Redis may have lost something
        self._declared = 0  # an era of which it has begun to say again what it said
        self._recent: deque[Said] = deque()
        self._to_say: deque[Said] = deque()
        self._queued: dict[str, float] = {}  # the part that it counts of URLs that wait, by queue
        self._seeded = False  # whether it is known that all seeds are in the queue
        self._moments: dict[str, float] = {}

    def _ended(self, identity: bytes, event: Event | None, status: int, when: float) -> None:
        self.held.end(identity, event, status, when)

    # The life of the fetcher

    async def open(self, scheduler: Engine) -> None:
        crawl, settings, job = self.crawl, self.crawl.settings, self.job
        self._scheduler = scheduler
        policy = crawl.policy_file.policy
        self._delay = max(settings.longest_delay, policy.overrides.longest_delay)
        try:
            mode = SharedQueueMode(self)
            self.queue = RunQueue(mode.url, self.crawl_name)
        except ValueError as error:
            raise SettingsError(f"SUITE_CLUSTER = 'shared-queue': {error}") from error
        self._mode = mode
        try:
            self._blobs = BlobFolder(runs_folder(self), self.crawl_name)
        except (ValueError, ImportError) as error:
            raise SettingsError(f"SUITE_RUNS_DIR = {runs_folder(self)!r}: {error}") from error
        self._list = TaskList(self.queue, self.name, self.incarnation, self._delay)
        self._hosts = SlotHosts(
            HandoverContext(
                crawl.frontier, job.store, self.ownership, lambda: (crawl.now(), time.time()),
                cookies=lambda: job.cookies,
            )
        )  # fmt: skip
        who = self.name, f"{self.incarnation:016x}"
        self.owner = Owner(
            self.queue, self._blobs, who, job.folder / "owner", self._mine, time.time
        )
        await mode.open()
        self._lapses = mode.registry.lapses
        await self._agree_on_folder(mode)
        await self._set_weights()
        counts = await self.queue.counts()
        self._seeded = crawl.seeds.elsewhere = counts.seeded
        await self._restore()
        mode.start()
        self._tasks = [
            logged_task(self._run(), "runs"), logged_task(self.owner.run(), "owner"),
            logged_task(self._give(mode), "partitions"),
        ]  # fmt: skip

    async def _set_weights(self) -> None:
        given = self.crawl.settings.run_queues
        pairs = (each.partition("=") for each in given)
        weights = {name: float(weight) for name, _, weight in pairs}
        if QUEUE not in weights:
            raise SettingsError.of("SUITE_RUN_QUEUES", given, f"{QUEUE}, to which links go")
        try:
            await self.queue.set_weights(weights)
        except ValueError as error:
            raise SettingsError(f"SUITE_RUN_QUEUES = {given!r}: {error}") from None

    async def _agree_on_folder(self, mode: SharedQueueMode) -> None:
        """Raise `SettingsError` if other fetchers use another folder of blobs."""
        drawn = secrets.token_hex(8)
        agreed = await mode.registry.agreed("runs:folder", drawn)
        for _ in range(_MARKING):
            found = await asyncio.to_thread(self._blobs.mark, agreed, new=agreed == drawn)
            if found:
                break
            await asyncio.sleep(_PERIOD)  # the first fetcher has yet to write it
        if found != agreed:
            raise SettingsError.of(
                "SUITE_RUNS_DIR", runs_folder(self),
                "the folder, on this machine too, that the other fetchers of the crawl use",
            )

    async def close(self, reason: str = "") -> None:
        await cancel_tasks(*self._tasks)
        mode = self._mode
        if mode is None:
            return
        if self._tasks:
            with suppress(RegistryError, FencedError, BlobError, PackError, OSError):
                await self._give_back()
        await mode.close()
        await self.queue.close()

    def drain(self) -> None:
        super().drain()
        self._draining = True

    async def _give_back(self) -> None:
        """Report all that is done; what is not goes back to the queue, with what is known of it."""
        await self._make_checkpoint()
        while self._places:
            await self._report(FetcherReport(hosts=self._take_places(ENTRIES_MAX)))
        held, slots = self.held, list(self.held.slots)
        for begin in range(0, len(slots), ENTRIES_MAX):
            some = slots[begin : begin + ENTRIES_MAX]
            places = await self._save(some)
            await self._make_checkpoint()  # of what was under way
            ids = [id for slot in some for id in held.slots[slot]]
            for at in range(0, len(ids), ENTRIES_MAX):
                done, back = list[bytes](), list[tuple[bytes, bytes, float]]()
                for id in ids[at : at + ENTRIES_MAX]:
                    if held.is_done(id):
                        done.append(id)
                    else:
                        back.append((id, bytes(held.runs[id].reported), self._delay))
                await self._report(FetcherReport(done=done, returned=back, hosts=places))
                places = {}
            held.remove(ids)
            await self._hosts.forget(some)
        unloaded, now = list(self._to_load.values()), time.monotonic()
        self._to_load.clear()
        for at in range(0, len(unloaded), ENTRIES_MAX):
            await self._list.sync(FetcherReport(returned=[
                (task.run.id, task.progress, max(0.0, self._held_back.get(task.slot, 0.0) - now))
                for task in unloaded[at : at + ENTRIES_MAX]
            ]))  # fmt: skip

    # Partitions

    def _mine(self) -> set[int]:
        mine, own = self.ownership.mine, self.ownership.own
        return {
            number for number in range(PARTITIONS)
            if mine[number * SLOTS] and own[number * SLOTS]
        }  # fmt: skip

    async def _give(self, mode: SharedQueueMode) -> None:
        """Give partitions that others own to their owners."""
        while True:
            await asyncio.sleep(_PERIOD)
            with suppress(RegistryError, FencedError):  # of which the heartbeat tells
                mine, epoch = self.ownership.mine, self.ownership.epoch
                given = False
                for number, units in self.ownership.units_of_others().items():
                    moved = (mine & units).nonzero()[0].astype("u2")
                    if len(moved):
                        async with self.owner.one:
                            self.owner.let_go()
                            await mode.registry.give(moved, number, epoch)
                        given = True
                if given:
                    await mode.update_holders()

    # Runs

    async def _run(self) -> None:
        while True:
            try:
                more = await self._step()
                self._loads.over("away")
            except FencedError:
                await self._lose()
            except (RegistryError, BlobError, PackError, OSError) as error:
                self._loads.say("away", error)
                await asyncio.sleep(_RETRY)
            else:
                await asyncio.sleep(_SOON if more else _PERIOD)

    async def _restore(self) -> None:
        """Read the list anew: what this fetcher holds by it is to be loaded."""
        await self._list.restore()
        self._to_load |= self._list.tasks
        for id in self.held.runs:
            self._to_load.pop(id, None)
        # A process of this name may have fetched from their hosts a moment ago.
        until = time.monotonic() + self._delay
        slots = {task.slot for task in self._to_load.values()} - self.held.slots.keys()
        self._held_back = dict.fromkeys(slots, until)

    async def _declare(self, era: int) -> None:
        """Say again what Redis may have forgotten: it was restarted, or has lost data."""
        if self._era and self._declared != era:
            await self._claim_runs()
            self._declared, self._to_say = era, deque(self._recent)
        while self._to_say:
            said = self._to_say[0]
            if said.posts and await self._has_blob(said.posts[0][1]):
                self._post += 1
                await self._post_links(self._post, said.posts)
            if said.done:
                done = [task.run.id for task in said.done]
                await self._report(FetcherReport(again=said.done, done=done))
                for id in done:
                    self._to_load.pop(id, None)
            self._to_say.popleft()
        self._era = era

    async def _claim_runs(self) -> None:
        """Claim the runs that Redis has forgotten to have given; let go of runs it does not give.
        """
        await self._restore()
        known, runs = self._list.tasks, self.held.runs
        forgotten = [run.task for id, run in runs.items() if id not in known]
        for at in range(0, len(forgotten), ENTRIES_MAX):
            await self._report(FetcherReport(again=forgotten[at : at + ENTRIES_MAX]))
        lost = {run.task.slot for id, run in runs.items() if id not in known}
        self._held_back |= dict.fromkeys(lost, time.monotonic() + self._delay)
        ids = [id for slot in lost for id in self.held.slots[slot]]
        self.held.remove(ids)
        self._to_load |= {id: known[id] for id in ids if id in known}
        await self._hosts.forget(list(lost))
        self.held.changed |= dict.fromkeys(runs)

    async def _post_links(self, number: int, places: Sequence[tuple[int, bytes]]) -> None:
        if not await self.queue.post(self._source, number, places):
            raise BlobError("owners are behind: too many links wait for them")

    async def _has_blob(self, place: bytes) -> bool:
        """False: its links have been taken, and nobody has used it for long."""
        try:
            await asyncio.to_thread(self._blobs.read, Place.from_bytes(place))
        except BlobError as error:
            if not error.missing:
                raise
            return False
        return True

    def _note_said(self, said: Said) -> None:
        self._recent.append(said)
        while self._recent and said.when - self._recent[0].when > LITTER_AGE / 2:
            self._recent.popleft()

    @property
    def _has_lapsed(self) -> bool:
        """Whether the lease ended, and began anew, and the runs of before are still here."""
        return self._mode is not None and self._mode.registry.lapses != self._lapses

    def may_fetch(self) -> bool:
        return not self._has_lapsed and super().may_fetch()

    def refuse_fetch(self, host: str, url: str, fetch: Fetch | None, delay: float) -> None:
        if self._has_lapsed:
            raise HostExcluded("the lease of this fetcher was over", time.time() + _RETRY)
        super().refuse_fetch(host, url, fetch, delay)

    async def _lose(self) -> None:
        """The lease is over: others may have the runs of this fetcher."""
        logger.warning("the lease of this fetcher is over: it lets go of what it has")
        self.owner.let_go()
        self._forget_queued()
        self._to_load.clear()
        slots = list(self.held.slots)
        self.held.remove(list(self.held.runs))
        await self._hosts.forget(slots)
        self._list.tasks.clear()
        self._places, self._renewed = {}, {}
        while True:
            await asyncio.sleep(_PERIOD)
            with suppress(FencedError, RegistryError):
                await self._list.sync(FetcherReport())  # fenced until it has joined again
                await self._restore()
                assert self._mode is not None
                self._lapses = self._mode.registry.lapses
                return

    async def _step(self) -> bool:
        """One round of a fetcher; whether there is more to do at once."""
        now = time.monotonic()
        if self._has_lapsed:
            await self._lose()
        if self._mode is not None and self._era != self._mode.registry.answer.era:
            await self._declare(self._mode.registry.answer.era)
        if self._draining:
            self._forget_queued()
            await self._give_back()
            return False
        await self._load_some()
        busy = self.crawl.flying > 0 or self.crawl.frontier.leases.out > 0
        interval = self.crawl.settings.checkpoint_interval
        soon = not busy or self.box.size > _BOX_MAX // 2
        if self._is_due("checkpoint", min(interval, _PERIOD) if soon else interval):
            await self._make_checkpoint()
        if self._is_due("sweep", _SWEEP):
            for _ in range(_SWEEPS):
                if await self.queue.sweep() < ENTRIES_MAX:
                    break
            await self._count_queued()
        more = await self._sync(now)
        if not (self.held.runs or self._to_load or busy):
            await self._look_for_the_end()
        return more

    def _is_due(self, what: str, seconds: float) -> bool:
        now = time.monotonic()
        if now - self._moments.get(what, -1e9) < seconds:
            return False
        self._moments[what] = now
        return True

    async def _sync(self, now: float) -> bool:
        held = self.held
        empty = [slot for slot in held.empty(now) if slot not in self._places][:ENTRIES_MAX]
        places = await self._save(empty)
        places |= self._take_places(ENTRIES_MAX - len(places))
        done = [id for slot in empty for id in held.slots[slot]][:ENTRIES_MAX]
        done += list(held.finished())[: ENTRIES_MAX - len(done)]
        progress = held.progress()
        spared = max(0, len(held.slots) - self._list.slots.share)
        low = [slot for slot in held.low(now, spared=spared) if slot not in empty]
        takes = self._takes_runs()
        report = FetcherReport(
            done=done, failed=self._failed[:ENTRIES_MAX], progress=progress, hosts=places,
            more=low, want=self._wanted() if takes else 0, takes=takes,
        )  # fmt: skip
        new = await self._report(report)
        if done:
            tasks = [held.runs[id].task for id in done]
            self._note_said(Said(time.monotonic(), done=tasks))
        del self._failed[: len(report.failed)]
        held.said(list(progress))
        held.remove(done)
        kept = held.slots.keys() | {task.slot for task in new}
        if left := [slot for slot in empty if slot not in kept]:
            await self._hosts.forget(left)
        return bool(new) or len(done) == ENTRIES_MAX

    def _take_places(self, most: int) -> dict[int, bytes]:
        """Take up to *most* places that Redis is to be told."""
        some = list(self._places)[:most]
        return {slot: self._places.pop(slot) for slot in some}

    async def _report(self, report: FetcherReport) -> list[Task]:
        """Send *report*; the new tasks, which are to be loaded."""
        new = await self._list.sync(report)
        self._to_load |= {
            task.run.id: task for task in new if task.run.id not in self.held.runs
        }
        return new

    def _takes_runs(self) -> bool:
        """Whether there is room for further runs."""
        crawl = self.crawl
        scheduler = self._scheduler
        if scheduler is None or scheduler.closing or scheduler.paused or not self.may_fetch():
            return False
        full = len(self.held) >= ROWS_MAX or len(self._list.tasks) >= TASKS_MAX
        return not full and crawl.frontier.leases.out < crawl.settings.project.most_requests

    def _wanted(self) -> int:
        """How many runs of any slot to ask for: where slots are scarce, its share of them."""
        slots = self.held.slots.keys() | {task.slot for task in self._to_load.values()}
        return max(0, min(ENTRIES_MAX, self._list.slots.share - len(slots)))

    async def _save(self, slots: Sequence[int], *, parks: bool = True) -> dict[int, bytes]:
        """Save what is known of the hosts of *slots*; the places of it."""
        if not slots:
            return {}
        saved = await self._hosts.save(slots, parks=parks)
        places = await asyncio.to_thread(self._blobs.write, saved)
        return {slot: place.to_bytes() for slot, place in zip(slots, places, strict=True)}

    # Loading

    async def _load_some(self) -> None:
        now = time.monotonic()
        due = [
            task for task in self._to_load.values() if self._held_back.get(task.slot, 0.0) <= now
        ]
        for tasks in portions(due, lambda task: max(_LEAST, task.run.urls), _LOADED):
            await self._load(tasks)
        if not self._to_load:
            self._loads.over("unread")

    async def _load(self, tasks: Sequence[Task]) -> None:
        """Load *tasks*. Those that are missing or damaged have failed; others that cannot be read
        are tried again soon.
        """
        places = {
            task.slot: task.hosts
            for task in tasks if task.hosts and task.slot not in self.held.slots
        }  # fmt: skip
        hosts, runs = await asyncio.to_thread(self._read, tasks, places)
        wrong = {slot: found for slot, found in hosts.items() if isinstance(found, BlobError)}
        readable = {task.slot for task in tasks if not isinstance(runs[task.run.id], BlobError)}
        items = {
            slot: found for slot, found in hosts.items()
            if slot in readable and not isinstance(found, BlobError)
        }  # fmt: skip
        if items:
            wrong |= await self._hosts.load(items)
        left = list[Entry]()
        for task in tasks:  # in one turn: a slot whose hosts are here is held
            found = wrong.get(task.slot, runs[task.run.id])
            if not isinstance(found, BlobError):
                left += self.held.add(task, found)
            elif found.missing or found.damaged:
                self._note_failed(task, found)
            else:
                self._loads.say("unread", found)
                self._held_back[task.slot] = time.monotonic() + _RETRY
                continue
            del self._to_load[task.run.id]
        await self._admit(left)

    def _read(
        self, tasks: Sequence[Task], places: Mapping[int, bytes]
    ) -> tuple[dict[int, list[Item] | BlobError], dict[bytes, list[Entry] | BlobError]]:
        """Read the hosts of slots at *places* and, by id, the URLs of runs; or their errors."""
        blobs = self._blobs

        def hosts_of(slot: int) -> list[Item]:
            return unpack_hosts(slot, blobs.read(Place.from_bytes(places[slot])))

        def urls_of(task: Task) -> list[Entry]:
            return run_entries(task, unpack_piece(task.slot, blobs.read_run(task.run.place)))

        return (
            {slot: _result_or_error(hosts_of, slot) for slot in places},
            {task.run.id: _result_or_error(urls_of, task) for task in tasks},
        )

    async def _admit(self, entries: list[Entry]) -> None:
        frontier, now = self.crawl.frontier, self.crawl.now()
        for at in range(0, len(entries), 100):
            some = entries[at : at + 100]
            new = dict[bytes, bytes | None].fromkeys(each.identity for each in some)
            AdmissionBatch(frontier, new, now).add_entries(some)
            self.crawl.wake()
            await asyncio.sleep(0)

    def _note_failed(self, task: Task, error: BlobError) -> None:
        damaged = not error.missing or task.failures + 1 >= _TRIES
        wait = 0.0 if damaged else _TRY_AGAIN * 2**task.failures
        logger.error(
            "run %s of slot %d: %s: %s", task.run.id.hex(), task.slot, error,
            "it is set aside" if damaged else f"it is tried again in {wait:g} s",
        )  # fmt: skip
        self._failed.append(FailedRun(task.run.id, task.progress, wait, str(error)[:200]))

    # Checkpoints

    async def _make_checkpoint(self) -> None:
        """Make durable what has come; then it may be reported."""
        if self._checkpoint is None:
            if not (len(self.box) or self.held.unsaid):
                return
            self._checkpoint = self.held.cut(self.box.take())
            self._left = None
        if self._checkpoint.links and not self._posts:
            pieces = [pack_links(number, links) for number, links in self._checkpoint.links.items()]
            places = await asyncio.to_thread(self._blobs.write, pieces)
            self._posts = [
                (number, place.to_bytes())
                for number, place in zip(self._checkpoint.links, places, strict=True)
            ]
            self._post += 1
            self._posts_number = self._post
            self._note_said(Said(time.monotonic(), posts=tuple(self._posts)))
        if self._posts:
            # A number once: `_declare` posts these again with another one.
            await self._post_links(self._posts_number, self._posts)
            self._posts = []
            self._checkpoint = self._checkpoint._replace(links={})
        parts = self.crawl.parts
        for sink in () if parts is None else parts.sinks:
            if isinstance(sink, PagePacks):
                await sink.persist()
        await self._save_changed()
        self.held.settle(self._checkpoint)
        self._checkpoint = None
        self._checkpointed += 1

    async def _save_changed(self) -> None:
        """Save what is known of slots with hosts that failed, or with other cookies: back-offs and
        sessions outlive this process.
        """
        failures, jars, now = dict[int, int](), self.job.cookies, time.time()
        domains = set[str]() if jars is None else jars.changed(self._renewed_at)
        for host in self.crawl.frontier.workbench.hosts.values():
            if host.record.failures:
                slot = slot_of(host.key)
                failures[slot] = failures.get(slot, 0) + host.record.failures
            if domains and lies_in(host.key, domains):
                self._renewed[slot_of(host.key)] = None
        self._renewed_at = now
        new = dict.fromkeys(
            slot for slot, count in failures.items() if self._troubled.get(slot) != count
        )
        # Nobody removes the blob of a place that is never reported: no place is replaced before.
        known = self.held.slots.keys() - self._places.keys()
        some = [slot for slot in self._renewed | new if slot in known][:ENTRIES_MAX]
        self._places |= await self._save(some, parks=False)
        self._troubled = {slot: self._troubled.get(slot, 0) for slot in failures}
        self._troubled |= {slot: failures[slot] for slot in some if slot in failures}
        self._renewed = {
            slot: None for slot in self._renewed if slot in self.held.slots and slot not in some
        }

    async def _look_for_the_end(self) -> None:
        scheduler = self._scheduler
        seeds_read = scheduler is not None and not scheduler.starting
        if len(self.box) or self.held.unsaid or self._checkpoint is not None:
            self._left = None
            return
        if seeds_read and not self._seeded:
            await self.queue.note_seeded()
            self._seeded = True
        counts = await self.queue.counts()
        self._left = counts.inputs + counts.open + counts.urls("queued", "running", "later")

    def _forget_queued(self) -> None:
        self.queued, self._queued = 0, dict.fromkeys(self._queued, 0.0)

    async def _count_queued(self) -> None:
        counts = await self.queue.counts()
        part = len(self._mine()) / PARTITIONS
        self.queued = round(part * (counts.open + counts.urls("queued", "later")))
        self._queued = {
            name: part * (count["urls:queued"] + count["urls:later"])
            for name, count in counts.queues.items()
        }

    def queue_pulses(self) -> dict[str, tuple[Array, Array]]:
        left = Counter[str]()
        for run in self.held.runs.values():
            left[run.task.queue] += run.left
        done, failed = self.held.done, self.held.failed
        return {
            name: (
                np.array([done[name], failed[name], 0.0, 0.0]),
                np.array([queued + left[name], np.nan, np.nan, np.nan]),
            )
            for name, queued in self._queued.items()
        }

    # What others ask

    def outbox_has_room(self) -> bool:
        """False: nothing is fetched, and no seed is read, until a checkpoint takes the links."""
        return self.box.size < _BOX_MAX

    def is_elsewhere(self, host: str, url: str) -> bool:
        return slot_of(host) not in self.held.slots

    @property
    def _has_rows(self) -> bool:
        return bool(self.held.runs or len(self.box) or self._checkpoint is not None or self._left)

    @property
    def at_rest(self) -> bool:
        scheduler = self._scheduler
        if scheduler is None or scheduler.starting or scheduler.has_work():
            return False
        if self._draining:
            return not (self.held.runs or self._to_load or len(self.box) or self._checkpoint)
        if self._has_rows:
            return False
        return self._left == 0 and self.ownership.settled and not self._to_load

    def heartbeat(self) -> Heartbeat:
        counters = self.crawl.frontier.counters
        idle = self.at_rest and not stays_open(self.crawl)
        return Heartbeat(
            epoch=self.ownership.epoch, idle=idle, left=self._has_rows and not idle, sent=0,
            received=0, facts=self._facts() | {"runs_dir": runs_folder(self)},
            activity=counters.sequence + counters.done + counters.failed + self._checkpointed,
        )  # fmt: skip

    @property
    def stats(self) -> dict[str, int | float]:
        return {
            "runs/held": len(self.held.runs), "runs/urls": len(self.held),
            "runs/slots": len(self.held.slots), "runs/checkpoints": self._checkpointed,
            "runs/new_urls": self.owner.new, "runs/cut": self.owner.cut,
            "runs/lost_links": self.owner.lost, "messages/waiting": len(self.box),
            "messages/spared": self.routing.spared,
            "cluster/units": int(self.ownership.mine.sum()),
        } | super().stats  # fmt: skip


class SharedQueueMode(RedisMode):
    """A fetcher among the others. Raises `ValueError`: invalid crawl name or URL."""

    agent: Fetcher
    # A process without the disk of the one before cannot prove that that one is gone: it waits.
    passing = RedisMode.passing | {"name"}

    async def candidate(self) -> Candidate:
        agent, settings = self.agent, self.agent.crawl.settings
        return Candidate(
            name=agent.name, job=f"fetcher {agent.name}", folder=folder_identity(agent.job.folder),
            grace=settings.agent_grace, weight=settings.agent_weight,
            fixed=shared_settings(settings, agent.ownership.assignment), idle=agent.finished,
        )  # fmt: skip


def _result_or_error(read: Callable[[A], T], what: A) -> T | BlobError:
    try:
        return read(what)
    except BlobError as error:
        return error


def runs_folder(agent: ClusterAgent) -> str:
    """Where the blobs of the crawl are; beside the job directory unless a setting says."""
    given = agent.crawl.settings.runs_dir
    return given or str(agent.job.path.absolute().parent / "runs")
