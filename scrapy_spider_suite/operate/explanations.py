"""Why a host waits, what became of a URL, and what comes next."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from scrapy import Request
from scrapy.utils.request import fingerprint

from scrapy_spider_suite.errors import JobError
from scrapy_spider_suite.fetch import fetch_log
from scrapy_spider_suite.frontier.entries import Entry, Flag, host_key, state_key
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.frontier.policy import waits_for_rule
from scrapy_spider_suite.frontier.robots_rules import origin_of
from scrapy_spider_suite.operate import job_target, judge, verb
from scrapy_spider_suite.operate.terms import CrawlTerms, normalizer_for_reading, terms_of_job
from scrapy_spider_suite.operate.url_selection import SPIDERS_OWN
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.store.host_queues import NEVER, RESIDENT
from scrapy_spider_suite.store.job_directory import JobFile
from scrapy_spider_suite.store.job_reader import StoreReader, wait_reason
from scrapy_spider_suite.store.revisit_plans import MISSES_MAX, ROWS, RevisitPlan, plan_of
from scrapy_spider_suite.store.rows import HostRecord, UrlState
from scrapy_spider_suite.store.url_states import lastmod, seed_tag
from scrapy_spider_suite.urls.normalize import host_of, normalize

_DAY = 86_400.0
_BEFORE = 600.0  # seconds before the last change of a URL's state in which its fetch may have ended
_SHOWN = 3


def _next_visit(terms: CrawlTerms, plan: RevisitPlan, wall: float) -> verb.Row:
    if terms.settings.revisit == "off":
        where = terms.where("SUITE_REVISIT")
        return {"next_try": "never", "why_then": f"pages are not fetched again ({where})"}
    left = plan.due - wall
    when = f"{'in' if left > 0 else 'due since'} {judge.display_duration(abs(left))}"
    row = {
        "next_try": f"{when}: {_date(plan.due)}", "why_then": _why_then(terms, plan),
        "last_visit": _date(plan.history.last), "etag": plan.validators.etag,
        "last_modified": plan.validators.last_modified,
    }  # fmt: skip
    return {name: value for name, value in row.items() if value}


def _why_then(terms: CrawlTerms, plan: RevisitPlan) -> str:
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
    return f"it changes about every {judge.display_duration(1 / plan.rate)}, {by}"


def _date(when: float) -> str:
    return verb.display_text("when", when)


@dataclass(frozen=True, slots=True)
class Trace:
    """A URL that the job knows."""

    url: str
    state: UrlState
    entry: Entry | None  # its row, if it is pending
    ahead: int  # URLs of its host that come before it
    tag: str | None  # None: it is no seed
    of_spider: bool  # a spider made the request, or may have made it
    lastmod: int | None  # the last change by a sitemap, in seconds since the epoch
    plan: RevisitPlan | None  # of its next visit


def trace(reader: StoreReader, url: str, normal: str) -> Trace | None:
    """The state of *url* with this *normal* form; None if it was never stored."""
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
    prefix, by_spider = host_key(host), b"\xff"
    keys = (prefix + by_spider + fingerprint(Request(each)) for each in {url, normal})
    for key in (state_key(host, normal), *keys):
        if (data := reader.store.state(key)) is not None:
            return key, UrlState.from_bytes(data)
    # Another method, or a fingerprinter of the project's own.
    for name, data in reader.store.states(prefix, by_spider):
        state = UrlState.from_bytes(data)
        if state.url in (url, normal):
            return prefix + name, state
    for entry in reader.pending(host):
        if entry.url in (url, normal):
            return entry.identity, UrlState(State.PENDING)
    return None


def _last_fetch(reader: StoreReader, target: str, since: float) -> fetch_log.FetchLine | None:
    """The last line about *target* in the job's fetch log, since a time of the wall clock."""
    chosen = JobFile.require(reader.folder).settings.get("fetch_log")
    folder = fetch_log.log_folder(reader.folder, chosen)
    if not folder.is_dir():
        return None
    lines = fetch_log.FetchLogReader(folder).lines(fetch_log.FetchFilter.parse(target), since)
    last = deque(lines, maxlen=1)
    with suppress(ValueError, IndexError):
        return fetch_log.parse_line(last[0])
    return None


def _came_from(known: Trace, fetch: fetch_log.FetchLine | None) -> str:
    """The page with the link, or another source in words; "" if it is not known."""
    page, entry = (fetch.via if fetch else "") or known.state.via, known.entry
    if entry is not None:
        page = entry.referrer
        if not page and entry.flags & Flag.START:
            return "start()"
        if page and entry.flags & Flag.SPECULATIVE:
            return f"guessed from {page}"
    if page or known.tag is None:
        return page
    return f"a seed, tag {known.tag}" if known.tag else "a seed"


