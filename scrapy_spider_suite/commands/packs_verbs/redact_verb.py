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

_WAIT: Final = 60.0  # seconds to wait for a job that cannot be written


def _options(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    subject = parser.add_mutually_exclusive_group(required=True)
    subject.add_argument(
        "--host", type=host_argument, metavar="HOST",
        help="all pages of this host; *.example.com: and of hosts below it",
    )  # fmt: skip
    subject.add_argument("--url", metavar="URL", help="all versions of this page")
    parser.add_argument(
        "--mentions", action="store_true",
        help="remove pages of other hosts, too, whose text or head names the host or the URL",
    )  # fmt: skip
    parser.add_argument(
        "--job", type=Path, metavar="DIR",
        help="remove the host from this job, too: store, link statistics, logs; no crawl may "
        "use the job",
    )  # fmt: skip
    parser.add_argument(
        "--items", type=Path, metavar="DIR", help="remove items that name it from these item packs"
    )
    add_caution(parser, asks=True)


def _run(call: Invocation) -> int:
    options = call.options
    folders = paths_of(call)
    for folder in folders:
        if not folder.is_dir():
            raise PackError(f"a folder of packs is redacted as a whole: {folder}")
    if options.job is None and options.items is None:
        packs_of(call)
    subject = RedactionTarget(options.host or "", options.url or "", options.mentions)
    if options.job is not None and not options.host:
        raise UsageError("--job is for a host: `scrapy frontier drop` takes URLs", print_help=False)
    if options.items is not None and not options.items.is_dir():
        raise PackError(f"not a folder of item packs: {options.items}")
    if options.job is not None:
        JobFile.require(options.job / JOB)
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
        call.facts({"job": str(options.job), "done": False, **found})
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
            receipt = count_redaction(folder, subject, move)
        else:
            receipt = redact(folder, subject, time.time(), move, texts=search)
    call.facts({"folder": str(folder), "done": not call.options.dry_run, **asdict(receipt)})
    left = receipt.open or receipt.away or receipt.uploaded
    return 4 if left and not call.options.dry_run else 0


VERBS = (
    Verb(
        "redact", "remove a host or a URL from packs, with every byte", _run, _options,
        "[PATH...] --host HOST",
        about=(
            "Removes pages with their requests and links, revisits with the same body, links to\n"
            "the host and Referers that name it. The indexes change at once; then the packs are\n"
            "written anew. After a kill every pack is whole, and the same call continues. The\n"
            "text of other pages that name the host stays; --mentions removes these pages, too.\n"
            "The receipt names three kinds of packs that need another step. open: a pack that is\n"
            "being written; call again when it is closed. away: an uploaded pack that is not here\n"
            "and has pages of the host. uploaded: a pack that changed here; it is uploaded again.\n"
            "--job drops the host from the job, and from the logs that `scrapy frontier drop`\n"
            "leaves; block the host if the crawl is to continue. Each folder keeps its receipts\n"
            "in redactions.jsonl, with a digest of the subject. This cannot be undone."
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
