"""Links that are read when they are wanted (SUITE_READ_LINKS), out of packs.

Pages that a pack cannot give back as they were are read at once: pages that are not packed, cut
off, changed by a middleware, compressed in an unknown way, or revisit records.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

from scrapy.http import HtmlResponse

from scrapy_spider_suite.crawl.assembly import CrawlParts
from scrapy_spider_suite.crawl.context import Engine
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.crawl.sinks.page_packs import PagePacks
from scrapy_spider_suite.errors import PackError
from scrapy_spider_suite.fetch.exchange import Exchange
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.packs import Capture, Page, http_records
from scrapy_spider_suite.packs.http_records import decode_body
from scrapy_spider_suite.packs.stored_pages import StoredPage, StoredPageFinder
from scrapy_spider_suite.packs.warc import URL_MAX
from scrapy_spider_suite.store.rocks_store import DamageGuard
from scrapy_spider_suite.store.unread_pages import AT_ONCE, UnreadPage

logger = logging.getLogger(__name__)

_OF_LINKS: Final = frozenset({"content-language", "content-type", "link", "x-robots-tag"})
"""Fields that say of a page which links it has, or whether filters want them."""


def is_recoverable(capture: Capture, page: Exchange) -> bool:
    if capture.truncated or capture.original is not None or capture.url != page.url:
        return False
    if len(capture.url) > URL_MAX:  # it is not packed
        return False
    try:
        size, decoded, method = len(capture.body), capture.decoded, capture.method
        fitted = http_records.fit_head(capture.head, size, decoded=decoded, method=method)
        head = http_records.parse_head(fitted)
        # More than that is another body: a small one may decompress to a very large one.
        if decode_body(head, capture.body, len(page.body)) != page.body:
            return False
    except PackError:
        return False
    return head.status == page.status and _fields(head.fields) == _fields(
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, values in page.fields.items()
        for value in values
    )


def _fields(fields: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    named = ((name.lower(), value) for name, value in fields)
    return sorted((field for field in named if field[0] in _OF_LINKS), key=itemgetter(0))


_NOTHING: Final = 60.0
"""A crawl in which nothing can be visited for so many seconds has nothing else to do."""
_HURRY: Final = 0.1
"""Seconds between two groups of packs that are ended early, since the crawl waits for them."""
_RETRY: Final = 5.0  # seconds after which a folder that could not be read is tried again
_TRIES: Final = 12  # times in a row, of one page
_WORK: Final = 0.005  # seconds for which pages are read before anyone else has a turn again
_BYTES: Final = 8 << 20  # of pages that are taken out of packs at a time; one may be larger
_TOLD: Final = 10
"""Pages that are named in the log when their links are given up; more are only counted."""


class DeferredLinks:
    """Reads the links of stored pages when they are wanted; broad profile only."""

    def __init__(self, parts: CrawlParts, engine: Engine) -> None:
        self._crawl = crawl = parts.crawl
        self._engine = engine
        self._stages = parts.pages
        self._visits = parts.visits
        self._stats = crawl.crawler.stats
        self._loop = asyncio.get_running_loop()
        self._pages = pages = crawl.frontier.stored_links
        self._busy = self._ended = False
        self._not_before = -math.inf
        self._hurried = -math.inf
        self._tries = 0
        self._packs = [each for each in parts.sinks if isinstance(each, PagePacks)]
        own = crawl.settings.packs_dir
        folders = [*([] if own is None else [own]), *map(Path, pages.waiting.folders())]
        self._finder = StoredPageFinder(dict.fromkeys(each.absolute() for each in folders))

    def __len__(self) -> int:
        """How many pages wait to be read; 0 where nobody follows links."""
        return len(self._pages.waiting) if self._stages.passes_links else 0

    def settle(self, fetch: Fetch) -> None:
        """The page of *fetch* has settled: read it now if it cannot be read later."""
        page, fetch.unread = fetch.unread, None
        if page is None:
            return
        if fetch.fate(self._crawl.frontier.policy.retry_times)[0] is State.PENDING:
            return  # it is fetched again
        packing = self.packs_for(fetch)
        if packing is not None and is_recoverable(fetch.captures[-1], page):
            self._pages.waiting.note_folder(str(packing.folder))
            self._finder.add(packing.folder)
            capture, facts = fetch.captures[-1], fetch.facts
            fetch.stored = StoredPage(
                capture.url, capture.time, again=facts is not None and facts.again,
                visited=fetch.plan is not None,
                first=not self._crawl.frontier.residents.records.get(fetch.entry.host).done,
            )  # fmt: skip
            return
        self._stats.inc_value("suite/extract/at_once")
        if not self._read(fetch, page):
            fetch.faults.add(Event.CALLBACK_ERROR)

    def packs_for(self, fetch: Fetch) -> PagePacks | None:
        """The packs that will have the last answer of *fetch*, whose page has settled."""
        return next((each for each in self._packs if each.packs_page(fetch)), None)

    def poll(self, *, starving: bool) -> None:
        """Read the links of some pages, if they are wanted; *starving*: nothing can be fetched."""
        crawl = self._crawl
        if self._busy or self._ended or self._engine.closing or self._engine.paused:
            return
        if not len(self):
            if starving and crawl.settings.read_links != "eager":
                self._hurry()
            return
        if crawl.frontier.leases.full or crawl.now() < self._not_before:
            return
        if any(each.recovering for each in self._packs):
            return  # pages may move
        pages = self._choose(starving=starving)
        if starving and not pages:
            self._hurry()
        if pages:
            self._find(pages)

    def _find(self, pages: list[UnreadPage]) -> None:
        try:
            task = self._loop.run_in_executor(None, _find, self._finder, pages)
        except RuntimeError as error:  # there is no room for a thread
            self._wait(error)
            for page in pages:
                self._pages.demand.finish(page)
            return
        self._busy = True
        task.add_done_callback(self._found)

    def _hurry(self) -> None:
        now = self._crawl.now()
        if now >= self._hurried + _HURRY:
            self._hurried = now
            for each in self._packs:
                each.flush_if_idle()

    def _choose(self, *, starving: bool) -> list[UnreadPage]:
        frontier, demand = self._crawl.frontier, self._pages.demand
        if self._crawl.settings.read_links == "eager":  # it was not always
            return demand.of_all(AT_ONCE)
        demand.sifted(frontier.states.in_sieve)
        fetches = frontier.counters.done + frontier.counters.failed
        return demand.choose(starving=starving, fetches=fetches, nothing_else=self._is_all_done)

    def _is_all_done(self) -> bool:
        crawl, limit = self._crawl, self._crawl.settings.max_wait
        if crawl.frontier.leases.out or self._visits.outside or crawl.frontier.states.in_sieve:
            return False
        wait = crawl.frontier.leases.next_visit_in(crawl.now())
        return wait is None or wait > min(_NOTHING, limit or _NOTHING)

    def _found(self, task: asyncio.Future[list[FoundPage]]) -> None:
        if task.cancelled():
            return  # the next run reads them
        answers = task.result()
        away = next((each.answer for each in answers if isinstance(each.answer, OSError)), None)
        if away is None:
            self._tries = 0
        else:
            self._wait(away)
        self._read_some(deque(answers))

    def _read_some(self, answers: deque[FoundPage]) -> None:
        if self._ended:
            return
        until = self._crawl.now() + _WORK
        with DamageGuard(self._crawl.store):
            while answers:
                self._settle_page(answers.popleft())
                if self._crawl.now() >= until:
                    break
        if answers:
            self._loop.call_soon(self._read_some, answers)
        self._busy = bool(answers)
        self._engine.flush_soon()  # which looks for more
        self._crawl.wake()

    def _settle_page(self, found: FoundPage) -> None:
        page, answer = found.page, found.answer
        demand = self._pages.demand
        later = isinstance(answer, OSError) and self._tries <= _TRIES
        if answer is None or later or not demand.wants(page):
            demand.finish(page)
        elif isinstance(answer, Exception):
            self._lose(page, str(answer) or repr(answer))
        else:
            self._extract(found, answer)

    def _wait(self, error: Exception) -> None:
        self._tries += 1
        self._not_before = self._crawl.now() + _RETRY
        if self._tries == 1:
            logger.warning("%s: links of stored pages are read when that is over", error)

    def _extract(self, found: FoundPage, answer: Exchange) -> None:
        crawl, page, stored = self._crawl, found.page, found.stored
        fetch = Fetch(page.entry, None, status=answer.status, stored=stored)
        if crawl.counter is not None:
            crawl.counter.recall(fetch, answer, found.size, again=stored.again)
        try:
            if not self._read(fetch, answer):
                self._give_up(page, Event.CALLBACK_ERROR, fetch)
            elif crawl.frontier.stored_links.finish(page, fetch, crawl.now()):
                self._stats.inc_value("suite/extract/read")
        finally:
            if fetch.request is not None:
                del crawl.fetches[fetch.request]

    def _read(self, fetch: Fetch, page: Exchange) -> bool:
        if not self._stages.passes_links:
            return True
        try:
            self._stages.follower.read(fetch, page)
        except Exception:  # the project's own code
            self._stats.inc_value("suite/extract/hook_errors")
            logger.exception("choose_links or link_priority failed with %s", page.url)
            fetch.links, fetch.children = [], []
            return False
        return True

    def _lose(self, page: UnreadPage, why: str) -> None:
        if not self._give_up(page, Event.UNREADABLE):
            return
        self._stats.inc_value("suite/extract/lost")
        lost = self._stats.get_value("suite/extract/lost", 0)
        if lost <= _TOLD:
            more = " (further ones are only counted)" if lost == _TOLD else ""
            logger.error("the links of %s cannot be read: %s%s", page.entry.url, why, more)

    def _give_up(self, page: UnreadPage, event: Event, fetch: Fetch | None = None) -> bool:
        crawl = self._crawl
        return self._pages.give_up(page, event, crawl.now() + crawl.frontier.wall_offset, fetch)

    def stop(self) -> None:
        self._ended = True


class FoundPage(NamedTuple):
    """A page of *size* bytes in its pack, or the error; None: not looked for, for its size."""

    page: UnreadPage
    stored: StoredPage
    answer: Exchange | Exception | None
    size: int = 0


def _find(finder: StoredPageFinder, pages: Sequence[UnreadPage]) -> list[FoundPage]:
    found, room = [], _BYTES
    for page in pages:
        stored = StoredPage(page.entry.url, 0.0)
        if room <= 0:
            found.append(FoundPage(page, stored, None))
            continue
        try:
            stored = StoredPage.from_bytes(page.place)
            answer, size = packed_answer(finder.find(stored))
            room -= len(answer.body)
            found.append(FoundPage(page, stored, answer, size))
        except Exception as error:  # or nobody would hear of it, and the crawl would never end
            found.append(FoundPage(page, stored, error))
    return found


def packed_answer(page: Page) -> tuple[Exchange, int]:
    """The answer that *page* was, decompressed, and its size before that. Raises `PackError`."""
    if not page.status:
        raise PackError(f"{page.url} is no HTTP response")
    answer = Exchange.of_handler(page.url, "GET", None)
    answer.status, answer.body = page.status, page.body
    for name, value in page.head.fields:
        field = name.title().encode("latin-1")
        if field != b"Content-Encoding":
            answer.fields.setdefault(field, []).append(value.encode("latin-1"))
    answer.address = page.record.get("WARC-IP-Address") or ""
    answer.response_class = HtmlResponse  # only such pages are read later
    return answer, len(http_records.split_message(page.record.block)[1])
