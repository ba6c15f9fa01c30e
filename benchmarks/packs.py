"""What packing pages costs and saves, in every format, and what reading them back takes.

    python -m benchmarks packs [--pages FOLDER]

The pages of each folder directly below FOLDER are a site of its own; without FOLDER, made-up ones
of 6 kB are packed. Each page has a head as a server sends it, a request, its links, and a digest,
which the fetch log has made. CPU time:

- *records*: what it takes to make those of a page (three, with their digests); with the head as it
  came, and with one that has to be adjusted;
- *in*: of the thread that hands a page in; *out*: of the writer's thread, until the page is on
  disk, records and index included. What a crawl pays in all, `crawl --with packs` says;
- *pass*: every page in a row with its body; and by URL, at random, body decompressed.

Each LZO compressor is measured that is here. The last lines are of an index alone.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from benchmarks.links import made_up_page, real_pages
from benchmarks.report import Report
from scrapy_spider_suite.packs import (
    Capture,
    CrawlInfo,
    Link,
    PackPlan,
    Packs,
    PackWriter,
    merge_indexes,
    open_packs,
)
from scrapy_spider_suite.packs.cdxj import IndexEntry, line_key
from scrapy_spider_suite.packs.containers import (
    LZO,
    Container,
    GzipContainer,
    LzopContainer,
    RecordPlace,
    ZstdContainer,
)
from scrapy_spider_suite.packs.folder_index import FolderIndex, index_runs, mergeable
from scrapy_spider_suite.packs.warc import format_capture, record_ids, sha1_digest
from scrapy_spider_suite.urls.extract import PageContext, extract

HEAD = """HTTP/1.1 200 OK
Server: nginx/1.22.1
Date: Sun, 22 Nov 2026 02:00:00 GMT
Content-Type: text/html; charset=utf-8
Content-Length: {}
Last-Modified: Sat, 21 Nov 2026 09:12:44 GMT
Connection: keep-alive
ETag: "5f1c-60a"
{}Accept-Ranges: bytes

