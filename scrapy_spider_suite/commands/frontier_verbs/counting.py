"""``--dry-run`` of the verbs that change many URLs: how many there are, and the first of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from scrapy_spider_suite.commands.frontier_verbs.judges import terms_of_job
from scrapy_spider_suite.frontier.entries import state_key
from scrapy_spider_suite.frontier.outcomes import State
from scrapy_spider_suite.operate.restrictions import BLOCKS, stored_blocks
from scrapy_spider_suite.operate.terms import normalizer_for_reading
from scrapy_spider_suite.operate.url_selection import find_seed, host_filter
from scrapy_spider_suite.operate.verb import Invocation, Row
from scrapy_spider_suite.store.job_reader import StoreReader, UrlRow
from scrapy_spider_suite.store.rows import UrlState
from scrapy_spider_suite.urls.host_patterns import HostPattern, PatternKind
from scrapy_spider_suite.urls.normalize import host_of, normalize
from scrapy_spider_suite.urls.normalizer import Normal
from scrapy_spider_suite.urls.url_lists import BadLine, Seed, SeedLines

_SHOWN, _BAD = 10, 5


@dataclass
class _Bad:
    """Lines that are no seeds."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, line: BadLine) -> None:
        self.count += 1
        if len(self.first) < _BAD:
            self.first.append(str(line))

    def facts(self) -> Row:
        """For people: nothing if there are none."""
        return {"no_web_addresses": self.count, "first_bad": self.first} if self.count else {}


def count_urls(
    call: Invocation, subject: HostPattern | None, wanted: Callable[[str, UrlState], bool], *,
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


def normal_of(call: Invocation) -> Normal:
    """The normaliser of the job's crawl; of several agents each has its own, and goes by that."""
    if call.redis is not None:
        return normalize
    with StoreReader(call.folder()) as reader:
        return normalizer_for_reading(terms_of_job(call, reader), reader.store)


def count_listed(call: Invocation, lines: Iterable[str], *, pending_too: bool) -> int:
    """Count those of a list that are done or failed, or pending too."""
    with StoreReader(call.folder()) as reader:
        normal = normalizer_for_reading(terms_of_job(call, reader), reader.store)
        bad = _Bad()
        found = _known(reader, _seeds(lines, bad, normalize), normal, pending_too=pending_too)
        return _print(call, found, bad)


def count_seeds(call: Invocation, lines: Iterable[str]) -> int:
    """Count the seeds of a list, and those that the job does not know (one that comes twice twice).
    """
    with StoreReader(call.folder()) as reader:
        normal = normalizer_for_reading(terms_of_job(call, reader), reader.store)
        bad = _Bad()
        total, new, first = 0, 0, list[str]()
        for seed in _seeds(lines, bad, normal):
            total += 1
            if reader.store.state(state_key(host_of(seed.url), seed.url)) is None:
                new += 1
                first += [seed.url] * (len(first) < _SHOWN)
        call.facts({"dry_run": True, "urls": total, "new": new, "first": first, **bad.facts()})
        return 0


def count_pending(call: Invocation, subject: HostPattern, *, blocked: bool = False) -> int:
    """Count what is pending at *subject*, which is *blocked*, or is to be."""
    with StoreReader(call.folder()) as reader:
        blocks = stored_blocks(reader.store.kv(BLOCKS))
        known = [each for each in blocks if each.subject == str(subject)]
    if blocked and not known:
        print(f"{subject} is not blocked by itself", file=sys.stderr)
        return 1
    if subject.kind is PatternKind.RANGE:
        call.facts({"dry_run": True, "urls": None, "why": "which hosts live there is not known"})
        return 0
    prefix = subject.text if subject.kind is PatternKind.PREFIX else ""

    def wanted(url: str, state: UrlState) -> bool:
        return state.state is State.PENDING and url.startswith(prefix)

    return count_urls(call, subject, wanted, pending_too=True)


def _seeds(lines: Iterable[str], bad: _Bad, normal: Normal) -> Iterator[Seed]:
    """The seeds in *lines*; what is none goes to *bad*."""
    read = SeedLines("", normal=normal)
    for line in lines:
        seed = read.read(line.encode())
        if isinstance(seed, BadLine):
            bad.add(seed)
        elif seed is not None:
            yield seed


def _known(
    reader: StoreReader, seeds: Iterable[Seed], normal: Normal, *, pending_too: bool
) -> Iterator[UrlRow]:
    for seed in seeds:
        entry, data = find_seed(reader.store, seed, normal)
        if entry is not None and data is not None:
            state = UrlState.from_bytes(data)
            if pending_too or state.state is not State.PENDING:
                yield UrlRow(entry.url, state)


def _hosts(reader: StoreReader, subject: HostPattern | None, *, failed_only: bool) -> Iterator[str]:
    if subject is not None and subject.kind is not PatternKind.DOMAIN:
        yield subject.host
        return
    belongs = host_filter(subject) if subject is not None else None
    for name, record in reader.hosts():
        if (belongs is None or belongs(name)) and (record.failed or not failed_only):
            yield name


def _print(call: Invocation, found: Iterable[UrlRow], bad: _Bad | None = None) -> int:
    counts: dict[str, int] = {}
    first: list[str] = []
    for row in found:
        reason = row.state.event.value if row.state.event else row.state.state.value
        counts[reason] = counts.get(reason, 0) + 1
        if len(first) < _SHOWN:
            first.append(row.url)
    total = {"dry_run": True, "urls": sum(counts.values())}
    reasons = {"by_reason": counts} if call.json else counts
    call.facts({**total, **reasons, "first": first, **(bad.facts() if bad else {})})
    return 0


