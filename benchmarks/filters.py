"""What a filter costs a link, on real URLs, and what the worst text costs a regular expression.

    python benchmarks/filters.py ../shared/data/urls/mixed_500k.txt.xz
    python benchmarks/filters.py --small            # URLs of its own, fewer rounds

For each filter the mean time of a link, as the crawl asks it (one list for each page, the loop
included), less nothing; beside it the share of links that are wanted. The first row is the loop
alone. Times are CPU time of the best of some rounds.
"""

from __future__ import annotations

import argparse
import lzma
import time
from itertools import islice
from pathlib import Path

from scrapy_spider_suite.urls.filters import LinkFacts, Stage
from scrapy_spider_suite.urls.filters.atoms import BODY_MAX, STEPS_MAX, body_regex
from scrapy_spider_suite.urls.filters.language import Filter
from scrapy_spider_suite.urls.normalize import normalize

FILTERS = (
    "TRUE",
    "HostEquals(example.com)",
    "HostEndsWith(.gov)",
    "HostEndsWithOneOf(.gov, .org, .edu)",
    "SameHost()",
    "SchemeEquals(https)",
    "DepthLessThan(5)",
    "URLShorterThan(256)",
    "PathEndsWithOneOf(.pdf, .zip, .jpg)",
    "FileTypeEqualsOneOf(pdf, zip, jpg)",
    "NoMoreSlashThan(10)",
    "URLContainsOneOf(login, calendar)",
    "DomainEqualsOneOf(example.com, example.org)",
    "PublicSuffixEqualsOneOf(gov, org)",
    "DuplicateSegmentsLessThan(3)",
    'SurtStartsWith("(gov,", "(org,example,)")',
    r"URLMatchesRegex(.*/\d+\.html)",
    r"URLContainsRegex([?&]page=\d)",
    "HostEndsWithOneOf(.gov, .org) and not PathEndsWithOneOf(.pdf, .zip) and DepthLessThan(8)",
)
LINKS = 100
"""Of a page."""


def urls_of(path: Path | None, count: int) -> list[str]:
    """*count* normal URLs."""
    if path is None:
        return [f"https://h{n % 97}.example.gov/a/{n}/page-{n}.html?x={n}" for n in range(count)]
    with lzma.open(path, "rt", encoding="utf-8", errors="replace") as lines:
        found = (normalize(line.strip()) for line in lines)
        return list(islice(filter(None, found), count))


def cost(text: str, urls: list[str], rounds: int) -> tuple[float, float]:
    """Microseconds a link, and the share that is wanted."""
    wants = Filter(text, Stage.SCHEDULE).wants
    pages = [urls[at : at + LINKS] for at in range(0, len(urls), LINKS)]
    subject = LinkFacts(via=urls[0], depth=3)
    best, kept = float("inf"), 0
    for _ in range(rounds):
        began, kept = time.thread_time(), 0
        for links in pages:
            kept += len([url for url in links if wants(url, subject)])
        best = min(best, time.thread_time() - began)
    return best / len(urls) * 1e6, kept / len(urls)


def worst(size: int) -> float:
    """Milliseconds for a body of *size* bytes that RE2 has no table of states for."""
    test = body_regex("a[ab]{200}c", whole=False)
    state, body = 1, bytearray()
    while len(body) < size:
        state = state * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        body.append(b"ab"[state >> 63])
    began = time.thread_time()
    test(bytes(body))
    return (time.thread_time() - began) * 1e3


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("urls", type=Path, nargs="?", help="a file of URLs, compressed with xz")
    parser.add_argument("--small", action="store_true", help="a few thousand URLs, one round")
    options = parser.parse_args()
    count, rounds = (5_000, 1) if options.small else (100_000, 5)
    urls = urls_of(options.urls, count)
    print(f"{len(urls):,} URLs, {sum(map(len, urls)) / len(urls):.0f} characters on average")
    for text in FILTERS:
        micros, share = cost(text, urls, rounds)
        print(f"{micros:7.3f} us a link  {share:6.1%} wanted  {text}")
    size = BODY_MAX // 16 if options.small else BODY_MAX
    print(f"{worst(size):7.1f} ms for a body of {size:,} bytes, of which at most", end=" ")
    print(f"{STEPS_MAX:,} steps are looked at")


if __name__ == "__main__":
    main()
