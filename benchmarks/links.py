"""Links of a page: extraction beside Scrapy's, and each stage on the way to the seen set.

    python -m benchmarks links [--pages FOLDER]
    python -m benchmarks links --pages FOLDER --compare   # only where the two extractors differ

Three ways to the same end, the normalised links of each page, take turns on the same pages:

- suite: ``urls.extract.extract``;
- Scrapy: ``LinkExtractor().extract_links`` of an ``HtmlResponse``, then ``canonicalize_url``, as a
  crawl with one ``Request`` per link does them (without making the requests);
- tree: lexbor's tree through selectolax, and ``ada_url.join_url``: the quickest that a tree can be.

Beside them the links of ordinary spiders, ``Link`` objects of an ``HtmlResponse``: by the suite's
``linkextractors.LinkExtractor`` and by Scrapy's; also where the spider's selectors have made the
tree, which is in both figures then. With ``--compare`` the two read all files below FOLDER once,
and their links are compared.

Then each stage is given what the one before it made of all pages: extraction; the normaliser with
nothing set, and with every option; scope, a filter of three atoms; the seen set, in memory (nothing
is quicker), in the plain store, and in the trie with its cache of fingerprints before it, each in
steady state and when the URLs are new. The sum is that of a crawl with two domains, a filter, and
the trie, whose segments are built by another process. A link is one that is left when a page's
repetitions are gone; the figure for each ``<a>`` is given beside it.

The pages of each folder directly below FOLDER are a site of its own, read in the order of their
names, so that links repeat as they do in a crawl; without FOLDER pages are made up (6 kB, 40
links). CPU time, the best of some rounds.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ada_url import join_url
from scrapy.http import HtmlResponse
from scrapy.linkextractors import LinkExtractor
from selectolax.lexbor import LexborHTMLParser
from w3lib.url import canonicalize_url

from benchmarks.report import Report
from scrapy_spider_suite import linkextractors
from scrapy_spider_suite.frontier.entries import state_key
from scrapy_spider_suite.linkextractors import read_anchors
from scrapy_spider_suite.seen.fingerprint_cache import FingerprintCache
from scrapy_spider_suite.seen.trie_store import TrieStore
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import PENDING
from scrapy_spider_suite.urls.extract import PageContext, PageLinks, extract
from scrapy_spider_suite.urls.filters import LinkFacts, Stage
from scrapy_spider_suite.urls.filters.language import Filter
from scrapy_spider_suite.urls.hosts import Scope
from scrapy_spider_suite.urls.normalize import host_of
from scrapy_spider_suite.urls.normalizer import (
    OPTION_WORDS,
    Normalizer,
    RewriterTable,
    SpellingOptions,
    SpellingRules,
)

TYPE = "text/html; charset=utf-8"
FILTER = "URLShorterThan(1000) and not PathEndsWithOneOf(.zip, .pdf) and not HostEquals(x.test)"
BATCH = 10
"""Pages whose links go to the store's disk together."""
CACHE = 16 << 20
"""Bytes of the cache of fingerprints."""

Pages = list[tuple[str, bytes]]
Lists = list[list[str]]
Seen = Callable[[list[str]], object]
URL = "http://host.example/some/where/page.html"
WORDS = ["lorem", "ipsum", "dolor", "sit", "amet", "consectetur", "adipiscing", "elit", "sed"]
EXTRACTOR = LinkExtractor(deny_extensions=[])
ORDINARY, DROP_IN = LinkExtractor(), linkextractors.LinkExtractor()


def made_up_page(draw: random.Random, links: int = 40, size: int = 6000) -> bytes:
    """A page of *size* bytes with *links* links: half of its own host, half of others."""
    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>A page</title>'
        '<link rel="stylesheet" href="/style.css"></head><body>'
    ]
    for number in range(links):
        href = draw.choice(
            [
                f"/items/{draw.randrange(10**6)}.html",
                f"p{number}.html?a={draw.randrange(100)}",
                f"http://h{draw.randrange(5000)}.example/{draw.randrange(1000)}/x",
                f"https://www.h{draw.randrange(5000)}.example/",
            ]
        )
        text = " ".join(draw.choices(WORDS, k=8))
        parts.append(f'<p>{text} <a href="{href}">link {number}</a></p>')
    page = "".join(parts)
    return f"{page}<p>{'x' * (size - len(page) - 21)}</p></body></html>".encode()


def by_suite(page: bytes) -> int:
    """Number of links that the suite finds."""
    return len(extract(page, PageContext(URL, content_type=TYPE)).links)


def by_scrapy(page: bytes) -> int:
    """Number of links that Scrapy's extractor finds."""
    links = EXTRACTOR.extract_links(response_of(page))
    return len({canonicalize_url(link.url) for link in links})


def by_tree(page: bytes) -> int:
    """Number of links in a tree of the page."""
    found = set()
    for node in LexborHTMLParser(page).css("a[href],area[href]"):
        try:
            found.add(join_url(URL, node.attributes["href"] or ""))
        except ValueError:
            continue
    return len(found)


