"""``snapshot``: a copy of the job, also beside a running crawl.

The crawl links the store's tables into the action folder, in a thread. The asker copies the rest
(`scrapy_spider_suite.store.job_directory`).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from threading import Thread
from typing import Any

from scrapy_spider_suite.errors import ActionError, JobError, StoreWriteError
from scrapy_spider_suite.operate.actions import Action, ActionFolder, new_id, whoami
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.operate.terms import CrawlTerms
from scrapy_spider_suite.operate.verb import (
    PORTION,
    WAITING,
    AskJob,
    Invocation,
    JobVerb,
    Work,
    display_text,
)
from scrapy_spider_suite.store.job_directory import FOLDER, check_target, copy_job
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.seen_transfer import while_locked


def snapshot(site: JobTarget, action: Action) -> Work:
    """Copy the store as it is now; *target* is where it will be taken, for the audit log.

    If whoever asked has taken it back by the end, the copy is removed.
    """
    action.expect("target")
    target = action.get("target", str)
    folder = ActionFolder(site.folder)
    path = folder.copy_path(action.id)
    failures: list[StoreWriteError] = []

    def copy() -> None:  # everything is committed before a portion begins
        rmtree(path, ignore_errors=True)  # a kill may have left half of one
        try:
            site.store.checkpoint(path)
        except StoreWriteError as error:
            failures.append(error)
        if not folder.is_pending(action.id):
            rmtree(path, ignore_errors=True)

    def run_in_thread() -> Generator[Any, None, None]:
        worker = Thread(target=copy, daemon=True)
        worker.start()
        while worker.is_alive():
            worker.join(0.0 if site.running else PORTION)
            yield WAITING

    yield from while_locked(site.store.archive, while_locked(site.store.sieve, run_in_thread()))
    if failures:
        raise ActionError(str(failures[0]))
    if not path.is_dir():
        raise ActionError("it was taken back meanwhile: the copy was removed")
    return f"the store was copied, for {target}", {"target": target, "when": site.wall()}


class _NoAnswerError(JobError):
    """No copy of the store was made in time."""


def _snapshot_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="DIR", type=Path)
    parser.add_argument(
        "--dry-run", action="store_true",
        help="only check DIR, and count what the copy would hold",
    )  # fmt: skip


def _copied_store(call: Invocation, folder: Path, ask_job: AskJob) -> Path:
    """Have the process that uses the job copy the store; return the copy. Raises `JobError`s."""
    options, id = call.options, new_id()
    actions = ActionFolder(folder)
    try:
        answer = ask_job(
            folder, "snapshot", {"target": str(options.target.absolute())},
            who=options.who or whoami(), why=options.why, wait=options.wait, id=id,
        )  # fmt: skip
    except KeyboardInterrupt:
        actions.withdraw(id)
        raise
    answer = answer or actions.withdraw(id)
    if answer is None:
        raise _NoAnswerError(f"no answer within {options.wait:g} s; it was taken back")
    if not answer.ok:
        raise JobError(answer.said)
    return actions.copy_path(id)


def _foresee(call: Invocation, folder: Path) -> int:
    """Print the counts of a copy made now, and its bytes on another file system."""
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


def _run(call: Invocation, ask_job: AskJob) -> int:
    folder, target = call.folder(), call.options.target
    check_target(folder.parent, target)  # before anything is asked of a crawl
    if call.options.dry_run:
        return _foresee(call, folder)
    try:
        copy = copy_job(folder.parent, target, lambda: _copied_store(call, folder, ask_job))
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
    JobVerb(
        "snapshot", "copy the job as it is now, while it is crawled too",
        add_options=_snapshot_options, arguments="DIR", apply=snapshot, run_with=_run,
        not_remote="run it on the machine of each agent, with -j DIR",
        about=(
            "DIR must not exist; it appears whole, or not at all. It is a job of its own, with\n"
            "its own id: copy it anywhere, and start a crawl with JOBDIR=DIR. Blocks and pauses\n"
            "of one job do not hold for the other. The crawl is not held up. On the same file\n"
            "system the store's files are linked, and take room only as they come to differ."
        ),
        examples=("snapshot /backup/news-2026-11-21 -j crawls/news",),
        exits={3: "no answer in time: it was taken back, and nothing is left of it"},
    ),
)  # fmt: skip
