"""``scrapy frontier why``: why a host waits, what became of a URL and what will."""

from __future__ import annotations

import argparse
import math
import time
from datetime import UTC, datetime
from itertools import islice

from scrapy_spider_suite.commands.frontier_verbs.hosts import host_rows
from scrapy_spider_suite.commands.frontier_verbs.judges import judge, terms_of_job
from scrapy_spider_suite.commands.frontier_verbs.status import (
    pauses,
    silent_servers,
    words_of_pauses,
    words_of_servers,
    words_of_state,
)
from scrapy_spider_suite.errors import JobError
from scrapy_spider_suite.fetch.fetch_log import LOG_FOLDER as FETCHES
from scrapy_spider_suite.fetch.fetch_log import FetchLine
from scrapy_spider_suite.frontier.entries import Entry, state_key
from scrapy_spider_suite.frontier.outcomes import OUTCOMES, Event, State
from scrapy_spider_suite.frontier.policy import waits_for_rule
from scrapy_spider_suite.frontier.robots_rules import origin_of
from scrapy_spider_suite.operate.judge import (
    MINING,
    Judgement,
    UrlJudge,
    decisive,
    display_duration,
    wait_summary,
    waits_in_status,
)
from scrapy_spider_suite.operate.judge import wait_rows as waiting_rows
from scrapy_spider_suite.operate.terms import CrawlTerms, normalizer_for_reading
from scrapy_spider_suite.operate.url_selection import SPIDERS_OWN
from scrapy_spider_suite.operate.verb import Invocation, Row, Verb, host_argument
from scrapy_spider_suite.operate.verbs.why import (
    SINCE,
    Trace,
    came_from,
    last_fetch,
    next_visit,
    trace,
)
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.store.host_queues import NEVER
from scrapy_spider_suite.store.job_reader import StoreReader, wait_reason
from scrapy_spider_suite.store.rows import HostRecord
from scrapy_spider_suite.urls.normalize import host_of, normalize

_DAY = 86_400.0
_SHOWN = 3


def _subject(text: str) -> str:
    return text if "://" in text else host_argument(text)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subject", metavar="HOST|URL", type=_subject, nargs="?",
        help="a host with or without port, or a URL; the whole crawl if it is left out",
    )  # fmt: skip


def _run(call: Invocation) -> int:
    subject: str | None = call.options.subject
    with StoreReader(call.folder()) as reader:
        if subject is None:
            return _of_crawl(call, reader)
        row = (_of_url if "://" in subject else _of_host)(call, reader, subject)
    call.facts(row)
    return 0


# The crawl


def _of_crawl(call: Invocation, reader: StoreReader) -> int:
    now = time.time()
    state, status = reader.crawl_state(now), reader.status() or {}
    counts = waits_in_status(status)
    paused, silent = pauses(reader, status), silent_servers(state, status)
    if call.json:
        row = {"running": state.running, "paused": paused, "waits": waiting_rows(counts, now)}
        call.facts(row | silent)
        return 0
    lines = {
        "running": words_of_state(state, status), "paused": words_of_pauses(paused),
        "waiting": wait_summary(counts, now),
        "name_servers": words_of_servers(silent.get("silent_name_servers")),
    }  # fmt: skip
    call.facts({name: words for name, words in lines.items() if words})
    return 0


# A host


def _of_host(call: Invocation, reader: StoreReader, name: str) -> Row:
    record = reader.host(name)
    if record is None:
        raise JobError(f"the job has never met the host {name!r}")
    fetch = last_fetch(reader.folder / FETCHES, name, time.time() - _DAY)
    address = fetch.address if fetch else ""
    terms = terms_of_job(call, reader)
    judging = judge(terms, reader, {name: address})
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


# A URL


def _of_url(call: Invocation, reader: StoreReader, url: str) -> Row:
    terms = terms_of_job(call, reader)
    plain = normalize(url)
    if plain is None:
        [finding] = judge(terms, reader).findings(url)
        return {"url": url, "normal_form": None, "state": "unknown", "because": finding.why}
    normalizer = normalizer_for_reading(terms, reader.store)
    normal = normalizer.respell(plain)
    if normal is None:
        because = f"{terms.where('SUITE_NORMALIZER')} drops it"
        return {"url": url, "normal_form": None, "state": "unknown", "because": because}
    known = trace(reader, url, normal)
    if known is None and plain != normal:
        # Fetched before it was known to be another's twin, or as its server insists on it.
        known = trace(reader, url, plain)
        normal = normal if known is None else plain
    if known is None or known.entry is None:
        waits = reader.sifted(state_key(host_of(normal), normal))
        if waits is not None:
            return _of_waiting(url, waits)
    fetch = _fetch_of(reader, normal, known)
    addresses = {host_of(normal): fetch.address} if fetch else {}
    judging = judge(terms, reader, addresses)
    row: Row = {"url": url, "normal_form": normal, "host": host_of(normal)}
    if normalizer.twins is not None and (twins := normalizer.twins.why(plain)):
        row["twins"] = twins
    if known is None:
        row |= _of_unknown(reader, judging, normal)
    else:
        row |= _of_known(reader, terms, judging, known, fetch)
    depth = known.entry.depth if known is not None and known.entry is not None else 1
    row["rules_now"] = [str(each) for each in judging.findings(normal, depth)]
    return row


