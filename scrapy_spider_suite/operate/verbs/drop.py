"""``drop``: forgets a host, or the URLs below a URL, with everything that the job keeps about it.

Order: block the host and wait until its requests are back; delete its queue, URLs and other rows,
a portion at a time; rewrite the files in which deleted rows may lie. The receipt names the places
outside the store, which stay. A host that the job does not know passes the same steps, and the
receipt says that the host was unknown.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from scrapy_spider_suite.analysis.duplicates import NEAR, PAYLOADS, STRUCTURES, Originals
from scrapy_spider_suite.crawl.queue.traps import FAMILY as GROUNDS
from scrapy_spider_suite.crawl.queue.traps import DuplicateDomains
from scrapy_spider_suite.crawl.robots import BUCKETS
from scrapy_spider_suite.errors import ActionError, JobError
from scrapy_spider_suite.fetch.fetch_log import LOG_FOLDER as FETCHES
from scrapy_spider_suite.frontier.entries import host_key
from scrapy_spider_suite.frontier.outcomes import State
from scrapy_spider_suite.frontier.robots_rules import origin_of
from scrapy_spider_suite.operate import restrictions, url_selection
from scrapy_spider_suite.operate.actions import Action, Answer, AuditLog
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.operate.restrictions import StoredBlock
from scrapy_spider_suite.operate.url_selection import parse_subject
from scrapy_spider_suite.operate.verb import (
    ACT_EXITS,
    WAITING,
    ActionProgress,
    Invocation,
    JobVerb,
    Question,
    Result,
    Row,
    Work,
    add_act_options,
    add_caution,
    confirm,
    print_answer,
    print_silence,
    say_answer,
    show_counts,
    without_port,
)
from scrapy_spider_suite.store import url_states
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import UrlState
from scrapy_spider_suite.store.seen_transfer import bring_back, while_locked
from scrapy_spider_suite.urls.host_patterns import HostPattern, PatternKind
from scrapy_spider_suite.urls.hosts import registered_domain

KNOWN = "known"
"""The fact of a receipt that says whether there was anything to be dropped."""


def knows(store: RocksStore, folder: Path, subject: HostPattern) -> bool:
    """Whether *subject* was met, is blocked, or was dropped before: that may have to be done again.

    Of what lies below a URL the rows say it, but where a sieve stands for them. *folder* is the
    job's ``suite`` folder.
    """
    below = subject.kind is PatternKind.PREFIX
    met = store.record(subject.host) is not None and not (below and store.sieve is None)
    return met or _blocked(store, subject) or _dropped(folder, str(subject))


def unknown(store: RocksStore, subject: HostPattern) -> str:
    """What to say of *subject*, of which nothing is in the job."""
    if subject.kind is PatternKind.PREFIX and store.record(subject.host) is not None:
        return f"the job knows nothing below {subject}"
    return f"the job has never met the host {subject.host!r}"


def _blocked(store: RocksStore, subject: HostPattern) -> bool:
    blocks = restrictions.stored_blocks(store.kv(restrictions.BLOCKS))
    found = (HostPattern.parse(each.subject) for each in blocks)
    if subject.kind is PatternKind.PREFIX:
        return subject in found
    return any(each.host == subject.host for each in found)


def _dropped(folder: Path, subject: str) -> bool:
    """Whether that was dropped, also in part; rows of earlier releases do not say what was known.
    """
    return any(
        row.get("verb") == "drop" and row.get("ok") and isinstance(facts := row.get("facts"), dict)
        and facts.get("subject") == subject and facts.get(KNOWN)
        for row in AuditLog(folder).rows()
    )  # fmt: skip


_ROWS = 50
_BUCKETS = 32
"""Groups of robots.txt that are looked through in one portion."""
_DIGESTS = 1_000
"""Pages by their digests, likewise: some milliseconds."""
NOT_REMOVED = "not_removed"
"""The fact of a receipt that says what should have gone and could not."""
NOT_TOUCHED = "not_touched"
"""The one that says what was left."""
_HELD = "held"
_COUNTED = ("pending", "done", "failed", "unread", "seeds", "robots", "cookies")


def drop(site: JobTarget, action: Action) -> Work:
    """Forget a host, or the URLs below a prefix."""
    action.expect("subject")
    subject = parse_droppable(action.get("subject", str))
    if site.store.archive is not None and site.store.archive.urls.damaged:
        raise ActionError(
            "the archive of seen URLs is damaged: `scrapy frontier check --repair` first"
        )
    progress = ActionProgress(site.kv, action.id)
    if KNOWN not in progress.counts:
        progress.counts[KNOWN] = knows(site.store, site.folder, subject)
        progress.save()
    _hold(site, action, subject, progress)
    yield
    yield from _forget_plans(site, subject)
    yield from _forget_unread(site, subject, progress)
    yield from _empty_sieve(site, subject, progress)
    yield from _empty_queue(site, subject, progress)
    # Pages that were out until now.
    yield from _forget_unread(site, subject, progress)
    yield from while_locked(site.store.archive, _forget_urls(site, subject, progress))
    yield from _forget_plans(site, subject)  # those of what was out
    if subject.kind is not PatternKind.PREFIX:
        yield from _forget_host(site, subject.host, progress)
    if progress.counts.pop(_HELD, 0):
        site.store.kv(restrictions.BLOCKS).delete(str(subject).encode())
        site.blocks_changed()
    yield
    erasers = [site.store.erase(subject.host)]
    if progress.counts.get("unread"):
        keys = site.frontier.stored_links.waiting.keys_of(subject.host)
        erasers.append(site.store.erase_keys([("kv", *keys)]))
    for eraser in erasers:
        while eraser.is_alive():
            eraser.join(0.0 if site.running else 1.0)
            yield WAITING
    while site.store.archive is not None and site.store.archive.poll():
        yield WAITING  # the tries without what was removed
    progress.forget()
    failures = dict.fromkeys(each.failure for each in erasers if each.failure)
    return _receipt(site, subject, progress, "; ".join(failures))


def _receipt(
    site: JobTarget, subject: HostPattern, progress: ActionProgress, failure: str
) -> Result:
    counts = {name: progress.counts.get(name, 0) for name in _COUNTED}
    known = bool(progress.counts.get(KNOWN)) or any(counts.values())
    facts: dict[str, Any] = {
        "subject": str(subject), KNOWN: known, **counts, NOT_TOUCHED: _not_touched(site, subject)
    }  # fmt: skip
    said = f"{subject} was dropped: " + ", ".join(f"{name} {n}" for name, n in counts.items())
    if not known:
        said = unknown(site.store, subject)
    if failure:
        left = f"{failure}: what was deleted may still be read there; `drop` it once more"
        facts[NOT_REMOVED] = [left]
        said += f"; not removed: {left}"
    return said, facts


def _not_touched(site: JobTarget, subject: HostPattern) -> list[str]:
    store, below = site.store, subject.kind is PatternKind.PREFIX
    found = {
        "the fetch log": (site.folder / FETCHES).exists(),
        "the audit log": True,
        "what pipelines and feeds have written": True,
        "the address's clock, which other hosts share": not below,
        "that its registered domain has hosts without end (SUITE_TRAPS: hosts)":
            registered_domain(subject.host) in DuplicateDomains(store.kv(GROUNDS)),
        "referrers of URLs of other hosts that are pending or failed": True,
        "the log of the archive (suite/seen/fresh-*), until its rows have gone to a trie":
            store.archive is not None and store.archive.urls.stats().log > 0,
        "signatures of what its pages said (SUITE_COMPARE_PAGES = near), which name no page":
            next(store.kv(NEAR).items(), None) is not None,
        "fingerprints in the sieve, by which nothing is looked up any more":
            store.sieve is not None and not below,
        "fingerprints in the sieve of pages that were answered 200: they stay seen":
            store.sieve is not None and below,
    }  # fmt: skip
    return [what for what, there in found.items() if there]


def parse_droppable(text: str) -> HostPattern:
    """The host or prefix that *text* names. Raises `ActionError` for anything else."""
    subject = parse_subject(text)
    if subject.kind in (PatternKind.DOMAIN, PatternKind.RANGE):
        raise ActionError(f"{subject} is more than a host: drop hosts, or what lies below a URL")
    return subject


def belongs(subject: HostPattern, url: str) -> bool:
    """Whether a *url* of the host of *subject* is to go."""
    return subject.kind is not PatternKind.PREFIX or url.startswith(subject.text)


def _hold(site: JobTarget, action: Action, subject: HostPattern, progress: ActionProgress) -> None:
    """Block it for as long as it takes, also over a kill; a block of the operator's own stays."""
    kv = site.store.kv(restrictions.BLOCKS)
    if kv.get(str(subject).encode()) is None:
        StoredBlock(str(subject), action.who, action.when, "it is being dropped").put(kv)
        progress.counts[_HELD] = 1
        progress.save()
        site.blocks_changed()


