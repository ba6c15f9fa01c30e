"""``scrapy frontier drop``."""

from __future__ import annotations

import argparse

from scrapy_spider_suite.commands.frontier_verbs import acting, counting
from scrapy_spider_suite.errors import ActionError, JobError
from scrapy_spider_suite.operate.actions import Answer
from scrapy_spider_suite.operate.verb import Invocation, Verb, add_caution, confirm, without_port
from scrapy_spider_suite.operate.verbs.drop import (
    KNOWN,
    NOT_REMOVED,
    NOT_TOUCHED,
    belongs,
    knows,
    parse_droppable,
    unknown,
)
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.urls.host_patterns import HostPattern

_IN_PART = 4


def _droppable(text: str) -> HostPattern:
    try:
        return parse_droppable(without_port(text))
    except ActionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", metavar="HOST|PREFIX", type=_droppable)
    add_caution(parser, asks=True)
    acting.add_options(parser)


def _run(call: Invocation) -> int:
    subject: HostPattern = call.options.subject
    if call.options.dry_run:
        _require(call, subject)
        return counting.count_urls(
            call, subject, lambda url, _: belongs(subject, url), pending_too=True
        )
    confirm(call, f"Drop {subject} and everything that the job keeps about it?")
    answer = acting.answer(call, "drop", {"subject": str(subject)})
    if answer is None or not answer.ok:
        return acting.finish(call, answer)
    known = _known(answer)
    if call.json:
        acting.say(call, answer)
    elif known:
        print(answer.said)
        print("not touched:\n  " + "\n  ".join(answer.facts[NOT_TOUCHED]))
        print(f"receipt: {answer.id} (`scrapy frontier audit drop --json` has it)")
    if silent := acting.silence(answer):
        return silent
    if not known:
        raise JobError(answer.said)
    return _IN_PART if answer.facts.get(NOT_REMOVED) else 0


def _known(answer: Answer) -> bool:
    """Whether any agent knew it, or the one job."""
    agents = answer.facts.get("agents")
    every = [answer.facts] if agents is None else agents.values()
    return any(facts.get(KNOWN, True) for facts in every)


def _require(call: Invocation, subject: HostPattern) -> None:
    """Raise `JobError` if nothing of *subject* is in the job."""
    with StoreReader(call.folder()) as reader:
        found = (belongs(subject, row.url) for row in reader.urls(subject.host))
        if not knows(reader.store, reader.folder, subject) and not any(found):
            raise JobError(unknown(reader.store, subject))


VERBS = (
    Verb(
        "drop", "forget a host, or what lies below a URL, with everything kept about it",
        _run, _options, "HOST|PREFIX",
        about=(
            "URLs pending, done and failed, robots.txt, cookies, clocks and counts go from the\n"
            "store and from its files; the receipt, which stays in the audit log, says how many.\n"
            "It is not blocked by that: links may lead there again. `block` it first to keep it\n"
            "out. It cannot be undone. A host of which nothing is in the job is an error."
        ),
        examples=(
            "drop example.com --dry-run -j crawls/news",
            'drop example.com --yes --why "request of 3 May" -j crawls/news',
            "drop https://example.com/private/ --yes -j crawls/news",
        ),
        exits={**acting.EXITS, _IN_PART: "done but for what the receipt names as not removed"},
    ),
)  # fmt: skip
