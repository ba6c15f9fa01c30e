"""Gives a dead agent's directory, or its packs, to the owners. Idempotent."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from scrapy_spider_suite.cluster.assignment import Units
from scrapy_spider_suite.cluster.handover.handover import Handover
from scrapy_spider_suite.cluster.handover.handover_context import HandoverContext
from scrapy_spider_suite.cluster.handover.handover_file import FileTransport
from scrapy_spider_suite.cluster.handover.load import write_state
from scrapy_spider_suite.cluster.mailbox import Outbox, unpack_rows
from scrapy_spider_suite.cluster.membership import Membership, MemberState, Ownership
from scrapy_spider_suite.cluster.registry import MovedUnits
from scrapy_spider_suite.crawl.queue.frontier import Frontier
from scrapy_spider_suite.errors import ClusterError, MessageError, TransportError
from scrapy_spider_suite.frontier.entries import Entry, state_key
from scrapy_spider_suite.frontier.outcomes import State, event_of_status
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.packs.pack_file import is_pack, plain_name
from scrapy_spider_suite.packs.reader import pack_entries
from scrapy_spider_suite.runtime.tasks import cancel_tasks
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import UrlState
from scrapy_spider_suite.urls.hosts import host_of_any

logger = logging.getLogger(__name__)

PATIENCE: Final = 120.0  # seconds without progress after which an adoption fails
PACKED_URLS: Final = 200_000  # URLs of packs that are given at a time
_CALLED_OFF: Final = "sent_called_off"
_BEAT: Final = 1.0
_ROWS: Final = 200

FetchMembership = Callable[[], Awaitable[Membership]]


class AdoptionResult(NamedTuple):
    files: int
    hosts: int
    urls: int
    links: int = 0  # rows of the outbox that were put back into the queues
    unread: int = 0  # rows of the outbox that cannot be read


async def adopt_directory(
    frontier: Frontier, store: RocksStore, ownership: Ownership, file_transport: FileTransport,
    folder: Path, *,
    crawl: str, view: FetchMembership, say: Callable[[str], None] = logger.info,
    patience: float = PATIENCE,
) -> AdoptionResult:  # fmt: skip
    """Give all hosts of *store*, locked as by a crawl, to their owners, by files in *folder*.

    *ownership* and *file_transport* are new, by the dead agent's name; *crawl* is the id. Raises
    `ClusterError`: the agent is still a member, or there is no other; `TransportError`: no progress
    for *patience* seconds, and delivered files stay delivered; see `HandoverContext.refuse_sieve`.
    """
    await _update_members(ownership, view)

    async def give(units: Units, to: int, epoch: int) -> MovedUnits:
        raise ClusterError(f"{ownership.name} holds units: it is not dead")

    async def update_holders() -> None: ...

    offset = frontier.wall_offset
    context = HandoverContext(
        frontier, store, ownership, lambda: (time.time() - offset, time.time())
    )  # fmt: skip
    handover = Handover(context, file_transport, folder, give=give, update_holders=update_holders)
    links, unread = await _requeue_outbox(frontier, Outbox(store.kv("outbox")))
    running = asyncio.create_task(handover.run(crawl))
    try:
        await _until_empty(handover, running, ownership, view, say, patience)
    finally:
        await cancel_tasks(running)
        frontier.flush()
    facts = handover.facts
    files, hosts, urls = (facts.get(f"sent_{name}", 0) for name in ("files", "hosts", "urls"))
    return AdoptionResult(files, hosts, urls, links, unread)


async def _update_members(ownership: Ownership, view: FetchMembership) -> None:
    known = await view()
    row = known.row(ownership.name)
    if row is not None and row.state in (MemberState.ACTIVE, MemberState.LEAVING):
        raise ClusterError(
            f"agent {ownership.name} is still a member: remove it first, once its process is gone"
        )
    if not known.members:
        raise ClusterError("no agent is there that could take anything")
    ownership.set_membership(known)


async def _requeue_outbox(frontier: Frontier, outbox: Outbox) -> tuple[int, int]:
    """Queue the rows for others here; return the numbers of links, and of unreadable rows."""
    links = unread = 0
    for to in outbox.receivers:
        while rows := list(islice(outbox.rows(to), _ROWS)):
            for _, row in rows:
                try:
                    entries = list[Entry](unpack_rows([row]))
                    frontier.admission.schedule(entries, time.time() - frontier.wall_offset)
                    links += len(entries)
                except MessageError as error:
                    logger.warning("a row of the outbox: %s", error)
                    unread += 1
            outbox.drop(to, rows[0][0], rows[-1][0])
            frontier.flush()
            await asyncio.sleep(0)
    return links, unread


async def _until_empty(
    handover: Handover, running: asyncio.Future[None], ownership: Ownership, view: FetchMembership,
    say: Callable[[str], None], patience: float,
) -> None:  # fmt: skip
    facts, progress = handover.facts, handover.progress
    sent_at = moved_at = time.monotonic()
    while handover.busy:
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(running), _BEAT)
        known = await view()
        if known.epoch != ownership.epoch:
            await _update_members(ownership, view)
            handover.poke()
            sent_at = moved_at = time.monotonic()
        before, facts = facts, handover.facts
        if handover.progress != progress:
            progress, moved_at = handover.progress, time.monotonic()
        if facts.get(_CALLED_OFF) != before.get(_CALLED_OFF):
            moved_at = sent_at  # a called-off file is no progress
        if {**facts, _CALLED_OFF: 0} != {**before, _CALLED_OFF: 0}:
            sent_at = time.monotonic()
            say(", ".join(f"{name.partition('_')[2]}: {n:,}" for name, n in facts.items()))
        elif time.monotonic() - max(sent_at, moved_at) > patience:
            raise TransportError(f"nobody has taken anything for {patience:g} s")


# Where the disk is lost


def states_in_packs(folder: Path, agent: str) -> Iterator[tuple[str, str, UrlState]]:
    """Yield host, URL and state of each page that *agent* has packed. Raises `OSError`."""
    ending = f"-{plain_name(agent)}.warc."
    for pack in sorted(path for path in folder.iterdir() if is_pack(path) and ending in path.name):
        for entry in pack_entries(pack):
            host = host_of_any(entry.url)
            event = event_of_status(entry.status)
            state = event.outcome.state
            if host and not entry.is_uninformative and state is not State.PENDING:
                when = int(entry.time.timestamp())
                yield host, entry.url, UrlState(state, event, 1, entry.status, when)


async def adopt_packs(
    packs: Path, ownership: Ownership, file_transport: FileTransport, folder: Path, *, crawl: str,
    view: FetchMembership, patience: float = PATIENCE,
) -> AdoptionResult:  # fmt: skip
    """Tell the owners the pages that the agent of *ownership*, whose disk is lost, has fetched.

    Makes a store of them in the empty *folder*. Other arguments and errors as `adopt_directory`.
    """
    await _update_members(ownership, view)
    folder.mkdir(parents=True, exist_ok=True)
    store, now = RocksStore(folder / "store"), time.time()
    frontier = Frontier(store, Policy(), now=now, wall=now, capacity=0)
    context = HandoverContext(frontier, store, ownership, lambda: (time.time(), time.time()))
    found, files, urls, hosts = states_in_packs(packs, ownership.name), 0, 0, set[int]()
    try:
        while portion := list(islice(found, PACKED_URLS)):
            for host, url, state in portion:
                write_state(context, host, state_key(host, url), state)
            hosts |= {hash(host) for host, _, _ in portion}
            given = await adopt_directory(
                frontier, store, ownership, file_transport, folder / "out", crawl=crawl, view=view,
                patience=patience,
            )  # fmt: skip
            files, urls = files + given.files, urls + given.urls
    finally:
        store.close()
    return AdoptionResult(files, len(hosts), urls)


def lost_urls(facts: Mapping[str, str | int | float | None], found: int) -> int:
    """Return how many URLs of the last *facts* are lost, with *found* of them in packs."""
    known = (facts.get(name) for name in ("pending", "done", "failed"))
    return max(0, int(sum(n for n in known if isinstance(n, int | float))) - found)
