"""Dupefilters for Scrapy's own scheduler, and any other that asks one: what was seen, on disk.

Scrapy's holds every fingerprint in memory, some 100 bytes each, for as long as the crawl runs, and
reads all of them when it is resumed. These hold a bounded part of it there::

    DUPEFILTER_CLASS = "scrapy_spider_suite.dupefilter.TrieDupeFilter"   # or SieveDupeFilter

They need no add-on. The suite's own scheduler needs neither: it does not use them, and says so.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.job import job_dir
from scrapy.utils.python import global_object_name
from scrapy.utils.request import RequestFingerprinter, referer_str
from w3lib.url import canonicalize_url

from scrapy_spider_suite.errors import JobError, SettingsError, StoreWriteError
from scrapy_spider_suite.runtime.files import TemporaryFolder
from scrapy_spider_suite.runtime.refusal import refuse
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.seen.sieve_set import Checkpoint, SieveSet
from scrapy_spider_suite.seen.trie_store import TrieStore
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.utils.request import RequestFingerprinterProtocol

logger = logging.getLogger(__name__)

_LOOK_AFTER = 256
"""Requests after which it is looked whether the store has something to do."""
_LONGEST = 16_000
"""Characters of a URL that is kept; a trie takes four times as much."""


class StoredDupeFilter(BaseDupeFilter):
    """What both have in common: where their files are, and what is told of duplicates.

    *folder* is the job directory, in which they have a folder of their own; without one they are
    in a temporary folder, which is removed with the crawl. *debug* logs each duplicate.

    While the disk is full what is new is kept in memory, and is written later; a crawl that ends
    before may ask for it again when it is resumed.

    Scrapy's scheduler loses pending requests in a kill. So what a killed run has seen is forgotten:
    the next run has the files of the last run that ended in order.
    """

    folder = ""
    """Their folder in the job directory."""

    def __init__(self, folder: str | Path | None, *, debug: bool = False) -> None:
        self._temporary = TemporaryFolder() if folder is None else None
        self._path = (self._temporary.path if self._temporary else Path(folder or "")) / self.folder
        self._debug = debug
        self._told = False
        self._unwritten: dict[Any, None] = {}
        self._damage: set[str] = set()
        self._look_in = _LOOK_AFTER
        self._crawler: Crawler | None = None
        self._checkpoint: Checkpoint | None = None
        self._is_open = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The dupefilter of *crawler*."""
        made = cls._made(crawler)
        made._crawler = crawler
        return made

    def open(self) -> None:
        """Open the files.

        Raises the `SuiteError` that says why it cannot do its work; a command ends instead, with
        one line. A crawl that forgot what it has seen would ask for all of it again.
        """
        assert self._crawler is not None
        try:
            self._open_files(suite_settings(self._crawler))
        except (SettingsError, JobError) as error:
            if self._temporary is not None:
                self._temporary.remove()  # Scrapy closes no dupefilter that did not open
            refuse(error)
        self._is_open = True
        self._tell_damage()

    def _open_files(self, settings: SuiteSettings) -> None:
        """Open the files, as they were when a run ended in order.

        Raises `SettingsError`, `JobError`.
        """
        if self._temporary is not None:
            self._open(settings)
            return
        with ExitStack() as undo:
            self._checkpoint = Checkpoint(self._path)
            undo.callback(self._checkpoint.close)
            self._open(settings)
            undo.callback(self._close)
            self._checkpoint.save()
            undo.pop_all()
        if self._checkpoint.restored:
            logger.warning(
                "The last run of this job did not end in order: %s has forgotten what that run had "
                "seen, for its pending requests may be lost",
                type(self).__name__,
            )

    @classmethod
    @abstractmethod
    def _made(cls, crawler: Crawler) -> Self:
        """One for *crawler*."""

    @abstractmethod
    def _open(self, settings: SuiteSettings) -> None:
        """Open the files. Raises `SettingsError`, `JobError`."""

    @abstractmethod
    def _key(self, request: Request) -> Any:
        """What *request* is known by."""

    @abstractmethod
    def _add(self, key: Any) -> bool:
        """Remember *key*; whether it is new. Raises `StoreWriteError`."""

    @abstractmethod
    def _upkeep(self) -> dict[str, float]:
        """Let the store do what it has to do beside the crawl; the stats."""

    @abstractmethod
    def _damaged(self) -> Iterable[str]:
        """What cannot be read: a line for each file, with its name."""

    @abstractmethod
    def _close(self) -> None:
        """Let go of the files."""

    def request_seen(self, request: Request) -> bool:
        """Whether *request*, or one that is the same, was seen before; now it is."""
        self._look_in -= 1
        if not self._look_in:
            self._look_in = _LOOK_AFTER
            self._look()
        key = self._key(request)
        if key in self._unwritten:
            return True
        try:
            return not self._add(key)
        except StoreWriteError as error:
            if not self._unwritten:
                logger.error("What is seen is kept in memory until there is room: %s", error)
            self._unwritten[key] = None
            return False

    def _look(self) -> None:
        """Write what could not be written before, and do what there is to do."""
        try:
            for key in list(self._unwritten):
                self._add(key)
                del self._unwritten[key]
        except StoreWriteError:
            pass  # it was told of when it began
        self._set_stats()
        self._tell_damage()

    def _tell_damage(self) -> None:
        for line in self._damaged():
            if line not in self._damage:
                self._damage.add(line)
                logger.error("What was seen is known in part only: %s", line)

    def _set_stats(self) -> None:
        stats = self._upkeep()
        if self._crawler is not None and self._crawler.stats is not None:
            for name, value in stats.items():
                self._crawler.stats.set_value(f"suite/seen/{name}", value)

    def close(self, reason: str) -> None:
        """Let go of the files; without a job directory they are removed."""
        if self._is_open:
            self._look()
            if self._unwritten:
                lost = counted(len(self._unwritten), "request was", "requests were")
                logger.error("%s seen and could not be written", lost)
            self._close()
        if self._temporary is not None:
            self._temporary.remove()
        if self._is_open and self._checkpoint is not None:
            self._checkpoint.drop()
            self._checkpoint.close()

    def log(self, request: Request, spider: Spider) -> None:
        """Log a duplicate as Scrapy does, and count it in ``dupefilter/filtered``."""
        extra = {"spider": spider}
        if self._debug:
            said = "Filtered duplicate request: %s (referer: %s)"
            logger.debug(said, request, referer_str(request), extra=extra)
        elif not self._told:
            self._told = True
            said = (
                "Filtered duplicate request: %s - no more duplicates will be shown "
                "(see DUPEFILTER_DEBUG to show all duplicates)"
            )
            logger.debug(said, request, extra=extra)
        spider.crawler.stats.inc_value("dupefilter/filtered")


