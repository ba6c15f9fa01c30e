"""A broad crawl without delays, JOBDIR on, beside its peers: CPU a page and pages a second.

    python -m benchmarks crawl                           # all peers, 12 and 40 links a page
    python -m benchmarks crawl --peer suite --peer scrapy --links 12
    python -m benchmarks crawl --with all --as features  # what each feature adds
    python -m benchmarks crawl --pages FOLDER --as sites # a real site in each folder of FOLDER
    python -m benchmarks crawl --tree before=../before --peer suite   # two trees of the suite
    python -m benchmarks ordinary                        # an ordinary spider, with and without
    python -m benchmarks pythons                         # on each Python of this machine

Crawlers take turns on a web of 1,500 hosts. How they are measured: benchmarks/measure.py; what
they are and how they are set up: benchmarks/peers. With `--with` the suite is measured with one
feature at a time, in turns with the bare suite; where the web is another one, plain Scrapy beside
it. `pythons` makes a virtual environment for each Python that has not what the suite needs.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.measure import Load, PeerError, Visit, apart, certificate, measure, visiting
from benchmarks.peers import PEERS, SUITES, Peer, plain_scrapy, scrapy, suite, suite_agent
from benchmarks.peers.scrapy_crawl import SUITE
from benchmarks.report import ROOT, Cell, Report, spread
from scrapy_spider_suite.testing import FakeWebConfig

WEB: Final = FakeWebConfig(hosts=1_500, addresses=150, pages=50)
SIZES: Final = {12: 2_600, 40: 6_000}
"""Bytes of a page with so many links."""
MINORS: Final = range(11, 16)
"""Of Python 3: those that are looked for."""


def load_of(links: int, small: bool) -> Load:
    """The web with so many links a page, and how much of it is crawled."""
    web = replace(WEB, degree=links, page_size=SIZES.get(links, 1_000 + 125 * links))
    if small:
        return Load(replace(web, hosts=20, addresses=8, pages=10), 60, 20, 20, timeout=120.0)
    return Load(web, 20_000, 2_000)


def sites_load(folder: Path, small: bool) -> Load:
    """The sites in the folders of *folder*; links to anywhere else are not followed."""
    sites = {f"{each.name}.test": str(each) for each in sorted(folder.iterdir()) if each.is_dir()}
    web = FakeWebConfig(hosts=1, addresses=1, pages=1, sites=sites)
    return Load(web, 20, 10, timeout=120.0) if small else Load(web, 6_000, 600)


@dataclass
class Figures:
    """What rounds of one crawler gave; None where it could not be measured."""

    micros: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    failed: str = ""


Turn = tuple[Peer, Load, Callable[[Visit], object]]


def nothing(visit: Visit) -> None:
    """Nothing is to be prepared."""


def take_turns(turns: Mapping[str, Turn], rounds: int, report: Report) -> dict[str, Figures]:
    """Measure each so many times; one that fails is left out from then on."""
    found = {name: Figures() for name in turns}
    with apart() as core:
        for _ in range(rounds):
            for name, (peer, load, prepare) in turns.items():
                figures = found[name]
                if figures.failed:
                    continue
                share = replace(
                    load, pages=max(1, int(load.pages * peer.speed)),
                    warm=max(1, int(load.warm * peer.speed * peer.warm)),
                )  # fmt: skip
                try:
                    with visiting(share) as (visit, web):
                        prepare(visit)
                        cost = measure(peer.command(visit), visit, web, core)
                except PeerError as error:
                    figures.failed = str(error)
                    report.say(f"{name}: left out: {error}")
                    continue
                figures.micros.append(cost.micros)
                figures.rates.append(cost.rate)
                figures.memory.append(cost.memory >> 20)
                print(
                    f"{name:24} {cost.micros:8,.0f} µs a page {cost.rate:8,.0f} pages/s "
                    f"{cost.memory >> 20:6,} MB", flush=True,
                )  # fmt: skip
    return found


def ratio(above: Figures, below: Figures) -> float | None:
    """The median of the rounds' ratios of costs."""
    pairs = list(zip(above.micros, below.micros, strict=False))
    return median(one / other for one, other in pairs) if pairs else None


