"""Searching the words of pages while they are crawled, and what that costs.

    python benchmarks/search.py --pages FOLDER        # 50,000 pages: half an hour
    python benchmarks/search.py --small               # for CI: 150 made-up pages

Each folder directly below FOLDER is a site; each site is served under as many names as are needed
for so many pages, and crawled by a `BroadSpider` with SUITE_INDEX. Meanwhile it is searched once a
second; afterwards with words that were drawn from the pages themselves, as often as they occur:
one word, two words of one page, two that stand side by side. Each search gives ten pages with
snippets. Then the best page of each is taken out of its pack, and compared with what was served.
CPU time, where nothing else is said.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from extract import made_up_page
from peers import SUITE, measure

from scrapy_spider_suite.analysis.search import open_index
from scrapy_spider_suite.analysis.search.text_index import Hit, TextIndex
from scrapy_spider_suite.errors import SearchError
from scrapy_spider_suite.packs import open_packs
from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess

_STARTS = ("index.html", "contents.html", "bookindex.html", "git.html")
"""Pages that a crawl of a site may begin with."""
_WORD = re.compile(r"(?!(?:AND|NOT)\b)[^\W\d_]{3,20}")
"""A word that is none of the query language."""


def made_up_site(folder: Path, count: int) -> Path:
    """A site of *count* pages, each linked from the first."""
    draw = random.Random(1)
    site = folder / "made-up"
    site.mkdir()
    for number in range(count):
        (site / f"{number}.html").write_bytes(made_up_page(draw))
    links = "".join(f'<a href="/{number}.html">page {number}</a> ' for number in range(count))
    (site / "index.html").write_text(f"<title>All pages</title>{links}")
    return site


def served(sites: Sequence[Path], count: int) -> dict[str, Path]:
    """Name -> folder, for at least *count* pages."""
    total = sum(sum(1 for _ in site.rglob("*.html")) for site in sites)
    copies = -(-count * 5 // (total * 4))  # no page leads to some of them
    return {f"{site.name}{copy}.test": site for copy in range(copies) for site in sites}


def crawl(names: dict[str, Path], count: int, packs: Path) -> dict[str, Any]:
    """Crawl them, and search meanwhile."""
    config = FakeWebConfig(hosts=0, sites={name: str(path) for name, path in names.items()})
    with FakeWebProcess(config) as web:
        port = web.ready.http_port
        seeds = [f"http://{name}:{port}/{start}" for name, path in names.items()
                 for start in _STARTS if (path / start).is_file()]  # fmt: skip
        settings = {
            **SUITE, **web.ready.settings, "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0,
            "SUITE_IP_CONCURRENCY": 0, "SUITE_PACKS_DIR": str(packs), "SUITE_INDEX": True,
            "SUITE_PACKS_FORMAT": "zst",
            "SUITE_SEEN_STORE": "plain", "SUITE_STOP_TIMEOUT": 3600, "CLOSESPIDER_PAGECOUNT": count,
            "SUITE_SCHEDULE_FILTER": r"URLMatchesRegex(.*\.html)",
        }  # fmt: skip
        report: dict[str, Any] = {}
        job = {"spider": "bulk", "settings": settings, "seeds": seeds}
        thread = threading.Thread(target=lambda: report.update(measure(job, 7200)))
        thread.start()
        watch(thread, packs)
    return report


def watch(thread: threading.Thread, packs: Path) -> None:
    """Search once a second until *thread* ends, and print some of what is found."""
    began, costs, found, told = time.monotonic(), [], 0, 0.0
    index: TextIndex | None = None
    while thread.is_alive():
        thread.join(1.0)
        if not packs.is_dir():
            continue
        index = index or open_index(packs)
        before = time.thread_time()
        try:
            found = index.search("* -qxzvkwy", limit=10).total
        except SearchError:  # there is none yet
            continue
        costs.append(time.thread_time() - before)
        if time.monotonic() - told > 60:
            told = time.monotonic()
            print(f"  after {told - began:4.0f} s: {found:,} pages are found")
    show("  searches meanwhile, with what was committed since", costs)


def show(name: str, costs: Sequence[float], unit: str = "ms") -> None:
    """Print a distribution of seconds."""
    ordered = sorted(costs)
    at = [ordered[min(len(ordered) - 1, len(ordered) * part // 1000)] * 1e3
          for part in (500, 950, 990)]  # fmt: skip
    print(f"{name}: median {at[0]:.2f} {unit}, 95 % {at[1]:.2f}, 99 % {at[2]:.2f}, "
          f"most {ordered[-1] * 1e3:.2f} ({len(ordered)})")  # fmt: skip


def queries(index: TextIndex, draws: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Kinds and queries: words as they come in pages that are found."""
    pages = index.search("*", limit=2_000)
    texts = [words for hit in draws.sample(pages, min(len(pages), 500))
             if len(words := _WORD.findall(f"{hit.title} {hit.snippet.text}")) > 3]  # fmt: skip
    for _ in range(count):
        words = draws.choice(texts)
        place = draws.randrange(len(words) - 1)
        yield "one word", words[place]
        yield "two words of a page", " ".join(draws.sample(words, 2))
        yield "two words side by side", f'"{words[place]} {words[place + 1]}"'


