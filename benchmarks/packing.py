"""What packing adds to a page on the thread of a crawl, in a crawl of real pages.

    python benchmarks/packing.py --pages FOLDER       # some minutes
    python benchmarks/packing.py --small              # made-up pages

Of each folder directly below FOLDER the pages of 2 to 10 KiB are a site, served under several names
and crawled by a `BroadSpider` with SUITE_PACKS_DIR, and without. CPU time of the crawl's thread in
all that packing does there: the handler keeps what was on the wire, an answer is taken as it comes
(*fetched*), handed in when nothing more will come of its page (*settled*), and its page is let go
when it is on disk (*let go*), less the commit, which every page has without packs, too. What it
costs to look at the clock is in it. Beside it:

- how links link is read for packs: what that takes longer than reading the links;
- the whole thread, with packs and without, for each answer, and how late its loop was for a timer;
- the writer's thread, which makes the records, compresses and writes them;
- SHA-1 of 6,000 bytes: how fast the machine was.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peers import SUITE, measure

from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

STEPS = ("fetched", "settled", "let go", "pulse")
_BEAT = 0.005


class Clocks:
    """An extension of the crawl that is measured: ``suite/clock/...`` among its stats."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Clocks:
        """Begin; the pipelines are not made yet."""
        return cls(crawler)

    def __init__(self, crawler: Crawler) -> None:
        from scrapy import signals

        self._crawler = crawler
        self._spent: dict[str, float] = defaultdict(float)
        self._late: list[float] = []
        self._letting = False
        self._watch()
        crawler.signals.connect(self._opened, signals.spider_opened)
        crawler.signals.connect(self._closed, signals.spider_closed)

    def _watch(self) -> None:
        from scrapy_spider_suite.crawl.queue.frontier import Commit
        from scrapy_spider_suite.crawl.sinks.page_packs import PagePacks
        from scrapy_spider_suite.packs import PackWriter

        for step, owner, name in [
            ("fetched", PagePacks, "fetched"), ("settled", PagePacks, "settled"),
            ("let go", PagePacks, "_settle_written"), ("pulse", PagePacks, "pulse"),
            ("commit", Commit, "_commit"), ("writer", PackWriter, "_run"),
        ]:  # fmt: skip
            setattr(owner, name, self._timed(step, getattr(owner, name)))

    def _timed(self, step: str, original: Callable[..., Any]) -> Callable[..., Any]:
        spent, clock = self._spent, time.thread_time

        def run(*args: Any, **kwargs: Any) -> Any:
            if step == "commit" and not self._letting:
                return original(*args, **kwargs)
            self._letting = step == "let go" or self._letting
            began = clock()
            try:
                return original(*args, **kwargs)
            finally:
                taken = clock() - began
                spent[step] += taken
                if step == "commit":
                    spent["let go"] -= taken
                elif step == "let go":
                    self._letting = False

        return run

    def _opened(self) -> None:
        self._began, self._last = time.thread_time(), time.perf_counter()
        asyncio.get_running_loop().call_later(_BEAT, self._beat)

    def _beat(self) -> None:
        now = time.perf_counter()
        self._late.append(max(0.0, now - self._last - _BEAT))
        self._last = now
        asyncio.get_running_loop().call_later(_BEAT, self._beat)

    def _closed(self) -> None:
        self._spent["thread"] = time.thread_time() - self._began
        for step, seconds in self._spent.items():
            self._crawler.stats.set_value(f"suite/clock/{step}", seconds)
        late = sorted(self._late)
        self._crawler.stats.set_value("suite/clock/late 99 %", late[len(late) * 99 // 100])
        self._crawler.stats.set_value("suite/clock/latest", late[-1])


def sites_of(pages: Path | None, folder: Path, small: bool) -> Iterator[Path]:
    """The pages that are crawled: sites in *folder*, whose ``all.html`` leads to every page."""
    from search import made_up_site

    if pages is None:
        made = made_up_site(folder, 60 if small else 1_300)
        (made / "index.html").rename(made / "all.html")
        yield made
        return
    for site in sorted(path for path in pages.iterdir() if path.is_dir()):
        found = [path for path in sorted(site.rglob("*.html"))
                 if path.is_file() and 2 << 10 <= path.stat().st_size <= 10 << 10]  # fmt: skip
        place, links = folder / site.name, []
        for path in found:
            name = path.relative_to(site)
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place / name)
            links.append(f'<a href="/{name}">{name}</a>')
        if found:
            (place / "all.html").write_text("\n".join(links))
            yield place


def crawl(sites: dict[str, str], packs: Path | None) -> dict[str, Any]:
    """Crawl them to the end; the report has seconds."""
    with FakeWebProcess(FakeWebConfig(hosts=0, sites=sites)) as web:
        settings = {
            **SUITE, **web.ready.settings, "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0,
            "SUITE_IP_CONCURRENCY": 0, "DEPTH_LIMIT": 1, "EXTENSIONS": {"packing.Clocks": 0},
            **({} if packs is None else {"SUITE_PACKS_DIR": str(packs)}),
        }  # fmt: skip
        seeds = [f"http://{name}:{web.ready.http_port}/all.html" for name in sites]
        return measure({"spider": "bulk", "settings": settings, "seeds": seeds}, 3600)


def edges(bodies: list[bytes]) -> tuple[float, float]:
    """Seconds that reading how links link takes longer, a page; and how many there are."""
    from scrapy_spider_suite.urls.extract import PageContext, extract, extract_edges

    links = sum(len(extract_edges(body, PageContext("http://a.test/"))[1]) for body in bodies)
    page = PageContext("http://a.test/")
    with_kinds = _best(lambda: [extract_edges(body, page) for body in bodies])
    plain = _best(lambda: [extract(body, PageContext("http://a.test/")) for body in bodies])
    return (with_kinds - plain) / len(bodies), links / len(bodies)


def _best(run: Callable[[], object]) -> float:
    def once() -> float:
        began = time.thread_time()
        run()
        return time.thread_time() - began

    return min(once() for _ in range(5))


def sha1() -> float:
    """Seconds that the SHA-1 of 6,000 bytes takes now."""
    data = bytes(6000)
    return _best(lambda: [hashlib.sha1(data).digest() for _ in range(500)]) / 500


def show(report: dict[str, Any]) -> float:
    """Print what packing cost in a crawl, and return it: seconds a page."""
    clock = {name.removeprefix("suite/clock/"): value for name, value in report["stats"].items()}
    count = report["stats"]["suite/packs/answers"]
    costs: dict[str, float] = {step: clock.get(step, 0.0) / count for step in STEPS}
    print(f"packing: {sum(costs.values()) * 1e6:6.1f} µs a page ("
          + ", ".join(f"{step} {cost * 1e6:.1f}" for step, cost in costs.items())
          + f"); the writer's thread {clock['writer'] / count * 1e6:.0f}, commit "
          f"{clock['commit'] / count * 1e6:.0f}; SHA-1 of 6,000 bytes {sha1() * 1e6:.1f} µs",
          flush=True)  # fmt: skip
    return sum(costs.values())


def main() -> None:
    """Crawl and print the costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="only show that it runs")
    parser.add_argument("--pages", type=Path, metavar="FOLDER", help="real sites, a folder each")
    parser.add_argument("--rounds", type=int, default=3, help="crawls of each kind (3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = list(sites_of(options.pages, folder, options.small))
        bodies = [path.read_bytes() for site in made for path in site.rglob("*.html")
                  if path.name != "all.html"]  # fmt: skip
        more, links = edges(bodies[:1_000])
        print(f"{len(bodies):,} pages of {statistics.fmean(map(len, bodies)):,.0f} bytes, "
              f"{links:.0f} links; how they link: {more * 1e6:.1f} µs", flush=True)  # fmt: skip
        copies = 1 if options.small else 3
        sites = {f"{site.name}{copy}.test": str(site) for site in made for copy in range(copies)}
        whole: dict[bool, list[float]] = {True: [], False: []}
        sums = []
        for number in range(1 if options.small else options.rounds):
            for packed in (True,) if options.small else (False, True):
                report = crawl(sites, folder / f"packs{number}" if packed else None)
                stats = report["stats"]
                whole[packed].append(stats["suite/clock/thread"] / report["pages"] * 1e6)
                print(f"{'packs' if packed else 'none':5} {report['pages']:,} answers, the thread "
                      f"{whole[packed][-1]:,.0f} µs each, the process "
                      f"{report['cpu'] / report['pages'] * 1e6:,.0f}; late 99 %: "
                      f"{stats['suite/clock/late 99 %'] * 1e3:.1f} ms, most "
                      f"{stats['suite/clock/latest'] * 1e3:.1f}")  # fmt: skip
                if packed:
                    sums.append(show(report))
        print(f"median: packing {statistics.median(sums) * 1e6:.1f} µs a page of the crawl's "
              "thread; that in all " + ", without packs ".join(
                  f"{statistics.median(each):,.0f}" for each in whole.values() if each)
              )  # fmt: skip


if __name__ == "__main__":
    main()
