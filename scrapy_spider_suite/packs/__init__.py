"""Pages on disk: WARC records in packs, an index beside them, and a reader that needs no Scrapy.

Reading, in a notebook or a script, while the crawl writes too::

    from scrapy_spider_suite.packs import open_packs

    packs = open_packs("crawls/news/packs")           # several folders: one for each agent
    for page in packs:
        page.url, page.time, page.status, page.headers, page.body, page.links, page.record
    packs.get("https://example.org/")                 # the last; at=datetime(...): as it was then
    packs.history("https://example.org/")             # when it was fetched, and what came
    with multiprocessing.Pool(4) as pool:
        pool.map(work, packs.shards(16))              # each a part of the packs

Writing::

    crawl = Crawl(name="news", software="...", operator="...", contact="...")
    writer = PackWriter(Plan(folder=folder, crawl=crawl, agent="a", form="lzo"), closed=tell)
    fetch = Fetch(url=url, time=time.time(), head=head, body=body, form=Form.JOINED, ...)
    future = writer.append(records(fetch))            # costs the caller's thread the records only
    future.add_done_callback(...)                     # in the writer's thread: a `Location`
    writer.close()

* `Fetch` is one fetch; `records` makes its response (or revisit, where `Fetch.original` says what
  it is the same as), request and metadata records. `Form` says how much of the wire the body is:
  a head that no longer fits is adjusted, see `heads`. `payload_digest` is what duplicates share.
* `PackWriter.append` returns a future that is set when the records are on disk: `Location` (name
  of the pack, `Place`), to be read by `read(folder / location.filename, location.place)`. With
  `PackWriteError` nothing of them is in a pack, and they can be handed in again when there is room.
  `PackWriter.pack` takes fetches, of which its thread makes the records, and a future to tell.
  `flush` ends the group that is collected. Packs that a crash left open are closed as the writer
  starts (`PackWriter.recovered`), or by `recover_folder`.
* `merge` joins the indexes of a folder: worth calling after `closed`, in a thread or process.
  `build_index` makes a lost one anew. `verify` names what is damaged, torn, untrue or missing.

Nothing here imports Scrapy or Twisted, unpickles, or decompresses without bounds.
"""

from __future__ import annotations

from scrapy_spider_suite.packs.cdxj import Entry
from scrapy_spider_suite.packs.containers import Place
from scrapy_spider_suite.packs.folder_index import FolderIndex, build_index, merge
from scrapy_spider_suite.packs.http_records import Form, Head
from scrapy_spider_suite.packs.item_file import open_items
from scrapy_spider_suite.packs.pack_file import FORMATS
from scrapy_spider_suite.packs.reader import Packs, Page, open_packs
from scrapy_spider_suite.packs.scan import Damage, read
from scrapy_spider_suite.packs.verify import Finding, verify
from scrapy_spider_suite.packs.warc import (
    IDENTICAL,
    NOT_MODIFIED,
    Crawl,
    Fetch,
    Link,
    Original,
    Record,
    payload_digest,
    records,
    resource,
)
from scrapy_spider_suite.packs.writer import (
    Location,
    PackWriter,
    Plan,
    Recovery,
    recover,
    recover_folder,
)

__all__ = [
    "FORMATS",
    "IDENTICAL",
    "NOT_MODIFIED",
    "Crawl",
    "Damage",
    "Entry",
    "Fetch",
    "Finding",
    "FolderIndex",
    "Form",
    "Head",
    "Link",
    "Location",
    "Original",
    "PackWriter",
    "Packs",
    "Page",
    "Place",
    "Plan",
    "Record",
    "Recovery",
    "build_index",
    "merge",
    "open_items",
    "open_packs",
    "payload_digest",
    "read",
    "records",
    "recover",
    "recover_folder",
    "resource",
    "verify",
]
