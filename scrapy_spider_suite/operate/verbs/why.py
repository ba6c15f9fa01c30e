"""When a page is visited again, and why then, in words.

What a job knows of one URL: its state, its place in the queue, and where it came from.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from scrapy import Request
from scrapy.utils.request import fingerprint

from scrapy_spider_suite.fetch.fetch_log import FetchLine, parse_line
from scrapy_spider_suite.fetch.fetch_log_reader import FetchFilter, FetchLogReader
from scrapy_spider_suite.frontier.entries import Entry, Flag, host_key, state_key
from scrapy_spider_suite.frontier.outcomes import State
from scrapy_spider_suite.operate.judge import display_duration
from scrapy_spider_suite.operate.terms import CrawlTerms
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.revisit_plans import MISSES_MAX, ROWS, RevisitPlan, plan_of
from scrapy_spider_suite.store.rows import UrlState
from scrapy_spider_suite.store.url_states import lastmod, seed_tag
from scrapy_spider_suite.urls.normalize import host_of

Row = dict[str, object]


def next_visit(terms: CrawlTerms, plan: RevisitPlan, wall: float) -> Row:
    """When the page of *plan* is visited again, and what is known of it, at *wall* time."""
    if terms.settings.revisit == "off":
        where = terms.where("SUITE_REVISIT")
        return {"next_try": "never", "why_then": f"pages are not fetched again ({where})"}
    left = plan.due - wall
    when = f"it is due since {display_duration(-left)}"
    if left > 0:
        when = f"in {display_duration(left)}"
    return {"next_try": f"{when}: {_time(plan.due)}", "why_then": _why(terms, plan), **_facts(plan)}


def _why(terms: CrawlTerms, plan: RevisitPlan) -> str:
    if plan.claimed:
        return "a sitemap says that it has changed since"
    if plan.misses:
        times = "once" if plan.misses == 1 else f"{plan.misses} times"
        return f"it was not there, {times} in a row; after {MISSES_MAX} it is not looked for again"
    if terms.settings.revisit == "fixed":
        return f"every page is visited again ({terms.where('SUITE_REVISIT_INTERVAL')})"
    history = plan.history
    known = history.quiet or history.dated or history.changed
    by = "by what its visits found" if known else "as is assumed of a page that was visited once"
    return f"it changes about every {display_duration(1 / plan.rate)}, {by}"


def _facts(plan: RevisitPlan) -> Row:
    facts: Row = {"last_visit": _time(plan.history.last)}
    if plan.validators.etag:
        facts["etag"] = plan.validators.etag
    if plan.validators.last_modified:
        facts["last_modified"] = plan.validators.last_modified
    return facts


def _time(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


SINCE = 600.0
"""Seconds before a URL's last word in which its fetch may have ended."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A URL that the job knows. *entry* is its row and *ahead* how many others of its host come
    before it, if it is pending; *tag* is None for what is no seed; *of_spider*: it is a request
    that a spider made, or may be."""

    url: str
    state: UrlState
    entry: Entry | None
    ahead: int
    tag: str | None
    of_spider: bool
    lastmod: int | None = None
    """When a sitemap says that its page changed, in seconds since the epoch."""
    plan: RevisitPlan | None = None
    """When it is visited again."""


def trace(reader: StoreReader, url: str, normal: str) -> Trace | None:
    """What is known of *url*, whose *normal* form is given; None if it was never stored."""
    host = host_of(normal)
    found = _find(reader, host, url, normal)
    if found is None:
        return None
    identity, state = found
    entry, ahead = None, 0
    if state.state is State.PENDING:
        for ahead, each in enumerate(reader.pending(host)):  # noqa: B007
            if each.identity == identity:
                entry = each
                break
    of_spider = identity.startswith(host_key(host) + b"\xff")
    tag, when = seed_tag(reader.store, identity), lastmod(reader.store, identity)
    plan = plan_of(reader.store.kv(ROWS), identity)
    return Trace(normal, state, entry, ahead, tag, of_spider, when, plan)


def _find(reader: StoreReader, host: str, url: str, normal: str) -> tuple[bytes, UrlState] | None:
    """The identity under which a URL is known, and its state."""
    keys = [state_key(host, normal)]
    for each in {url, normal}:
        keys.append(host_key(host) + b"\xff" + fingerprint(Request(each)))
    for key in keys:
        data = reader.store.state(key)
        if data is not None:
            return key, UrlState.from_bytes(data)
    # Another method, or a fingerprinter of the project's own.
    for name, data in reader.store.states(host_key(host) + b"\xff"):
        state = UrlState.from_bytes(data)
        if state.url in (url, normal):
            return host_key(host) + b"\xff" + name, state
    for entry in reader.pending(host):
        if entry.url in (url, normal):
            return entry.identity, UrlState(State.PENDING)
    return None


def last_fetch(folder: Path, target: str, since: float) -> FetchLine | None:
    """The last line of *target* in the fetch log in *folder*, of those since *since* (wall)."""
    last = None
    if folder.is_dir():
        for line in FetchLogReader(folder).lines(FetchFilter.parse(target), since):
            last = line
    try:
        return None if last is None else parse_line(last)
    except ValueError:
        return None


def came_from(known: Trace, fetch: FetchLine | None) -> str:
    """The page that led to a URL, in words where it was none; "" if that is not known."""
    page = known.state.via
    if known.entry is not None:
        page = known.entry.referrer
        if not page and known.entry.flags & Flag.START:
            return "start()"
        if page and known.entry.flags & Flag.SPECULATIVE:
            return f"mined from {page}"
    elif fetch is not None and fetch.via:
        page = fetch.via
    if page or known.tag is None:
        return page
    return f"a seed, tag {known.tag}" if known.tag else "a seed"
