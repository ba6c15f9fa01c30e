"""Revisits in a crawl: which pages are due, conditional requests, and their records in packs.

Requests are made conditional at the gate, so that no middleware meets validators of another URL.
A 304 ends there, too: only the pack and the plan of the page hear of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Final

from msgspec import structs
from scrapy import Request
from scrapy.http import Response
from scrapy.utils.httpobj import urlparse_cached

from scrapy_spider_suite.crawl.context import Crawl, revisits_pages, write_changes
from scrapy_spider_suite.crawl.queue.leases import Fetch, PageVersion
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.exceptions import NotModified
from scrapy_spider_suite.fetch.exchange import Exchange
from scrapy_spider_suite.frontier import revisit_rules
from scrapy_spider_suite.packs import Capture, RefersTo, warc
from scrapy_spider_suite.packs.cdxj import REVISIT
from scrapy_spider_suite.packs.folder_index import FolderIndex
from scrapy_spider_suite.packs.pack_file import OPEN, find_upload
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.store.revisit_plans import UNPACKED, PackedBody, RevisitPlan


class PackedBodies:
    """Finds records in the packs of *folder*, uploaded ones too; for any thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._index: FolderIndex | None = None
        self._lock = Lock()

    def has(self, packed: PackedBody) -> bool:
        time = warc.parse_date(warc.warc_date(packed.when))
        stamp = "" if time is None else f"{time:%Y%m%d%H%M%S}"
        try:
            with self._lock:
                self._index = self._index or FolderIndex(self.folder)
                entries = self._index.find(packed.url)
        except OSError:
            return False
        names = {
            each.filename for each in entries
            if (each.stamp, each.digest) == (stamp, packed.digest) and each.mime != REVISIT
        }  # fmt: skip
        return any(map(self._is_kept, names))

    def _is_kept(self, name: str) -> bool:
        pack = self.folder / Path(name).name
        there = pack.exists() or pack.with_name(pack.name + OPEN).exists()
        return there or find_upload(pack) is not None


_PRIOR: Final = 3
"""The median page stays as it is for one part in so many of SUITE_REVISIT_MOST, until more is
known of a page."""
_AT_ONCE: Final = 200
"""Pages that become pending before anyone else has a turn again: some ten milliseconds."""
_CONDITIONAL: Final = (
    b"If-None-Match", b"If-Modified-Since", b"If-Match", b"If-Unmodified-Since", b"Range",
)  # fmt: skip
"""Where a request has one of these, whoever made it knows what to ask."""


