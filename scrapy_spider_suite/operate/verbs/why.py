"""``why`` and ``test``: why a host waits, the fate of a URL, and what each rule says of URLs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack

from scrapy.exceptions import UsageError

from scrapy_spider_suite.operate import judge, verb
from scrapy_spider_suite.operate.explanations import explain_host, explain_url, trace
from scrapy_spider_suite.operate.terms import (
    normalizer_for_reading,
    terms_of_job,
    terms_of_spider,
)
from scrapy_spider_suite.operate.verbs.runs import ending_in_queue
from scrapy_spider_suite.operate.verbs.status import (
    crawl_in_words,
    pauses,
    silent_servers,
)
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.urls.normalizer import Normal
from scrapy_spider_suite.urls.url_lists import BadLine, SeedLines, read_lines

_NO_SEED = "normal form"  # the rule that refuses a line of a list


def _read_why(call: verb.Invocation, question: verb.Question) -> Iterator[verb.Row]:
    subject: str | None = call.options.subject
    with StoreReader(call.folder()) as reader:
        if subject is None:
            yield _of_crawl(call, reader)
        else:
            explain = explain_url if "://" in subject else explain_host
            yield explain(call.settings, reader, subject)


def _show_why(call: verb.Invocation, found: verb.Found) -> int:
    # All agents judge an unknown URL alike.
    rows, now = list(found.rows()), time.time()
    known = [row for row in rows if row.get("state") != "unknown"] or rows[:1]
    if call.redis is not None and known and known[0].get("state") == "unknown":
        known = [known[0] | ending_in_queue(call, str(known[0].get("normal_form") or ""))]
    for number, row in enumerate(known):
        if number and not call.json:
            print()
        if "waits" in row and not call.json:
            row["waiting"] = judge.wait_summary(judge.wait_counts(row.pop("waits"), now), now)
        call.facts(row)
    return 0


def _of_crawl(call: verb.Invocation, reader: StoreReader) -> verb.Row:
    now = time.time()
    state, status = reader.crawl_state(now), reader.status() or {}
    paused = pauses(reader, status)
    if call.json:
        waits = judge.wait_rows(judge.waits_in_status(status), now)
        silent = silent_servers(state, status)
        return {"running": state.running, "paused": paused, "waits": waits, **silent}
    lines = crawl_in_words(state, status, paused, now)
    return {name: words for name, words in lines.items() if words}


def _test_rows(
    depth: int, lines: Iterable[str], judging: judge.UrlJudge, reader: StoreReader | None,
    normal: Normal,
) -> Iterator[verb.Row]:  # fmt: skip
    seeds = SeedLines("standard input", normal=normal)
    for line in lines:
        seed = seeds.read(line.encode())
        if isinstance(seed, BadLine):
            where = f"{seed.origin}:{seed.line}"
            yield _test_row(seed.text, "refuse", _NO_SEED, seed.why, where)
        elif seed is not None:
            known = None if reader is None else trace(reader, seed.url, seed.url)
            if known is not None:
                reason = f": {known.state.event.value}" if known.state.event else ""
                why = f"it is {known.state.state.value}{reason}"
                yield _test_row(seed.url, "known", "seen", why, "the job")
                continue
            by = judge.decisive(judging.findings(seed.url, depth))
            yield _test_row(seed.url, by.judgement.value, by.rule, by.why, by.where)


def _test_row(url: str, judgement: str, rule: str, why: str, where: str) -> verb.Row:
    return {"judgement": judgement, "decided_by": rule, "why": why, "where": where, "url": url}


def _plan_test(call: verb.Invocation) -> verb.Question:
    options = call.options
    if options.spider is not None and call.redis is not None:
        raise UsageError("test: --spider goes by this project: leave -j out", print_help=False)
    lines: Iterable[str] = read_lines(options.source, "")
    if not options.source:
        lines = (line.decode("utf-8", "replace").rstrip("\r\n") for line in sys.stdin.buffer)
    return verb.Question(lines=lines, words=("--depth", str(options.depth)))


def _read_test(call: verb.Invocation, question: verb.Question) -> Iterator[verb.Row]:
    options, lines = call.options, question.lines or ()
    with ExitStack() as stack:
        reader = None
        if call.jobdir and options.spider is None:
            reader = stack.enter_context(StoreReader(call.folder()))
            terms = terms_of_job(call.settings, reader)
        else:
            terms = terms_of_spider(call.settings, options.spider)
        normal = normalizer_for_reading(terms, None if reader is None else reader.store)
        yield from _test_rows(options.depth, lines, judge.UrlJudge(terms, reader), reader, normal)


def _show_test(call: verb.Invocation, found: verb.Found) -> int:
    rows = list(found.rows())
    for row in rows:
        if "agent" in row and row["decided_by"] == _NO_SEED:
            row["agent"] = None  # each would say so
    call.table(rows, found.columns("judgement", "decided_by", "why", "where", "url"))
    return 1 if any(row["judgement"] == "refuse" for row in rows) else 0


VERBS = (
    verb.JobVerb(
        "why", "why the crawl or a host waits, what became of a URL, and what comes next",
        options=(verb.option(
            "subject", metavar="HOST|URL", nargs="?",
            type=lambda text: text if "://" in text else verb.host_argument(text),
            help="a host with or without port, or a URL; the whole crawl if it is left out",
        ),),
        arguments="[HOST|URL]", look=_read_why, show=_show_why, of_one_host=True,
        about=(
            "Without an argument: how many hosts wait, by reason, and when the first of each may\n"
            "be visited. Of a URL: its normal form, state, reason, attempts, the page with a link\n"
            "to it, its next try, and what each rule says of it, with the setting, the line of\n"
            "the overrides or of robots.txt, or the operator behind it. A URL that the job does\n"
            "not know is judged as if the page of a seed led there."
        ),
        examples=(
            "why example.com -j crawls/news",
            "why https://example.com/private/page -j crawls/news",
        ),
    ),
    verb.JobVerb(
        "test", "what would become of URLs if they were found now; nothing is fetched",
        options=(
            verb.option("source", metavar="FILE|URL", nargs="*", help="URLs, host names, files"),
            verb.option("--spider", metavar="NAME", help="by the terms of a spider of the project"),
            verb.option(
                "--depth", type=verb.COUNT, default=1, metavar="N",
                help="links from a seed (1); 0: they are seeds, for which there is no scope",
            ),
        ),
        arguments="[FILE|URL]...", plan=_plan_test, look=_read_test, show=_show_test,
        reads_only=lambda options, listed: options.spider is None and options.source == [listed],
        about=(
            "Without a source it reads standard input. With a job the terms are those of its last\n"
            "crawl, with its robots.txt, budgets and blocks; with --spider, or without a job,\n"
            "those of the project, for a crawl that has not begun."
        ),
        examples=(
            "test https://example.com/a https://example.org/ --spider news",
            "test seeds.txt --depth 3 --json -j crawls/news",
        ),
        exits={1: "one of them at least would be refused"},
        needs_job=False,
    ),
)  # fmt: skip
