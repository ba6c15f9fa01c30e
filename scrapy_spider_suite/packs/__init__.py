"""Pages on disk: WARC records in packs, an index beside each pack, and a reader.

The package imports no Scrapy and no Twisted, does not unpickle, and bounds every decompression.
"""

from __future__ import annotations

from scrapy_spider_suite.packs.folder_index import build_index, merge_indexes
from scrapy_spider_suite.packs.item_file import open_items
from scrapy_spider_suite.packs.reader import Packs, Page, open_packs
from scrapy_spider_suite.packs.verify import verify
from scrapy_spider_suite.packs.warc import Capture, CrawlInfo, Link, RefersTo
from scrapy_spider_suite.packs.writer import PackPlan, PackRecovery, PackWriter, RecordLocation

__all__ = [
    "Capture", "CrawlInfo", "Link", "PackPlan", "PackRecovery", "PackWriter", "Packs",
    "Page", "RecordLocation", "RefersTo", "build_index", "merge_indexes", "open_items",
    "open_packs", "verify",
]  # fmt: skip