def _forget_unread(site: JobTarget, subject: HostPattern, progress: ActionProgress) -> Work:
    """Take out stored pages whose links are to be read: they are not, then."""
    waiting = site.frontier.stored_links.waiting
    for gone in waiting.forget(subject.host, partial(belongs, subject), _ROWS):
        progress.count("unread", gone)
        progress.save()
        yield
    return "", {}


def _empty_sieve(site: JobTarget, subject: HostPattern, progress: ActionProgress) -> Work:
    """Take out links that wait for the sieve; those that come later were found later."""
    sifter = site.frontier.states.sieve_queue
    if sifter is not None:
        for gone in sifter.forget(subject.host, partial(belongs, subject), _ROWS):
            progress.count("pending", gone)
            progress.save()
            yield
    return "", {}


def _empty_queue(site: JobTarget, subject: HostPattern, progress: ActionProgress) -> Work:
    """Take out what is queued; what is out comes back to the queue, or is done, in its time."""
    left = True
    while left:
        left, after = False, b""
        while entries := site.rework.pending(subject.host, after, _ROWS):
            after = entries[-1].key
            for entry in entries:
                if belongs(subject, entry.url):
                    gone = site.rework.forget(entry)
                    progress.count("pending", gone)
                    if gone:
                        _forget_seed(site, entry.identity, progress)
                        url_states.forget_url(site.store, entry.identity)
                    left = left or not gone
            progress.save()
            yield
        if left:
            yield WAITING
    return "", {}


