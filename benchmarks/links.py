"""What a link costs on its way from a page to the set of URLs that were seen, stage by stage.

    python benchmarks/links.py [--small] [--pages FOLDER]

The pages of each folder directly below FOLDER are a site of its own, and are read in the order of
their names, so that links repeat as they do in a crawl; without FOLDER, made-up pages are read.
Each stage is given what the one before it made of all pages; CPU time, the best of some rounds:

- extract: from bytes to the distinct links of a page in plain normal form (``urls.extract``);
- options: the normaliser, with nothing set, and with every option and a rule for another host;
- scope and filter: two allowed domains, then a filter of three atoms;
- seen: a set in memory (nothing is quicker), the plain store, and the trie with its cache of
  fingerprints before it, each in steady state and when the URLs are new.

A link is one that is left when a page's repetitions are gone, which is what the later stages see;
the figure for each ``<a>`` that the page has is given beside it. The sum is that of a crawl with
two domains, a filter, and the trie. The trie's segments are built by another process, whose time
is not in it.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from extract import made_up_page

from scrapy_spider_suite.frontier.entries import state_key
from scrapy_spider_suite.seen import FingerprintCache, TrieStore
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

    def __init__(self, links: int, anchors: int) -> None:
        self._links = links
        self._anchors = anchors
        self._sum = 0.0
        self.new = 0.0
        """What the seen set takes longer for URLs that are new."""

    def show(self, name: str, seconds: float, *, counts: bool = False) -> None:
        """Print what a stage costs; *counts*: it is one of those that a crawl has by default."""
        self._sum += seconds if counts else 0.0
        each, anchor = seconds / self._links * 1e6, seconds / self._anchors * 1e6
        print(f"{name:<44} {each:7.2f} µs a link {anchor:7.2f} µs an <a>{'  *' if counts else ''}")

    def show_sum(self) -> None:
        """Print the sum of the stages that count, for URLs that are known, and as they came."""
        for name, seconds in (("known", self._sum), ("as they came", self._sum + self.new)):
            self.show(f"sum of those with a star, {name}", seconds)
            rates = self._links / seconds, self._anchors / seconds
            print(f"{'':<44} {rates[0]:,.0f} links, {rates[1]:,.0f} <a> a second")


def best(rounds: int, run: Callable[[], object]) -> float:
    """CPU seconds that *run* takes, at best."""
    found = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        run()
        found = min(found, time.process_time() - began)
    return found


def each(function: Callable[[list[str]], object], lists: Lists) -> Callable[[], None]:
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


def measure(pages: Pages, rounds: int) -> None:
    """Print what each stage costs."""
    contexts = [(body, PageContext(url, content_type=TYPE)) for url, body in pages]
    read: list[PageLinks] = [extract(body, context) for body, context in contexts]
    lists = [page.links for page in read]
    links, anchors = sum(map(len, lists)), sum(page.counts.found for page in read)
    size = sum(len(body) for _, body in pages) / len(pages)
    distinct = len({url for found in lists for url in found})
    print(
        f"{len(pages)} pages of {size / 1000:.1f} kB: {anchors:,} <a>, {links:,} links, "
        f"{distinct:,} URLs"
    )
    clock = Clock(links, anchors)

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


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a few pages, once")
    parser.add_argument("--pages", type=Path, metavar="FOLDER", help="real sites, a folder each")
    options = parser.parse_args()
    number = 10 if options.small else 500
    if options.pages is None:
        pages = made_up_pages(number)
    else:
        pages = real_pages(options.pages, number)
        if not pages:
            parser.error(f"no .html files below the folders in {options.pages}")
    measure(pages, 1 if options.small else 5)


if __name__ == "__main__":
    main()