def compare(
    report: Report, title: str, peers: Sequence[Peer], load: Load, rounds: int,
    base: str = "suite",
) -> dict[str, Figures]:  # fmt: skip
    """Measure *peers* in turns: a table, and a chart of what a page costs."""
    found = take_turns({peer.name: (peer, load, nothing) for peer in peers}, rounds, report)
    table = report.table(
        title, ["crawler", "CPU a page, µs", "rounds", f"÷ {base}", "pages/s", "MB", "promises"]
    )
    bars = []
    for peer in peers:
        figures = found[peer.name]
        if not figures.micros:
            continue
        cost = median(figures.micros)
        bars.append((peer.name, cost))
        table.rows.append([
            peer.name, cost, spread(figures.micros),
            ratio(figures, found[base]) if base in found else None, median(figures.rates),
            median(figures.memory), peer.promises,
        ])  # fmt: skip
    report.show(table)
    if bars:
        report.bars(f"CPU a page, µs: {title}", bars)
    return found


# Features


@dataclass(frozen=True)
class Feature:
    """Something that is on. *web*: of the web; *settings*: of the suite; *plain*: of Scrapy.

    Where *plain* is None, plain Scrapy is not measured.
    """

    about: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    web: Mapping[str, Any] = field(default_factory=dict)
    plain: Mapping[str, Any] | None = None
    cookies: bool = False
    spider: str = "bulk"
    start: Callable[[Peer, Visit], Any] = suite
    prepare: Callable[[Visit], object] = nothing
    tls: bool = False


def write_overrides(visit: Visit) -> None:
    """A thousand rules; a tenth of them are for hosts of the web."""
    lines = [f"h{n:06}.fake.test user_agent=bench{n}" for n in range(100)]
    lines += [f".elsewhere{n}.example delay=10 max_pages=500" for n in range(900)]
    (visit.folder / "overrides").write_text("\n".join(lines) + "\n")


PACKS: Final = {"SUITE_PACKS_DIR": "TMP/packs"}
NO_RETRIES: Final = {
    "SUITE_RETRY_TIMES": 0, "SUITE_BACKOFF_BASE": 0, "SUITE_BACKOFF_MAX": 0,
    "SUITE_DEAD_HOST_FAILURES": 1_000_000,
}  # fmt: skip
FEATURES: Final = {
    "packs": Feature("WARC files in lzop", PACKS),
    "packs-zst": Feature("WARC files in Zstandard", {**PACKS, "SUITE_PACKS_FORMAT": "zst"}),
    "callback": Feature("`parse_page`, and an item", spider="parsing"),
    "tls": Feature("https", plain={}, tls=True),
    "gzip": Feature("compressed and chunked answers", web={"coded": 1.0}, plain={}),
    "cookies": Feature(
        "every page sets one, and each host is a domain", web={"cookies": 1.0, "domain": "test"},
        plain={}, cookies=True,
    ),
    "latency": Feature("200 ms before an answer", web={"latency": 0.2}, plain={}),
    "errors": Feature("1 % of the pages fail", NO_RETRIES, {"errors": 0.01}, {}),
    "robots": Feature("robots.txt", {"ROBOTSTXT_OBEY": True}, plain={"ROBOTSTXT_OBEY": True}),
    "filters": Feature("a filter at each of the five stages", {
        "SUITE_SCHEDULE_FILTER": "HostEndsWith(.test) and not PathEndsWithOneOf(.zip, .pdf)",
        "SUITE_FETCH_FILTER": "URLShorterThan(1000)",
        "SUITE_PARSE_FILTER": "StatusCategory(2) and ContentTypeStartsWith(text/html)",
        "SUITE_FOLLOW_FILTER": "ContentTypeStartsWith(text/)",
        "SUITE_STORE_FILTER": "StatusCategory(2)",
    }),
    "overrides": Feature(
        "1,000 rules", {"SUITE_OVERRIDES": "TMP/overrides"}, prepare=write_overrides
    ),
    "statistics": Feature("link statistics", {"SUITE_LINK_STATS": "links,hosts,statuses,types"}),
    "duplicates": Feature("pages compared", {"SUITE_COMPARE_PAGES": "payload,structure"}),
    "on-demand": Feature("links read from packs", {**PACKS, "SUITE_READ_LINKS": "on-demand"}),
    "sieve": Feature("URLs in Mercator's sieve", {"SUITE_SEEN_STORE": "sieve"}),
    "ledger": Feature("grants of a ledger in a file", {"SUITE_RATE_LEDGER": "TMP/ledger"}),
    "agent": Feature("one agent over Redis", start=suite_agent),
    "fetcher": Feature(
        "one fetcher of a shared queue", {"SUITE_CLUSTER": "shared-queue"}, start=suite_agent
    ),
    "engine": Feature("Scrapy's engine in the way of each page", {
        "DOWNLOADER_MIDDLEWARES": {"__main__.Passing": 900},
    }),
}  # fmt: skip


