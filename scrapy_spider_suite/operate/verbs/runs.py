"""``runs``: the queue of a shared-queue, and the runs that were set aside."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import TYPE_CHECKING, Final

from scrapy.exceptions import UsageError

from scrapy_spider_suite.cluster.run_queue import STATES
from scrapy_spider_suite.crawl.queue.frontier import FIRST
from scrapy_spider_suite.frontier.entries import Entry, Flag, slot_of
from scrapy_spider_suite.operate import verb
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.values import RedisUrl, redis_url
from scrapy_spider_suite.store.rows import pack_row
from scrapy_spider_suite.store.url_states import make_seed_note
from scrapy_spider_suite.urls.normalize import host_of
from scrapy_spider_suite.urls.url_lists import BadLine, SeedLines, read_lines

if TYPE_CHECKING:
    from scrapy_spider_suite.cluster.registry import ClusterOverview
    from scrapy_spider_suite.cluster.run_queue import AsideRun, Run, RunQueue, Task

_COLUMNS: Final = (
    "queue", "weight", *(f"{unit}_{state}" for state in STATES for unit in ("runs", "urls")),
)  # fmt: skip
_ASIDE: Final = ("id", "queue", "slot", "urls", "left", "failures", "reason")
_ALL: Final = "all"
_GATHERED: Final = 50_000  # URLs of a list at a time, of which runs are made
_SHOWN: Final = 10  # bad lines
_INLINE: Final = 20  # URLs of a run, which lies in Redis itself


async def _crawl_of(call: verb.Invocation) -> tuple[str, str]:
    # redis-py is an extra
    from scrapy_spider_suite.cluster.local_redis import redis_of
    from scrapy_spider_suite.cluster.redis_server import require_redis
    from scrapy_spider_suite.cluster.registry import find_crawl

    require_redis("scrapy frontier runs")
    redis = redis_url.parse(redis_of(str(call.jobdir)) or "")
    if not isinstance(redis, RedisUrl):
        raise UsageError("runs are those of a shared-queue: give -j redis://HOST/0",
                         print_help=False)  # fmt: skip
    name = call.crawl or call.settings.get("SUITE_CRAWL_NAME")
    return redis.url, await find_crawl(redis, name)


@asynccontextmanager
async def _queue_of(call: verb.Invocation) -> AsyncIterator[RunQueue]:
    from scrapy_spider_suite.cluster.run_queue import RunQueue

    queue = RunQueue(*await _crawl_of(call))
    try:
        yield queue
    finally:
        await queue.close()


async def _list(call: verb.Invocation) -> int:
    async with _queue_of(call) as queue:
        counts = await queue.counts()
        aside = await queue.aside()
    waiting = {"urls_in_no_run": counts.open, "links_for_owners": counts.inputs}
    rows = counts.rows()
    if call.json:
        call.table([*rows, waiting], ())
        return 0
    call.table(rows, _COLUMNS)
    print()
    call.facts(waiting)
    if aside:
        print("\nset aside:")
        call.table(
            [
                {
                    "id": each.run.id.hex(), "queue": each.queue, "slot": each.slot,
                    "urls": each.run.urls, "failures": each.failures, "reason": each.reason,
                    "left": each.run.urls - int.from_bytes(each.progress, "big").bit_count(),
                }
                for each in aside
            ],
            _ASIDE,
        )
    return 0


async def _show(call: verb.Invocation) -> int:
    from scrapy_spider_suite.cluster.held_runs import run_urls
    from scrapy_spider_suite.cluster.run_blobs import BlobFolder

    redis, crawl = await _crawl_of(call)
    overview = await _overview_of(redis, crawl)
    folder, rows = _folder_of(call, overview), () if overview is None else overview.view.rows
    async with _queue_of(call) as queue:
        ids = await _ids(queue, call.options.ids)
        known: dict[bytes, tuple[str, str, AsideRun | Task]] = {
            each.run.id: ("aside", "", each) for each in await queue.aside()
        }
        for row in rows:
            tasks = await queue.tasks(row.name)
            known |= {each.run.id: ("running", row.name, each) for each in tasks}
    if not folder:
        raise UsageError("no fetcher has said where the blobs are: give -s SUITE_RUNS_DIR=…",
                         print_help=False)  # fmt: skip
    blobs = BlobFolder(folder, crawl)
    for id in ids:
        if id not in known:
            print(f"{id.hex()}: no fetcher has it, and it is not set aside", file=sys.stderr)
            continue
        state, fetcher, found = known[id]
        urls = run_urls(found.slot, blobs.read_run(found.run.place), found.progress)
        call.facts({
            "id": id.hex(), "queue": found.queue, "slot": found.slot, "state": state,
            "fetcher": fetcher, "failures": found.failures, "urls": found.run.urls,
            "left": sum(not ended for _, ended in urls),
        })  # fmt: skip
        call.table([{"url": url, "ended": ended} for url, ended in urls], ("ended", "url"))
    return 0 if known.keys() >= set(ids) else 1


def ending_in_queue(call: verb.Invocation, url: str) -> verb.Row:
    """What the owners of a shared queue know of *url*; nothing of another crawl, or another URL."""
    return asyncio.run(_ending_in_queue(call, url)) if "://" in url else {}


async def _ending_in_queue(call: verb.Invocation, url: str) -> verb.Row:
    from scrapy_spider_suite.cluster.run_blobs import BlobFolder
    from scrapy_spider_suite.cluster.run_owner import read_ending

    redis, crawl = await _crawl_of(call)
    folder = _folder_of(call, await _overview_of(redis, crawl))
    if not folder:
        return {}
    async with _queue_of(call) as queue:
        found = await read_ending(queue, BlobFolder(folder, crawl), host_of(url), url)
    if found is None:
        return {"because": "no link that an owner has seen led there"}
    if found.event is None:
        return {"state": "pending", "because": "it is in a run, or waits for one"}
    outcome = found.event.outcome
    return {
        "state": outcome.state.value, "reason": found.event.value, "because": outcome.meaning,
        "status": found.status or None, "since": verb.display_text("when", found.when),
    }  # fmt: skip


async def _overview_of(redis: str, crawl: str) -> ClusterOverview | None:
    from scrapy_spider_suite.cluster.registry import ClusterAdmin

    admin = ClusterAdmin(redis, crawl)
    try:
        return await admin.overview()
    finally:
        await admin.close()


def _folder_of(call: verb.Invocation, overview: ClusterOverview | None) -> str:
    """The folder of blobs: by the setting, or as a fetcher has it; "" if none has said."""
    facts = {} if overview is None else overview.facts
    known = [str(each["runs_dir"]) for each in facts.values() if each.get("runs_dir")]
    return str(call.settings.get("SUITE_RUNS_DIR") or (known or [""])[0])


async def _resume(call: verb.Invocation, queue_name: str, *, drop: bool) -> int:
    from scrapy_spider_suite.cluster.run_queue import ENTRIES_MAX

    async with _queue_of(call) as queue:
        ids = await _ids(queue, call.options.ids)
        there = 0
        for at in range(0, len(ids), ENTRIES_MAX):
            try:
                found = await queue.resume(ids[at : at + ENTRIES_MAX], queue_name, drop=drop)
            except ValueError as error:
                raise UsageError(f"--queue: {error}", print_help=False) from None
            there += sum(found)
    call.facts({"dropped" if drop else "queued": there, "not_set_aside": len(ids) - there})
    return 0 if there == len(ids) else 1


async def _ids(queue: RunQueue, words: Sequence[str]) -> list[bytes]:
    if list(words) == [_ALL]:
        return [each.run.id for each in await queue.aside()]
    try:
        return [bytes.fromhex(word) for word in words]
    except ValueError:
        raise UsageError(f"expected ids of runs, or {_ALL}", print_help=False) from None


def add_urls(
    call: verb.Invocation, sources: Sequence[str], queue_name: str, *, now: bool
) -> int:  # fmt: skip
    """Put the URLs of *sources* into a queue; *now*: give them to fetchers, past the lottery."""
    wrong = list[str]()
    runs = _runs_of(_entries(call, sources, wrong), queue_name)
    asyncio.run(_add(call, runs, now=now))
    for line in wrong[:_SHOWN]:
        print(line, file=sys.stderr)
    if len(wrong) > _SHOWN:
        print(f"and {counted(len(wrong) - _SHOWN, 'more line')}", file=sys.stderr)
    return 1 if wrong else 0


def _entries(
    call: verb.Invocation, sources: Sequence[str], wrong: list[str]
) -> Iterator[Entry]:  # fmt: skip
    """The URLs of *sources*; lines that are none go to *wrong*."""
    lines = SeedLines("URLs")
    for line in read_lines(sources, str(call.settings.get("USER_AGENT"))):
        seed = lines.read(line.encode())
        if isinstance(seed, BadLine):
            wrong.append(f"{seed.origin}:{seed.line}: {seed.text!r}: {seed.why}")
        elif seed is not None:
            note = make_seed_note(seed.tag, guessed=seed.guessed)
            yield Entry(
                host_of(seed.url), seed.url, priority=FIRST, flags=Flag.DONT_FILTER, seed_note=note
            )  # fmt: skip


def _runs_of(entries: Iterable[Entry], queue_name: str) -> Iterator[tuple[str, int, Run]]:
    """Runs of *entries*, of which some 50,000 are gathered."""
    from scrapy_spider_suite.cluster.run_blobs import RunRow, pack_piece
    from scrapy_spider_suite.cluster.run_queue import Run

    gathered = iter(entries)
    while some := list(islice(gathered, _GATHERED)):
        slots = dict[int, list[Entry]]()
        for entry in some:
            slots.setdefault(slot_of(entry.host), []).append(entry)
        for slot, found in slots.items():
            for at in range(0, len(found), _INLINE):
                hosts = dict[str, list[RunRow]]()
                for entry in found[at : at + _INLINE]:
                    row = pack_row(entry)
                    rows = hosts.setdefault(entry.host, [])
                    rows.append((row, entry.seed_note) if entry.seed_note else row)
                piece = pack_piece(slot, list(hosts.items()))
                urls = len(found[at : at + _INLINE])
                yield queue_name, slot, Run(secrets.token_bytes(8), urls, b"\0" + piece)


async def _add(
    call: verb.Invocation, runs: Iterator[tuple[str, int, Run]], *, now: bool
) -> None:  # fmt: skip
    from scrapy_spider_suite.cluster.membership import MemberState
    from scrapy_spider_suite.cluster.run_queue import ENTRIES_MAX

    names: list[str] = []
    if now:
        overview = await _overview_of(*await _crawl_of(call))
        rows = () if overview is None else overview.view.rows
        names = [row.name for row in rows if row.state is MemberState.ACTIVE]
    urls, given = 0, set[str]()
    async with _queue_of(call) as queue:
        source, number = f"operator:{secrets.token_hex(8)}", 0
        try:
            while some := list(islice(runs, ENTRIES_MAX)):
                number += 1
                if now:
                    given |= {*await queue.give(some, names)}
                else:
                    await queue.enqueue(source, number, some)
                urls += sum(run.urls for _, _, run in some)
        except ValueError as error:
            raise UsageError(f"--queue: {error}", print_help=False) from None
    fetchers = sorted(filter(None, given))
    call.facts({"queued": urls} | ({"fetchers": ", ".join(fetchers)} if now else {}))


def _run(call: verb.Invocation) -> int:
    what, ids = call.options.what, call.options.ids
    if what == "ls":
        if ids:
            raise UsageError("ls has no ids", print_help=False)
        return asyncio.run(_list(call))
    if not ids:
        raise UsageError(f"which runs? give ids, or {_ALL}", print_help=False)
    if what == "show":
        return asyncio.run(_show(call))
    if what == "requeue" and not call.options.queue:
        raise UsageError("into which queue? give --queue", print_help=False)
    queue = call.options.queue if what == "requeue" else ""
    return asyncio.run(_resume(call, queue or "", drop=what == "drop"))


VERBS = (
    verb.JobVerb(
        "runs", "the runs of a shared-queue: how many, and those that were set aside",
        options=(
            verb.option(
                "what", metavar="ls|show|retry|requeue|drop", nargs="?", default="ls",
                choices=("ls", "show", "retry", "requeue", "drop"),
                help="list queues (ls), show the URLs of runs that fetchers have or that were set "
                "aside (show), or put such runs back (retry, requeue), or drop them",
            ),
            verb.option("ids", metavar="ID", nargs="*", help=f"ids of runs, or {_ALL}"),
            verb.option("--queue", metavar="QUEUE", help="requeue: into this queue"),
        ),
        arguments="[ls|show|retry|requeue|drop] [ID]...", run=_run,
        about=(
            "A run is up to 1,000 URLs. queued: nobody has it; running: a fetcher has it; later:\n"
            "it was given back, or failed, and is tried again; aside: it failed too often, or its\n"
            "blob is damaged; done: all its URLs have ended.\n"
            "show reads the blob of a run, in SUITE_RUNS_DIR, or where a fetcher has it.\n"
            "drop: URLs of the run that have not ended are not fetched."
        ),
        examples=(
            "runs -j redis://localhost/0",
            "runs show 1a34b6d24ac83cb5 -j redis://localhost/0",
            "runs retry all -j redis://localhost/0 --crawl news",
            "runs drop 1a34b6d24ac83cb5 -j crawls/news",
        ),
        exits={1: "some of the runs are not there, or not set aside"},
    ),
)  # fmt: skip
