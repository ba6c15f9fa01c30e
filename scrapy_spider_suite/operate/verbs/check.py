"""``check``: whether everything in the job agrees; ``--repair`` mends stores of seen URLs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from scrapy_spider_suite.errors import JobError
from scrapy_spider_suite.operate.verb import Found, Invocation, JobVerb, Question
from scrapy_spider_suite.runtime.text import counted, printable
from scrapy_spider_suite.seen.sieve import Sieve
from scrapy_spider_suite.seen.sorted_set import SetManifest
from scrapy_spider_suite.seen.trie_store import TrieStore
from scrapy_spider_suite.store.job_directory import FOLDER, JobFile
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.seen_index import ARCHIVE_FOLDER, SIEVE_FOLDER

_OF_CRAWL: Final = (f"{FOLDER}/{ARCHIVE_FOLDER}", f"{FOLDER}/{SIEVE_FOLDER}")
_OF_DUPEFILTERS: Final = ("seen-trie", "seen-sieve")


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repair", action="store_true",
        help="mend damaged files of seen URLs; what they held counts as new",
    )  # fmt: skip


def _look(call: Invocation, question: Question) -> Iterator[Any]:
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
    if manifest is None and any(folder.glob("waiting-*.log")):
        return  # a sieve that was not flushed yet
    if manifest is not None:
        sieve = Sieve(folder, bits=manifest.words * 64, own_log=False, readonly=not repair)
        try:
            for damage in sieve.check():
                remedy = "what could be read was written anew; what was in it counts as new"
                yield {"repaired": f"{damage}; {remedy}"} if repair else damage
            if repair:
                sieve.repair()
        finally:
            sieve.close()
        return
    with TrieStore(folder, readonly=not repair) as store:
        findings = store.check(repair=repair)
    for each in findings:
        text = f"{each.file}: {each.what}; {counted(each.urls, 'URL')}"
        yield {"repaired": f"{text}. done: {each.remedy}"} if each.repaired else text


def _show(call: Invocation, found: Found) -> int:
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


VERBS = (
    JobVerb(
        "check", "whether everything in the job agrees", add_options=_options, look=_look,
        show=_show,
        about=(
            "--repair needs a job that no crawl uses. It mends the stores of seen URLs: those of\n"
            "the job, and those of the dupefilters of Scrapy projects."
        ),
        reads_only=lambda options, listed: listed is None and not options.repair,
        examples=("check -j crawls/news", "check --repair -j crawls/news"),
        exits={1: "something is wrong"},
    ),
)  # fmt: skip
