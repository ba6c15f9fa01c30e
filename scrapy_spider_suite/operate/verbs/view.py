"""``view``: what a page about a crawl asks of the jobs of its agents; not listed in the help."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from scrapy_spider_suite.operate import verb


def _read(call: verb.Invocation, question: verb.Question) -> Iterable[verb.Row]:
    from scrapy_spider_suite.operate.crawl_view import CrawlView  # crawls load all verbs

    options, view = call.options, CrawlView(Path(str(call.jobdir)), call.settings)
    if options.part == "hosts":
        return view.hosts(options.by, options.limit)
    if options.part == "pages":
        return view.pages(options.limit)
    if options.part == "search":
        return view.search(options.words)
    return filter(None, [view.links()])


def _show(call: verb.Invocation, found: verb.Found) -> int:
    rows = list(found.rows())
    call.table(rows, found.columns(*dict.fromkeys(name for row in rows for name in row)))
    return 0


VERBS = (
    verb.JobVerb(
        "view", "what a page about the crawl shows of a job",
        options=(
            verb.option("part", choices=("hosts", "pages", "links", "search")),
            verb.option("--by", choices=("slowest", "pending", "failed"), default="pending"),
            verb.option("--words", default=""),
            verb.LIMIT,
        ),
        look=_read, show=_show,
    ),
)  # fmt: skip
