"""Pages on disk: WARC records in packs, an index beside each pack, and a reader.

The package imports no Scrapy and no Twisted, does not unpickle, and bounds every decompression.
"""

from __future__ import annotations

from scrapy_spider_suite.packs.cdxj import IndexEntry
from scrapy_spider_suite.packs.containers import RecordPlace
from scrapy_spider_suite.packs.folder_index import FolderIndex, build_index, merge_indexes
from scrapy_spider_suite.packs.http_records import BodyForm
from scrapy_spider_suite.packs.item_file import open_items
from scrapy_spider_suite.packs.pack_file import FORMATS, Damage
from scrapy_spider_suite.packs.reader import Packs, Page, open_packs
from scrapy_spider_suite.packs.verify import PackFinding, verify
from scrapy_spider_suite.packs.warc import (
    NOT_MODIFIED,
    Capture,
    CrawlInfo,
    Link,
    RefersTo,
    make_records,
    sha1_digest,
)
from scrapy_spider_suite.packs.writer import (
    PackPlan,
    PackRecovery,
    PackWriter,
    RecordLocation,
)

__all__ = [
    "FORMATS",
    "NOT_MODIFIED",
    "BodyForm",
    "Capture",
    "CrawlInfo",
    "Damage",
    "FolderIndex",
    "IndexEntry",
    "Link",
    "PackFinding",
    "PackPlan",
    "PackRecovery",
    "PackWriter",
    "Packs",
    "Page",
    "RecordLocation",
    "RecordPlace",
    "RefersTo",
    "build_index",
    "make_records",
    "merge_indexes",
    "open_items",
    "open_packs",
    "sha1_digest",
    "verify",
]