class Revisits:
    """One per crawl. Raises `SettingsError` where plans could not be kept."""

    def __init__(self, crawl: Crawl) -> None:
        settings = crawl.settings
        if settings.revisit != "off" and not crawl.store.durable:
            allowed = "'off' in the spider profile without JOBDIR: plans are rows of a job"
            raise SettingsError.of("SUITE_REVISIT", settings.revisit, allowed)
        self._crawl = crawl
        self._planner = crawl.frontier.commit.planner
        self._turns = revisit_rules.RevisitShare(settings.revisit_weight)
        self._budget = revisit_rules.VisitBudget()
        self._owed = 0  # turns that revisits have had granted
        folder = settings.packs_dir
        self._packs = None if folder is None else PackedBodies(folder)
        self._next: float | None = None
        self._read_settings(settings)

    def _read_settings(self, settings: SuiteSettings) -> None:
        self._planner.revisits.use(revisit_rules.RevisitPolicy(
            revisit_rules.Mode(settings.revisit), settings.revisit_interval, settings.revisit_least,
            settings.revisit_most, _PRIOR / settings.revisit_most,
        ))  # fmt: skip

    def leased(self, fetch: Fetch) -> None:
        self._planner.begin(fetch)
        if self._is_due() and self._turns.next():
            self._owed += 1

    def _is_due(self, until: float | None = None) -> bool:
        return self._next is not None and self._next <= (until or time.time())

    def poll(self, *, starving: bool) -> None:
        """Make due pages pending: as many as have their turn; *starving*: also of idle hosts."""
        crawl, settings = self._crawl, self._crawl.settings
        if settings.revisit == "off" or not len(self._planner):
            return
        self._next = self._planner.revisits.next_due()
        limit, now = _AT_ONCE, crawl.now()
        until = now + crawl.frontier.wall_offset
        self._budget.refill(now, len(self._planner), settings.revisit_interval)
        if settings.revisit == "adaptive":
            # There is a number of visits, not a time: with some left, pages come early.
            limit = min(limit, int(self._budget.left))
            until += settings.revisit_interval
        if limit < 1 or not self._is_due(until):
            return
        taken = self._planner.renew_due(min(limit, self._owed), now)
        self._owed = min(_AT_ONCE, self._owed - taken)
        if starving:
            taken += self._planner.renew_idle(limit - taken, now, until)
        self._budget.left -= taken
        if taken:
            write_changes(crawl)
            crawl.wake()

    def pulse(self) -> None:
        """Apply changed settings; with ``adaptive`` adjust the price of a visit."""
        settings, revisits = self._crawl.settings, self._planner.revisits
        self._read_settings(settings)
        if settings.revisit == "adaptive" and len(revisits):
            revisits.tick(len(revisits) / settings.revisit_interval)

    def publish(self) -> None:
        revisits = self._planner.revisits
        if revisits.idle:
            return
        stats = self._crawl.crawler.stats
        stats.set_value("suite/revisit/planned", len(revisits))
        stats.set_value("suite/revisit/taken", self._planner.renewed)
        for name, number in revisits.found.items():
            stats.set_value(f"suite/revisit/{name}", number)

    def claimed(self, identity: bytes, lastmod: float) -> None:
        """A sitemap says that a page changed at *lastmod* (wall)."""
        if self._crawl.settings.revisit != "off" and len(self._planner):
            now = self._crawl.now() + self._crawl.frontier.wall_offset
            if self._planner.revisits.claim(identity, lastmod, now):
                self._crawl.crawler.stats.inc_value("suite/revisit/claimed")

    @property
    def facts(self) -> dict[str, Any]:
        if not revisits_pages(self._crawl):
            return {}
        return {"to_revisit": len(self._planner), "next_due": self._next}

    async def prepare(self, fetch: Fetch) -> None:
        """Forget the packed body of the plan of *fetch* if it is gone: then it is fetched."""
        plan = fetch.plan
        packed = _record_of(plan)
        if plan is not None and packed is not None and self._packs is not None:
            there = await asyncio.to_thread(self._packs.has, packed)
            fetch.plan = plan if there else structs.replace(plan, packed=None)

    @contextmanager
    def conditional(self, request: Request, fetch: Fetch | None) -> Iterator[None]:
        """Within it *request* is conditional, where that is possible."""
        fields = {} if fetch is None else self._conditions(request, fetch)
        for name, value in fields.items():
            request.headers[name] = value
        try:
            yield
        finally:
            # Copies of it may go to other URLs: redirects.
            for name in fields:
                del request.headers[name]

    def _conditions(self, request: Request, fetch: Fetch) -> dict[bytes, bytes]:
        own = any(name in request.headers for name in _CONDITIONAL)
        return {} if own or not _is_plain(request) else self.conditions(fetch)

    def conditions(self, fetch: Fetch) -> dict[bytes, bytes]:
        plan = fetch.plan
        fetch.asked = False
        if plan is None or plan.misses or (self._packs is not None and plan.packed is None):
            return {}
        fields = plan.validators.headers()
        fetch.asked = bool(fields)
        return fields

    def answered(self, request: Request, fetch: Fetch, answer: Request | Response) -> None:
        """Note the result of a visit. Raises `NotModified`."""
        if not isinstance(answer, Response) or self._planner.revisits.idle:
            return
        page = Exchange.of_handler(answer.url, request.method, answer)
        if _is_plain(request) and self.note_page(fetch, page):
            request.errback = None  # nothing went wrong
            raise NotModified(f"{request.url} has not changed", answer)

    def note_page(self, fetch: Fetch, page: Exchange) -> bool:
        """Note what the visit of *fetch* found; whether the page has not changed (304)."""
        if page.status == 304 and fetch.asked:
            fetch.found = PageVersion(time.time(), b"", _validators(page), unchanged=True)
            return True
        if 200 <= page.status < 300:
            fetch.found = PageVersion(time.time(), page.digest, _validators(page))
        return False

    def settle(self, fetch: Fetch, *, packed: bool) -> None:
        """Make the last answer of *fetch* a revisit record if it is one; *packed*: it is kept."""
        if fetch.found is None or not fetch.captures:
            return
        capture, before = fetch.captures[-1], _record_of(fetch.plan)
        if fetch.found.unchanged:
            if before is None:
                fetch.captures.clear()  # there is nothing that their record could refer to
            else:
                fetch.captures[-1] = _revisit(capture, before, warc.NOT_MODIFIED)
            return
        digest = capture.digest or warc.sha1_digest(capture.body)
        if before is not None and before.digest == digest and not capture.truncated:
            fetch.packed = before
            fetch.captures[-1] = _revisit(capture, before, warc.IDENTICAL)
        elif not packed:
            fetch.packed = UNPACKED
        elif not capture.truncated:
            fetch.packed = PackedBody(capture.url, capture.time, digest)


def _record_of(plan: RevisitPlan | None) -> PackedBody | None:
    return None if plan is None or plan.packed == UNPACKED else plan.packed


def _revisit(capture: Capture, body: PackedBody, profile: str) -> Capture:
    original = RefersTo(body.url, body.when, body.digest)
    return structs.replace(capture, body=b"", original=original, profile=profile)


def _is_plain(request: Request) -> bool:
    scheme = urlparse_cached(request).scheme
    return request.method == "GET" and not request.body and scheme in ("http", "https")


def _validators(page: Exchange) -> revisit_rules.Validators:
    fields = page.fields
    tags, times = fields.get(b"Etag"), fields.get(b"Last-Modified")
    return revisit_rules.Validators.from_headers(
        tags[-1] if tags else None, times[-1] if times else None
    )