"""
REQUEST = """GET {} HTTP/1.1
Host: {}
User-Agent: mybot/1.0 (+https://example.org/bot)
Accept: text/html,application/xhtml+xml;q=0.9,*/*;q=0.8
Accept-Language: en
Accept-Encoding: gzip, deflate, br

"""


def lines(text: str) -> bytes:
    """*text* with the line ends of HTTP."""
    return text.replace("\n", "\r\n").encode()


def fetches(pages: list[tuple[str, bytes]], *, decoded: bool = False) -> Iterator[Capture]:
    """The fetch of each page; its body was decompressed, or came as it is."""
    for url, body in pages:
        host, _, path = url.partition("://")[2].partition("/")
        found = extract(body, PageContext(url, content_type="text/html; charset=utf-8"))
        links = [Link(link) for link in found.links]
        coding = "Content-Encoding: gzip\n" if decoded else ""
        yield Capture(
            url=url,
            time=1_795_000_000.0,
            head=lines(HEAD.format(len(body) // (1 + 3 * bool(coding)), coding)),
            body=body,
            decoded=decoded,
            request=lines(REQUEST.format(f"/{path}", host)),
            address="192.0.2.1",
            protocols=("http/1.1",),
            digest=sha1_digest(body),
            via=f"http://{host}/",
            hops="LL",
            links=links,
        )


def containers(report: Report) -> Iterator[tuple[str, str, Container]]:
    """The formats: what they are called here, their name, and how they are written."""
    for kind in LZO:
        try:
            yield f"lzo, {kind.name}", "lzo", LzopContainer(kind())
        except (ImportError, OSError) as error:
            report.say(f"lzo, {kind.name}: not measured: {error}")
    yield "zst", "zst", ZstdContainer()
    yield "gz", "gz", GzipContainer()


def timed(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """Seconds of *clock* that *run* takes."""
    began = clock()
    run()
    return clock() - began


def check_body(packs: Packs, url: str, body: bytes) -> None:
    """Read a page by its URL, and its body."""
    page = packs.get(url)
    assert page is not None
    assert page.body == body


def show_records(report: Report, name: str, pages: list[Capture]) -> None:
    """Print what it takes to make the records of a page."""
    ids = record_ids(256)
    costs = [timed(partial(format_capture, page, ids), time.thread_time) for page in pages]
    mean, median = statistics.fmean(costs), statistics.median(costs)
    report.say(f"records, {name:27} {mean * 1e6:6.1f} µs a page, median {median * 1e6:.1f}")


def measure(
    report: Report, name: str, form: str, container: Container, pages: list[Capture]
) -> None:  # fmt: skip
    """Write *pages* in one format and read them back."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        plan = PackPlan(
            folder=folder, crawl=CrawlInfo(name="b", software="b"), agent="a", form=form
        )
        ids = record_ids(100)
        size = sum(len(data) for page in pages for data in format_capture(page, ids).records)
        before_it = set(threading.enumerate())  # a test may have left a writer open
        writer = PackWriter(plan)
        writer._groups.form = container
        writer.recovery.result()
        [thread] = set(threading.enumerate()) - before_it
        clock = time.pthread_getcpuclockid(thread.ident or 0)
        before = time.clock_gettime(clock)
        waiters = [(page, Future[Any]()) for page in pages]

        def hand_in() -> None:
            for page, waiter in waiters:
                writer.append([page], waiter)

        into = timed(hand_in, time.thread_time) / len(pages)
        writer.flush().result()
        out = (time.clock_gettime(clock) - before) / len(pages)
        writer.close()
        packed = sum(path.stat().st_size for path in folder.glob(f"*.{form}"))
        packs = open_packs(folder)
        reading = timed(lambda: [page.body for page in packs], time.process_time) / len(pages)
        draws = random.Random(1)
        found = []
        for _ in range(min(2000, len(pages))):
            page = draws.choice(pages)
            found.append(timed(partial(check_body, packs, page.url, page.body), time.thread_time))
        found.sort()
        median, most = (found[len(found) * part // 100] * 1e6 for part in (50, 99))
        report.say(
            f"{name:18} in {into * 1e6:4.1f} µs  out {out * 1e6:7.1f} µs  ratio "
            f"{packed / size:.3f}  pass {reading * 1e6:6.1f} µs  by URL {median:5.0f} µs, "
            f"99 %: {most:.0f}"
        )


def measure_index(report: Report, count: int, packs: int) -> None:
    """Print what a look-up takes in an index of *count* pages in as many *packs*.

    They are closed one after the other, and merged whenever there is something to merge.
    """
    with tempfile.TemporaryDirectory() as place:
        folder, fit, looking, joining = Path(place), list[object](), 0.0, 0.0
        for pack in range(packs):
            name = f"b-20261122000000-{pack:05d}-a.warc.lzo"
            found = []
            for number in range(pack, count, packs):
                url = f"http://www.host{number % 9973}.example/path/{number}.html"
                found.append(IndexEntry(line_key(url), "20261122000000", url, "text/html", 200,
                                   "sha1:PVFSUYE2RDYCPDNKHYKUC7YNMKB6PSUJ", name,
                                   RecordPlace(number, 1000, 0, 500)).line() + b"\n")  # fmt: skip
            (folder / f"{name}.cdxj").write_bytes(b"".join(sorted(found)))
            looking += timed(lambda: fit.append(mergeable(index_runs(folder))), time.thread_time)
            if fit.pop():
                joining += timed(lambda: merge_indexes(folder), time.process_time)
        index = FolderIndex(folder)
        draws = random.Random(1)
        costs = []
        for number in [0, *draws.choices(range(count), k=1000)]:
            url = f"http://www.host{number % 9973}.example/path/{number}.html"
            costs.append(timed(partial(index.find, url), time.thread_time))
        asked, took = looking / packs * 1e3, statistics.median(costs[1:]) * 1e6
        report.say(
            f"index of {count:,} pages in {packs} packs: merged in {joining:.1f} s as they came, "
            f"after {asked:.1f} ms a pack on the crawl's thread; {len(index_runs(folder))} files, "
            f"a page found in {took:.0f} µs"
        )


def measure_many(report: Report, pages: list[Capture], packs: int) -> None:
    """Print what a page by its URL takes from as many *packs*, of ten pages each."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        plan = PackPlan(folder=folder, crawl=CrawlInfo(name="b", software="b"), agent="a")
        urls = {}
        for pack in range(packs):
            writer = PackWriter(plan)
            for number in range(10):
                page = pages[(pack * 10 + number) % len(pages)]
                url = f"{page.url}?{pack}"
                urls[url] = page.body
                writer.append([replace(page, url=url)], Future())
            writer.close()
        while mergeable(index_runs(folder)):
            merge_indexes(folder)
        found, many = [], open_packs(folder)
        for url in random.Random(1).choices(list(urls), k=min(2000, len(urls))):
            found.append(timed(partial(check_body, many, url, urls[url]), time.thread_time))
        found.sort()
        median, most = (found[len(found) * part // 100] * 1e6 for part in (50, 99))
        report.say(f"{packs} packs: by URL {median:.0f} µs, 99 %: {most:.0f}")


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Of what pages."""
    parser.add_argument("--pages", type=Path, metavar="FOLDER", help="real sites, a folder each")


def run(options: argparse.Namespace, report: Report) -> None:
    """All of it."""
    count = 60 if options.small else 3000
    if options.pages:
        pages = real_pages(options.pages, 10**6)
        random.Random(1).shuffle(pages)
        pages = pages[:count]
    else:
        draw = random.Random(1)
        pages = [(f"http://host.test/p/{n}.html", made_up_page(draw)) for n in range(count)]
    report.say(f"{len(pages)} pages of {sum(len(body) for _, body in pages) // len(pages)} bytes")
    as_sent = list(fetches(pages))
    show_records(report, "head as it came", as_sent)
    show_records(report, "head adjusted", list(fetches(pages, decoded=True)))
    for name, form, container in containers(report):
        measure(report, name, form, container, as_sent)
    measure_many(report, as_sent, 20 if options.small else 1000)
    measure_index(report, *(1000, 20) if options.small else (2_000_000, 1000))
