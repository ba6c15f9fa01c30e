"""``scrapy packs redact``."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

from scrapy.exceptions import UsageError

from scrapy_spider_suite.analysis import search
from scrapy_spider_suite.commands.packs_verbs.options import add_paths, packs_of, paths_of, progress
from scrapy_spider_suite.errors import PackError
from scrapy_spider_suite.operate.actions import whoami
from scrapy_spider_suite.operate.executors.one_job import ask_job
from scrapy_spider_suite.operate.job_redaction import count_traces, redact_job
from scrapy_spider_suite.operate.verb import Invocation, Verb, add_caution, confirm, host_argument
from scrapy_spider_suite.packs.item_file import is_item_pack
from scrapy_spider_suite.packs.pack_file import is_pack
from scrapy_spider_suite.packs.redaction import (
    RedactionTarget,
    count_redaction,
    redact,
    redact_items,
)
from scrapy_spider_suite.store.job_directory import FOLDER as JOB
from scrapy_spider_suite.store.job_directory import JobFile

_WAIT: Final = 60.0
"""Seconds to wait for a job that cannot be written."""


def _options(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--host", type=host_argument, metavar="HOST",
        help="all pages of that host; *.example.com: and of those below it",
    )  # fmt: skip
    what.add_argument("--url", metavar="URL", help="that page alone, whenever it was fetched")
    parser.add_argument(
        "--mentions", action="store_true",
        help="pages elsewhere too, whose text or head names the host or the URL",
    )  # fmt: skip
    parser.add_argument(
        "--job", type=Path, metavar="DIR",
        help="the host goes from that job, too: store, link statistics, logs (no crawl may use it)",
    )  # fmt: skip
    parser.add_argument(
        "--items", type=Path, metavar="DIR",
        help="items that name it go from the item packs there, too",
    )  # fmt: skip
    add_caution(parser, asks=True)


def _run(call: Invocation) -> int:
    options = call.options
    folders = paths_of(call)
    for folder in folders:
        if not folder.is_dir():
            raise PackError(f"a folder of packs is redacted as a whole: {folder}")
    if options.job is None and options.items is None:
        packs_of(call)
    subject = RedactionTarget(host=options.host or "", url=options.url or "")
    if options.job is not None and not options.host:
        raise UsageError("--job is for a host: `scrapy frontier drop` takes URLs", print_help=False)
    if options.items is not None and not options.items.is_dir():
        raise PackError(f"not a folder of item packs: {options.items}")
    if options.job is not None and JobFile.read(options.job / JOB) is None:
        raise PackError(f"{options.job} holds no job of scrapy-spider-suite")
    if not options.dry_run:
        confirm(call, f"Take {options.host or options.url} out of these packs for good?")
    code = _job(call) if options.job is not None else 0
    for folder in folders:
        code = max(code, _folder(call, folder, subject))
    return code if options.items is None else max(code, _items(call, subject))


def _job(call: Invocation) -> int:
    options = call.options
    if options.dry_run:
        found = count_traces(options.job / JOB, options.host)
        call.facts({"job": str(options.job), "done": False, **asdict(found)})
        return 0
    swept = redact_job(
        options.job / JOB, options.host, whoami(), "scrapy packs redact", _WAIT, ask_job
    )
    call.facts({"job": str(options.job), "done": True, **asdict(swept)})
    return 4 if swept.left else 0


def _items(call: Invocation, subject: RedactionTarget) -> int:
    folder, dry = call.options.items, call.options.dry_run
    total = sum(path.stat().st_size for path in folder.iterdir() if is_item_pack(path))
    with progress(total, "B") as move:
        receipt = redact_items(folder, subject, move, dry=dry)
    call.facts({"folder": str(folder), "done": not dry, **asdict(receipt)})
    return 4 if receipt.open and not dry else 0


def _folder(call: Invocation, folder: Path, subject: RedactionTarget) -> int:
    total = sum(path.stat().st_size for path in folder.iterdir() if is_pack(path))
    with progress(total, "B") as move:
        if call.options.dry_run:
            receipt = count_redaction(folder, subject, move, mentions=call.options.mentions)
        else:
            receipt = redact(folder, subject, time.time(), move,
                             mentions=call.options.mentions, texts=search)  # fmt: skip
    row = {"folder": str(folder), "done": not call.options.dry_run, **asdict(receipt)}
    call.facts(row)
    left = receipt.open or receipt.away or receipt.uploaded
    return 4 if left and not call.options.dry_run else 0


VERBS = (
    Verb(
        "redact", "take a host or a URL out of packs, with every byte", _run, _options,
        "[PATH...] --host HOST",
        about=(
            "Its pages, their requests and links go, revisits elsewhere that have its body, links\n"
            "to it and Referers that name it: from the indexes at once, then from the packs, that\n"
            "are written anew. A kill leaves every pack whole; the same call again goes on. The\n"
            "text of other pages that name it stays unless --mentions: then those pages go, too.\n"
            "Packs that are being written stay as they are; the receipt names them: call again\n"
            "when they are closed. Where packs were uploaded to is named, too: of those that are\n"
            "not here any more if they hold pages of the host (away), of those that are here if\n"
            "they changed (uploaded): these go up once more, and replace what is there.\n"
            "With --job the host is dropped from that job, and from what `scrapy frontier drop`\n"
            "leaves there; block it if the crawl is to go on. A folder keeps receipts in\n"
            "redactions.jsonl, with the subject as a digest only. It cannot be undone."
        ),
        examples=(
            "redact crawls/news/packs --host example.com --dry-run",
            "redact crawls/news/packs other-machine/packs --host '*.example.com' --yes",
            "redact crawls/news/packs --job crawls/news --host example.com --yes",
            "redact crawls/news/packs --url https://example.com/private --mentions --yes",
        ),
        exits={4: "done but for what the receipt names as open, away, uploaded or left"},
    ),
)  # fmt: skip