def host_rows(reader: StoreReader, hosts: Iterable[tuple[str, HostRecord]]) -> Iterator[verb.Row]:
    """The rows of *hosts*, with the time of their next visit and why they wait."""
    now = time.time()
    running = reader.crawl_state(now).running
    policy = job_target.policy_with_blocks(reader.store.kv(job_target.BLOCKS), now)
    paused = job_target.paused_by(reader.store.kv("control"))
    for name, record in hosts:
        exclusion = policy.exclusion_of_visit(name, "", now)
        waits = record.pending and not record.dead
        known = record.pending and record.next_fetch < NEVER
        next_visit = round(max(0.0, record.next_fetch - now), 1) if known else None
        # A host in memory writes down only later that it waits for a block.
        why = str(exclusion) if exclusion is not None and waits else wait_reason(record, now)
        if not running and record.due == RESIDENT and not next_visit and waits:
            why = "no crawl is running"
        if paused and waits:
            next_visit, why = None, f"the job is paused by {paused}; {why}"
        yield {
            "host": name, "pending": record.pending, "done": record.done, "failed": record.failed,
            "next_visit": next_visit, "why": why,
        }  # fmt: skip


def explain_host(settings: Any, reader: StoreReader, name: str) -> verb.Row:
    """Why a host waits, and what is known of it; *settings* of the project. Raises `JobError`."""
    record = reader.store.record(name)
    if record is None:
        raise JobError(f"the job has never met the host {name!r}")
    fetch = _last_fetch(reader, name, time.time() - _DAY)
    address = fetch.address if fetch else ""
    terms = terms_of_job(settings, reader)
    judging = judge.UrlJudge(terms, reader, {name: address})
    twins = normalizer_for_reading(terms, reader.store).twins
    seen = [twins.why(f"{scheme}://{name}/") for scheme in ("http", "https")] if twins else []
    pending = [entry.url for entry in islice(reader.pending(name), _SHOWN)]
    urls = [*pending, f"https://{name}/", f"http://{name}/", fetch.url if fetch else ""]
    origins = dict.fromkeys(filter(None, map(origin_of, urls)))
    robots = [judging.robots(origin) for origin in origins]
    unextracted = reader.unextracted.count_of(name)
    return next(host_rows(reader, [(name, record)])) | {
        **({"unextracted": unextracted} if unextracted else {}),
        "crawl_delay": record.crawl_delay or None, "failures_in_a_row": record.failures,
        "attempts": record.attempts, "address": address,
        "rules": [f"{key} = {value} ({rule})" for key, value, rule in judging.rules(name)],
        "robots": [f"{each.origin}: {judging.describe(each)}" for each in robots if each],
        "next_urls": pending, **({"twins": seen} if any(seen) else {}),
    }  # fmt: skip


def explain_url(settings: Any, reader: StoreReader, url: str) -> verb.Row:
    """What became of a URL, and what comes next; *settings* of the project."""
    terms = terms_of_job(settings, reader)
    plain = normalize(url)
    normalizer = normalizer_for_reading(terms, reader.store)
    normal = None if plain is None else normalizer.respell(plain)
    if plain is None or normal is None:
        because = f"{terms.where('SUITE_NORMALIZER')} drops it"
        if plain is None:
            [finding] = judge.UrlJudge(terms, reader).findings(url)
            because = finding.why
        return {"url": url, "normal_form": None, "state": "unknown", "because": because}
    known = trace(reader, url, normal)
    if known is None and plain != normal:
        # Fetched before it was known to be another's twin, or as its server insists on it.
        known = trace(reader, url, plain)
        normal = normal if known is None else plain
    if known is None or known.entry is None:
        link = reader.sifted(state_key(host_of(normal), normal))
        if link is not None:  # the sieve was not asked yet, or its turn has not come since
            return {
                "url": url, "normal_form": link.url, "host": link.host, "state": "found",
                "because": "a link led to it; whether it is new is known when the sieve is flushed",
                "came_from": link.referrer,
                "next_try": "if it is new, it is queued at its host then",
            }  # fmt: skip
    fetch = None
    if known is not None and known.state.when:  # else the whole log would have to be read
        fetch = _last_fetch(reader, normal, known.state.when - _BEFORE)
    judging = judge.UrlJudge(terms, reader, {host_of(normal): fetch.address} if fetch else {})
    row: verb.Row = {"url": url, "normal_form": normal, "host": host_of(normal)}
    if normalizer.twins is not None and (twins := normalizer.twins.why(plain)):
        row["twins"] = twins
    if known is None:
        row |= _of_unknown(reader, judging, normal)
    else:
        row |= _of_known(reader, terms, judging, known, fetch)
    depth = known.entry.depth if known is not None and known.entry is not None else 1
    return row | {"rules_now": [str(each) for each in judging.findings(normal, depth)]}


def _of_unknown(reader: StoreReader, judging: judge.UrlJudge, url: str) -> verb.Row:
    findings = judging.findings(url)
    decided = judge.decisive(findings)
    unread, because = len(reader.unextracted), "the job has never come across it"
    if unread:
        pages = counted(unread, "stored page")
        because += f"; the links of {pages} are not read yet (SUITE_READ_LINKS)"
    return {
        "state": "unknown", "because": because,
        "if_it_were_found": decided.judgement.value, "decided_by": decided.rule,
        "why": decided.why, "where": decided.where,
    }  # fmt: skip