def _forget_urls(site: JobTarget, subject: HostPattern, progress: ActionProgress) -> Work:
    yield from bring_back(site.store, subject.host)
    prefix = host_key(subject.host)
    while rows := site.rework.urls(subject.host, progress.url, _ROWS):
        origins: set[str] = set()
        for name, state in rows:
            progress.url = name
            url = state.url or name.decode("utf-8", "replace")
            if not belongs(subject, url):
                continue
            _forget(site, subject.host, name, state, progress)
            _forget_seed(site, prefix + name, progress)
            url_states.forget_url(site.store, prefix + name)
            origins.add(origin_of(url))
        if subject.kind is not PatternKind.PREFIX:
            progress.count("robots", sum(map(site.forget_robots, filter(None, origins))))
        progress.save()
        yield
    return "", {}


def _forget_originals(site: JobTarget, host: str) -> Work:
    for originals in (Originals(site.store.kv(each)) for each in (PAYLOADS, STRUCTURES)):
        left, after = True, b""
        while left:
            found, after = originals.for_host(host, after, _DIGESTS)
            for digest in found:
                originals.forget(digest)
            left = bool(after)
            yield
    return "", {}


def _forget_plans(site: JobTarget, subject: HostPattern) -> Work:
    """Visit nothing again: of many pages no other row says that they are done."""
    revisits = site.frontier.planner.revisits
    host = host_key(subject.host)
    below = subject.text.encode() if subject.kind is PatternKind.PREFIX else b""
    for begin in (host + below, host + b"\xff"):  # by their URLs, and by their fingerprints
        since = b""
        while portion := list(islice(revisits.planned(begin, since), _ROWS)):
            since = portion[-1][0][len(begin) :] + b"\0"
            for key, plan in portion:
                if belongs(subject, plan.entry().url):
                    revisits.forget(key)
            yield
    return "", {}


