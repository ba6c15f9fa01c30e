"""``scrapy frontier snapshot``."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from pathlib import Path

from scrapy_spider_suite.commands.frontier_verbs import acting
from scrapy_spider_suite.errors import JobError
from scrapy_spider_suite.operate.actions import ActionFolder, new_id, whoami
from scrapy_spider_suite.operate.executors.one_job import ask_job
from scrapy_spider_suite.operate.terms import CrawlTerms
from scrapy_spider_suite.operate.verb import Invocation, Verb, display_text
from scrapy_spider_suite.store.job_directory import FOLDER, check_target, copy_job
from scrapy_spider_suite.store.job_reader import StoreReader


class _NoAnswerError(JobError):
    """Nobody made a copy of the store in time."""


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="DIR", type=Path)
    parser.add_argument(
        "--dry-run", action="store_true",
        help="only see whether DIR will do, and what it would hold",
    )  # fmt: skip
    acting.add_options(parser)


def _copied_store(call: Invocation, folder: Path) -> Path:
    """Have the store copied by whoever uses the job; where the copy lies. Raises `JobError`s."""
    options, id = call.options, new_id()
    actions = ActionFolder(folder)
    try:
        answer = ask_job(
            folder, "snapshot", {"target": str(options.target.absolute())},
            who=options.who or whoami(), why=options.why, wait=options.wait, id=id,
        )  # fmt: skip
    except KeyboardInterrupt:
        actions.take_back(id)
        raise
    answer = answer or actions.take_back(id)
    if answer is None:
        raise _NoAnswerError(f"no answer within {options.wait:g} s; it was taken back")
    if not answer.ok:
        raise JobError(answer.said)
    return actions.copy_of(id)


def _foresee(call: Invocation, folder: Path) -> int:
    """What a copy made now would hold; on another file system it takes so many bytes."""
    with StoreReader(folder) as reader:
        counters = reader.counters()
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # it was a temporary one
            size += path.stat().st_size if path.is_file() else 0
    call.facts({
        "snapshot": str(call.options.target), "bytes": size, "pending": counters.pending,
        "done": counters.done, "failed": counters.failed,
    })  # fmt: skip
    return 0


def _run(call: Invocation) -> int:
    folder, target = call.folder(), call.options.target
    check_target(folder.parent, target)  # before anything is asked of a crawl
    if call.options.dry_run:
        return _foresee(call, folder)
    try:
        copy = copy_job(folder.parent, target, lambda: _copied_store(call, folder))
    except _NoAnswerError as error:
        print(f"scrapy frontier: {error}", file=sys.stderr)
        return 3
    with StoreReader(target / FOLDER) as reader:
        counters, terms = reader.counters(), CrawlTerms.load(reader.store.kv("terms"))
    elsewhere = None if terms is None else terms.values.get("SUITE_FETCH_LOG")
    left_out = {"not_copied": f"the fetch log in {elsewhere}"} if isinstance(elsewhere, str) else {}
    call.facts({
        "snapshot": str(target), "taken": display_text("when", time.time()), "job": copy.id,
        "copy_of": copy.origin, "pending": counters.pending, "done": counters.done,
        "failed": counters.failed, **left_out,
    })  # fmt: skip
    return 0


VERBS = (
    Verb(
        "snapshot", "copy the job as it is now, while it is crawled too", _run, _options, "DIR",
        about=(
            "DIR must not exist; it appears whole, or not at all. It is a job directory: copy it\n"
            "anywhere, and start the crawl with JOBDIR=DIR. It is a job of its own, with an id of\n"
            "its own: what is asked of the one (block, pause, ...) is not asked of the other. A\n"
            "crawl is not held up. On the same file system the store's files are linked, and take\n"
            "room only as they come to differ."
        ),
        examples=("snapshot /backup/news-2026-11-21 -j crawls/news",),
        exits={3: "no answer in time: it was taken back, and nothing is left of it"},
    ),
)  # fmt: skip
