"""``--dry-run`` of the verbs that change many URLs: how many there are, and the first of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator

from scrapy_spider_suite.commands.frontier_verbs.judges import terms_of_job
from scrapy_spider_suite.commands.frontier_verbs.verb import Call
from scrapy_spider_suite.control.reach import within
from scrapy_spider_suite.control.renewing import known
from scrapy_spider_suite.explaining.spelling import normalizer_to_look
from scrapy_spider_suite.frontier.outcomes import State
from scrapy_spider_suite.frontier.subjects import Kind, Subject
from scrapy_spider_suite.storage.reader import StoreReader, UrlRow
from scrapy_spider_suite.storage.records import UrlState
from scrapy_spider_suite.urls.normalizer import Normal

_SHOWN = 10


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """Declare ``--dry-run``."""
    parser.add_argument("--dry-run", action="store_true", help="only count what it would change")


def count_urls(
    call: Call, subject: Subject | None, wanted: Callable[[str, UrlState], bool], *,
    failed_only: bool = False, pending_too: bool = False,
) -> int:  # fmt: skip
    """Count the URLs of *subject* (None: of all hosts) that are *wanted*."""
    with StoreReader(call.folder()) as reader:
        found = (
            row
            for host in _hosts(reader, subject, failed_only=failed_only)
            for row in reader.urls(host)
            if wanted(row.url, row.state)
            and (row.state.state is State.FAILED or not failed_only)
            and (row.state.state is not State.PENDING or pending_too)
        )
        return _print(call, found)


def count_listed(call: Call, urls: Iterable[str]) -> int:
    """Count those of *urls* that are done or failed."""
    with StoreReader(call.folder()) as reader:
        normal = normalizer_to_look(terms_of_job(call, reader), reader.store)
        return _print(call, _known(reader, urls, normal))


def _known(reader: StoreReader, urls: Iterable[str], normal: Normal) -> Iterator[UrlRow]:
    for url in urls:
        entry, data = known(reader.store, url, normal)
        if entry is not None and data is not None:
            state = UrlState.from_bytes(data)
            if state.state is not State.PENDING:
                yield UrlRow(entry.url, state)


def _hosts(reader: StoreReader, subject: Subject | None, *, failed_only: bool) -> Iterator[str]:
    if subject is not None and subject.kind is not Kind.DOMAIN:
        yield subject.host
        return
    belongs = within(subject) if subject is not None else None
    for name, record in reader.hosts():
        if (belongs is None or belongs(name)) and (record.failed or not failed_only):
            yield name


def _print(call: Call, found: Iterable[UrlRow]) -> int:
    counts: dict[str, int] = {}
    first: list[str] = []
    for row in found:
        reason = row.state.event.value if row.state.event else row.state.state.value
        counts[reason] = counts.get(reason, 0) + 1
        if len(first) < _SHOWN:
            first.append(row.url)
    total = {"dry_run": True, "urls": sum(counts.values())}
    call.facts({**total, **({"by_reason": counts} if call.json else counts), "first": first})
    return 0


