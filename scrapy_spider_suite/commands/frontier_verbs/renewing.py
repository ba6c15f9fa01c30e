"""``scrapy frontier refetch`` and ``retry``."""

from __future__ import annotations

import argparse
import os

from scrapy_spider_suite.commands.frontier_verbs import acting, counting
from scrapy_spider_suite.errors import ActionError
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.operate.url_selection import parse_pattern, parse_reason
from scrapy_spider_suite.operate.verb import Invocation, Verb, add_caution, without_port
from scrapy_spider_suite.urls.url_lists import is_file_name, read_lines

_PATTERN = "FILE|PATTERN"


def _refetch_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar=_PATTERN)
    parser.add_argument(
        "--first", action="store_true",
        help="before everything else of their hosts, those that are pending too",
    )  # fmt: skip
    add_caution(parser)
    acting.add_options(parser)


def _refetch(call: Invocation) -> int:
    options = call.options
    arguments: dict[str, object] = {"first": options.first}
    if "://" not in options.source and os.path.isfile(options.source):
        lines = read_lines([options.source], "")
        if options.dry_run:
            return counting.count_listed(call, lines, pending_too=options.first)
        return acting.act(call, "refetch", arguments, urls=lines)
    if "://" not in options.source and is_file_name(options.source):
        raise ActionError(f"{options.source!r} is no URL, and there is no such file")
    pattern = without_port(options.source)
    subject, wanted = parse_pattern(pattern)
    if options.dry_run:
        subject, wanted = parse_pattern(pattern, counting.normal_of(call))
        return counting.count_urls(
            call, subject, lambda url, _: wanted(url), pending_too=options.first
        )
    return acting.act(call, "refetch", {**arguments, "pattern": pattern})


def _reason(text: str) -> str:
    try:
        return parse_reason(text).value
    except ActionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _retry_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subject", metavar="PATTERN", nargs="?", type=without_port,
        help="of these hosts or URLs only",
    )  # fmt: skip
    add_caution(parser)
    acting.add_options(parser)
    parser.add_argument(
        "--reason", type=_reason, required=True, metavar="REASON",
        help="why they failed: a reason of the outcome table, such as timeout",
    )  # fmt: skip


def _retry(call: Invocation) -> int:
    options = call.options
    arguments = {"reason": options.reason}
    if options.subject is not None:
        arguments["subject"] = options.subject
    subject, within = None, None
    if options.subject is not None:
        subject, within = parse_pattern(options.subject, counting.normal_of(call))
    if options.dry_run:
        reason = Event(options.reason)
        return counting.count_urls(
            call, subject,
            lambda url, state: state.event is reason and (within is None or within(url)),
            failed_only=True,
        )  # fmt: skip
    return acting.act(call, "retry", arguments)


_PATTERNS = (
    "PATTERN is a host, a .domain, a URL, or a URL with * for anything after its host.\n"
    "The delays hold as ever. Requests that a spider made itself cannot be made again."
)
VERBS = (
    Verb(
        "refetch", "fetch URLs again that were fetched or failed", _refetch, _refetch_options,
        _PATTERN, about=f"FILE has a URL a line.\n{_PATTERNS}",
        examples=(
            "refetch changed.txt --first -j crawls/news",
            "refetch 'https://example.com/news/*' --dry-run -j crawls/news",
            "refetch .example.com -j crawls/news",
        ),
        exits=acting.EXITS,
    ),
    Verb(
        "retry", "try URLs again that failed for one reason", _retry, _retry_options,
        "--reason REASON",
        about=f"{_PATTERNS}\nWith the reason trap, what is closed on these hosts is open again.",
        examples=(
            "retry --reason timeout -j crawls/news",
            "retry example.com --reason robots --why 'they changed it' -j crawls/news",
            "retry shop.example --reason trap -j crawls/news",
        ),
        exits=acting.EXITS,
    ),
)  # fmt: skip
