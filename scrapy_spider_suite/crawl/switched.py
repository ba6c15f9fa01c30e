"""The sinks of a crawl that are replaced as settings change: pages into packs, items into packs."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from scrapy_spider_suite.crawl.commitlog import CommitLog
from scrapy_spider_suite.crawl.itempacks import ItemPacking
from scrapy_spider_suite.crawl.packing import PagePacking
from scrapy_spider_suite.crawl.packplan import prepare_folder, require_place
from scrapy_spider_suite.crawl.switching import Switch
from scrapy_spider_suite.crawl.witness import Fetched, call_witness

if TYPE_CHECKING:
    from scrapy_spider_suite.items import PageItem
    from scrapy_spider_suite.settings.suite import SuiteSettings
    from scrapy_spider_suite.storage.leases import Lease


class PagePacks(Switch[PagePacking]):
    """Packs pages wherever SUITE_PACKS_DIR is at present, and as it is to be done there."""

    names = frozenset({
        "packs_dir", "packs_format", "packs_upload", "packs_keep", "crawl_name", "agent_name",
        "operator",
    })  # fmt: skip

    def __init__(self, log: CommitLog) -> None:
        self._witness = False
        super().__init__(log)

    def make(
        self, settings: SuiteSettings, before: Collection[PagePacking]
    ) -> PagePacking | None:
        """See `Switch`."""
        if settings.packs_dir is None:
            return None
        packing = PagePacking(self._log, settings.packs_dir, before)
        if self._log.core is not None and not self._witness:
            self._witness = True
            call_witness(self._log.crawler, self._fetched)
        return packing

    def check(self, new: SuiteSettings) -> None:
        """See `Switch`."""
        if new.packs_dir is not None:
            require_place(new, new.packs_dir)

    def _fetched(self, fetched: Fetched) -> None:
        """An answer has come, or failed to."""
        packing = self.of(fetched.lease)
        if packing is not None:
            packing.fetched(fetched)

    def take(self, item: PageItem) -> None:
        """The page of *item* is to be packed."""
        source = None if item.source is None else item.source.request
        lease = self._log.lease_of(source) or self._log.lease_of(item.owner)
        packing = self.of(lease)
        if packing is not None:
            packing.take(item)

    def taking(self, lease: Lease) -> PagePacking | None:
        """The one that will pack the answers of *lease*, of which nothing more will come."""
        packing = self.of(lease)
        return packing if packing is not None and packing.takes(lease) else None

    @property
    def recovering(self) -> bool:
        """Whether packs of an earlier run are being put right."""
        return any(each.recovering for each in self._sinks)

    def hurry(self) -> None:
        """See `PagePacking`."""
        for each in self._sinks:
            each.hurry()


class ItemPacks(Switch[ItemPacking]):
    """Keeps items wherever SUITE_ITEMS_DIR is at present, and as it is to be done there."""

    names = frozenset({"items_dir", "items_format", "crawl_name", "agent_name"})

    def make(
        self, settings: SuiteSettings, before: Collection[ItemPacking]
    ) -> ItemPacking | None:
        """See `Switch`."""
        folder = settings.items_dir
        return None if folder is None else ItemPacking(self._log, folder, recover=not before)

    def check(self, new: SuiteSettings) -> None:
        """See `Switch`."""
        if new.items_dir is not None:
            prepare_folder("items_dir", new.items_dir)

    def take(self, item: Any, response: Any, spider: Any) -> None:
        """*item* has been through all pipelines; see Scrapy's signal ``item_scraped``."""
        packing = self.of(self._log.lease_of(getattr(response, "request", None)))
        if packing is not None:
            packing.take(item, response, spider)
