"""URLs that a pattern, a reason or a list of an operator names, and their counts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from scrapy_spider_suite.crawl.queue.frontier import UrlEdits
from scrapy_spider_suite.crawl.requests import seed_entry
from scrapy_spider_suite.errors import ActionError
from scrapy_spider_suite.frontier.entries import Entry, state_key
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.operate.job_target import BLOCKS, stored_blocks
from scrapy_spider_suite.operate.terms import normalizer_for_reading, terms_of_job
from scrapy_spider_suite.operate.verb import ActionProgress, AnswerIsNoError, Invocation, Row
from scrapy_spider_suite.store.job_reader import StoreReader, UrlRow
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import HostRecord, UrlState
from scrapy_spider_suite.urls.host_patterns import HostPattern, PatternKind
from scrapy_spider_suite.urls.normalize import host_of, normalize
from scrapy_spider_suite.urls.normalizer import Normal
from scrapy_spider_suite.urls.url_lists import BadLine, Seed, SeedLines


def parse_reason(text: str) -> Event:
    """The event called *text*. Raises `ActionError`."""
    try:
        return Event(text.replace("-", "_"))
    except ValueError:
        known = ", ".join(event.value for event in Event)
        raise ActionError(f"{text[:80]!r} is no reason; known: {known}") from None


def parse_pattern(
    text: str, normalizer: Normal = normalize
) -> tuple[HostPattern, Callable[[str], bool]]:
    """The hosts of *text*, and a test of URLs: a host, a domain, a URL, a URL with ``*``.

    *normalizer* is the crawl's. Raises `ActionError`.
    """
    try:
        if "://" not in text:
            subject = HostPattern.parse(text)
            if subject.kind is PatternKind.RANGE:
                raise ActionError("which hosts live in an address range is not known: name them")
            return subject, lambda url: True
        # Each half is spelled as URLs are kept; a star is none of their characters.
        head, *rest = text.split("*")
        normal = normalize(head) if rest else normalizer(head)
        if normal is None or (rest and head.count("/") < 3):
            raise ActionError(f"{text!r}: expected a URL, with * only after the host")
    except ValueError as error:
        raise ActionError(str(error)) from None
    host = host_of(normal)
    # Each piece is matched where it is found first: there is no backtracking.
    pieces = [re.escape(normal), *(f"(?>.*?{re.escape(each)})" for each in rest[:-1])]
    end = f".*{re.escape(rest[-1])}" if rest else ""
    pattern = re.compile("".join([*pieces, end]), re.DOTALL)
    return HostPattern(PatternKind.HOST, host, host), lambda url: bool(pattern.fullmatch(url))


_HOSTS_A_PORTION = 200  # hosts that are looked at in one portion


def hosts_matching(
    rework: UrlEdits, subject: HostPattern, progress: ActionProgress
) -> Iterator[str | None]:
    """The known hosts of *subject*, after that of *progress*; None: a portion ends."""
    if subject.kind is PatternKind.DOMAIN:
        return walk_hosts(rework, progress, lambda name, _: subject.has_host(name))
    return iter([subject.host])


def walk_hosts(
    rework: UrlEdits, progress: ActionProgress, wanted: Callable[[str, HostRecord], object]
) -> Iterator[str | None]:
    """The *wanted* hosts of a job, after that of *progress*; None: a portion ends."""
    while rows := rework.hosts(progress.host, _HOSTS_A_PORTION):
        for name, record in rows:
            if wanted(name, record):
                yield name
            progress.host = name
        yield None


def parse_subject(text: str) -> HostPattern:
    """The subject that *text* names. Raises `ActionError`."""
    try:
        return HostPattern.parse(text)
    except ValueError as error:
        raise ActionError(str(error)) from None


SPIDERS_OWN = (
    "of a spider's own request no callback is kept: `add` has its URL fetched for parse(), "
    "a crawl with a new JOBDIR begins anew"
)
"""Advice about a request that cannot be made again."""


def find_seed(store: RocksStore, seed: Seed, normal: Normal) -> tuple[Entry, UrlState] | None:
    """The entry of *seed* and its state: by the normal form, or as its server insists on it.

    A seed whose scheme was guessed may be known with http.
    """
    urls = [seed.url]
    if seed.guessed:
        urls.append(seed.url.replace("https:", "http:", 1))
    for url in urls:
        for entry in (seed_entry(url, normal), seed_entry(url)):
            if entry is not None and (data := store.state(entry.identity)) is not None:
                return entry, UrlState.from_bytes(data)
    return None


_SHOWN, _BAD = 10, 5


def count_urls(
    call: Invocation, subject: HostPattern | None, wanted: Callable[[str, UrlState], bool], *,
    failed_only: bool = False, pending_too: bool = False,
) -> Row:  # fmt: skip
    with StoreReader(call.folder()) as reader:
        found = (
            row
            for host in _hosts_to_count(reader, subject, failed_only=failed_only)
            for row in reader.urls(host)
            if wanted(row.url, row.state)
            and (row.state.state is State.FAILED or not failed_only)
            and (row.state.state is not State.PENDING or pending_too)
        )
        return _counted_rows(found)


def normal_of(call: Invocation) -> Normal:
    """The normaliser of the job's crawl; each of several agents goes by its own."""
    if call.redis is not None:
        return normalize
    with StoreReader(call.folder()) as reader:
        return _normal_of(call, reader)


