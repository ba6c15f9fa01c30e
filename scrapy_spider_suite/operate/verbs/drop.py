"""``drop``: forgets a host, or the URLs below a URL, with everything that the job keeps of it."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
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
from scrapy_spider_suite.operate import job_target, url_selection, verb
from scrapy_spider_suite.operate.actions import Action, Answer, AuditLog
from scrapy_spider_suite.store import url_states
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rocks_store import RocksStore, ranges_of_host
from scrapy_spider_suite.store.seen_transfer import bring_back, while_locked
from scrapy_spider_suite.urls.host_patterns import HostPattern, PatternKind
from scrapy_spider_suite.urls.hosts import registered_domain

_ROWS = 50
_BUCKETS = 32  # groups of robots.txt that are read in one portion
_DIGESTS = 1_000  # pages by their digests that are read in one portion: some milliseconds
_KNOWN = "known"  # the fact of a receipt: there was something to be dropped
_NOT_REMOVED = "not_removed"  # the fact of a receipt: places that could not be rewritten
_NOT_TOUCHED = "not_touched"  # the fact of a receipt: places that stay
_HELD = "held"
_COUNTED = ("pending", "done", "failed", "unread", "seeds", "robots", "cookies")

_Portions = Generator[Any, None, None]


def drop(site: job_target.JobTarget, action: Action) -> verb.Work:
    """Forget a host, or the URLs below a prefix."""
    subject = _parse_droppable(action.get("subject", str))
    if site.store.archive is not None and site.store.archive.urls.damaged:
        raise ActionError(
            "the archive of seen URLs is damaged: `scrapy frontier check --repair` first"
        )
    return (yield from HostDrop(site, subject, action).run())


def _parse_droppable(text: str) -> HostPattern:
    subject = url_selection.parse_subject(text)
    if subject.kind in (PatternKind.DOMAIN, PatternKind.RANGE):
        raise ActionError(f"{subject} is more than a host: drop hosts, or what lies below a URL")
    return subject


def _is_known(store: RocksStore, folder: Path, subject: HostPattern) -> bool:
    """Whether the job met, blocks or has dropped *subject*; a prefix by rows, or by a sieve."""
    below = subject.kind is PatternKind.PREFIX
    if store.record(subject.host) is not None and not (below and store.sieve is None):
        return True
    blocks = job_target.stored_blocks(store.kv(job_target.BLOCKS))
    found = [HostPattern.parse(each.subject) for each in blocks]
    if subject in found if below else any(each.host == subject.host for each in found):
        return True
    return any(
        row["verb"] == "drop" and row["ok"] and row["facts"].get("subject") == str(subject)
        for row in AuditLog(folder).rows()
    )


def _words_of_unknown(store: RocksStore, subject: HostPattern) -> str:
    if subject.kind is PatternKind.PREFIX and store.record(subject.host) is not None:
        return f"the job knows nothing below {subject}"
    return f"the job has never met the host {subject.host!r}"


class HostDrop:
    """Drops *subject* for *action*; its portions continue after a kill."""

    def __init__(self, site: job_target.JobTarget, subject: HostPattern, action: Action) -> None:
        self._site = site
        self._store = site.store
        self._subject = subject
        self._host = subject.host
        self._below = subject.kind is PatternKind.PREFIX
        self._belongs = subject.has_url
        self._action = action
        self._progress = verb.ActionProgress(site.kv, action.id)

    def run(self) -> verb.Work:
        store, progress = self._store, self._progress
        if _KNOWN not in progress.counts:
            progress.counts[_KNOWN] = _is_known(store, self._site.folder, self._subject)
            progress.save()
        self._block()
        yield
        yield from self.forget_plans()
        yield from self._forget_unread()
        sifted = self._site.frontier.states.sieve_queue  # links; later ones were found later
        if sifted is not None:
            yield from self._count("pending", sifted.forget(self._host, self._belongs, _ROWS))
        yield from self._empty_queue()
        # Pages that were out until now.
        yield from self._forget_unread()
        yield from while_locked(store.archive, self._forget_urls())
        yield from self.forget_plans()  # those of what was out
        if not self._below:
            yield from self._forget_host()
        if progress.counts.pop(_HELD, 0):
            store.kv(job_target.BLOCKS).delete(str(self._subject).encode())
            self._site.blocks_changed()
        yield
        ranges = ranges_of_host(self._host)
        if progress.counts.get("unread"):
            ranges.append(("kv", *self._site.frontier.stored_links.waiting.keys_of(self._host)))
        eraser = store.erase(ranges)
        while eraser.is_alive():
            eraser.join(0.0 if self._site.running else 1.0)
            yield verb.WAITING
        while store.archive is not None and store.archive.poll():
            yield verb.WAITING  # the tries without what was removed
        progress.forget()
        return self._receipt(eraser.failure)

    def _receipt(self, failure: str) -> verb.Result:
        found, subject = self._progress.counts, self._subject
        counts = {name: found.get(name, 0) for name in _COUNTED}
        known = bool(found.get(_KNOWN)) or any(counts.values())
        facts: dict[str, Any] = {
            "subject": str(subject), _KNOWN: known, **counts, _NOT_TOUCHED: self._not_touched()
        }  # fmt: skip
        said = f"{subject} was dropped: " + ", ".join(f"{name} {n}" for name, n in counts.items())
        if not known:
            said = _words_of_unknown(self._store, subject)
        if failure:
            left = f"{failure}: what was deleted may still be read there; `drop` it once more"
            facts[_NOT_REMOVED] = [left]
            said += f"; not removed: {left}"
        return said, facts

    def _not_touched(self) -> list[str]:
        store, below = self._store, self._below
        found = {
            "the fetch log": (self._site.folder / FETCHES).exists(),
            "the audit log": True,
            "what pipelines and feeds have written": True,
            "that its registered domain has hosts without end (SUITE_TRAPS: hosts)":
                registered_domain(self._host) in DuplicateDomains(store.kv(GROUNDS)).domains,
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
        return [place for place, there in found.items() if there]

    def _block(self) -> None:
        """Block it until the end, also over a kill; a block of the operator's own stays."""
        kv, subject = self._store.kv(job_target.BLOCKS), str(self._subject)
        if kv.get(subject.encode()) is None:
            who, when = self._action.who, self._action.when
            job_target.StoredBlock(subject, who, when, "it is being dropped").put(kv)
            self._progress.counts[_HELD] = 1
            self._progress.save()
            self._site.blocks_changed()

    def _forget_unread(self) -> _Portions:
        waiting = self._site.frontier.stored_links.waiting
        return self._count("unread", waiting.forget(self._host, self._belongs, _ROWS))

    def _count(self, name: str, portions: Iterable[int]) -> _Portions:
        for gone in portions:
            self._progress.count(name, gone)
            self._progress.save()
            yield

    def _empty_queue(self) -> _Portions:
        """Forget queued URLs; those in progress come back to the queue, or are done, in time."""
        rework, progress, left = self._site.rework, self._progress, True
        while left:
            left, after = False, b""
            while entries := rework.pending(self._host, after, _ROWS):
                after = entries[-1].key
                for entry in entries:
                    if self._belongs(entry.url):
                        gone = rework.forget(entry)
                        progress.count("pending", gone)
                        if gone:
                            self._forget_seed(entry.identity)
                            url_states.forget_url(self._store, entry.identity)
                        left = left or not gone
                progress.save()
                yield
            if left:
                yield verb.WAITING

    def _forget_urls(self) -> _Portions:
        site, progress, prefix = self._site, self._progress, host_key(self._host)
        yield from bring_back(self._store, self._host)
        while rows := site.rework.urls(self._host, progress.url, _ROWS):
            origins: set[str] = set()
            for name, state in rows:
                progress.url = name
                url = state.url or name.decode("utf-8", "replace")
                if not self._belongs(url):
                    continue
                if state.state is not State.PENDING:  # else it has been found again meanwhile
                    site.rework.forget_state(self._host, name, state)
                    progress.count(state.state.value)
                self._forget_seed(prefix + name)
                url_states.forget_url(self._store, prefix + name)
                origins.add(origin_of(url))
            if not self._below:
                progress.count("robots", sum(map(site.forget_robots, filter(None, origins))))
            progress.save()
            yield

    def _forget_seed(self, key: bytes) -> None:
        seeds = self._store.kv("seeds")
        if seeds.get(key) is not None:
            seeds.delete(key)
            self._progress.count("seeds")

    def forget_plans(self) -> _Portions:
        """Forget all visits to come: of many pages no other row says that they are done."""
        revisits = self._site.frontier.commit.planner.revisits
        host = host_key(self._host)
        below = self._subject.text.encode() if self._below else b""
        for begin in (host + below, host + b"\xff"):  # by their URLs, and by their fingerprints
            since = b""
            while portion := list(islice(revisits.planned(begin, since), _ROWS)):
                since = portion[-1][0][len(begin) :] + b"\0"
                for key, plan in portion:
                    if self._belongs(plan.entry().url):
                        revisits.forget(key)
                yield

    def _forget_host(self) -> _Portions:
        site, store, host, progress = self._site, self._store, self._host, self._progress
        for first in range(0, BUCKETS, _BUCKETS):
            origins = site.robots_of(host, range(first, first + _BUCKETS))
            progress.count("robots", sum(map(site.forget_robots, origins)))
            progress.save()
            yield
        progress.count("cookies", site.forget_cookies(host))
        store.kv("trusted").delete(host.encode())
        url_states.forget_host(store, host)
        site.frontier.commit.planner.revisits.forget_claims(host)
        yield from self.forget_originals()
        site.frontier.traps.stats.forget(host)
        site.forget_twins(host)
        if store.sieve is not None:
            store.sieve.forget_host(host)
            site.frontier.states.cache.clear()
            record = store.record(host)
            progress.count("done", 0 if record is None else record.done)
        # What another page has brought meanwhile goes, too.
        while not site.rework.forget_host(host, site.now()):
            yield verb.WAITING
            yield from self._empty_queue()
        progress.save()
        yield

    def forget_originals(self) -> _Portions:
        """Forget the pages of the host that other pages repeat."""
        for originals in (Originals(self._store.kv(each)) for each in (PAYLOADS, STRUCTURES)):
            left, after = True, b""
            while left:
                found, after = originals.for_host(self._host, after, _DIGESTS)
                for digest in found:
                    originals.forget(digest)
                left = bool(after)
                yield


