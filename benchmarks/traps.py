"""Traps: a crawl of real pages and six traps ends by itself, with every real page and few others.

    python -m benchmarks traps            # some 22,000 real pages, the defaults of the profile,
                                          # and numbers=fail, since the calendar has no end
    python -m benchmarks traps --lists DIR    # no crawl: how many real URLs are taken for traps,
                                              # of mixed_500k and sitemaps_300k in DIR
    python -m benchmarks traps --bodies DIR   # no crawl: what a page costs; each folder in DIR is
                                              # a site of .html files

The web is the in-vitro one with ``traps``: a hundred hosts; an endless calendar, a faceted
search, session ids, mirrored paths, soft 404s and a farm of hosts; and a forum, a shop with facets
and a wiki, which look like traps and are none. What was fetched is what the servers logged.
"""

from __future__ import annotations

import argparse
import json
import lzma
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from scrapy.crawler import AsyncCrawlerProcess
from scrapy.settings import Settings

from benchmarks.expected_pages import KnownSites, real_pages, trap_of
from benchmarks.report import Report
from scrapy_spider_suite.crawl.crawl_policy import policy_fields
from scrapy_spider_suite.crawl.queue.traps import Traps, TrapStats
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.store.interface import MemoryStore
from scrapy_spider_suite.store.rows import HostRecord
from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess, trap_sites
from scrapy_spider_suite.testing.trap_sites import NAMES
from scrapy_spider_suite.urls.extract import PageContext, extract
from scrapy_spider_suite.urls.normalize import host_of, normalize
from scrapy_spider_suite.urls.page_digests import content_hash
from scrapy_spider_suite.urls.traps import DETECTORS, Trap

