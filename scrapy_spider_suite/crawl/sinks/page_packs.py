"""Pages into packs: every answer is packed, and a page is done only when it is on disk.

The answers of a page are packed side by side, with its links, when nothing more will come of it.
With SUITE_PAGE_ITEMS only pages with a `PageItem` are packed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from scrapy_spider_suite.crawl.gate import add_fetch_observer
from scrapy_spider_suite.crawl.links import product_token
from scrapy_spider_suite.crawl.preparation import find_contact
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.crawl.requests import redirect_target
from scrapy_spider_suite.crawl.sinks.commit_log import CommitLog
from scrapy_spider_suite.errors import PackError, PackRefusedError, PackWriteError, SettingsError
from scrapy_spider_suite.fetch.exchange import TRUNCATED, Exchange, pop_exchange
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.items import PageItem, link_of
from scrapy_spider_suite.packs import Capture, CrawlInfo, Link, PackPlan, PackWriter, RecordLocation
from scrapy_spider_suite.packs.folder_index import IndexMerger
from scrapy_spider_suite.packs.http_records import build_head
from scrapy_spider_suite.packs.pack_file import FORMATS, Uploaded, format_of
from scrapy_spider_suite.packs.upload import UploadTarget, UploadThread
from scrapy_spider_suite.packs.warc import LINKS_READ_LATER, SOFTWARE, URL_MAX
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.declarations import setting_name
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.signals import pack_closed
from scrapy_spider_suite.store.job_directory import digest_of
from scrapy_spider_suite.urls.page_digests import warc_digest

if TYPE_CHECKING:
    from scrapy_spider_suite.packs import PackRecovery

logger = logging.getLogger(__name__)

BACKLOG_MAX: Final = 16 << 20
"""Bytes of records that wait to be compressed, above which nothing new is fetched."""
_LOOK: Final = 0.2  # seconds between two looks at packs that are uploaded
_PACKS: Final = "packs"
"""Why the scheduler is paused then."""
_LEFT_OUT: Final = frozenset(
    {Event.NOT_STORED, Event.INTERRUPTED, Event.DISK_FULL, Event.PIPELINE_ERROR}
)
"""Faults of pages that are not to be stored, or are fetched once more, and packed then."""


def upload_target(settings: SuiteSettings, folder: Path) -> UploadTarget | None:
    """Where packs of *folder* are uploaded to. Raises `SettingsError` for a bad URL."""
    url = settings.packs_upload
    if not url:
        return None
    try:
        target = UploadTarget(url)
        target.require_elsewhere(folder)
    except PackError as error:
        raise SettingsError(f"SUITE_PACKS_UPLOAD = {url!r}: {error}") from error
    return target


class ClosedPacks:
    """Merges the indexes of closed packs and uploads the packs, beside the crawl.

    Stats: ``suite/packs/uploaded``, ``suite/packs/uploaded_bytes``, ``suite/packs/upload_failed``,
    ``suite/packs/upload_waiting`` (at the end). Raises `SettingsError`.
    """

    def __init__(self, log: CommitLog, folder: Path, agent: str) -> None:
        self._stats = log.crawler.stats
        self._loop = asyncio.get_running_loop()
        self._patience = log.settings.stop_timeout
        self._merging = IndexMerger(folder)
        self._failing = False
        self._uploads: UploadThread | None = None
        if target := upload_target(log.settings, folder):
            self._uploads = UploadThread(
                folder, agent, target, keep=log.settings.packs_keep, report=self._report
            )

    @property
    def uploads(self) -> bool:
        """Whether packs are uploaded."""
        return self._uploads is not None

    def notify(self) -> None:
        """A pack was closed."""
        self._merging.notify()
        if self._uploads is not None:
            self._uploads.notify()

    def pulse(self) -> None:
        self._merge(self._merging.poll)

    def _merge(self, step: Callable[[], str]) -> None:
        try:
            error = step()
        except OSError as found:  # no memory, no processes: the packs' own indexes serve
            error = str(found)
        if error:
            logger.warning("The indexes of packs could not be merged: %s", error)

    async def finish(self) -> None:
        merging = partial(self._merging.finish, self._patience)
        await asyncio.gather(asyncio.to_thread(self._merge, merging), self._finish_uploads())

    async def _finish_uploads(self) -> None:
        if self._uploads is None:
            return
        left = await asyncio.to_thread(self._uploads.finish, self._patience)
        self._stats.set_value("suite/packs/upload_waiting", len(left))
        if left:
            logger.warning(
                "packs wait to be uploaded: %d, from %s on: the next run does it, or "
                "`scrapy packs upload`", len(left), left[0].name,
            )  # fmt: skip

    async def uploaded(self) -> None:
        """Return once all packs that are closed now are uploaded, if packs are."""
        if self._uploads is None:
            return
        left = set(await asyncio.to_thread(self._uploads.left))
        while left := left.intersection(await asyncio.to_thread(self._uploads.left)):
            await asyncio.sleep(_LOOK)

    def _report(self, pack: Path, result: Uploaded | Exception) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._count, pack, result)

    def _count(self, pack: Path, result: Uploaded | Exception) -> None:
        if isinstance(result, Uploaded):
            self._stats.inc_value("suite/packs/uploaded")
            self._stats.inc_value("suite/packs/uploaded_bytes", result.size)
            if self._failing:
                logger.info("Packs are uploaded again: %s is there", pack.name)
            self._failing = False
            return
        self._stats.inc_value("suite/packs/upload_failed")
        if not self._failing:  # it is tried again every few minutes
            logger.warning("%s; it is tried again, and stays here until then", result)
        self._failing = True


def packed_fetch(fetch: Fetch) -> Capture | None:
    """The answer, as it was on the wire where the handler kept that; None if there was none."""
    exchange = fetch.exchange
    if exchange is None or not exchange.status:
        return None
    via, hops = _way(None if fetch.aside else fetch)
    location = exchange.fields.get(b"Location")
    target = redirect_target(exchange.url, exchange.status, location[-1] if location else None)
    return Capture(
        url=exchange.url, time=exchange.began,
        head=exchange.head or build_head(exchange.status, exchange.fields), body=exchange.body,
        method=exchange.method, request=exchange.request, address=exchange.address,
        truncated=_truncated(exchange), protocols=exchange.protocols,
        digest=warc_digest(exchange.digest),
        links=() if target is None else (Link(target, "redirect"),), via=via, hops=hops,
    )  # fmt: skip


def packed_item(item: PageItem, fetch: Fetch | None) -> Capture:
    """The page of *item*, as Scrapy's middlewares have left it.

    A Content-Encoding in the head holds for the body: middlewares remove one that they have undone.
    Raises `TypeError` and the like if the item holds what no page has.
    """
    source, (via, hops) = item.source, _way(fetch)
    request = None if source is None else source.request
    method = "GET" if request is None else request.method
    sent = None if request is None else pop_exchange(request)
    if sent is None:
        sent = Exchange.of_handler(item.url, method, source)
    fields = {_latin(name): list(map(_latin, values)) for name, values in item.headers.items()}
    return Capture(
        url=item.url, time=item.time.timestamp(), head=sent.head or build_head(item.status, fields),
        body=bytes(item.body), decoded="Content-Encoding" not in item.headers, method=method,
        request=sent.request, address=sent.address, truncated=_truncated(sent),
        protocols=sent.protocols, links=[link_of(each) for each in item.links or ()], via=via,
        hops=hops,
    )  # fmt: skip


def _latin(text: str) -> bytes:
    return text.encode("latin-1", "replace")


def _truncated(exchange: Exchange) -> str:
    if "dataloss" in exchange.flags:
        return "disconnect"
    return "length" if exchange.unwanted or TRUNCATED in exchange.flags else ""


def _way(fetch: Fetch | None) -> tuple[str, str]:
    if fetch is None:
        return "", ""
    entry = fetch.entry
    return entry.referrer, "L" * entry.depth + "R" * entry.hops


def prepare_folder(setting: str, folder: Path) -> None:
    """Make the *folder* that *setting* names. Raises `SettingsError` if it cannot be written."""
    why = ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            why = "the folder cannot be written"
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        raise SettingsError(f"{setting_name(setting)} = {str(folder)!r}: {why}")


def pack_plan(log: CommitLog, folder: Path) -> PackPlan:
    settings, crawler = log.settings, log.crawler
    job = None if log.crawl is None else log.crawl.job
    agent = crawler.settings["USER_AGENT"] or ""
    spider = "" if crawler.spider is None else crawler.spider.name
    machine = socket.gethostname()
    crawl = CrawlInfo(
        name=settings.crawl_name or spider,
        software=SOFTWARE,
        operator=settings.operator,
        contact=find_contact(agent),
        robots="classic" if crawler.settings.getbool("ROBOTSTXT_OBEY") else "ignore",
        user_agent=agent,
        hostname=machine,
        settings_digest=digest_of(settings.as_stored()),
        notes={} if job is None else {"job": job.file.id},
    )
    return PackPlan(
        folder=folder, crawl=crawl, agent=settings.agent_name or machine,
        form=settings.packs_format, max_bytes=settings.packs_size, max_age=settings.packs_age,
        power=settings.commit_survives == "power",
    )  # fmt: skip


class _PackJob:
    """Answers that are packed side by side; in the writer's thread it stands for a future."""

    __slots__ = ("_done", "_tell", "captures", "error", "fetch", "pack")

    def __init__(
        self, captures: Sequence[Capture], fetch: Fetch | None, tell: Callable[[_PackJob], None]
    ) -> None:
        self.captures = captures if fetch is None else ()  # nobody fetches those once more
        self.fetch = fetch
        self.error: Exception | None = None
        self.pack = ""
        self._tell = tell
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, location: RecordLocation) -> None:
        self.pack = location.filename
        if self.fetch is not None and self.fetch.stored is not None:
            self.fetch.stored.location = location
        self._done = True
        self._tell(self)

    def set_exception(self, error: Exception) -> None:
        self.error = error
        self._done = True
        self._tell(self)


