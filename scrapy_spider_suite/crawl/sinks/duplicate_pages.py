"""Pages that were there before: by their bytes, by their text, or nearly.

Other pages are compared with a page from its commit on. A page that equals one under way waits for
the commit of that page; if the commit fails, both are fetched again.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import xxhash
from msgspec.structs import replace

from scrapy_spider_suite.analysis import duplicates
from scrapy_spider_suite.analysis.duplicates import Likeness, Original, Originals
from scrapy_spider_suite.crawl.revisits import PackedBodies
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.fetch.exchange import Exchange
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.packs import RefersTo
from scrapy_spider_suite.packs.warc import IDENTICAL
from scrapy_spider_suite.store.revisit_plans import PackedBody
from scrapy_spider_suite.store.rocks_store import DamageGuard
from scrapy_spider_suite.urls.normalize import host_of
from scrapy_spider_suite.urls.page_digests import structural_digest, warc_digest

if TYPE_CHECKING:
    from scrapy_spider_suite.analysis.near_duplicates import NearIndex
    from scrapy_spider_suite.crawl.context import Crawl
    from scrapy_spider_suite.crawl.queue.leases import Fetch

_STORED = frozenset({Event.SUCCESS, Event.NOT_PARSED, Event.CALLBACK_ERROR})


class DuplicatePages:
    """Compares pages by SUITE_COMPARE_PAGES. Raises `SettingsError` without the extra ``near``."""

    def __init__(self, crawl: Crawl) -> None:
        self._crawl = crawl
        self._stats = crawl.crawler.stats
        self._under_way: dict[bytes, Fetch] = {}  # the first page with each digest
        self._waiting: dict[Fetch, list[Fetch]] = {}  # for the commit of that page
        settings, kv = crawl.settings, crawl.store.kv
        kinds, folder = settings.compare_pages, settings.packs_dir
        self._packs = None if folder is None else PackedBodies(folder)
        self._payloads = Originals(kv(duplicates.PAYLOADS)) if "payload" in kinds else None
        self._structures = Originals(kv(duplicates.STRUCTURES)) if "structure" in kinds else None
        self._near: NearIndex | None = None
        if "near" in kinds:
            rows = kv(duplicates.NEAR) if crawl.store.durable else None
            try:
                from scrapy_spider_suite.analysis.near_duplicates import NearIndex
            except ImportError as error:
                raise SettingsError("SUITE_COMPARE_PAGES = 'near' needs rensa: pip install "
                                    "'scrapy-spider-suite[near]'") from error  # fmt: skip
            self._near = NearIndex(settings.near_memory, rows=rows)
        if kinds:
            crawl.frontier.commit.listeners.append(self._told)

    def compare(self, fetch: Fetch, answer: Exchange) -> bool:
        """Compare an answer. True: `look_up` is to be awaited."""
        if not self._crawl.settings.compare_pages:
            return False
        if not 200 <= answer.status < 300 or not answer.body:
            return False
        with DamageGuard(self._crawl.store):
            return self._compare_body(fetch, answer)
        return False

    def _compare_body(self, fetch: Fetch, answer: Exchange) -> bool:
        fetch.likeness = found = Likeness(answer.url, time.time())
        original = None
        if self._payloads is not None:
            # Of what is packed, the bytes in the record count: compressed ones, as they were sent.
            sent = fetch.exchange if fetch.captures and fetch.exchange is not None else answer
            found.payload = sent.digest
            original = self._payloads.find(found.payload)
            first = self._first(found.payload, fetch, found)
            self._count_repeat("payload", found, original or first, answer.url)
        if answer.is_html and self._structures is not None:
            found.structure = structural_digest(answer.body, host_of(answer.url))
            first = self._first(found.structure, fetch, found)
            same = self._structures.find(found.structure)
            self._count_repeat("structure", found, same or first, answer.url)
        if answer.is_html and self._near is not None:
            self._compare_nearly(self._near, answer, found)
        if original is None or self._packs is None:
            return False
        found.packed = PackedBody(original.url, original.when, warc_digest(found.payload))
        return True

    def _first(self, digest: bytes, fetch: Fetch, found: Likeness) -> Original:
        first = self._under_way.setdefault(digest, fetch).likeness or found
        return Original(first.url, 0.0)

    async def look_up(self, fetch: Fetch) -> None:
        """Check that the record of the original of the page of *fetch* is there."""
        found = fetch.likeness
        if found is None or found.packed is None or self._packs is None:
            return
        if not await asyncio.to_thread(self._packs.has, found.packed):
            found.lost, found.packed = True, None

    def _compare_nearly(self, near: NearIndex, answer: Exchange, found: Likeness) -> None:
        from scrapy_spider_suite.analysis.near_duplicates import signature

        page = signature(answer.body)
        if page is None:
            return
        host = xxhash.xxh32_intdigest(host_of(answer.url).encode())
        number = host << 32 | xxhash.xxh32_intdigest(answer.url.encode())
        like = near.find(page)
        if like is None:
            near.add(page, number)
        elif like[0] != number:
            self._count("near", found, of_host=like[0] >> 32 == host)

    def _count_repeat(self, kind: str, found: Likeness, original: Original, url: str) -> None:
        if original.url != url:
            self._count(kind, found, of_host=host_of(original.url) == host_of(url))

    def _count(self, kind: str, found: Likeness, *, of_host: bool) -> None:
        found.repeats = True
        found.of_host = found.of_host or of_host
        self._stats.inc_value(f"suite/duplicates/{kind}")

    def settle(self, fetch: Fetch, *, packed: bool) -> None:
        """The page of *fetch* has settled: have its answer refer to its original. *packed*: whether
        it is to be packed; only then other answers may refer to it.
        """
        found = fetch.likeness
        if found is None or not fetch.captures:
            return
        capture = fetch.captures[-1]
        found.url, found.when = capture.url, capture.time
        if capture.truncated:
            self._leave(fetch, found)
            found.payload = b""
        if capture.truncated or capture.original is not None:
            return
        body = found.packed or self._wait_for_first(fetch, found)
        if body is None:
            found.settled = packed and not fetch.faults
            return
        self._stats.inc_value("suite/duplicates/bytes", len(capture.body))
        original = RefersTo(body.url, body.when, body.digest)
        fetch.captures[-1] = replace(capture, body=b"", original=original, profile=IDENTICAL)
        if fetch.found is not None:
            fetch.packed = body

    def _wait_for_first(self, fetch: Fetch, found: Likeness) -> PackedBody | None:
        if fetch.entry.volatile:  # the first one may wait for it: the page that led there does
            return None
        first = self._under_way.get(found.payload)
        known = None if first is None or first is fetch else first.likeness
        if first is None or known is None or not known.settled or fetch.faults:
            return None
        fetch.holds += 1
        self._waiting.setdefault(first, []).append(fetch)
        return PackedBody(known.url, known.when, warc_digest(found.payload))

    def _leave(self, fetch: Fetch, found: Likeness) -> None:
        for digest in (found.payload, found.structure):
            if self._under_way.get(digest) is fetch:
                del self._under_way[digest]

    def _told(self, fetch: Fetch, event: Event) -> None:
        found = fetch.likeness
        if found is None:
            return
        self._leave(fetch, found)
        if event in _STORED:
            page = Original(found.url, found.when)
            if self._payloads is not None:
                settle = self._payloads.replace if found.lost else self._payloads.add_original
                settle(found.payload, page)
            if self._structures is not None:
                self._structures.add_original(found.structure, page)
        waiting = self._waiting.pop(fetch, ())
        if event not in _STORED:
            for other in waiting:
                other.faults.add(Event.DISK_FULL)
        self._crawl.frontier.commit.unhold(waiting, self._crawl.now())