def _of_waiting(url: str, entry: Entry) -> Row:
    """Of a link that the sieve has not been asked about, or whose turn has not come since."""
    return {
        "url": url, "normal_form": entry.url, "host": entry.host, "state": "found",
        "because": "a link led to it; whether it is new is known when the sieve is flushed",
        "came_from": entry.referrer,
        "next_try": "if it is new, it is queued at its host then",
    }  # fmt: skip


def _fetch_of(reader: StoreReader, url: str, known: Trace | None) -> FetchLine | None:
    """The last fetch of a URL, by the log; only where it can be found without reading all of it."""
    if known is None or not known.state.when:
        return None
    return last_fetch(reader.folder / FETCHES, url, known.state.when - SINCE)


def _of_unknown(reader: StoreReader, judging: UrlJudge, url: str) -> Row:
    findings = judging.findings(url)
    decided = decisive(findings)
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
    reader: StoreReader, terms: CrawlTerms, judging: UrlJudge, known: Trace, fetch: FetchLine | None
) -> Row:
    state, event = known.state, known.state.event
    attempts = known.entry.attempts if known.entry is not None else state.attempts
    tries = f"{attempts}, and Scrapy's RetryMiddleware has its own"
    if not known.of_spider:
        tries = f"{attempts} of at most {terms.settings.retry_times + 1}"
    row: Row = {
        "state": state.state.value, "reason": None if event is None else event.value,
        "because": _because(terms, event),
        "status": state.status or None, "since": _time(state.when) if state.when else None,
        "attempts": tries, "came_from": came_from(known, fetch),
    }  # fmt: skip
    if fetch is not None and fetch.address:
        row["address"] = fetch.address
    if known.lastmod is not None:
        row["changed_by_sitemap"] = _time(known.lastmod)
    if reader.unextracted.has_url(host_of(known.url), known.url):
        row["links"] = "not read yet: the page is stored until they are wanted (SUITE_READ_LINKS)"
    if state.state is State.PENDING:
        return row | _next_try(reader, judging, known)
    if known.plan is not None:
        return row | next_visit(terms, known.plan, time.time())
    again = f"only `retry --reason {event}` has it tried again"
    after, reasons = terms.settings.retry_failed_after, terms.settings.retry_failed
    if state.state is State.FAILED and after and event is not None and event.value in reasons:
        when = f"when a link leads there, from {_time(int(state.when + after))} on"
        return row | {"next_try": when, "why_then": terms.where("SUITE_RETRY_FAILED_AFTER")}
    if known.of_spider:
        again = SPIDERS_OWN
    elif state.state is not State.FAILED:
        again = "only `refetch` has it tried again"
    return row | {"next_try": "never", "why_then": again}


def _time(when: int) -> str:
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _because(terms: CrawlTerms, event: Event | None) -> str:
    if event is None:
        return "it has not been tried yet"
    if event is Event.HOST_DEAD and terms.settings.profile == "spider":
        return (
            "it was not sent: its host, or the host's robots.txt, had failed more often in a row "
            "than RETRY_TIMES allows"
        )
    return OUTCOMES[event].meaning


def _next_try(reader: StoreReader, judging: UrlJudge, known: Trace) -> Row:
    """When a pending URL is tried next, and why then."""
    now = time.time()
    host = host_of(known.url)
    record = reader.host(host) or HostRecord()
    if known.entry is None:
        why = "it is queued in another download_slot, whose queue is not looked for"
        row: Row = {"ahead_of_it": None, "under_way": _under_way(reader, now)}
        return row | {"next_try": "at its turn there", "why_then": why}
    findings = judging.at_its_turn(known.entry)
    waits = {each.rule: each for each in findings if each.judgement is Judgement.WAIT}
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
    decided = decisive(findings)
    if decided.judgement is Judgement.REFUSE:
        ends = "be forgotten" if decided.rule == MINING else "fail"
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
    when = "at its host's next turn"
    if 0.0 < left < math.inf:
        when = f"in {display_duration(left)}"
        when = f"its host's next visit is {when}" if known.ahead else when
    return row | {"next_try": when, "why_then": why}


def _under_way(reader: StoreReader, now: float) -> str:
    """Whether a pending URL may be out now: the job on disk does not say which ones are."""
    out = (reader.status() or {}).get("leased", 0) if reader.crawl_state(now).running else 0
    if not out:
        return "no"
    return f"perhaps: {counted(out, 'URL is', 'URLs are')}, and only the crawl knows which"


VERBS = (
    Verb(
        "why", "why the crawl or a host waits, what became of a URL, and what comes next", _run,
        _options, "[HOST|URL]",
        about=(
            "Without an argument: how many hosts wait, by reason, and when the first of each may\n"
            "be visited.\n"
            "Of a URL: its normal form, state, reason, attempts, the page that it came from, its\n"
            "next try, and what each rule says of it now, with the setting, the line of the\n"
            "overrides or of robots.txt, or the operator behind it. A URL that the job has never\n"
            "come across is judged as if the page of a seed led there."
        ),
        examples=(
            "why -j crawls/news",
            "why example.com -j crawls/news",
            "why https://example.com/private/page -j crawls/news",
        ),
    ),
)  # fmt: skip
