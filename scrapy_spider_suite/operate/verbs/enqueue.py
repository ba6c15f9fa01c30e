"""``add``, ``refetch`` and ``retry``: make URLs pending, for the first time or again.

A portion is a few hundred rows: one batch, which also stores the progress. The job has only the
fingerprint of a spider's own request, so such requests are counted and left.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from scrapy.exceptions import UsageError

from scrapy_spider_suite.crawl.queue.frontier import BEHIND_FIRST, FIRST
from scrapy_spider_suite.crawl.requests import sitemap_payload
from scrapy_spider_suite.crawl.seeds import SeedCounts, SeedList, seed_scheduler
from scrapy_spider_suite.errors import ActionError
from scrapy_spider_suite.frontier.entries import Entry, Flag, host_key
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.operate import url_selection, verb
from scrapy_spider_suite.operate.actions import Action, ActionFolder
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.store.rows import UrlState
from scrapy_spider_suite.store.seen_transfer import bring_back, while_locked
from scrapy_spider_suite.store.url_states import voucher_of_sitemap
from scrapy_spider_suite.urls import url_lists
from scrapy_spider_suite.urls.host_patterns import HostPattern

_SCHEDULING = 0.005  # seconds for which seeds are scheduled before they are written
_URLS = 50
_AHEAD = 10_000  # URLs to be moved to the front, for which the queues of their hosts are read once
_NOT_A_URL = 0xFF  # begins the identity of a spider's own request
_PENDING = UrlState(State.PENDING)

_ONLY_FINGERPRINTS = (
    "of pages that were answered 200 the sieve has fingerprints alone, which no pattern finds: "
    "give a list of their URLs"
)
Wanted = Callable[[str, UrlState], bool]


def add(site: JobTarget, action: Action) -> verb.Work:
    """Make the URLs that came with *action* pending, unless they are known."""
    priority = FIRST if action.get("first", bool, False) else 0
    # No other agent was given the list: URLs of others are sent to them.
    schedule = seed_scheduler(site.frontier, site.now, priority, given=lambda: False)

    def plant(seeds: Sequence[url_lists.Seed]) -> int:
        listed.counts.sent += sum(site.is_foreign(seed.url) for seed in seeds)
        return schedule(seeds)

    lines = url_lists.SeedLines("URLs", normal=site.normal)
    listed = SeedList(site.store, plant, lines, f"add {action.id}")
    for _ in _read_list(site, action, listed):
        listed.save()
        yield
    listed.forget()
    counts = listed.counts
    said, sent = f"{counted(counts.seeds, 'URL')} taken, {counts.new:,} new", {}
    if counts.sent:
        said, sent = f"{said}, {counts.sent} went to other agents", {"sent": counts.sent}
    also, bad = _bad_of(counts, "seed")
    facts = {"urls": counts.seeds + counts.bad, "new": counts.new, **sent, **bad}
    return f"{said}, {also}" if also else said, facts


def _bad_of(counts: SeedCounts, what: str) -> verb.Result:
    bad = counted(counts.bad, f"line is no {what}", f"lines are no {what}s")
    facts = {"no_web_addresses": counts.bad, "first_bad": counts.first_bad}
    return f"{bad}: {'; '.join(counts.first_bad)}" if counts.bad else "", facts


def refetch(site: JobTarget, action: Action) -> verb.Work:
    """Make URLs that are done or failed pending: those of a pattern, or those that came with it."""
    renewal, also = Renewal(site, action), ""
    bad: dict[str, Any] = {}
    if "pattern" in action.arguments:
        subject, wanted = url_selection.parse_pattern(action.get("pattern", str), site.normal)
        # Archived URLs get their rows back first.
        walk = renewal.walk(subject, lambda url, _: wanted(url), archived=True)
        yield from while_locked(site.store.archive, walk)
        if site.store.sieve is not None:
            also = _ONLY_FINGERPRINTS
    else:
        counts = yield from renewal.renew_listed(action)
        if counts.bad:
            also, bad = _bad_of(counts, "URL")
    said, facts = renewal.result("", "fetched again")
    return f"{said}; {also}" if also else said, facts | bad


def retry(site: JobTarget, action: Action) -> verb.Work:
    """Make URLs that failed for one reason pending; *trap* also opens traps of their hosts."""
    cause = url_selection.parse_reason(action.get("reason", str))
    subject, within = None, None
    if "subject" in action.arguments:
        subject, within = url_selection.parse_pattern(action.get("subject", str), site.normal)
    renewal = Renewal(site, action)

    def wanted(url: str, state: UrlState) -> bool:
        failed = state.state is State.FAILED and state.event is cause
        return failed and (within is None or within(url))

    def begin(host: str) -> None:
        if cause is Event.TRAP:
            renewal.progress.count("traps_opened", site.frontier.traps.reopen(host))

    yield from renewal.walk(subject, wanted, begin=begin)
    if cause is Event.TRAP:
        site.frontier.traps.stats.save()
    return renewal.result(f" that failed ({cause.value.replace('_', ' ')})", "tried again")


def _read_list(site: JobTarget, action: Action, listed: SeedList) -> Iterator[None]:
    """Take the lines that came with *action*, in portions, from where *listed* was."""
    listed.resume([0, 0])
    try:
        with url_lists.ListFile(ActionFolder(site.folder).open_urls(action.id)) as file:
            file.skip(listed.at)
            for block, _ in file.blocks():
                listed.feed(block)
                yield from _read_lines(site, listed)
    except url_lists.READ_ERRORS as error:
        why = url_lists.describe_read_error(error)
        raise ActionError(f"the URLs that belong to it cannot be read: {why}") from None
    listed.end_of_text()
    yield from _read_lines(site, listed)


def _read_lines(site: JobTarget, listed: SeedList) -> Iterator[None]:
    until = site.now() + _SCHEDULING
    while listed.more:
        listed.schedule_lines()
        if not listed.more or site.now() >= until:
            yield
            until = site.now() + _SCHEDULING


class Renewal:
    """Makes URLs of the job *site* pending for *action*; its portions continue after a kill."""

    def __init__(self, site: JobTarget, action: Action) -> None:
        self.progress = verb.ActionProgress(site.kv, action.id)
        self._site = site
        self._first = action.get("first", bool, False)

    def renew_listed(self, action: Action) -> Generator[None, None, SeedCounts]:
        """Renew the URLs that came with *action*."""
        site, progress = self._site, self.progress
        normal = site.normal  # of a job at rest it is made anew each time
        ahead: dict[str, set[bytes]] = {}

        def plant(seeds: Sequence[url_lists.Seed]) -> int:
            for seed in seeds:
                known = url_selection.find_seed(site.store, seed, normal)
                if known is None:
                    progress.count("unknown")
                elif not self._renew(*known) and self._first:
                    ahead.setdefault(known[0].host, set()).add(known[0].identity)
            return 0

        # By the plain form: the crawl's own would not find a URL in its server's spelling.
        listed = SeedList(site.store, plant, url_lists.SeedLines("URLs"), f"refetch {action.id}")
        for _ in _read_list(site, action, listed):
            if sum(map(len, ahead.values())) >= _AHEAD:
                yield from self._move_listed(ahead)
            if not ahead:  # else a kill would leave some behind
                listed.save()
                progress.save()
            yield
        yield from self._move_listed(ahead)
        listed.forget()
        return listed.counts

    def _move_listed(self, ahead: dict[str, set[bytes]]) -> Iterator[None]:
        for host in ahead:
            yield from self._move_to_front(host, lambda it: it.identity in ahead[it.host])
        ahead.clear()

    def walk(
        self, subject: HostPattern | None, wanted: Wanted, *, archived: bool = False,
        begin: Callable[[str], None] = lambda host: None,
    ) -> Generator[Any, None, None]:  # fmt: skip
        """Renew the *wanted* URLs of *subject*, None: of every host with failures.

        *begin* is called with each host; *archived*: archived URLs, too, which get rows again.
        """
        site, progress = self._site, self.progress
        if subject is None:
            hosts = url_selection.walk_hosts(site.rework, progress, lambda name, row: row.failed)
        else:
            hosts = url_selection.hosts_matching(site.rework, subject, progress)
        for host in hosts:
            if host is None:
                progress.save()
                yield
                continue
            begin(host)
            if archived:
                yield from bring_back(site.store, host)
            while rows := site.rework.urls(host, progress.url, _URLS):
                for name, state in rows:
                    progress.url = name
                    if name[0] == _NOT_A_URL:
                        progress.count("requests_of_the_spider", wanted(state.url, state))
                    elif wanted(url := name.decode("utf-8", "replace"), state):
                        self._renew(Entry(host, url, host_key(host) + name), state)
                progress.save()
                yield
            if self._first:
                yield from self._move_to_front(host, lambda each: wanted(each.url, _PENDING))
            progress.url = b""

    def _renew(self, entry: Entry, state: UrlState) -> bool:
        """Make *entry* pending; False if it is so already."""
        site, progress = self._site, self.progress
        if state.state is State.PENDING:
            progress.count("pending_already")
            return False
        progress.count("hosts_given_up", site.rework.revive_host(entry.host))
        voucher = voucher_of_sitemap(site.store, entry.identity)
        if voucher is not None:
            entry.payload = sitemap_payload(voucher)
        entry.priority, entry.depth = FIRST if self._first else 0, state.depth
        entry.flags |= Flag.DONT_FILTER  # what is asked for is not judged by traps
        taken = site.rework.requeue(entry, state, site.now())
        progress.count("urls" if taken else "hosts_too_many_for_their_domain")
        return True

    def _move_to_front(self, host: str, wanted: Callable[[Entry], bool]) -> Iterator[None]:
        site, after = self._site, BEHIND_FIRST
        while entries := site.rework.pending(host, after, _URLS):
            after = entries[-1].key
            for entry in entries:
                if wanted(entry):
                    moved = site.rework.put_first(entry, site.now())
                    self.progress.count("moved_to_the_front", moved)
            self.progress.save()
            yield

    def result(self, which: str, what: str) -> tuple[str, dict[str, Any]]:
        """End the progress; return the message and the counts.

        *which* URLs they were, *what* becomes of them.
        """
        self.progress.forget()
        counts = {"urls": 0} | {name: n for name, n in self.progress.counts.items() if n}
        others = "; ".join(
            f"{name.replace('_', ' ')}: {n}" for name, n in counts.items() if name != "urls"
        )
        urls = counted(counts["urls"], f"URL{which} is", f"URLs{which} are")
        said = f"{urls} {what}{f' ({others})' if others else ''}"
        if "requests_of_the_spider" in counts:
            said += f"; {url_selection.SPIDERS_OWN}"
        return said, counts


def _tag(text: str) -> str:
    if len(text) <= 100 and text.split() == [text]:
        return text
    raise argparse.ArgumentTypeError(f"{text!r}: expected a word of at most 100 characters")


def _plan_add(call: verb.Invocation) -> verb.Question:
    options = call.options
    sources = [
        f"{source} #tag={options.tag}" if options.tag else source for source in options.sources
    ]
    lines = url_lists.read_lines(sources, str(call.settings["USER_AGENT"]))
    return verb.Question({"first": options.first}, lines, words=("--dry-run",), by_owner=True)


def _plan_refetch(call: verb.Invocation) -> verb.Question:
    options = call.options
    arguments: dict[str, object] = {"first": options.first}
    words, source = ("--dry-run", *(("--first",) if options.first else ())), options.source
    if "://" not in source and os.path.isfile(source):
        return verb.Question(arguments, url_lists.read_lines([source], ""), words=words)
    if "://" not in source and url_lists.is_file_name(source):
        raise ActionError(f"{source!r} is no URL, and there is no such file")
    pattern = verb.without_port(source)
    url_selection.parse_pattern(pattern)
    return verb.Question({**arguments, "pattern": pattern}, words=(*words, "--", source))


def _count_refetch(call: verb.Invocation, question: verb.Question) -> Iterator[verb.Row]:
    first = call.options.first
    if question.lines is not None:
        yield url_selection.count_listed(call, question.lines, pending_too=first)
        return
    pattern = str(question.arguments["pattern"])
    subject, wanted = url_selection.parse_pattern(pattern, url_selection.normal_of(call))
    yield url_selection.count_urls(call, subject, lambda url, _: wanted(url), pending_too=first)


def _plan_retry(call: verb.Invocation) -> verb.Question:
    options = call.options
    arguments = {"reason": options.reason}
    if options.subject is not None:
        url_selection.parse_pattern(options.subject)
        arguments["subject"] = options.subject
    return verb.Question(arguments)


def _count_retry(call: verb.Invocation, question: verb.Question) -> Iterator[verb.Row]:
    options, reason = call.options, Event(call.options.reason)
    subject, within = None, None
    if options.subject is not None:
        normal = url_selection.normal_of(call)
        subject, within = url_selection.parse_pattern(options.subject, normal)
    yield url_selection.count_urls(
        call, subject,
        lambda url, state: state.event is reason and (within is None or within(url)),
        failed_only=True,
    )  # fmt: skip


def _add_to_queue(call: verb.Invocation) -> int | None:
    options = call.options
    if options.queue is None:
        if options.now:
            raise UsageError("--now is for a queue: give --queue", print_help=False)
        return None
    from scrapy_spider_suite.operate.verbs.runs import add_urls  # redis-py is an extra

    if options.tag or options.first:
        raise UsageError("--queue goes without --tag and --first", print_help=False)
    return add_urls(call, options.sources, options.queue, now=options.now)


_PATTERNS = (
    "PATTERN is a host, a .domain, a URL, or a URL with * for anything after its host.\n"
    "The delays hold as ever. Requests that a spider made itself cannot be made again."
)
VERBS = (
    verb.JobVerb(
        "add", "URLs, host names, or files of them, for the running or the next crawl",
        options=(
            verb.option("sources", metavar="URL|FILE", nargs="+"),
            verb.option("--first", action="store_true", help="before all else of their hosts"),
            verb.option(
                "--tag", metavar="NAME", type=_tag,
                help="where the seeds come from, unless their lines say it",
            ),
            verb.option(
                "--queue", metavar="QUEUE",
                help="shared-queue: URLs into this queue, whether they are known or not",
            ),
            verb.option(
                "--now", action="store_true",
                help="--queue: at once to the fetcher that has the host, else to the least busy",
            ),
        ),
        arguments="URL|FILE...", plan=_plan_add, run=_add_to_queue,
        look=lambda call, question: [url_selection.count_seeds(call, question.lines or ())],
        apply=add,
        reads_only=lambda options, listed: options.sources == [listed],
        about=(
            "A file has a URL or a host name a line, plain or compressed (gz, xz, zst); @URL is a\n"
            "list that is downloaded. What is known already is left as it is: see `refetch`. All\n"
            "sources are read before anything is added; if one cannot be read, nothing is. Lines\n"
            "that are no seeds are left out and counted: `report bad-seeds` has them."
        ),
        examples=(
            "add https://example.com/ seeds.txt --first -j crawls/news",
            "add hosts.txt.zst @https://example.org/more.txt.gz --tag spring -j crawls/news",
            "add https://example.com/ --queue one-off --now -j redis://localhost/0",
        ),
    ),
    verb.JobVerb(
        "refetch", "fetch URLs again that were fetched or failed",
        options=(
            verb.option("source", metavar="FILE|PATTERN"),
            verb.option(
                "--first", action="store_true",
                help="before everything else of their hosts, those that are pending too",
            ),
        ),
        arguments="FILE|PATTERN", plan=_plan_refetch, look=_count_refetch, apply=refetch,
        about=f"FILE has a URL a line.\n{_PATTERNS}",
        reads_only=lambda options, listed: (
            options.source == listed or not os.path.exists(options.source)
        ),
        examples=(
            "refetch changed.txt --first -j crawls/news",
            "refetch 'https://example.com/news/*' --dry-run -j crawls/news",
        ),
    ),
    verb.JobVerb(
        "retry", "try URLs again that failed for one reason",
        options=(
            verb.option(
                "subject", metavar="PATTERN", nargs="?", type=verb.without_port,
                help="of these hosts or URLs only",
            ),
            verb.option(
                "--reason", required=True, metavar="REASON",
                type=verb.argument_type(lambda text: url_selection.parse_reason(text).value),
                help="why they failed: a reason of the outcome table, such as timeout",
            ),
        ),
        arguments="--reason REASON", plan=_plan_retry, look=_count_retry, apply=retry,
        about=f"{_PATTERNS}\nWith the reason trap, what is closed on these hosts is open again.",
        examples=(
            "retry --reason timeout -j crawls/news",
            "retry example.com --reason robots --why 'they changed it' -j crawls/news",
        ),
    ),
)  # fmt: skip