def features(
    report: Report, wanted: Iterable[str], load: Load, rounds: int
) -> dict[str, Figures]:  # fmt: skip
    """Measure the suite with each of *wanted*, in turns with the bare one."""
    bare, scrapy_peer = SUITES[0], next(peer for peer in PEERS if peer.name == "Scrapy")
    turns: dict[str, Turn] = {"suite": (bare, load, nothing)}
    with TemporaryDirectory() as folder:
        for name in wanted:
            each = FEATURES[name]
            served = replace(load.with_web(**each.web), cookies=each.cookies)
            if each.tls:
                served = served.with_web(certificate=certificate(Path(folder)))
            peer = replace(
                bare, name=name, spider=each.spider, start=each.start, settings=each.settings
            )
            turns[name] = (peer, served, each.prepare)
            if each.plain is not None:
                plain = replace(scrapy_peer, settings={**scrapy_peer.settings, **each.plain})
                turns[f"Scrapy, {name}"] = (plain, served, nothing)
        found = take_turns(turns, rounds, report)
    base = found["suite"]
    table = report.table(
        f"What a feature adds, {load.web.degree} links a page",
        ["feature", "CPU a page, µs", "adds, µs", "rounds", "pages/s", "Scrapy, µs",
         "Scrapy ÷ suite", "is"],
    )  # fmt: skip
    table.rows.append(row("none", base, base, None, ""))
    for name in wanted:
        if found[name].micros:
            about = FEATURES[name].about
            table.rows.append(row(name, found[name], base, found.get(f"Scrapy, {name}"), about))
    report.show(table)
    return found


def row(
    name: str, figures: Figures, base: Figures, plain: Figures | None, about: str
) -> list[Cell]:  # fmt: skip
    """The row of a feature."""
    if not figures.micros:
        return [name, *[None] * 6, about]
    added = [one - other for one, other in zip(figures.micros, base.micros, strict=False)]
    measured = plain is not None and bool(plain.micros)
    return [
        name, median(figures.micros), median(added) if added else None, spread(figures.micros),
        median(figures.rates), median(plain.micros) if plain and measured else None,
        ratio(plain, figures) if plain and measured else None, about,
    ]  # fmt: skip


# Pythons


def interpreters() -> list[str]:
    """The Pythons of this machine, one of each minor version, this one first."""
    found = {sys.version_info[:2]: sys.executable}
    home = Path.home()
    for minor in MINORS:
        places = [
            *newest(f"{home}/.pyenv/versions/3.{minor}.*/bin/python3"),
            *newest(f"{home}/.local/share/uv/python/*3.{minor}.*/bin/python3"),
            shutil.which(f"python3.{minor}"),  # it may be a shim of pyenv that starts none
        ]
        for place in filter(None, places):
            found.setdefault((3, minor), place)
    return list(found.values())


def newest(pattern: str) -> list[str]:
    """The files whose names fit *pattern*, the highest numbers first."""
    numbers = re.compile(r"\d+")
    return sorted(glob.glob(pattern), key=lambda p: [*map(int, numbers.findall(p))], reverse=True)


