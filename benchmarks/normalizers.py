"""The normal form beside what other normalisers make of the same URLs.

    pip install courlan url-normalize urlcanon w3lib
    python benchmarks/normalizers.py [--small] [--urls FILE]

Prints the tables of docs/normal-form.md and docs/measurements.md: the results for one URL for each
question; and, for real URLs (those of the tests, or a file of one a line), how many a normaliser
spells as the suite does, how many of its own results it changes, how many raise, and the time. A
peer that is not installed is left out. Two peers are written in Java: their results were read in
their own tests (crawler-commons at cb38a5f, webarchive-commons at 3881951).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from scrapy_spider_suite.urls.normalize import normalize

REAL = Path(__file__).parents[1] / "tests" / "data" / "urls" / "real_urls.txt"
NONE, SAME, UNTESTED = "none", "=", ""

Normalizer = Callable[[str], str | None]


class Case(NamedTuple):
    """One question: a URL, and why the answer is ours; then the answers of the Java peers."""

    about: str
    url: str
    why: str
    crawler_commons: str = UNTESTED
    webarchive: str = UNTESTED


CASES = (
    Case("case of scheme and host", "HTTP://H.Example/A", "case matters in paths, not in names",
         SAME, "HTTP://h.example/A"),
    Case("default port", "http://h.example:80/", "http uses this port anyway", SAME, SAME),
    Case("another scheme's port", "http://h.example:443/", "it is another server"),
    Case("empty port", "http://h.example:/", "the standard", SAME),
    Case("empty path", "http://h.example", "`/` is what is sent", SAME, SAME),
    Case("empty query", "http://h.example/a?", "it has no effect", UNTESTED, "http://h.example/a?"),
    Case("fragment", "http://h.example/a#b", "it is never sent", SAME, SAME),
    Case("user and password", "http://me:pw@h.example/",
         "they identify the visitor; a link must not log in"),
    Case("dot after the host", "http://h.example./", "the same name", UNTESTED, SAME),
    Case("dots inside a host", "http://h..example/", "not a valid name", UNTESTED,
         "http://h.example/"),
    Case("dot segments", "http://h.example/a/./b/../c", "the standard", SAME, SAME),
    Case("dot segments, escaped", "http://h.example/a/%2e%2E/c",
         "the standard: servers and caches resolve them"),
    Case("above the root", "http://h.example/../a", "the standard", SAME),
    Case("doubled slashes", "http://h.example//a//b", "another path, to some servers another page",
         "http://h.example/a/b", "http://h.example/a/b"),
    Case("slash at the end", "http://h.example/a/", "another page, often with a redirect between"),
    Case("lower-case escapes", "http://h.example/%c3%a9", "RFC 3986 §6.2.2.1", SAME, SAME),
    Case("escaped letters", "http://h.example/%7euser/%41", "RFC 3986 §6.2.2.2", SAME, SAME),
    Case("escaped slash", "http://h.example/a%2fb", "it is data, not a separator", SAME,
         "http://h.example/a/b"),
    Case("escaped twice", "http://h.example/%2541", "decoding twice gives another page",
         UNTESTED, "http://h.example/A"),
    Case("a lone percent sign", "http://h.example/100%", "RFC 3986 has no other way to write it",
         UNTESTED, SAME),
    Case("space", "http://h.example/a b", "the standard", SAME),
    Case("tab within", "http://h.example/a\tb", "the standard", UNTESTED, SAME),
    Case("space around", " http://h.example/ ", "the standard", SAME, SAME),
    Case("backslash", "http://h.example\\a", "the standard: a slash"),
    Case("letters", "http://h.example/é?ü", "the standard", SAME, SAME),
    Case("bytes that are not UTF-8", "http://h.example/%ff", "the bytes are unchanged", SAME),
    Case("brackets", "http://h.example/?x[y]=1", "RFC 3986; browsers send them bare", SAME),
    Case("international name", "http://bücher.example/", "DNS uses this form",
         "http://bücher.example/"),
    Case("a name with ß", "http://straße.example/", "IDNA 2008, as browsers have it since 2023"),
    Case("numeric host", "http://0xc0.0.0x2.1/", "the standard: it is that address"),
    Case("IPv6", "http://[2001:DB8:0::1]/", "RFC 5952"),
    Case("order of the query", "http://h.example/?b=2&a=1", "option `query-order`",
         UNTESTED, SAME),
    Case("plus in the query", "http://h.example/?q=a+b", "unchanged", SAME),
    Case("empty parameters", "http://h.example/?a&&b", "unchanged"),
    Case("tracking", "http://h.example/?utm_source=x", "option `tracking`"),
    Case("session id", "http://h.example/a;jsessionid=1A2B", "option `sessions`"),
    Case("index file", "http://h.example/index.html", "option `index`", SAME, SAME),
    Case("www.", "http://www.h.example/", "option `www`, or SUITE_PREFER_HTTPS", UNTESTED, SAME),
    Case("another scheme", "ftp://h.example/", "only http and https are crawled"),
    Case("a name that is too long", f"http://{'h' * 64}.example/", "RFC 1035 §2.3.4"),
)  # fmt: skip


def _urlcanon(name: str) -> Normalizer:
    module = import_module("urlcanon")
    canon = getattr(module, name)

    def normalized(url: str) -> str:
        parsed = module.parse_url(url)
        canon(parsed)
        return str(parsed)

    return normalized


def peers() -> dict[str, Normalizer]:
    """The peers that are installed, by their names with the version."""
    makers: tuple[tuple[str, str, Callable[[], Normalizer]], ...] = (
        ("w3lib", "", lambda: import_module("w3lib.url").canonicalize_url),
        ("url-normalize", "", lambda: import_module("url_normalize").url_normalize),
        ("urlcanon", " google", lambda: _urlcanon("google")),
        ("urlcanon", " semantic", lambda: _urlcanon("semantic")),
        ("courlan", "", lambda: import_module("courlan").normalize_url),
    )
    found = {}
    for package, variant, make in makers:
        try:
            found[f"{package}{variant} {version(package)}"] = make()
        except ImportError:
            print(f"{package} is not installed", file=sys.stderr)
    return found


def asked(normalizer: Normalizer, url: str) -> str:
    """What *normalizer* makes of *url*; `NONE` for nothing, or what it raises."""
    try:
        return normalizer(url) or NONE
    except Exception as error:  # a peer may raise anything
        return type(error).__name__


def cell(text: str) -> str:
    """A cell of the table."""
    plain = text in (NONE, SAME, UNTESTED) or text.isidentifier()
    shown = text.replace("\t", "\\t").replace("|", "\\|")
    return shown if plain else f"`{shown}`"


def print_cases(normalizers: dict[str, Normalizer]) -> None:
    """Print a row for each question."""
    heads = ["", "URL", "normal form", "why", *normalizers, "crawler-commons", "webarchive-commons"]
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for case in CASES:
        ours = asked(normalize, case.url)
        theirs = [asked(each, case.url) for each in normalizers.values()]
        others = [SAME if each == ours else each for each in theirs]
        cells = [cell(case.url), cell(ours), case.why]
        cells += map(cell, (*others, case.crawler_commons, case.webarchive))
        print(f"| {case.about} | {' | '.join(cells)} |")


def print_real(urls: list[str], normalizers: dict[str, Normalizer]) -> None:
    """Print a row for each normaliser, the suite's first."""
    print(f"\n| Of {len(urls):,} real URLs | as the suite | not idempotent | raised | µs each |")
    print("| --- | --- | --- | --- | --- |")
    ours = [asked(normalize, url) for url in urls]
    for name, normalizer in {"the suite": normalize, **normalizers}.items():
        began = time.process_time()
        found = [asked(normalizer, url) for url in urls]
        spent = (time.process_time() - began) / len(urls) * 1e6
        raised = sum(each.isidentifier() and each != NONE for each in found)
        same = sum(a == b for a, b in zip(ours, found, strict=True))
        again = sum(asked(normalizer, url) != url for url in found if ":" in url)
        print(f"| {name} | {same / len(urls):.1%} | {again} | {raised} | {spent:.1f} |")


def main() -> None:
    """Read the command line and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a hundred real URLs")
    parser.add_argument("--urls", type=Path, default=REAL, metavar="FILE", help="real URLs")
    options = parser.parse_args()
    urls = options.urls.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    found = peers()
    print_cases(found)
    print_real(urls[:100] if options.small else urls, found)


if __name__ == "__main__":
    main()