def by_extractor(extractor: LinkExtractor, *, tree: bool = False) -> Callable[[bytes], int]:
    """Number of links that *extractor* finds; *tree*: after a selector has made the tree."""

    def run(page: bytes) -> int:
        response = response_of(page)
        if tree:
            response.css("title")
        return len(extractor.extract_links(response))

    return run


def response_of(page: bytes) -> HtmlResponse:
    """A response that declares an encoding."""
    return HtmlResponse(URL, headers={"Content-Type": TYPE}, body=page)


Ways = dict[str, Callable[[bytes], int]]
WAYS: Ways = {
    "suite": by_suite,
    "tree": by_tree,
    "Scrapy": by_scrapy,
}
EXTRACTORS = {"suite": DROP_IN, "Scrapy": ORDINARY}


def real_pages(folder: Path, number: int) -> Pages:
    """The URL and the body of up to *number* pages of each site in *folder*."""
    pages = []
    for site in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = sorted(site.rglob("*.html"))[:number]
        host = f"{site.name}.test"
        pages += [(f"http://{host}/{f.relative_to(site)}", f.read_bytes()) for f in files]
    return pages


def made_up_pages(number: int) -> Pages:
    """As many pages of one host."""
    draw = random.Random(1)
    return [(f"http://host.test/p/{n}.html", made_up_page(draw)) for n in range(number)]


class Clock:
    """CPU time of stages, the best of several rounds, and what they cost each link."""

    def __init__(self, report: Report, links: int, anchors: int) -> None:
        self._report = report
        self._links = links
        self._anchors = anchors
        self._sum = 0.0
        self.new = 0.0
        """What the seen set takes longer for URLs that are new."""

    def show(self, name: str, seconds: float, *, counts: bool = False) -> None:
        """Print what a stage costs; *counts*: it is one of those that a crawl has by default."""
        self._sum += seconds if counts else 0.0
        each, anchor = seconds / self._links * 1e6, seconds / self._anchors * 1e6
        star = "  *" if counts else ""
        self._report.say(f"{name:<44} {each:7.2f} µs a link {anchor:7.2f} µs an <a>{star}")

    def show_sum(self) -> None:
        """Print the sum of the stages that count, for URLs that are known, and as they came."""
        for name, seconds in (("known", self._sum), ("as they came", self._sum + self.new)):
            self.show(f"sum of those with a star, {name}", seconds)
            rates = self._links / seconds, self._anchors / seconds
            self._report.say(f"{'':<44} {rates[0]:,.0f} links, {rates[1]:,.0f} <a> a second")


def best(rounds: int, run: Callable[[], object]) -> float:
    """CPU seconds that *run* takes, at best."""
    found = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        run()
        found = min(found, time.process_time() - began)
    return found


def each(function: Callable[[Any], object], lists: Sequence[Any]) -> Callable[[], None]:
    """What calls *function* with each of *lists*."""

    def run() -> None:
        for links in lists:
            function(links)

    return run


def normalizers() -> Iterable[tuple[str, Normalizer]]:
    """The normaliser as it is by default, and with everything on."""
    yield "options: none", Normalizer()
    general = SpellingOptions.from_words(OPTION_WORDS, ["ref"])
    yield "options: all", Normalizer(RewriterTable(general))
    rules = SpellingRules([".elsewhere.test index=no"])
    yield "options: all, and a rule", Normalizer(RewriterTable(general, rules))


def scoped(hosts: set[str]) -> Callable[[list[str]], list[str]]:
    """What leaves the links out that are beyond *hosts*."""
    scope = Scope(hosts, 50, 2083)
    return lambda links: [url for url in links if not scope.refuses(url, host_of(url), 3)]


def filtered() -> Callable[[list[str]], list[str]]:
    """What leaves the links out that a filter does not want."""
    wants, subject = Filter(FILTER, Stage.FOLLOW).wants, LinkFacts()
    return lambda links: [url for url in links if wants(url, subject)]


class InStore:
    """The plain store of a job."""

    def __init__(self, folder: Path) -> None:
        self._store = RocksStore(folder)
        self._pages = 0

    def __call__(self, links: list[str]) -> None:
        store = self._store
        for url in links:
            key = state_key(host_of(url), url)
            if store.state(key) is None:
                store.put_state(key, PENDING)
        self._pages += 1
        if self._pages % BATCH == 0:
            store.flush()


class InTrie:
    """A trie, and a cache before it."""

    def __init__(self, folder: Path, cache: int = CACHE) -> None:
        self._trie = TrieStore(folder)
        self._cache = FingerprintCache(cache)

    def __call__(self, links: list[str]) -> None:
        new = self._cache.new([url.encode() for url in links])
        if new:
            self._trie.add([key.decode() for key in new])

    def build(self) -> None:
        """Make segments of what is new."""
        self._trie.flush()
        self._trie.wait()


def in_memory() -> Seen:
    """A set: nothing is quicker, and nothing needs more room."""
    seen: set[str] = set()
    return seen.update