def with_suite(python: str, folder: Path) -> str:
    """*python*, or a virtual environment of it that has what the suite needs. PeerError: cannot."""
    check = [python, "-c", "import scrapy_spider_suite.addon, scrapy_spider_suite.spiders"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    if subprocess.run(check, env=env, capture_output=True, check=False).returncode == 0:
        return python
    here = folder / Path(python).name
    for command in (
        [python, "-m", "venv", str(here)],
        [str(here / "bin" / "pip"), "install", "-q", "--only-binary", ":all:", str(ROOT)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stdout + done.stderr).strip().splitlines() or ["it said nothing"]
            raise PeerError(said[-1][:300])
    return str(here / "bin" / "python")


def pythons(report: Report, given: Sequence[str], load: Load, rounds: int) -> None:
    """Measure the suite on each Python."""
    peers = []
    with TemporaryDirectory() as folder:
        for python in given or interpreters():
            ask = [python, "-c", "import platform; print(platform.python_version())"]
            try:
                version = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
                made = with_suite(python, Path(folder))
            except (OSError, subprocess.CalledProcessError, PeerError) as error:
                report.say(f"{python}: left out: {error}")
                continue
            peers.append(replace(SUITES[0], name=f"Python {version.strip()}", python=made))
        if peers:
            title = f"The suite on each Python, {load.web.degree} links a page"
            compare(report, title, peers, load, rounds, peers[0].name)


def ordinary(report: Report, load: Load, rounds: int) -> None:
    """Measure an ordinary spider with items, a job directory on either side."""
    job = {"JOBDIR": "TMP/job"}
    peers = [
        Peer("suite", "all", spider_profile, "items", job),
        Peer("Scrapy", "no address delay; in-flight requests lost", plain_scrapy, "items", job),
    ]
    # Scrapy's own number of requests at a time.
    load = replace(load, pages=load.pages // 5, warm=load.warm // 5, concurrency=16, cookies=True)
    compare(report, f"An ordinary spider, {load.web.degree} links a page", peers, load, rounds)


def spider_profile(peer: Peer, visit: Visit) -> Any:
    """An ordinary spider with the add-on, without delays."""
    delays = {"SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0, "SUITE_IP_CONCURRENCY": 0}
    return scrapy(peer, visit, {**SUITE, **delays, **visit.settings})


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Those of crawl, ordinary and pythons."""
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each (5)")
    parser.add_argument("--links", type=int, action="append", help="of a page (12 and 40)")
    if name == "crawl":
        known = [peer.key for peer in (*SUITES, *PEERS)]
        parser.add_argument("--peer", action="append", choices=known, help="only this one")
        parser.add_argument("--with", dest="features", action="append", default=[],
                            choices=["all", *FEATURES], help="a feature, or all")  # fmt: skip
        parser.add_argument("--pages", type=Path, metavar="FOLDER", help="real sites")
        parser.add_argument("--tree", action="append", default=[], metavar="NAME=FOLDER",
                            help="another tree of the suite, too")  # fmt: skip
    if name == "pythons":
        parser.add_argument("--python", action="append", default=[], help="this one only")


def run(options: argparse.Namespace, report: Report) -> None:
    """Measure."""
    rounds = 1 if options.small else options.rounds
    usual = [12] if options.small or options.name == "pythons" else [12, 40]
    loads = [load_of(links, options.small) for links in options.links or usual]
    if options.name == "pythons":
        for load in loads:
            given = [sys.executable] if options.small and not options.python else options.python
            pythons(report, given, load, rounds)
    elif options.name == "ordinary":
        for load in loads:
            ordinary(report, load, rounds)
    elif options.features:
        wanted = list(FEATURES) if "all" in options.features else options.features
        for load in loads[:1] if not options.links else loads:
            features(report, wanted, load, rounds)
    else:
        peers = [
            peer for peer in (*SUITES, *PEERS)
            if (peer.key in options.peer if options.peer else not (options.small and peer.builds))
        ]  # fmt: skip
        for tree in options.tree:
            name, _, folder = tree.partition("=")
            peers.append(replace(SUITES[0], name=name, root=Path(folder).resolve()))
        if options.pages is not None:
            ours = [each for each in peers if each.spider]  # the others follow every link
            compare(report, "Real sites", ours, sites_load(options.pages, options.small), rounds)
            return
        for load in loads:
            title = f"{load.web.degree} links a page, {load.web.page_size:,} bytes"
            compare(report, title, peers, load, rounds)
