"""``check`` and ``snapshot``: whether the files of a job agree, and a copy of them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from shutil import rmtree
from threading import Thread
from typing import Any, Final

from scrapy_spider_suite.errors import ActionError, JobError, StoreWriteError
from scrapy_spider_suite.operate import verb
from scrapy_spider_suite.operate.actions import Action, ActionFolder, new_id, whoami
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.operate.terms import CrawlTerms
from scrapy_spider_suite.runtime.text import counted, printable
from scrapy_spider_suite.seen.sieve import Sieve
from scrapy_spider_suite.seen.sorted_set import SetManifest
from scrapy_spider_suite.seen.trie_store import TrieStore
from scrapy_spider_suite.store.job_directory import FOLDER, JobFile, check_target, copy_job
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.seen_index import ARCHIVE_FOLDER, SIEVE_FOLDER
from scrapy_spider_suite.store.seen_transfer import while_locked

_OF_CRAWL: Final = (f"{FOLDER}/{ARCHIVE_FOLDER}", f"{FOLDER}/{SIEVE_FOLDER}")
_OF_DUPEFILTERS: Final = ("seen-trie", "seen-sieve")


def _look(call: verb.Invocation, question: verb.Question) -> Iterator[Any]:
    """A line for each fault; a row for each one that was mended."""
    job, repair = Path(str(call.jobdir)), bool(call.options.repair)
    is_job = JobFile.read(job / FOLDER) is not None
    stores = _stores(job, _OF_DUPEFILTERS)
    if not is_job and not stores:
        raise JobError(f"{job} holds no job of scrapy-spider-suite")
    for folder in [*_stores(job, _OF_CRAWL), *stores] if repair else [] if is_job else stores:
        yield from _check_store(folder, repair=repair)
    if is_job:
        with StoreReader(job / FOLDER) as reader:
            yield from reader.check()


def _stores(job: Path, places: tuple[str, ...]) -> list[Path]:
    return [job / place for place in places if (job / place / "lock").exists()]


def _check_store(folder: Path, *, repair: bool) -> Iterator[Any]:
    manifest = SetManifest.read(folder)
    if manifest is None and folder.name.endswith(SIEVE_FOLDER):
        return  # nothing was written yet
    if manifest is not None:
        bits = manifest.words * 64
        with closing(Sieve(folder, bits=bits, readonly=not repair)) as sieve:
            for damage in sieve.parts.check():
                remedy = "what could be read was written anew; what was in it counts as new"
                yield {"repaired": f"{damage}; {remedy}"} if repair else damage
            if repair:
                sieve.repair()
        return
    with TrieStore(folder, readonly=not repair) as store:
        findings = store.check(repair=repair)
    for each in findings:
        text = f"{each.what}; {counted(each.urls, 'URL')}"
        remedy = "what cannot be read was put aside, its URLs count as new"
        yield {"repaired": f"{text}. done: {remedy}"} if repair else text


def _show(call: verb.Invocation, found: verb.Found) -> int:
    wrong = repaired = 0
    for name, lines in found.by_agent.items():
        for line in lines:
            mended = isinstance(line, dict)
            wrong, repaired = wrong + (not mended), repaired + mended
            if call.json:
                print(json.dumps({"agent": name, "wrong": line} if name else line))
            else:
                text = line["repaired"] if mended else str(line)
                print(printable(f"{name}: {text}") if name else text)
    if not call.json:
        if repaired:
            print(counted(repaired, "thing was repaired", "things were repaired"))
        agrees = "everything agrees" + ("" if found.one_job else ", in each agent")
        print(f"{counted(wrong, 'thing is', 'things are')} wrong" if wrong else agrees)
    return 1 if wrong else 0


def snapshot(site: JobTarget, action: Action) -> verb.Work:
    """Copy the store, to be taken to *target*; of an action that was taken back nothing stays."""
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
            worker.join(0.0 if site.running else verb.PORTION)
            yield verb.WAITING

    yield from while_locked(site.store.archive, while_locked(site.store.sieve, run_in_thread()))
    if failures:
        raise ActionError(str(failures[0]))
    if not path.is_dir():
        raise ActionError("it was taken back meanwhile: the copy was removed")
    return f"the store was copied, for {target}", {"target": target, "when": site.wall()}


class _NoAnswerError(JobError):
    """No copy of the store was made in time."""


def _copied_store(call: verb.Invocation, folder: Path, ask_job: verb.AskJob) -> Path:
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


def _run(call: verb.Invocation, ask_job: verb.AskJob) -> int:
    folder, target = call.folder(), call.options.target
    check_target(folder.parent, target)  # before anything is asked of a crawl
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
        "snapshot": str(target), "taken": verb.display_text("when", time.time()), "job": copy.id,
        "copy_of": copy.origin, "pending": counters.pending, "done": counters.done,
        "failed": counters.failed, **left_out,
    })  # fmt: skip
    return 0


VERBS = (
    verb.JobVerb(
        "check", "whether everything in the job agrees", look=_look, show=_show,
        options=(verb.option(
            "--repair", action="store_true",
            help="mend damaged files of seen URLs; what they held counts as new",
        ),),
        about=(
            "--repair needs a job that no crawl uses. It mends the stores of seen URLs: those of\n"
            "the job, and those of the dupefilters of Scrapy projects."
        ),
        reads_only=lambda options, listed: listed is None and not options.repair,
        examples=("check -j crawls/news", "check --repair -j crawls/news"),
        exits={1: "something is wrong"},
    ),
    verb.JobVerb(
        "snapshot", "copy the job as it is now, while it is crawled too",
        options=(verb.option("target", metavar="DIR", type=Path),), arguments="DIR", apply=snapshot,
        run_with=_run,
        not_remote="name each on its machine, such as -j crawls/news/NAME",
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