_IN_PART = 4


def _plan(call: verb.Invocation) -> verb.Question:
    subject: HostPattern = call.options.subject
    if not call.options.dry_run:
        verb.confirm(call, f"Drop {subject} and everything that the job keeps about it?")
    return verb.Question({"subject": str(subject)})


def _count(call: verb.Invocation, question: verb.Question) -> Iterator[verb.Row]:
    subject: HostPattern = call.options.subject
    with StoreReader(call.folder()) as reader:
        found = (subject.has_url(row.url) for row in reader.urls(subject.host))
        if not _is_known(reader.store, reader.folder, subject) and not any(found):
            raise JobError(_words_of_unknown(reader.store, subject))
    yield url_selection.count_urls(
        call, subject, lambda url, _: subject.has_url(url), pending_too=True
    )


def _say(call: verb.Invocation, answer: Answer) -> int:
    if not answer.ok:
        return verb.say_answer(call, answer)
    agents = answer.facts.get("agents")
    every = [answer.facts] if agents is None else agents.values()
    known = any(facts.get(_KNOWN, True) for facts in every)
    if call.json:
        verb.print_answer(call, answer)
    elif known:
        print(answer.said)
        print("not touched:\n  " + "\n  ".join(answer.facts[_NOT_TOUCHED]))
        print(f"receipt: {answer.id} (`scrapy frontier audit drop --json` has it)")
    if silent := verb.print_silence(answer):
        return silent
    if not known:
        raise JobError(answer.said)
    return _IN_PART if answer.facts.get(_NOT_REMOVED) else 0


VERBS = (
    verb.JobVerb(
        "drop", "forget a host, or what lies below a URL, with everything kept about it",
        options=(verb.option(
            "subject", metavar="HOST|PREFIX",
            type=verb.argument_type(lambda text: _parse_droppable(verb.without_port(text))),
        ),),
        arguments="HOST|PREFIX", plan=_plan, look=_count, apply=drop,
        say=_say, of_one_host=True,
        about=(
            "URLs pending, done and failed, robots.txt, cookies, clocks and counts go from the\n"
            "store and from its files; the receipt, which stays in the audit log, says how many.\n"
            "It is not blocked by that: links may lead there again. `block` it first to keep it\n"
            "out. It cannot be undone. A host of which nothing is in the job is an error."
        ),
        examples=(
            'drop example.com --yes --why "request of 3 May" -j crawls/news',
            "drop https://example.com/private/ --yes -j crawls/news",
        ),
        exits={_IN_PART: "done but for what the receipt names as not removed"},
    ),
)  # fmt: skip
