"""Dupefilters with bounded memory, on disk, for Scrapy's own scheduler; no add-on needed::

    DUPEFILTER_CLASS = "scrapy_spider_suite.dupefilter.TrieDupeFilter"   # or SieveDupeFilter
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.job import job_dir
from scrapy.utils.python import global_object_name
from scrapy.utils.request import RequestFingerprinter
from w3lib.url import canonicalize_url

from scrapy_spider_suite.errors import JobError, SettingsError, StoreWriteError
from scrapy_spider_suite.runtime.files import TemporaryFolder
from scrapy_spider_suite.runtime.refusal import refuse
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.seen.sieve import Checkpoint, SieveSet
from scrapy_spider_suite.seen.trie_store import TrieStore
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings

logger = logging.getLogger(__name__)

_UPKEEP_AFTER = 256  # requests between two rounds of upkeep
_URL_MAX = 16_000  # most characters of a URL; a trie has room for four times as many bytes
_IN_MEMORY = "What is seen is kept in memory until there is room: %s"


class StoredDupeFilter(RFPDupeFilter):
    """Base: the files of what was seen, and stats; Scrapy's dupefilter logs.

    While the disk is full, new keys stay in memory. Scrapy loses pending requests in a kill, so the
    keys of a killed run are forgotten.
    """

    folder = ""  # its name in the job directory

    _seen: SieveSet | TrieStore

    def __init__(self, crawler: Crawler) -> None:
        debug = crawler.settings.getbool("DUPEFILTER_DEBUG")
        super().__init__(debug=debug, fingerprinter=crawler.request_fingerprinter)
        job = job_dir(crawler.settings)
        self._temporary = TemporaryFolder() if job is None else None
        self._path = Path(self._temporary.path if self._temporary else job or "") / self.folder
        self._crawler = crawler
        self._pending_keys: dict[Any, None] = {}
        self._said: set[str] = set()
        self._until_upkeep = _UPKEEP_AFTER
        self._checkpoint: Checkpoint | None = None
        self._is_open = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    def open(self) -> None:
        """Open the files. Raises `SettingsError`, `JobError`; a command ends."""
        try:
            self._open_files(suite_settings(self._crawler))
        except (SettingsError, JobError) as error:
            if self._temporary is not None:
                self._temporary.remove()  # Scrapy closes no dupefilter that did not open
            refuse(error)
        self._is_open = True
        self._log_damage()

    def _open_files(self, settings: SuiteSettings) -> None:
        if self._temporary is not None:
            self._open(settings)
            return
        with ExitStack() as undo:
            self._checkpoint = Checkpoint(self._path)
            undo.callback(self._checkpoint.close)
            self._open(settings)
            undo.callback(self._seen.close)
            self._checkpoint.save()
            undo.pop_all()
        if self._checkpoint.restored:
            logger.warning(
                "The last run of this job did not end in order: %s has forgotten what that run had "
                "seen, for its pending requests may be lost",
                type(self).__name__,
            )

    @abstractmethod
    def _open(self, settings: SuiteSettings) -> None:
        """Set `_seen`. Raises `SettingsError`, `JobError`."""

    @abstractmethod
    def _key(self, request: Request) -> Any: ...

    @abstractmethod
    def _add(self, key: Any) -> bool:
        """Add *key*; return whether it is new. Raises `StoreWriteError`."""

    @abstractmethod
    def _upkeep(self) -> dict[str, float]:
        """Do the store's upkeep; return the stats."""

    @abstractmethod
    def _damaged(self) -> Iterable[str]: ...

    def request_seen(self, request: Request) -> bool:
        """Add *request*; return whether an equal one was seen before."""
        self._until_upkeep -= 1
        if not self._until_upkeep:
            self._until_upkeep = _UPKEEP_AFTER
            self._write_pending()
        key = self._key(request)
        if key in self._pending_keys:
            return True
        try:
            return not self._add(key)
        except StoreWriteError as error:
            self._log_once(_IN_MEMORY, str(error))
            self._pending_keys[key] = None
            return False

    def _write_pending(self) -> None:
        try:
            for key in list(self._pending_keys):
                self._add(key)
                del self._pending_keys[key]
        except StoreWriteError:
            pass  # it was logged when it began
        for name, value in self._upkeep().items():
            self._crawler.stats.set_value(f"suite/seen/{name}", value)
        if self._seen.trouble:
            self._log_once(_IN_MEMORY, self._seen.trouble)
        self._log_damage()

    def _log_damage(self) -> None:
        for line in self._damaged():
            self._log_once("What was seen is known in part only: %s", line)

    def _log_once(self, said: str, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            logger.error(said, reason)

    def close(self, reason: str) -> None:
        """Close the files; without a job directory they are removed."""
        if self._is_open:
            self._write_pending()
            if self._pending_keys:
                lost = counted(len(self._pending_keys), "request was", "requests were")
                logger.error("%s seen and could not be written", lost)
            self._seen.close()
        if self._temporary is not None:
            self._temporary.remove()
        if self._is_open and self._checkpoint is not None:
            self._checkpoint.drop()
            self._checkpoint.close()


class SieveDupeFilter(StoredDupeFilter):
    """Seen requests by fingerprints of any `REQUEST_FINGERPRINTER_CLASS`.

    Sorted files of Mercator's sieve: 16 or 8 bytes a request (``SUITE_SIEVE_BITS``), within
    ``SUITE_MEMORY``.
    """

    folder = "seen-sieve"

    _seen: SieveSet

    def _open(self, settings: SuiteSettings) -> None:
        self._seen = SieveSet(
            self._path, bits=int(settings.sieve_bits), capacity=settings.sieve_waiting,
            cache=settings.seen_cache,
        )  # fmt: skip

    def _key(self, request: Request) -> bytes:
        return self.fingerprinter.fingerprint(request)

    def _add(self, key: bytes) -> bool:
        return self._seen.add(key)

    def _upkeep(self) -> dict[str, float]:
        self._seen.poll()
        parts, cache = self._seen.parts, self._seen.cache
        return {
            "known": len(self._seen),
            "size": parts.size,
            "false_positive_bound": parts.false_positive_bound,
            "damaged": len(parts.damaged), "cache_hits": cache.hits, "cache_misses": cache.misses,
        }  # fmt: skip

    def _damaged(self) -> Iterable[str]:
        return self._seen.parts.damaged.values()

    def close(self, reason: str) -> None:
        """Write what is in memory, and close."""
        if self._is_open and self._temporary is None:
            try:
                self._seen.flush()
            except StoreWriteError as error:
                logger.error("Requests of this run were seen and could not be written: %s", error)
        super().close(reason)


class TrieDupeFilter(StoredDupeFilter):
    """Seen requests by URLs, in compressed tries: exact, and readable.

    GET without a body: the canonical URL; otherwise Scrapy's fingerprint, and no other class of it.
    """

    folder = "seen-trie"

    _seen: TrieStore

    def _open(self, settings: SuiteSettings) -> None:
        used = type(self.fingerprinter)
        if used is not RequestFingerprinter:
            raise SettingsError(
                f"REQUEST_FINGERPRINTER_CLASS = {global_object_name(used)!r}: TrieDupeFilter "
                "knows requests by their URLs; use scrapy_spider_suite.dupefilter.SieveDupeFilter"
            )
        self._seen = TrieStore(self._path, ids=False)

    def _key(self, request: Request) -> str:
        if request.method == "GET" and not request.body:
            url: str = canonicalize_url(request.url)
            if len(url) <= _URL_MAX:
                return url
        # No URL begins like this.
        return f" {request.method} {self.fingerprinter.fingerprint(request).hex()}"

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