class SieveDupeFilter(StoredDupeFilter):
    """Seen requests by their fingerprints, whatever `REQUEST_FINGERPRINTER_CLASS` makes of them.

    The sorted files of Mercator's sieve: 16 or 8 bytes a request on disk (``SUITE_SIEVE_BITS``),
    a bounded number in memory, and a cache before them, shares of ``SUITE_MEMORY``.
    """

    folder = "seen-sieve"

    def __init__(
        self,
        folder: str | Path | None,
        fingerprinter: RequestFingerprinterProtocol,
        *,
        debug: bool = False,
    ) -> None:
        super().__init__(folder, debug=debug)
        self._fingerprinter = fingerprinter

    @classmethod
    def _made(cls, crawler: Crawler) -> Self:
        fingerprinter = crawler.request_fingerprinter
        assert fingerprinter is not None
        debug = crawler.settings.getbool("DUPEFILTER_DEBUG")
        return cls(job_dir(crawler.settings), fingerprinter, debug=debug)

    def _open(self, settings: SuiteSettings) -> None:
        self._seen = SieveSet(
            self._path,
            bits=int(settings.sieve_bits),
            capacity=settings.sieve_waiting,
            cache=settings.seen_cache,
        )

    def _key(self, request: Request) -> bytes:
        return self._fingerprinter.fingerprint(request)

    def _add(self, key: bytes) -> bool:
        return self._seen.add_one(key)

    def _upkeep(self) -> dict[str, float]:
        self._seen.poll()
        stats, cache = self._seen.stats(), self._seen.cache
        return {
            "known": len(self._seen),
            "size": stats.disk,
            "false_positive_bound": stats.false_positive_bound,
            "damaged": len(stats.damaged),
            "cache_hits": cache.hits,
            "cache_misses": cache.misses,
        }

    def _damaged(self) -> Iterable[str]:
        return self._seen.stats().damaged

    def _close(self) -> None:
        self._seen.close()


class TrieDupeFilter(StoredDupeFilter):
    """Seen requests by their URLs, in compressed tries: exact, and readable.

    A GET request without a body is known by its canonical URL, as with Scrapy's fingerprinter; any
    other by its fingerprint. Another ``REQUEST_FINGERPRINTER_CLASS`` than Scrapy's is refused, for
    it may take different URLs for one, or one URL for different requests.
    """

    folder = "seen-trie"

    def __init__(self, folder: str | Path | None, *, debug: bool = False) -> None:
        super().__init__(folder, debug=debug)
        self._fingerprinter: RequestFingerprinterProtocol = RequestFingerprinter()

    @classmethod
    def _made(cls, crawler: Crawler) -> Self:
        debug = crawler.settings.getbool("DUPEFILTER_DEBUG")
        return cls(job_dir(crawler.settings), debug=debug)

    def _open(self, settings: SuiteSettings) -> None:
        used = None if self._crawler is None else self._crawler.request_fingerprinter
        if type(used) is not RequestFingerprinter:
            raise SettingsError(
                f"REQUEST_FINGERPRINTER_CLASS = {global_object_name(type(used))!r}: TrieDupeFilter "
                "knows requests by their URLs; use scrapy_spider_suite.dupefilter.SieveDupeFilter"
            )
        self._seen = TrieStore(self._path, ids=False)

    def _key(self, request: Request) -> str:
        if request.method == "GET" and not request.body:
            url: str = canonicalize_url(request.url)
            if len(url) <= _LONGEST:
                return url
        # No URL begins like this.
        return f" {request.method} {self._fingerprinter.fingerprint(request).hex()}"

    def _add(self, key: str) -> bool:
        return bool(self._seen.add((key,)))

    def _upkeep(self) -> dict[str, float]:
        self._seen.poll()
        if self._seen.behind:
            self._seen.wait()
        stats = self._seen.stats()
        return {"known": stats.urls, "size": stats.size, "damaged": len(self._seen.damaged)}

    def _damaged(self) -> Iterable[str]:
        return self._seen.damaged.values()

    def _close(self) -> None:
        self._seen.close()
