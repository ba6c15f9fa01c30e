"""Packs of a crawl of real sites in every coding, killed again and again, as other tools see them.

    python -m benchmarks tools [--form gz] [--kills 10] [--indexer PROGRAM]   # some minutes

The documentation sites of the tests (Debian packages, which are downloaded) are served with gzip,
br and chunked transfer, and crawled with packs. After each kill the packs that were left are
closed, as the next run does it, in a copy. Each pack that was closed, there and by the crawl, is
given to `lzop -t` and `lzop -dc PACK | warcio index -` (lzo), or `warcio index`, `fastwarc check`
and PROGRAM (gz): pywb's `cdx-indexer` or `cdxj-indexer`, whose lines have to be those of the pack's
index. warcio's library checks all digests, too; its command `check` cannot with br and Brotli 1.2,
whatever the file. At the end every body that the packs give is compared with the file that was
served.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from support.crawls import crawl_over_kills, web_settings
from support.packs import warcio_records
from support.real_sites import SITES, unpack_sites
from warcio.exceptions import ArchiveLoadFailed  # type: ignore[import-untyped]

from benchmarks.links import made_up_page
from benchmarks.report import Report
from scrapy_spider_suite.packs import open_packs, verify
from scrapy_spider_suite.packs.pack_file import index_path, is_pack
from scrapy_spider_suite.packs.writer import recover_folder
from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess

WARCIO = (sys.executable, "-m", "warcio.cli", "index")


class Tools:
    """Other people's programs: what they refuse is in *wrong*, what they were given in *seen*."""

    def __init__(self, indexer: str) -> None:
        self.indexer = indexer
        self.wrong: list[str] = []
        self.seen: set[tuple[str, str]] = set()

    def look(self, folder: Path) -> None:
        """Give them the packs of *folder*, all closed, that they have not seen as they are."""
        for pack in sorted(filter(is_pack, folder.iterdir())):
            data = pack.name, hashlib.sha256(pack.read_bytes()).hexdigest()
            if data not in self.seen:
                self.seen.add(data)
                (self._lzop if pack.suffix == ".lzo" else self._members)(pack)

    def _lzop(self, pack: Path) -> None:
        self._run("lzop", "-t", str(pack))
        plain = self._run("lzop", "-dc", str(pack))
        self._compare(pack, plain, self._run(*WARCIO, "-", stdin=plain))

    def _members(self, pack: Path) -> None:
        self._run(sys.executable, "-m", "fastwarc.cli", "check", str(pack))
        self._compare(pack, pack.read_bytes(), self._run(*WARCIO, str(pack)))
        if self.indexer:
            theirs = self._run(self.indexer, "-s", *self._more(), str(pack)).decode()
            ours = index_path(pack).read_text()
            if sorted(map(entry, theirs.splitlines())) != sorted(map(entry, ours.splitlines())):
                self.wrong.append(f"{pack}: the index is not that of {self.indexer}")

    def _more(self) -> Sequence[str]:
        return ("-j",) if self.indexer.endswith("cdx-indexer") else ()

    def _compare(self, pack: Path, data: bytes, index: bytes) -> None:
        try:
            checked = sum(1 for _ in warcio_records(data))
        except ArchiveLoadFailed as error:  # a digest is not that of its record
            self.wrong.append(f"{pack}: {error}")
            return
        records = sum(1 for _ in open_packs(pack).records())
        if (listed := index.count(b"\n")) != records or checked != records:
            self.wrong.append(f"{pack}: {listed} and {checked} records for warcio, not {records}")

    def _run(self, *command: str, stdin: bytes = b"") -> bytes:
        done = subprocess.run(command, input=stdin, capture_output=True, check=False)
        if done.returncode:
            self.wrong.append(f"{command}: {(done.stderr or done.stdout).decode()[-300:]}")
        return done.stdout