class PagePacks:
    """A sink (see `commit_log`): pages into packs in *folder*, as the settings of *log* say now.

    Packs that a kill left open are closed first, in the writer's thread; answers wait for that.

    Raises `SettingsError`: the folder cannot be written.
    """

    def __init__(self, log: CommitLog, folder: Path) -> None:
        self.folder = folder.absolute()
        self._log = log
        self._stats = log.crawler.stats
        self._loop = asyncio.get_running_loop()
        self._written: deque[_PackJob] = deque()
        self._tell = self._append_written  # bound once for all
        self._again: list[_PackJob] = []  # of no page, so that nobody fetches them once more
        self._behind = self._begun = False
        project = log.settings.project
        robot = product_token(project.robotstxt_user_agent or project.user_agent)
        self._later = {LINKS_READ_LATER: f"later {robot}".rstrip()}
        upload_target(log.settings, folder)  # a bad URL is refused before the folder is made
        prepare_folder("packs_dir", folder)
        plan = pack_plan(log, folder)
        self._closed = ClosedPacks(log, folder, plan.agent)
        try:
            # Its backlog is bounded by the pause of the crawl.
            self._writer = PackWriter(
                plan, closed=lambda path: self._loop.call_soon_threadsafe(self._pack_closed, path)
            )
        except (OSError, PackError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise SettingsError(f"SUITE_PACKS_DIR = {str(folder)!r}: {why}") from error
        self._writer.recovery.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._recovered, done)
        )
        if log.crawl is not None:
            add_fetch_observer(log.crawler, self.fetched)

    def _recovered(self, done: Future[list[PackRecovery]]) -> None:
        error = done.exception()
        if error is not None:
            logger.error("What an earlier run left of packs stays as it is for now: %s", error)
            return
        for each in done.result():
            self._stats.inc_value("suite/packs/recovered")
            self._stats.inc_value("suite/packs/cut_bytes", each.cut)
            # A kill tears the end alone, where no page is done yet.
            for lost in (found for found in each.damage if not found.torn):
                logger.warning("%s: lost, %d bytes at %d: %s", each.path, *lost[1::-1], lost.why)
            if each.path is not None:
                self._pack_closed(each.path)

    # In

    def fetched(self, fetch: Fetch) -> None:
        capture = packed_fetch(fetch)
        if capture is None:
            return
        chosen = self._log.settings.page_items
        if not fetch.aside:
            fetch.captures.append(capture)
            fetch.wanted = fetch.wanted or not chosen
        elif not chosen:
            self._pack([capture], None)

    def add_page(self, item: PageItem) -> None:
        fetch = self._log.lease_of(None if item.source is None else item.source.request)
        if fetch is None:
            self._pack([packed_item(item, None)], self._log.lease_of(item.owner))
            return
        fetch.wanted = True
        if item.links is not None:
            # What is no link is a fault of the item's: later its page would wait for ever.
            fetch.outlinks = [link_of(each) for each in item.links]
        if not fetch.captures:
            fetch.captures.append(packed_item(item, fetch))

    def settled(self, fetch: Fetch) -> None:
        """Pack the answers of *fetch* and hold it until they are on disk. Pages that are not to be
        stored (SUITE_STORE_FILTER, a dropped item) are not packed.
        """
        packed = self.packs_page(fetch)
        captures, fetch.captures = fetch.captures, []
        if packed and fetch.stored is None:
            if fetch.outlinks:
                captures[-1] = replace(captures[-1], links=fetch.outlinks)
            self._pack(captures, fetch)
        elif packed:
            captures[-1] = replace(captures[-1], notes={**captures[-1].notes, **self._later})
            for each in captures:  # the place of the last one is that of the page
                self._pack([each], fetch)

    def packs_page(self, fetch: Fetch) -> bool:
        if self._log.settings.page_items and not fetch.wanted:
            return False
        return bool(fetch.captures) and (not fetch.faults or _LEFT_OUT.isdisjoint(fetch.faults))

    def _pack(self, captures: Sequence[Capture], fetch: Fetch | None) -> None:
        size = 0
        for each in captures:
            size += len(each.body)
            if len(each.url) > URL_MAX:  # no tool could read it
                self._refused(f"{each.url:.200}...", "it is too long", len(captures))
                return
        self._append(captures, fetch)
        if fetch is not None:
            fetch.holds += 1  # it is let go in a later turn of the loop
        self._log.count("suite/packs/answers", len(captures))
        self._log.count("suite/packs/bytes", size)

    def _refused(self, url: str, why: object, answers: int = 1) -> None:
        logger.error("%s is not packed: %s", url, why)
        self._stats.inc_value("suite/packs/refused", answers)

    def _append(self, captures: Sequence[Capture], fetch: Fetch | None) -> None:
        batch = _PackJob(captures, fetch, self._tell)
        try:
            self._writer.append(captures, batch)
        except PackWriteError as error:  # its thread has ended
            batch.set_exception(error)
        else:
            self._keep_up()

    # Out: in the writer's thread, a whole group at once

    def _append_written(self, batch: _PackJob) -> None:
        self._written.append(batch)
        # Asked afterwards: the loop may have taken what was there before.
        if len(self._written) == 1:
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._settle_written)

    def _settle_written(self) -> None:
        failure, fetches = "", []
        while self._written:
            batch = self._written.popleft()
            if isinstance(batch.error, PackRefusedError):
                self._refused("A page", batch.error)
                if batch.fetch is not None:
                    batch.fetch.faults.add(Event.PIPELINE_ERROR)
            elif batch.error is not None:
                failure = str(batch.error)
                self._stats.inc_value("suite/packs/failed")
                if batch.fetch is None:
                    self._again.append(batch)
                else:
                    batch.fetch.faults.add(Event.DISK_FULL)
            elif not self._begun:
                self._begun = True
                path = self.folder / batch.pack
                logger.info("The first pack is %s: %s", path, FORMATS[format_of(path)].readers)
            if batch.fetch is not None:
                fetches.append(batch.fetch)
        if failure:
            self._log.pause_until_writable(failure)
        self._log.written(fetches)

    def _pack_closed(self, path: Path) -> None:
        self._stats.inc_value("suite/packs/closed")
        self._closed.notify()
        crawler = self._log.crawler
        crawler.signals.send_catch_log(pack_closed, path=path, spider=crawler.spider)

    # Keeping house

    def pulse(self) -> None:
        """Pause the crawl while too much waits; flush if the crawl waits for packs alone."""
        self._keep_up()
        self._retry()
        self._closed.pulse()
        self.flush_if_idle()

    def _keep_up(self) -> None:
        behind = self._writer.backlog > (BACKLOG_MAX // 2 if self._behind else BACKLOG_MAX)
        if behind:  # said anew each time: another one may have taken it back
            self._log.pause(_PACKS)
        elif self._behind:
            self._log.unpause(_PACKS)
        self._behind = behind

    def flush_if_idle(self) -> None:
        if self._log.waits:
            self._writer.flush()

    async def persist(self) -> None:
        """Return once all that is packed now is uploaded, if packs are. Raises `OSError`,
        `PackWriteError`.
        """
        if self._closed.uploads:
            await asyncio.wrap_future(self._writer.flush(end_pack=True))
            await self._closed.uploaded()

    @property
    def recovering(self) -> bool:
        return not self._writer.recovery.done()

    def _retry(self) -> None:
        again, self._again = self._again, []
        for batch in again:
            self._append(batch.captures, None)

    async def finish(self) -> None:
        """Write everything. Pages that cannot be written are fetched again."""
        self._retry()
        with suppress(Exception):  # whatever has ended its thread: everybody was told
            await asyncio.wrap_future(self._writer.flush())
        self._settle_written()
        if self._again:
            logger.error(
                "%s lost: packing failed", counted(len(self._again), "answer is", "answers are")
            )

    async def close(self) -> None:
        """Close the pack; on failure the next run does."""
        try:
            await asyncio.to_thread(self._writer.close)
        except Exception as error:  # whatever ended its thread
            logger.error("%s: the next run of the crawl closes the pack", error)
        await self._closed.finish()