def measure_seen(clock: Clock, lists: Lists, rounds: int, folder: Path) -> None:
    """Print what it costs to tell whether a URL was seen."""
    for name, make in (
        ("a set", lambda path: in_memory()),
        ("plain store", InStore),
        ("trie", lambda path: InTrie(path, 0)),
        ("cache and trie", InTrie),
    ):
        seen = make(folder / name)
        first = best(1, each(seen, lists))
        clock.show(f"seen: {name}, first time", first)
        if isinstance(seen, InTrie):
            seen.build()
        again, counts = best(rounds, each(seen, lists)), name == "cache and trie"
        clock.show(f"seen: {name}, once more", again, counts=counts)
        clock.new = first - again


def stages(report: Report, pages: Pages, rounds: int) -> None:
    """Print what each stage costs."""
    contexts = [(body, PageContext(url, content_type=TYPE)) for url, body in pages]
    read: list[PageLinks] = [extract(body, context) for body, context in contexts]
    lists = [page.links for page in read]
    links, anchors = sum(map(len, lists)), sum(page.counts.found for page in read)
    size = sum(len(body) for _, body in pages) / len(pages)
    distinct = len({url for found in lists for url in found})
    report.say(
        f"{len(pages)} pages of {size / 1000:.1f} kB: {anchors:,} <a>, {links:,} links, "
        f"{distinct:,} URLs"
    )
    clock = Clock(report, links, anchors)

    def extract_all() -> None:
        for url, body in pages:
            extract(body, PageContext(url, content_type=TYPE))

    clock.show("extract and normalise", best(rounds, extract_all), counts=True)
    for name, normalizer in normalizers():
        counts = name == "options: none"
        clock.show(name, best(rounds, each(normalizer.links, lists)), counts=counts)
    hosts = {host_of(url) for url, _ in pages}
    clock.show("scope", best(rounds, each(scoped(hosts), lists)), counts=True)
    clock.show("filter of three atoms", best(rounds, each(filtered(), lists)), counts=True)
    with tempfile.TemporaryDirectory() as folder:
        measure_seen(clock, lists, rounds, Path(folder))
    clock.show_sum()


def take_turns(
    report: Report, title: str, ways: Ways, pages: list[bytes], rounds: int
) -> None:  # fmt: skip
    """Add a table of what each of *ways* costs a page, at best."""
    costs = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            costs[name] = min(costs[name], best(1, each(way, pages)))
    table = report.table(title, ["way", "CPU a page, µs", "÷ suite"])
    for name, seconds in costs.items():
        table.rows.append([name, seconds / len(pages) * 1e6, seconds / costs["suite"]])
    report.show(table)


def compare(report: Report, files: list[Path]) -> None:
    """Print on how many pages the two extractors find other links, and which."""
    spent = {ORDINARY: 0.0, DROP_IN: 0.0}
    links = by_tree = different = 0
    for number, file in enumerate(files):
        body = file.read_bytes()
        found = {}
        # Each goes first on every other page: the second finds caches of Scrapy's filled.
        for extractor in (ORDINARY, DROP_IN) if number % 2 else (DROP_IN, ORDINARY):
            response = HtmlResponse(f"http://site.test/{file.name}", body=body)
            response.text  # noqa: B018 : how a page is decoded is no matter of either
            began = time.process_time()
            found[extractor] = extractor.extract_links(response)
            spent[extractor] += time.process_time() - began
        links += len(found[ORDINARY])
        by_tree += read_anchors(response.text) is None
        if found[ORDINARY] != found[DROP_IN]:
            different += 1
            pairs = zip_longest(found[ORDINARY], found[DROP_IN])
            theirs, ours = next(pair for pair in pairs if pair[0] != pair[1])
            report.say(f"{file}\n    Scrapy: {theirs}\n    suite:  {ours}")
    report.say(f"{len(files):,} pages, {links:,} links; pages with other links: {different:,}")
    report.say(f"pages that need a tree: {by_tree:,}")
    for name, extractor in EXTRACTORS.items():
        report.say(f"{name:>8}: {spent[extractor] / len(files) * 1e6:9.1f} µs a page")
    report.say(f"Scrapy's is {spent[ORDINARY] / spent[DROP_IN]:.2f} times the suite's")


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Of what pages."""
    parser.add_argument("--pages", type=Path, metavar="FOLDER", help="real sites, a folder each")
    parser.add_argument("--compare", action="store_true", help="compare the two LinkExtractors")


def run(options: argparse.Namespace, report: Report) -> None:
    """Measure."""
    number, rounds = (10, 1) if options.small else (500, 5)
    if options.compare:
        compare(report, sorted(options.pages.rglob("*.html")))
        return
    pages = real_pages(options.pages, number) if options.pages else made_up_pages(number)
    draw = random.Random(1)
    bodies = [body for _, body in draw.sample(pages, min(len(pages), 200))]
    size = sum(map(len, bodies)) / len(bodies) / 1000
    take_turns(report, f"Links of {len(bodies)} pages of {size:.1f} kB", WAYS, bodies, rounds)
    for tree in (False, True):
        title = "Link objects of an HtmlResponse" + (", and its tree" if tree else "")
        ways = {name: by_extractor(each, tree=tree) for name, each in EXTRACTORS.items()}
        take_turns(report, title, ways, bodies, rounds)
    stages(report, pages, rounds)
