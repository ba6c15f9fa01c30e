"""Links of a page: the suite's extraction beside Scrapy's LinkExtractor, and beside a tree.

    python benchmarks/extract.py [--small] [--pages FOLDER] [--hostile] [--compare]

Three ways to the same end, the normalised links of each page, take turns on the same pages; the
best round of each counts (CPU time):

- suite: ``urls.extract.extract``;
- Scrapy: ``LinkExtractor().extract_links`` of an ``HtmlResponse``, then ``canonicalize_url``, as a
  crawl with one ``Request`` per link does them (without making the requests);
- tree: lexbor's tree through selectolax, and ``ada_url.join_url``: the quickest that a tree can be.

Beside them the links of ordinary spiders, ``Link`` objects of an ``HtmlResponse``: by the suite's
``linkextractors.LinkExtractor`` and by Scrapy's; also where the spider's selectors have made the
tree, which is in both figures then.

The pages are made up (6 kB, 40 links), or the ``.html`` files below FOLDER. With ``--hostile`` the
suite and the tree read pages that make a tree slow or large. With ``--compare`` the two extractors
read all files below FOLDER once, and their links are compared.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path

from ada_url import join_url
from scrapy.http import HtmlResponse
from scrapy.linkextractors import LinkExtractor
from selectolax.lexbor import LexborHTMLParser
from w3lib.url import canonicalize_url

from scrapy_spider_suite import linkextractors
from scrapy_spider_suite.urls.anchors import read_anchors
from scrapy_spider_suite.urls.extract import PageContext, extract

URL = "http://host.example/some/where/page.html"
CONTENT_TYPE = "text/html; charset=utf-8"
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
    return len(extract(page, PageContext(URL, content_type=CONTENT_TYPE)).links)


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
    return HtmlResponse(URL, headers={"Content-Type": CONTENT_TYPE}, body=page)


WAYS: dict[str, Callable[[bytes], int]] = {
    "suite": by_suite,
    "tree": by_tree,
    "Scrapy": by_scrapy,
}
EXTRACTORS = {"suite": DROP_IN, "Scrapy": ORDINARY}


def measure(pages: list[bytes], rounds: int) -> None:
    """Print what each way costs a page, and how many times that of the suite it is."""
    size = sum(map(len, pages)) / len(pages)
    print(f"{len(pages)} pages, {size / 1000:.1f} kB and {by_suite_mean(pages):.0f} links each")
    take_turns(WAYS, pages, rounds)
    for tree in (False, True):
        print("Link objects of an HtmlResponse" + (", and its tree" if tree else ""))
        ways = {name: by_extractor(each, tree=tree) for name, each in EXTRACTORS.items()}
        take_turns(ways, pages, rounds)


def take_turns(ways: dict[str, Callable[[bytes], int]], pages: list[bytes], rounds: int) -> None:
    """Print what each of *ways* costs a page, at best."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.process_time()
            for page in pages:
                way(page)
            best[name] = min(best[name], time.process_time() - began)
    for name, seconds in best.items():
        each = seconds / len(pages) * 1e6
        print(f"{name:>8}: {each:9.1f} µs a page   {seconds / best['suite']:6.2f} times the suite")


def compare(files: list[Path]) -> None:
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
            print(f"{file}\n    Scrapy: {theirs}\n    suite:  {ours}", flush=True)
    print(f"{len(files):,} pages, {links:,} links; pages with other links: {different:,}")
    print(f"pages that need a tree: {by_tree:,}")
    for name, extractor in EXTRACTORS.items():
        print(f"{name:>8}: {spent[extractor] / len(files) * 1e6:9.1f} µs a page")
    print(f"Scrapy's is {spent[ORDINARY] / spent[DROP_IN]:.2f} times the suite's")


def by_suite_mean(pages: list[bytes]) -> float:
    """Mean number of links of *pages*."""
    return sum(map(by_suite, pages)) / len(pages)


def measure_hostile(scale: int) -> None:
    """Print the time of suite and tree for pages that are built to be slow, *scale* times."""
    many = range(scale)
    bold = b"".join(b"<b id=%d>" % number for number in many)
    pages = {
        "unclosed <b id=..>": b"<p>" + bold + b"</p><p>x" * scale,
        "nested <div>": b"<div>" * (20 * scale),
        "attributes": b"<a " + b"".join(b"a%d=1 " % number for number in range(20 * scale)) + b">",
    }
    for name, page in pages.items():
        spent = []
        for way in (by_suite, by_tree):
            began = time.process_time()
            way(page)
            spent.append(time.process_time() - began)
        print(
            f"{name:>20}, {len(page) / 1000:5.0f} kB: suite {spent[0] * 1000:6.1f} ms,"
            f" tree {spent[1] * 1000:8.1f} ms"
        )


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a few pages, once")
    parser.add_argument("--pages", type=Path, metavar="FOLDER", help="real pages to read")
    parser.add_argument("--hostile", action="store_true", help="pages that make trees slow")
    parser.add_argument("--compare", action="store_true", help="compare the two LinkExtractors")
    options = parser.parse_args()
    if options.compare and options.pages is None:
        parser.error("--compare needs --pages")
    if options.hostile:
        measure_hostile(200 if options.small else 1000)
        return
    draw = random.Random(1)
    number = 10 if options.small else 200
    if options.pages is None:
        pages = [made_up_page(draw) for _ in range(number)]
    else:
        files = sorted(options.pages.rglob("*.html"))
        if not files:
            parser.error(f"no .html files in {options.pages}")
        if options.compare:
            compare(files)
            return
        pages = [file.read_bytes() for file in draw.sample(files, min(number, len(files)))]
    measure(pages, 1 if options.small else 5)


if __name__ == "__main__":
    main()