def search(packs: Path, count: int) -> list[Hit]:
    """Print what searches cost; return the best page of each."""
    index = open_index(packs)
    index.search("warm")
    costs: dict[str, list[float]] = {}
    clocks: list[float] = []
    best = []
    for kind, query in queries(index, random.Random(2), count):
        began, clock = time.thread_time(), time.perf_counter()
        found = index.search(query, limit=10)
        costs.setdefault(kind, []).append(time.thread_time() - began)
        clocks.append(time.perf_counter() - clock)
        best += found[:1]
    for kind, each in costs.items():
        show(f"{kind}, ten pages with snippets", each)
    show("all of them, by the clock", clocks)
    return best


def retrieve(best: Sequence[Hit], names: dict[str, Path]) -> None:
    """Print what it takes to have the pages, and whether they are what was served."""
    costs, wrong = [], 0
    for hit in best:

        def body(hit: Hit = hit) -> bytes:
            page = hit.page()
            return b"" if page is None else page.body

        cost, got = timed(body)
        costs.append(cost)
        host, _, path = hit.url.partition("://")[2].partition("/")
        wrong += got != _file(names[host.partition(":")[0]], path).read_bytes()
    show("the page from its pack", costs)
    print(f"pages that are not what was served: {wrong} of {len(best)}")


def _file(site: Path, path: str) -> Path:
    found = site / unquote(path.partition("?")[0])
    return found / "index.html" if found.is_dir() else found


def timed(run: Callable[[], bytes]) -> tuple[float, bytes]:
    """Seconds of CPU, and the result."""
    began = time.thread_time()
    result = run()
    return time.thread_time() - began, result


def main() -> None:
    """Crawl, search, retrieve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="only show that it runs")
    parser.add_argument("--pages", type=Path, metavar="FOLDER", help="real sites, a folder each")
    parser.add_argument("--count", type=int, default=50_000, help="pages to crawl (50,000)")
    options = parser.parse_args()
    count = 150 if options.small else options.count
    with tempfile.TemporaryDirectory() as folder:
        if options.pages:
            sites = sorted(path for path in options.pages.iterdir() if path.is_dir())
        else:
            sites = [made_up_site(Path(folder), min(count, 2_000))]
        # Of some answers nothing is indexed: robots.txt, and what is not there.
        answers = count + count // 20
        names, packs = served(sites, answers), Path(folder) / "packs"
        report = crawl(names, answers, packs)
        pages = list(open_packs(packs))
        sizes = [len(page.body) for page in pages if page.status == 200]
        indexed = report["stats"]["suite/index/pages"]
        files = {kind: sum(path.stat().st_size for path in packs.rglob(f"*{kind}"))
                 for kind in ("warc.zst", "store", "term", "idx", "pos")}  # fmt: skip
        print(f"{report['pages']:,} answers of {statistics.fmean(sizes):,.0f} bytes in "
              f"{report['seconds']:.0f} s, {indexed:,} pages indexed in that time; behind "
              f"{report['stats']['suite/index/behind']} bytes")  # fmt: skip
        print(f"{report['cpu_of_children'] / indexed * 1e3:.2f} ms of CPU for each that is "
              f"indexed, in its process; {report['cpu'] / report['pages'] * 1e3:.2f} ms a page "
              "in the crawl's")  # fmt: skip
        files["index"] = sum(path.stat().st_size for path in (packs / "search").rglob("*"))
        print(", ".join(f"{kind} {size / 1e6:.1f} MB" for kind, size in files.items()))
        retrieve(search(packs, 20 if options.small else 1_000), names)


if __name__ == "__main__":
    main()
