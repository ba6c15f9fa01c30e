"""``scrapy frontier test``: what would become of URLs, before a crawl or beside one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack

from scrapy_spider_suite.commands.frontier_verbs.judges import (
    judge,
    terms_of_job,
    terms_of_spider,
)
from scrapy_spider_suite.operate.judge import UrlJudge, decisive
from scrapy_spider_suite.operate.terms import normalizer_for_reading
from scrapy_spider_suite.operate.verb import Invocation, Row, Verb
from scrapy_spider_suite.operate.verbs.why import trace
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.urls.normalizer import Normal
from scrapy_spider_suite.urls.url_lists import BadLine, SeedLines, read_lines


def _depth(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r}: expected a number of links")


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="FILE|URL", nargs="*", help="URLs, host names, files")
    parser.add_argument("--spider", metavar="NAME", help="by the terms of a spider of the project")
    parser.add_argument(
        "--depth", type=_depth, default=1, metavar="N",
        help="links from a seed (1); 0: they are seeds, for which there is no scope",
    )  # fmt: skip


def _lines(sources: list[str]) -> Iterator[str]:
    if sources:
        return read_lines(sources, "")
    return (line.decode("utf-8", "replace") for line in sys.stdin.buffer)


def _rows(
    call: Invocation, judging: UrlJudge, reader: StoreReader | None, normal: Normal
) -> Iterator[Row]:
    lines = SeedLines("standard input", normal=normal)
    for line in _lines(call.options.source):
        seed = lines.read(line.encode())
        if isinstance(seed, BadLine):
            yield _row(seed.text, "refuse", "normal form", seed.why, f"{seed.origin}:{seed.line}")
        elif seed is not None:
            known = None if reader is None else trace(reader, seed.url, seed.url)
            if known is not None:
                reason = f": {known.state.event.value}" if known.state.event else ""
                why = f"it is {known.state.state.value}{reason}"
                yield _row(seed.url, "known", "seen", why, "the job")
                continue
            by = decisive(judging.findings(seed.url, call.options.depth))
            yield _row(seed.url, by.judgement.value, by.rule, by.why, by.where)


def _row(url: str, judgement: str, rule: str, why: str, where: str) -> Row:
    return {"judgement": judgement, "decided_by": rule, "why": why, "where": where, "url": url}


def _run(call: Invocation) -> int:
    with ExitStack() as stack:
        reader = None
        if call.jobdir and call.options.spider is None:
            reader = stack.enter_context(StoreReader(call.folder()))
            terms = terms_of_job(call, reader)
        else:
            terms = terms_of_spider(call, call.options.spider)
        normal = normalizer_for_reading(terms, None if reader is None else reader.store)
        rows = list(_rows(call, judge(terms, reader), reader, normal))
    call.table(rows, ("judgement", "decided_by", "why", "where", "url"))
    return 0 if all(row["judgement"] != "refuse" for row in rows) else 1


VERBS = (
    Verb(
        "test", "what would become of URLs if they were found now; nothing is fetched", _run,
        _options, "[FILE|URL]...",
        about=(
            "Without a source it reads standard input. With a job the terms are those of its last\n"
            "crawl, with its robots.txt, budgets and blocks; with --spider, or without a job,\n"
            "those of the project, for a crawl that has not begun."
        ),
        examples=(
            "test seeds.txt -j crawls/news",
            "test https://example.com/a https://example.org/ --spider news",
            "test seeds.txt --depth 3 --json -j crawls/news",
        ),
        exits={1: "one of them at least would be refused"},
        needs_job=False,
    ),
)  # fmt: skip