def _forget_seed(site: JobTarget, key: bytes, progress: ActionProgress) -> None:
    seeds = site.store.kv("seeds")
    if seeds.get(key) is not None:
        seeds.delete(key)
        progress.count("seeds")


def _forget(
    site: JobTarget, host: str, name: bytes, state: UrlState, progress: ActionProgress
) -> None:
    if state.state is State.PENDING:
        return  # it has been found again meanwhile
    site.rework.forget_state(host, name, state)
    progress.count(state.state.value)


def _forget_host(site: JobTarget, host: str, progress: ActionProgress) -> Work:
    for first in range(0, BUCKETS, _BUCKETS):
        origins = site.robots_of(host, range(first, first + _BUCKETS))
        progress.count("robots", sum(map(site.forget_robots, origins)))
        progress.save()
        yield
    progress.count("cookies", site.forget_cookies(host))
    site.store.kv("trusted").delete(host.encode())
    url_states.forget_host(site.store, host)
    site.frontier.planner.revisits.forget_claims(host)
    yield from _forget_originals(site, host)
    site.frontier.trap_stats.forget(host)
    site.forget_twins(host)
    if site.store.sieve is not None:
        site.store.sieve.forget_host(host)
        site.frontier.states.cache.clear()
        record = site.store.record(host)
        progress.count("done", 0 if record is None else record.done)
    # What another page has brought meanwhile goes, too.
    while not site.rework.forget_host(host, site.now()):
        yield WAITING
        yield from _empty_queue(site, HostPattern(PatternKind.HOST, host, host), progress)
    progress.save()
    yield
    return "", {}


_IN_PART = 4


def _droppable(text: str) -> HostPattern:
    try:
        return parse_droppable(without_port(text))
    except ActionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _drop_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", metavar="HOST|PREFIX", type=_droppable)
    add_caution(parser, asks=True)
    add_act_options(parser)


def _plan(call: Invocation) -> Question:
    subject: HostPattern = call.options.subject
    if not call.options.dry_run:
        confirm(call, f"Drop {subject} and everything that the job keeps about it?")
    return Question({"subject": str(subject)}, counts=call.options.dry_run)


def _count(call: Invocation, question: Question) -> Iterator[Row]:
    subject: HostPattern = call.options.subject
    _require(call, subject)
    yield url_selection.count_urls(
        call, subject, lambda url, _: belongs(subject, url), pending_too=True
    )


def _say(call: Invocation, answer: Answer) -> int:
    if not answer.ok:
        return say_answer(call, answer)
    known = _drop_known(answer)
    if call.json:
        print_answer(call, answer)
    elif known:
        print(answer.said)
        print("not touched:\n  " + "\n  ".join(answer.facts[NOT_TOUCHED]))
        print(f"receipt: {answer.id} (`scrapy frontier audit drop --json` has it)")
    if silent := print_silence(answer):
        return silent
    if not known:
        raise JobError(answer.said)
    return _IN_PART if answer.facts.get(NOT_REMOVED) else 0


def _drop_known(answer: Answer) -> bool:
    agents = answer.facts.get("agents")
    every = [answer.facts] if agents is None else agents.values()
    return any(facts.get(KNOWN, True) for facts in every)


def _require(call: Invocation, subject: HostPattern) -> None:
    with StoreReader(call.folder()) as reader:
        found = (belongs(subject, row.url) for row in reader.urls(subject.host))
        if not knows(reader.store, reader.folder, subject) and not any(found):
            raise JobError(unknown(reader.store, subject))


VERBS = (
    JobVerb(
        "drop", "forget a host, or what lies below a URL, with everything kept about it",
        add_options=_drop_options, arguments="HOST|PREFIX", plan=_plan, look=_count, apply=drop,
        show=show_counts, say=_say, of_one_host=True,
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
        exits={**ACT_EXITS, _IN_PART: "done but for what the receipt names as not removed"},
    ),
)  # fmt: skip
