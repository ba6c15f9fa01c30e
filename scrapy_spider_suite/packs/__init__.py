"""Pages on disk: WARC records in packs, an index beside each pack, and a reader. Needs no Scrapy.

Reading, also while the crawl writes::

    from scrapy_spider_suite.packs import open_packs

    packs = open_packs("crawls/news/packs")           # several folders: one for each agent
    for page in packs:
        page.url, page.time, page.status, page.headers, page.body, page.links, page.record
    packs.get("https://example.org/")                 # the last version; at=datetime(...)
    packs.history("https://example.org/")             # all versions
    with multiprocessing.Pool(4) as pool:
        pool.map(work, packs.shards(16))              # each a part of the packs

Writing::

    crawl = CrawlInfo(name="news", software="...", operator="...", contact="...")
    writer = PackWriter(PackPlan(folder=folder, crawl=crawl, agent="a", form="lzo"), closed=tell)
    capture = Capture(url=url, time=time.time(), head=head, body=body, form=BodyForm.JOINED)
    future = writer.append(make_records(capture))
    future.add_done_callback(...)                     # in the writer's thread: a `RecordLocation`
    writer.close()

The package imports no Scrapy and no Twisted, does not unpickle, and bounds every decompression.
"""

from __future__ import annotations

from scrapy_spider_suite.packs.cdxj import IndexEntry
from scrapy_spider_suite.packs.containers import RecordPlace
from scrapy_spider_suite.packs.folder_index import FolderIndex, build_index, merge_indexes
from scrapy_spider_suite.packs.http_records import BodyForm, Head
from scrapy_spider_suite.packs.item_file import open_items
from scrapy_spider_suite.packs.pack_file import FORMATS
from scrapy_spider_suite.packs.reader import Packs, Page, open_packs
from scrapy_spider_suite.packs.scan import Damage, read_record
from scrapy_spider_suite.packs.verify import PackFinding, verify
from scrapy_spider_suite.packs.warc import (
    IDENTICAL,
    NOT_MODIFIED,
    Capture,
    CrawlInfo,
    Link,
    Record,
    RefersTo,
    make_records,
    sha1_digest,
)
from scrapy_spider_suite.packs.writer import (
    PackPlan,
    PackRecovery,
    PackWriter,
    RecordLocation,
    recover_folder,
    recover_pack,
)

__all__ = [
    "FORMATS",
    "IDENTICAL",
    "NOT_MODIFIED",
    "BodyForm",
    "Capture",
    "CrawlInfo",
    "Damage",
    "FolderIndex",
    "Head",
    "IndexEntry",
    "Link",
    "PackFinding",
    "PackPlan",
    "PackRecovery",
    "PackWriter",
    "Packs",
    "Page",
    "Record",
    "RecordLocation",
    "RecordPlace",
    "RefersTo",
    "build_index",
    "make_records",
    "merge_indexes",
    "open_items",
    "open_packs",
    "read_record",
    "recover_folder",
    "recover_pack",
    "sha1_digest",
    "verify",
]