def entry(line: str) -> tuple[str, ...]:
    """What a line of an index says of a page: key, time, URL, digest, status, place."""
    key, stamp, text = line.split(" ", 2)
    row = json.loads(text)
    digest = row.get("digest", "").removeprefix("sha1:")
    return (key, stamp, row["url"], digest, row.get("status", ""), row["offset"], row["length"])


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


def crawl_sites(
    report: Report, sites: dict[str, Path], seeds: dict[str, str], form: str, kills: int,
    tools: Tools,
) -> None:  # fmt: skip
    """Crawl them to the end, over so many kills; show what came of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        packs, left = folder / "packs", list[bool]()
        config = FakeWebConfig(hosts=0, coded=0.85, sites={k: str(v) for k, v in sites.items()})
        with FakeWebProcess(config) as web:
            urls = [f"http://{host}:{web.ready.http_port}/{path}" for host, path in seeds.items()]
            settings = web_settings(
                web.ready.dns_port, SUITE_HOST_DELAY=0, SUITE_IP_DELAY=0, SUITE_IP_CONCURRENCY=0,
                SUITE_HOST_CONCURRENCY=4, SUITE_DEAD_HOST_FAILURES=2, SUITE_BACKOFF_BASE=1,
                DOWNLOAD_MAXSIZE=64 << 20, JOBDIR=str(folder / "job"), SUITE_PACKS_DIR=str(packs),
                SUITE_PACKS_FORMAT=form, SUITE_PACKS_SIZE=8 << 20,
            )  # fmt: skip

            def look() -> None:
                left.append(packs.exists())
                if left[-1]:
                    copy = shutil.copytree(packs, folder / "left")
                    recover_folder(copy)
                    tools.look(copy)
                    shutil.rmtree(copy)

            times = [random.Random(number).uniform(0.5, 6) for number in range(kills)]
            crawl_over_kills("support.spiders.Bulk", settings, folder, times, look, timeout=1800,
                             seeds=",".join(urls))  # fmt: skip
        tools.look(packs)
        tools.wrong += [f"{each.path}: {each.what}" for each in verify(packs)]
        ways, wrong = bodies(packs, sites)
        tools.wrong += wrong
        report.say(
            f"{form}: {len(left)} kills, {len(tools.seen)} packs for the tools of others; "
            f"{sum(ways.values()):,} pages"
        )
        for (coding, chunked), count in sorted(ways.items()):
            report.say(f"  {coding or 'as it is'}{', in chunks' if chunked else ''}: {count:,}")


def bodies(packs: Path, sites: dict[str, Path]) -> tuple[Counter[tuple[str, bool]], list[str]]:
    """How many pages came in which way, and which are not the file that was served."""
    ways: Counter[tuple[str, bool]] = Counter()
    wrong = []
    for page in open_packs(packs):
        parts = urlsplit(page.url)
        if page.status == 200:
            file = sites[parts.hostname or ""] / unquote(parts.path).lstrip("/")
            served = (file / "index.html" if file.is_dir() else file).read_bytes()
            if page.body != served:
                wrong.append(f"{page.url}: not what was served")
            head = page.headers
            ways[head.get("content-encoding", ""), "x-crawler-transfer-encoding" in head] += 1
    return ways, wrong


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Which format, and how often it is killed."""
    parser.add_argument("--form", default="lzo", choices=("lzo", "gz"), help="lzo, or gz")
    parser.add_argument("--kills", type=int, default=10, help="how often (10)")
    parser.add_argument("--indexer", default="", metavar="PROGRAM", help="for packs in gz")


def run(options: argparse.Namespace, report: Report) -> None:
    """Crawl, and report what was found."""
    tools = Tools(options.indexer)
    with tempfile.TemporaryDirectory() as name:
        if options.small:
            sites = {"made-up.test": made_up_site(Path(name), 20)}
            seeds = {"made-up.test": "index.html"}
        else:
            sites = unpack_sites(Path(name))
            seeds = {site.name: site.start for site in SITES}
        crawl_sites(report, sites, seeds, options.form, options.kills, tools)
    report.wrong += tools.wrong[:50]