PARTS = ("links", "likeness, if of each", "learning of traps, as it is")
LISTS = ("mixed_500k.txt.xz", "sitemaps_300k.txt.xz")
YEAR = 2026
ALLOWED, ALLOWED_SMALL = 0.02, 0.06
"""The share of all pages fetched that may be in traps: so many are in any web, however large."""
QUICK = {"SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0.001, "CONCURRENT_REQUESTS": 32}


class Wide(BroadSpider):
    """Fetches whatever there is."""

    name = "wide"


def crawl(web: FakeWebProcess) -> tuple[float, Counter[str], str]:
    """Crawl *web* to the end; seconds, stats of traps, and the reason why it ended."""
    settings = {
        "ADDONS": {"scrapy_spider_suite.Addon": 500}, "LOG_LEVEL": "WARNING", **QUICK,
        "SUITE_TRAPS": DETECTORS,
        **web.ready.settings,
    }  # fmt: skip
    process = AsyncCrawlerProcess(settings)
    crawler = process.create_crawler(Wide)
    began = time.monotonic()
    process.crawl(crawler, seeds=",".join(web.ready.seeds))
    process.start()
    stats = crawler.stats.get_stats()
    met = {name: n for name, n in stats.items() if name.startswith(("suite/trap/", "suite/out"))}
    return time.monotonic() - began, Counter(met), stats["finish_reason"]


def judge(report: Report, web: FakeWebProcess, allowed: float) -> None:
    """Report what the servers logged, and what should not be."""
    port = web.ready.ports[0]
    real = set(web.web.reachable()) | set(real_pages(lambda host: f"http://{host}:{port}"))
    sites = {each.replace("/", f":{port}/", 1) for each in KnownSites().real()}
    wanted = real | {f"http://{each}" for each in sites}
    fetched = Counter(
        f"http://{each.host}:{port}{each.path}" for each in web.arrivals()
        if each.path != "/robots.txt"
    )  # fmt: skip
    others: Counter[str] = Counter()
    for url in fetched.keys() - wanted:
        host, path = host_of(url), url[url.index("/", 8) :]
        name = host if host in trap_sites.ordinary_hosts() else "unknown"
        others[(trap_of(host, path) if "-trap." in host else None) or name] += 1
    for name in (*NAMES, *trap_sites.ordinary_hosts()):
        beside = "" if name in NAMES else " beside the real ones"
        report.say(f"{name:15} {others[name]:6,} pages{beside}")
    trapped = sum(others[name] for name in NAMES)
    missed, share = len(wanted - fetched.keys()), trapped / len(fetched)
    report.say(f"real pages      {len(wanted) - missed:6,} of {len(wanted):,}")
    report.say(f"in traps        {trapped:6,} of {len(fetched):,} pages fetched, {share:.2%}")
    if missed or share > allowed or others["unknown"]:
        report.wrong.append(
            f"{missed} real pages missed, {share:.2%} in traps, {others['unknown']} unknown"
        )


def urls_in(path: Path) -> Iterator[str]:
    """The normal forms of a list."""
    with lzma.open(path, "rt", encoding="utf-8", errors="replace") as lines:
        yield from filter(None, (normalize(line.strip()) for line in lines))


def best_of_three(traps: Traps, urls: list[str]) -> float:
    """Seconds of CPU that *urls*, links of pages, take."""
    times = []
    for _ in range(3):
        began = time.process_time()
        traps.passed(urls, YEAR)
        times.append(time.process_time() - began)
    return min(times)


def false_positives(report: Report, folder: Path) -> None:
    """Take each URL of the real lists for a link; print what is refused, and what that costs."""
    settings = SuiteSettings.from_settings(Settings({"SUITE_PROFILE": "broad"}))
    for name in LISTS:
        urls = list(dict.fromkeys(urls_in(folder / name)))
        policy = Policy(**policy_fields(settings))
        store = MemoryStore()
        traps = Traps(store, policy, TrapStats(store), lambda identity: False)
        refused: Counter[str] = Counter()
        records: dict[str, HostRecord] = {}
        taking = 0.0
        for url in urls:
            host = host_of(url)
            verdict = traps.refuses(url, host, YEAR)
            if verdict is not None:
                refused[verdict.trap] += 1
                continue
            entry, record = Entry(host, url), records.setdefault(host, HostRecord())
            began = time.process_time()
            traps.admit(entry, record)
            taking += time.process_time() - began
            record.pending += 1
        report.say(
            f"{name}: {refused.total():,} of {len(urls):,} refused "
            f"({refused.total() / len(urls):.4%}): {dict(refused.most_common())}, "
            f"{traps.met[Trap.PREFIX]:,} put last"
        )
        # Most links of a page lead to its own host, and were made a moment ago: the best of three.
        urls.sort()
        asking = sum(best_of_three(traps, urls[at : at + 500]) for at in range(0, len(urls), 500))
        each = 1e6 / len(urls)
        report.say(f"  a link {asking * each:.2f} us, a new one {taking * each:.2f} us more")


def cost_of_pages(report: Report, folder: Path) -> None:
    """Let a job learn from the pages of each site in *folder*, and print what that costs."""
    settings = SuiteSettings.from_settings(Settings({"SUITE_PROFILE": "broad"}))
    spent: Counter[str] = Counter()
    pages = 0
    for site in sorted(each for each in folder.iterdir() if each.is_dir()):
        store = MemoryStore()
        traps = Traps(store, Policy(**policy_fields(settings)), TrapStats(store), lambda key: True)
        for number, path in enumerate(sorted(site.rglob("*.html"))):
            url, body = f"http://{site.name}.test/{path.relative_to(site)}", path.read_bytes()
            times = [time.process_time()]
            links = extract(body, PageContext(url)).links
            times.append(time.process_time())
            content_hash(body, f"{site.name}.test")
            times.append(time.process_time())
            traps.learn_page(url, f"{site.name}.test", body, links, pages=number)
            times.append(time.process_time())
            for what, began, ended in zip(PARTS, times[:-1], times[1:], strict=True):
                spent[what] += round((ended - began) * 1e9)
            pages += 1
    each = ", ".join(f"{part} {spent[part] / pages / 1e3:.0f} us" for part in PARTS)
    report.say(f"{pages:,} pages: {each}")


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """What is measured without a crawl."""
    parser.add_argument("--lists", metavar="DIR", type=Path, help="the folder of the real lists")
    parser.add_argument("--bodies", metavar="DIR", type=Path, help="a folder of real sites")


def run(options: argparse.Namespace, report: Report) -> None:
    """Measure; it is wrong if the crawl is not as it should be."""
    if options.bodies is not None:
        cost_of_pages(report, options.bodies)
        return
    if options.lists is not None:
        false_positives(report, options.lists)
        return
    with tempfile.TemporaryDirectory() as folder:
        config = FakeWebConfig(
            hosts=100, pages=200, addresses=50, degree=20, traps=True,
            log=Path(folder) / "arrivals.tsv",
        )  # fmt: skip
        if options.small:
            config = replace(config, hosts=50, pages=100)
        with FakeWebProcess(config) as web:
            seconds, met, reason = crawl(web)
            web.stop()
            judge(report, web, ALLOWED_SMALL if options.small else ALLOWED)
        report.say(f"ended by itself ({reason}) after {seconds:.1f} s: {json.dumps(met)}")
    if reason != "finished":
        report.wrong.append(f"it ended with {reason}")
