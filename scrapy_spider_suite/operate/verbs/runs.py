"""``runs``: the queue of a shared-queue, and the runs that were set aside."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from scrapy.exceptions import UsageError

from scrapy_spider_suite.crawl.queue.frontier import FIRST
from scrapy_spider_suite.frontier.entries import Entry, Flag, slot_of
from scrapy_spider_suite.operate import verb
from scrapy_spider_suite.settings.values import RedisUrl, redis_url
from scrapy_spider_suite.store.rows import pack_row
from scrapy_spider_suite.urls.normalize import host_of, normalize

if TYPE_CHECKING:
    from scrapy_spider_suite.cluster.run_queue import Run, RunQueue

_STATES: Final = ("queued", "running", "later", "aside", "done")
_COLUMNS: Final = ("queue", *(f"{unit}_{state}" for state in _STATES for unit in ("runs", "urls")))
_ASIDE: Final = ("id", "queue", "slot", "urls", "left", "failures", "reason")
_ALL: Final = "all"
_ASKED: Final = int(Flag.DONT_FILTER)


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
    others = counts.pop("")
    waiting = {"urls_in_no_run": others["open"], "links_for_owners": others["inputs"]}
    rows: list[verb.Row] = [
        {"queue": name} | {
            f"{unit}_{state}": found[f"{unit}:{state}"] for state in _STATES
            for unit in ("runs", "urls")
        }
        for name, found in counts.items()
    ]  # fmt: skip
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


def add_urls(call: verb.Invocation, urls: Sequence[str], queue_name: str, *, now: bool) -> int:
    """Put *urls* into a queue, each as a run; *now*: give them to fetchers, past the lottery."""
    from scrapy_spider_suite.cluster.run_blobs import pack_piece
    from scrapy_spider_suite.cluster.run_queue import Run

    runs = []
    for url in urls:
        normal = normalize(url) if "://" in url else None
        if normal is None:
            raise UsageError(f"{url!r} is no URL, which --queue needs", print_help=False)
        host = host_of(normal)
        entry = Entry(host, normal, priority=FIRST, flags=_ASKED)
        piece = pack_piece(slot_of(host), [(host, [pack_row(entry)])])
        runs.append((queue_name, slot_of(host), Run(secrets.token_bytes(8), 1, b"\0" + piece)))
    return asyncio.run(_add(call, runs, now=now))


async def _add(call: verb.Invocation, runs: list[tuple[str, int, Run]], *, now: bool) -> int:
    from scrapy_spider_suite.cluster.membership import MemberState
    from scrapy_spider_suite.cluster.registry import ClusterAdmin
    from scrapy_spider_suite.cluster.run_queue import ENTRIES_MAX

    names: list[str] = []
    if now:
        admin = ClusterAdmin(*await _crawl_of(call))
        try:
            overview = await admin.overview()
        finally:
            await admin.close()
        rows = () if overview is None else overview.view.rows
        names = [row.name for row in rows if row.state is MemberState.ACTIVE]
    async with _queue_of(call) as queue:
        given = list[str]()
        source = f"operator:{secrets.token_hex(8)}"
        try:
            for number, at in enumerate(range(0, len(runs), ENTRIES_MAX), 1):
                some = runs[at : at + ENTRIES_MAX]
                if now:
                    given += await queue.give(some, names)
                else:
                    await queue.enqueue(source, number, some)
        except ValueError as error:
            raise UsageError(f"--queue: {error}", print_help=False) from None
    fetchers = sorted(set(filter(None, given)))
    call.facts({"queued": len(runs)} | ({"fetchers": ", ".join(fetchers)} if now else {}))
    return 0


def _run(call: verb.Invocation) -> int:
    what, ids = call.options.what, call.options.ids
    if what == "ls":
        if ids:
            raise UsageError("ls has no ids", print_help=False)
        return asyncio.run(_list(call))
    if not ids:
        raise UsageError(f"which runs? give ids, or {_ALL}", print_help=False)
    if what == "requeue" and not call.options.queue:
        raise UsageError("into which queue? give --queue", print_help=False)
    queue = call.options.queue if what == "requeue" else ""
    return asyncio.run(_resume(call, queue or "", drop=what == "drop"))


VERBS = (
    verb.JobVerb(
        "runs", "the runs of a shared-queue: how many, and those that were set aside",
        options=(
            verb.option(
                "what", metavar="ls|retry|requeue|drop", nargs="?", default="ls",
                choices=("ls", "retry", "requeue", "drop"),
                help="list queues (ls), or put runs that were set aside back, or drop them",
            ),
            verb.option("ids", metavar="ID", nargs="*", help=f"ids of runs, or {_ALL}"),
            verb.option("--queue", metavar="QUEUE", help="requeue: into this queue"),
        ),
        arguments="[ls|retry|requeue|drop] [ID]...", run=_run,
        about=(
            "A run is up to 1,000 URLs. queued: nobody has it; running: a fetcher has it; later:\n"
            "it was given back, or failed, and is tried again; aside: it failed too often, or its\n"
            "blob is damaged; done: all its URLs have ended.\n"
            "drop: URLs of the run that have not ended are not fetched."
        ),
        examples=(
            "runs -j redis://localhost/0",
            "runs retry all -j redis://localhost/0 --crawl news",
            "runs drop 1a34b6d24ac83cb5 -j crawls/news",
        ),
        exits={1: "some of the runs are not set aside"},
    ),
)  # fmt: skip