def _normal_of(call: Invocation, reader: StoreReader) -> Normal:
    return normalizer_for_reading(terms_of_job(call.settings, reader), reader.store)


def count_listed(call: Invocation, lines: Iterable[str], *, pending_too: bool) -> Row:
    """Count the URLs of a list that are done or failed, or pending too."""
    with StoreReader(call.folder()) as reader:
        bad: Row = {}
        normal = _normal_of(call, reader)
        found = (find_seed(reader.store, seed, normal) for seed in _seeds_in(lines, bad, normalize))
        rows = (UrlRow(known[0].url, known[1]) for known in found if known is not None)
        wanted = (row for row in rows if pending_too or row.state.state is not State.PENDING)
        return _counted_rows(wanted) | bad


def count_seeds(call: Invocation, lines: Iterable[str]) -> Row:
    """Count the seeds of a list, with repetitions, and the seeds that the job does not know."""
    with StoreReader(call.folder()) as reader:
        bad: Row = {}
        total, new, first = 0, 0, list[str]()
        for seed in _seeds_in(lines, bad, _normal_of(call, reader)):
            total += 1
            if reader.store.state(state_key(host_of(seed.url), seed.url)) is None:
                new += 1
                first += [seed.url] * (len(first) < _SHOWN)
        return {"dry_run": True, "urls": total, "new": new, "first": first, **bad}


def count_pending(call: Invocation, subject: HostPattern, *, blocked: bool = False) -> Row:
    """Count the pending URLs of *subject*, which is *blocked*, or is to be."""
    with StoreReader(call.folder()) as reader:
        blocks = stored_blocks(reader.store.kv(BLOCKS))
        known = [each for each in blocks if each.subject == str(subject)]
    if blocked and not known:
        raise AnswerIsNoError(f"{subject} is not blocked by itself")
    if subject.kind is PatternKind.RANGE:
        return {"dry_run": True, "urls": None, "why": "which hosts live there is not known"}

    def wanted(url: str, state: UrlState) -> bool:
        return state.state is State.PENDING and subject.has_url(url)

    return count_urls(call, subject, wanted, pending_too=True)


def _seeds_in(lines: Iterable[str], bad: Row, normal: Normal) -> Iterator[Seed]:
    read = SeedLines("", normal=normal)
    for line in lines:
        seed = read.read(line.encode())
        if isinstance(seed, BadLine):
            bad["no_web_addresses"] = bad.get("no_web_addresses", 0) + 1
            first = bad.setdefault("first_bad", [])
            first += [str(seed)] * (len(first) < _BAD)
        elif seed is not None:
            yield seed


def _hosts_to_count(
    reader: StoreReader, subject: HostPattern | None, *, failed_only: bool
) -> Iterator[str]:
    if subject is not None and subject.kind is not PatternKind.DOMAIN:
        yield subject.host
        return
    for name, record in reader.store.records():
        if (subject is None or subject.has_host(name)) and (record.failed or not failed_only):
            yield name


def _counted_rows(found: Iterable[UrlRow]) -> Row:
    counts: dict[str, int] = {}
    first: list[str] = []
    for row in found:
        reason = row.state.event.value if row.state.event else row.state.state.value
        counts[reason] = counts.get(reason, 0) + 1
        if len(first) < _SHOWN:
            first.append(row.url)
    urls = sum(counts.values())
    return {"dry_run": True, "urls": urls, "by_reason": counts, "first": first}
