"""``scrapy frontier block``, ``unblock`` and ``blocks``."""

from __future__ import annotations

import argparse
import math
import time

from scrapy_spider_suite.commands.frontier_verbs import acting, counting
from scrapy_spider_suite.operate import restrictions
from scrapy_spider_suite.operate.verb import (
    Invocation,
    Verb,
    add_caution,
    confirm,
    display_text,
    without_port,
)
from scrapy_spider_suite.settings import values
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.urls.host_patterns import HostPattern

_SUBJECT = "HOST|.domain|CIDR|URL"


def subject(text: str) -> str:
    """The type of a subject argument, in its one spelling."""
    try:
        return str(HostPattern.parse(without_port(text)))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def duration(text: str) -> float:
    """The type of a duration argument: seconds, or ``10m``, ``2h``, ``7d``."""
    kind = values.duration()
    try:
        return float(str(kind.parse(text)))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {kind.allowed}") from None


def _block_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", metavar=_SUBJECT, type=subject)
    parser.add_argument(
        "--for", dest="seconds", type=duration, metavar="TIME",
        help="how long, such as 3600, 12h or 7d (default: until it is unblocked)",
    )  # fmt: skip
    parser.add_argument(
        "--drop", action="store_true",
        help="fail the URLs that are pending there; asks for confirmation",
    )  # fmt: skip
    add_caution(parser, asks=True)
    acting.add_options(parser)


def _block(call: Invocation) -> int:
    options = call.options
    arguments = {"subject": options.subject, "drop": options.drop}
    if options.dry_run:
        return counting.count_pending(call, HostPattern.parse(options.subject))
    if options.drop:
        confirm(call, f"Block {options.subject}, and fail all that is pending there?")
    if options.seconds is not None:
        arguments["seconds"] = options.seconds
    return acting.act(call, "block", arguments)


def _unblock_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", metavar=_SUBJECT, type=subject)
    add_caution(parser)
    acting.add_options(parser)


def _unblock(call: Invocation) -> int:
    if call.options.dry_run:
        return counting.count_pending(call, HostPattern.parse(call.options.subject), blocked=True)
    return acting.act(call, "unblock", {"subject": call.options.subject})


def _blocks(call: Invocation) -> int:
    now = time.time()
    with StoreReader(call.folder()) as reader:
        rows = [
            {
                "subject": block.subject, "who": block.who,
                "since": display_text("when", block.when),
                "until": None if math.isinf(block.until) else display_text("when", block.until),
                "reason": block.reason,
            }
            for block in restrictions.stored_blocks(reader.store.kv(restrictions.BLOCKS))
            if block.until > now
        ]  # fmt: skip
    call.table(rows, ("subject", "who", "since", "until", "reason"))
    return 0


VERBS = (
    Verb(
        "block", "send nothing to a host, a domain, an address range, or below a URL",
        _block, _block_options, _SUBJECT,
        about=(
            "In force within a second in a running crawl, for robots.txt, media and redirects\n"
            "too; what is under way is fetched to its end. What is pending there waits. A block\n"
            "is kept in the job. .example.com is example.com and all that is below it. A host is\n"
            "blocked on all its ports."
        ),
        examples=(
            'block example.com --for 7d --why "complaint of 3 May" -j crawls/news',
            'block .example.com --drop --dry-run --why "asked to leave" -j crawls/news',
            'block .example.com --drop --yes --why "asked to leave" -j crawls/news',
            'block 192.0.2.0/24 --why "their firewall" -j crawls/news',
            'block https://example.com/calendar/ --why "endless" -j crawls/news',
        ),
        exits=acting.EXITS,
    ),
    Verb(
        "unblock", "remove a block", _unblock, _unblock_options, _SUBJECT,
        examples=("unblock example.com -j crawls/news",), exits=acting.EXITS,
    ),
    Verb(
        "blocks", "the blocks that hold: who set them, why, until when", _blocks,
        examples=("blocks -j crawls/news --json",),
    ),
)  # fmt: skip
