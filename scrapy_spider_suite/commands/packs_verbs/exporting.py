"""``scrapy packs export``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from scrapy_spider_suite.commands.packs_verbs.common import (
    add_choice,
    add_paths,
    choice_of,
    of_extra,
    packs_of,
    progress,
    tell_absent,
    tell_damage,
)
from scrapy_spider_suite.commands.verb import Call, Verb
from scrapy_spider_suite.control.manifest import read_manifest
from scrapy_spider_suite.packs import CrawlInfo, Packs
from scrapy_spider_suite.packs.export import ExportResult, export_files, export_wacz, export_warc
from scrapy_spider_suite.packs.selection import Selection, select
from scrapy_spider_suite.packs.warc import SOFTWARE
from scrapy_spider_suite.runtime.text import printable
from scrapy_spider_suite.store.job_directory import FOLDER


def _options(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    to = parser.add_mutually_exclusive_group(required=True)
    to.add_argument(
        "--warc-gz", type=Path, metavar="FILE|DIR",
        help="WARC, a gzip member for each record, which every WARC tool opens: one file "
        "*.warc.gz, or several in a folder",
    )  # fmt: skip
    to.add_argument(
        "--warc-zst", type=Path, metavar="FILE|DIR",
        help="WARC, a Zstandard frame for each record, for FastWARC and who decompresses first "
        "(zstd -dc; warcio does not read it): one file *.warc.zst, or several in a folder",
    )  # fmt: skip
    to.add_argument("--dir", type=Path, metavar="DIR", help="a file for each page, and pages.jsonl")
    to.add_argument(
        "--parquet", type=Path, metavar="FILE",
        help="a table as Common Crawl's index has it, with title, language and text ([parquet])",
    )  # fmt: skip
    to.add_argument("--wacz", type=Path, metavar="FILE", help="a file for replayweb.page: *.wacz")
    parser.add_argument(
        "--job", type=Path, metavar="DIR", help="with --wacz: put the manifest of that job with it"
    )
    add_choice(parser, sample=True)


def _run(call: Call) -> int:
    packs, choice = packs_of(call), choice_of(call.options)
    total = sum(1 for _ in select(packs, choice))
    with progress(total, "pages") as move:
        done = _export(call.options, packs, choice, move)
    for url, why in done.failed:
        print(f"{printable(url)}: {printable(why)}", file=sys.stderr)
    row = {"pages": done.pages, "files": list(map(str, done.files)), "failed": len(done.failed)}
    call.facts(row)
    tell_absent(packs)
    return 1 if tell_damage(packs) or done.failed else 0


def _export(
    options: argparse.Namespace, packs: Packs, choice: Selection, move: Callable[[int], object]
) -> ExportResult:
    if options.parquet is not None:
        table = of_extra("analysis.parquet", "parquet")
        done: ExportResult = table.export_parquet(packs, choice, options.parquet, move)
        return done
    if options.dir is not None:
        return export_files(packs, choice, options.dir, move)
    if options.wacz is not None:
        known = b"" if options.job is None else _manifest(options.job)
        return export_wacz(packs, choice, options.wacz, _crawl(), time.time(), move, known)
    form = "gz" if options.warc_zst is None else "zst"
    target = options.warc_gz or options.warc_zst
    return export_warc(packs, choice, target, _crawl(), time.time(), move, form)


def _manifest(job: Path) -> bytes:
    """The manifest of the crawl. Raises `JobError`s."""
    return json.dumps(read_manifest(job / FOLDER), indent=1).encode()


def _crawl() -> CrawlInfo:
    """What an export says of itself."""
    return CrawlInfo(name="export", software=SOFTWARE, notes={"description": "pages out of packs"})


VERBS = (
    Verb(
        "export", "pages in forms that other programs open", _run, _options,
        "[PATH...] --FORM FILE",
        about=(
            "In WARC, a page comes with its request and its metadata. A revisit stays one, and is\n"
            "complete where the page that it is the same as is exported, too; in the other forms\n"
            "it has the body of that. Nothing is left of an export that fails."
        ),
        examples=(
            "export crawls/news/packs --warc-gz news.warc.gz --host '*.example.com'",
            "export crawls/news/packs --warc-zst warcs/ --from 2026-11",
            "export crawls/news/packs --parquet news.parquet",
            "export crawls/news/packs --wacz news.wacz --host example.com --job crawls/news",
            "export crawls/news/packs --dir pages --sample 100 --mime text/html",
        ),
        exits={1: "something could not be read, and was left out"},
    ),
)  # fmt: skip