def _of_known(
    reader: StoreReader, terms: CrawlTerms, judging: judge.UrlJudge, known: Trace,
    fetch: fetch_log.FetchLine | None,
) -> verb.Row:  # fmt: skip
    state, event = known.state, known.state.event
    attempts = known.entry.attempts if known.entry is not None else state.attempts
    tries = f"{attempts}, and Scrapy's RetryMiddleware has its own"
    if not known.of_spider:
        tries = f"{attempts} of at most {terms.settings.retry_times + 1}"
    row: verb.Row = {
        "state": state.state.value, "reason": None if event is None else event.value,
        "because": _because(terms, event),
        "status": state.status or None, "since": _date(state.when) if state.when else None,
        "attempts": tries, "came_from": _came_from(known, fetch),
    }  # fmt: skip
    if fetch is not None and fetch.address:
        row["address"] = fetch.address
    if known.lastmod is not None:
        row["changed_by_sitemap"] = _date(known.lastmod)
    if reader.unextracted.has_url(host_of(known.url), known.url):
        row["links"] = "not read yet: the page is stored until they are wanted (SUITE_READ_LINKS)"
    if state.state is State.PENDING:
        return row | _next_try(reader, judging, known)
    if known.plan is not None:
        return row | _next_visit(terms, known.plan, time.time())
    again = f"only `retry --reason {event}` has it tried again"
    after, reasons = terms.settings.retry_failed_after, terms.settings.retry_failed
    if state.state is State.FAILED and after and event is not None and event.value in reasons:
        when = f"when a link leads there, from {_date(state.when + after)} on"
        return row | {"next_try": when, "why_then": terms.where("SUITE_RETRY_FAILED_AFTER")}
    if known.of_spider:
        again = SPIDERS_OWN
    elif state.state is not State.FAILED:
        again = "only `refetch` has it tried again"
    return row | {"next_try": "never", "why_then": again}


def _because(terms: CrawlTerms, event: Event | None) -> str:
    if event is None:
        return "it has not been tried yet"
    if event is Event.HOST_DEAD and terms.settings.profile == "spider":
        return "not sent: host or robots.txt had failed more often in a row than RETRY_TIMES allows"
    return event.outcome.meaning


def _next_try(reader: StoreReader, judging: judge.UrlJudge, known: Trace) -> verb.Row:
    now = time.time()
    host = host_of(known.url)
    record = reader.store.record(host) or HostRecord()
    if known.entry is None:
        why = "it is queued in another download_slot, whose queue is not looked for"
        row: verb.Row = {"ahead_of_it": None, "under_way": _under_way(reader, now)}
        return row | {"next_try": "at its turn there", "why_then": why}
    findings = judging.at_its_turn(known.entry)
    waits = {each.rule: each for each in findings if each.judgement is judge.Judgement.WAIT}
    robots = waits.pop("robots", None)
    waits.pop("clock", None)
    left = max(0.0, record.next_fetch - now) if record.next_fetch < NEVER else 0.0
    # While a host must wait nothing of it is out, unless its visits overlap, or a rule was set
    # during one.
    still = (robots or judging.one_at_a_time(host, record)) and not waits_for_rule(record.why)
    under_way = "no" if left and still else _under_way(reader, now)
    row = {"ahead_of_it": known.ahead, "under_way": under_way}
    late = judging.put_last(known.entry)
    if late is not None:
        row["put_last"] = str(late)
    decided = judge.decisive(findings)
    if decided.judgement is judge.Judgement.REFUSE:
        ends = "be forgotten" if decided.rule == judge.MINING else "fail"
        return row | {"next_try": f"it will {ends} at its turn", "why_then": str(decided)}
    if waits:
        first = next(iter(waits.values()))
        return row | {"next_try": "not before that ends", "why_then": str(first)}
    if not reader.crawl_state(now).running:
        return row | {"next_try": "when the crawl goes on", "why_then": "no crawl is running"}
    why = wait_reason(record, now)
    rules = judging.robots(origin_of(known.url)) if robots else None
    if rules is not None and not (left and rules.silent):
        left, why = judging.robots_left(rules), str(robots)
    when = f"{'its host is visited next ' if known.ahead else ''}in {judge.display_duration(left)}"
    when = when if 0.0 < left < math.inf else "at its host's next turn"
    return row | {"next_try": when, "why_then": why}


def _under_way(reader: StoreReader, now: float) -> str:
    # The job on disk does not say which URLs are being fetched.
    out = (reader.status() or {}).get("leased", 0) if reader.crawl_state(now).running else 0
    if not out:
        return "no"
    return f"perhaps: {counted(out, 'URL is', 'URLs are')}, and only the crawl knows which"
