"""``scrapy frontier log``: what was fetched of a host, and when."""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from scrapy_spider_suite.errors import JobError
from scrapy_spider_suite.fetch.fetch_log import FIELDS, LOG_FOLDER
from scrapy_spider_suite.fetch.fetch_log_reader import FetchFilter, FetchLogReader, parsed_lines
from scrapy_spider_suite.operate.verb import Invocation, Verb, without_port
from scrapy_spider_suite.settings.values import duration
from scrapy_spider_suite.store.job_directory import JobFile


def moment(text: str) -> float:
    """The type of ``--since``: seconds since the epoch. Raises `argparse.ArgumentTypeError`."""
    try:
        ago = duration().parse(text)
        if isinstance(ago, float):
            return time.time() - ago
    except ValueError:
        pass
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a time ago such as 2h or 7d, or a date such as 2026-11-21 or "
            "2026-11-21T19:03 (UTC)"
        ) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _target(text: str) -> FetchFilter:
    try:
        return FetchFilter.parse(without_port(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="HOST|URL", type=_target)
    parser.add_argument(
        "--since", type=moment, default=0.0, metavar="TIME",
        help="only fetches that ended since then: 2h, 7d (ago), or a date, UTC",
    )  # fmt: skip


def folders(job: Path, chosen: object) -> list[Path]:
    """Return where the job in the folder *job* keeps or kept its fetch log.

    *chosen* is its SUITE_FETCH_LOG. Raises `JobError` if there is none.
    """
    places = [job / LOG_FOLDER]
    if isinstance(chosen, str):
        places.append(Path(chosen))
    found = [place for place in places if place.is_dir()]
    if not found:
        raise JobError(f"{job.parent} has no fetch log (SUITE_FETCH_LOG = {chosen!r})")
    return found


def _run(call: Invocation) -> int:
    job = call.folder()
    file = JobFile.read(job)
    chosen = True if file is None else file.settings.get("fetch_log", True)
    target, count = call.options.target, 0
    for place in folders(job, chosen):
        reader = FetchLogReader(place)
        lines = reader.lines(target, call.options.since)
        if call.json:
            for row in parsed_lines(lines):
                print(json.dumps(row))
                count += 1
        else:
            for line in lines:
                sys.stdout.write(line.decode("ascii", "replace"))
                count += 1
        for path in reader.damaged:
            print(f"scrapy frontier: {path} is damaged and was read in part", file=sys.stderr)
    if not count:
        print("scrapy frontier: no such fetch is in the fetch log", file=sys.stderr)
    return 0 if count else 1


VERBS = (
    Verb(
        "log", "what was fetched of a host or a URL, and when", _run, _options, "HOST|URL",
        about=(
            "Prints lines of the fetch log, the oldest first: robots.txt, media, redirects and\n"
            "failed fetches too. The target is a host, .domain (with all below it), an address\n"
            "or a URL. The fields are\n\n"
            f"  {' '.join(FIELDS)}\n\n"
            "see docs/evidence.md. What a running crawl has fetched is there a second later."
        ),
        examples=(
            "log example.com -j crawls/news",
            "log .example.com --since 7d -j crawls/news --json",
            "log https://example.com/page --since 2026-11-21 -j crawls/news",
        ),
        exits={1: "nothing was found"},
    ),
)  # fmt: skip
