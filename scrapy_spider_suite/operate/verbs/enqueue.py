"""``add``, ``refetch`` and ``retry``: make URLs pending, for the first time or again.

A portion is a few hundred rows: one batch, which also stores the progress. A URL that is fetched
again keeps its identity and depth; it counts as pending, no longer as done or failed. The job has
only the fingerprint of a spider's own request, so such requests are counted and left.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from scrapy_spider_suite.crawl.queue.frontier import BEHIND_FIRST, FIRST
from scrapy_spider_suite.crawl.requests import sitemap_payload
from scrapy_spider_suite.crawl.seeds import SeedCounts, SeedList, seed_scheduler
from scrapy_spider_suite.errors import ActionError
from scrapy_spider_suite.frontier.entries import Entry, Flag, host_key
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.operate import url_selection
from scrapy_spider_suite.operate.actions import Action, ActionFolder
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.operate.url_selection import (
    SPIDERS_OWN,
    find_seed,
    hosts_matching,
    parse_pattern,
    parse_reason,
)
from scrapy_spider_suite.operate.verb import (
    ACT_EXITS,
    ActionProgress,
    Invocation,
    JobVerb,
    Question,
    Row,
    Work,
    add_act_options,
    add_caution,
    show_counts,
    without_port,
)
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.store.rows import UrlState
from scrapy_spider_suite.store.seen_transfer import bring_back, while_locked
from scrapy_spider_suite.store.url_states import voucher_of_sitemap
from scrapy_spider_suite.urls.host_patterns import HostPattern
from scrapy_spider_suite.urls.url_lists import (
    READ_ERRORS,
    ListFile,
    Seed,
    SeedLines,
    describe_read_error,
    is_file_name,
    read_lines,
)

_SOWING = 0.005
"""Seconds for which seeds are taken before they are written."""
_URLS = 50
_HOSTS = 200
_AHEAD = 10_000
"""URLs that are to be moved to the front for which the queues of their hosts are read once."""
_NOT_A_URL = 0xFF  # begins the identity of a spider's own request
_PENDING = UrlState(State.PENDING)

ONLY_FINGERPRINTS = (
    "of pages that were answered 200 the sieve has fingerprints alone, which no pattern finds: "
    "give a list of their URLs"
)
"""What a pattern does not reach where a job has a sieve."""

Wanted = Callable[[str, UrlState], bool]


def add(site: JobTarget, action: Action) -> Work:
    """Make the URLs that came with *action* pending, unless they are known."""
    action.expect("first")
    priority = FIRST if action.get("first", bool, False) else 0
    # Whoever was asked sees to it that its agent has each: no other one was given the list.
    take = seed_scheduler(site.frontier, site.now, priority, given=lambda: False)

    def plant(seeds: Sequence[Seed]) -> int:
        sower.counts.sent += sum(site.is_foreign(seed.url) for seed in seeds)
        return take(seeds)

    sower = SeedList(site.store, plant, SeedLines("URLs", normal=site.normal), f"add {action.id}")
    for _ in _taken_in(site, action, sower):
        sower.save()
        yield
    sower.forget()
    sown = sower.counts
    others = f", {sown.sent} went to other agents" if sown.sent else ""
    said = f"{counted(sown.seeds, 'URL')} taken, {sown.new:,} new{others}"
    if sown.bad:
        bad = counted(sown.bad, "line is no seed", "lines are no seeds")
        said += f", {bad}: {'; '.join(sown.first_bad)}"
    sent = {"sent": sown.sent} if sown.sent else {}
    return said, {"urls": sown.seeds + sown.bad, "new": sown.new, **sent, **bad_of(sown)}


def bad_of(sown: SeedCounts) -> dict[str, Any]:
    """The facts about lines that are no seeds."""
    return {"no_web_addresses": sown.bad, "first_bad": sown.first_bad}


def refetch(site: JobTarget, action: Action) -> Work:
    """Make URLs that are done or failed pending: those of a pattern, or those that came with it."""
    action.expect("pattern", "first")
    first = action.get("first", bool, False)
    progress, bad = ActionProgress(site.kv, action.id), {}
    if "pattern" in action.arguments:
        subject, wanted = parse_pattern(action.get("pattern", str), site.normal)
        yield from _walk_all(site, progress, subject, lambda url, _: wanted(url), first=first)
    else:
        sown = yield from _listed(site, action, progress, first=first)
        bad = bad_of(sown) if sown.bad else {}
    progress.forget()
    said, counts = _renewed(progress, "", "fetched again")
    if "pattern" in action.arguments and site.store.sieve is not None:
        said += f"; {ONLY_FINGERPRINTS}"
    if bad:
        lines = counted(bad["no_web_addresses"], "line is no URL", "lines are no URLs")
        said += f"; {lines}: {'; '.join(bad['first_bad'])}"
    return said, counts | bad


def retry(site: JobTarget, action: Action) -> Work:
    """Make URLs that failed for one reason pending, of all hosts or of some.

    The reason *trap* opens what is closed on their hosts, too.
    """
    action.expect("reason", "subject")
    cause = parse_reason(action.get("reason", str))
    subject, within = None, None
    if "subject" in action.arguments:
        subject, within = parse_pattern(action.get("subject", str), site.normal)
    progress = ActionProgress(site.kv, action.id)

    def wanted(url: str, state: UrlState) -> bool:
        failed = state.state is State.FAILED and state.event is cause
        return failed and (within is None or within(url))

    def begin(host: str) -> None:
        if cause is Event.TRAP:
            progress.count("traps_opened", site.frontier.traps.reopen(host))

    yield from _walk(site, progress, subject, wanted, first=False, begin=begin)
    if cause is Event.TRAP:
        site.frontier.trap_stats.save()
    progress.forget()
    return _renewed(progress, f" that failed ({cause.value.replace('_', ' ')})", "tried again")


# Lists


def _taken_in(site: JobTarget, action: Action, sower: SeedList) -> Iterator[None]:
    """Take the lines that came with *action*, in portions, from where *sower* was."""
    sower.resume([0, 0])
    try:
        with ListFile(ActionFolder(site.folder).open_urls(action.id)) as file:
            file.skip(sower.at)
            for block, _ in file.blocks():
                sower.feed(block)
                yield from _taken(site, sower)
    except READ_ERRORS as error:
        why = describe_read_error(error)
        raise ActionError(f"the URLs that belong to it cannot be read: {why}") from None
    sower.end_of_text()
    yield from _taken(site, sower)


def _taken(site: JobTarget, sower: SeedList) -> Iterator[None]:
    while sower.more:
        until = site.now() + _SOWING
        sower.take()
        while sower.more and site.now() < until:
            sower.take()
        yield


def _listed(
    site: JobTarget, action: Action, progress: ActionProgress, *, first: bool
) -> Generator[None, None, SeedCounts]:
    ahead: dict[str, set[bytes]] = {}
    normal = site.normal

    def plant(seeds: Sequence[Seed]) -> int:
        for seed in seeds:
            entry, data = find_seed(site.store, seed, normal)
            if entry is None or data is None:
                progress.count("unknown")
                continue
            state = UrlState.from_bytes(data)
            if not _again(site, progress, entry, state, first=first) and first:
                ahead.setdefault(entry.host, set()).add(entry.identity)
        return 0

    # By the plain form: of what its server insists on, the crawl's own would not be found.
    sower = SeedList(site.store, plant, SeedLines("URLs"), f"refetch {action.id}")
    for _ in _taken_in(site, action, sower):
        if sum(map(len, ahead.values())) >= _AHEAD:
            yield from _move_listed(site, progress, ahead)
        if not ahead:  # else a kill would leave some behind
            sower.save()
            progress.save()
        yield
    yield from _move_listed(site, progress, ahead)
    sower.forget()
    return sower.counts


def _move_listed(
    site: JobTarget, progress: ActionProgress, ahead: dict[str, set[bytes]]
) -> Iterator[None]:
    for host in ahead:
        yield from _to_the_front(site, progress, host, lambda it: it.identity in ahead[it.host])
    ahead.clear()


# Patterns


def _walk_all(
    site: JobTarget, progress: ActionProgress, subject: HostPattern | None, wanted: Wanted, *,
    first: bool
) -> Work:
    """`_walk`, also over what the archive holds, which gets its rows back first."""
    walk = _walk(site, progress, subject, wanted, first=first, archived=True)
    return (yield from while_locked(site.store.archive, walk))


def _walk(
    site: JobTarget, progress: ActionProgress, subject: HostPattern | None, wanted: Wanted, *,
    first: bool,
    archived: bool = False, begin: Callable[[str], None] = lambda host: None,
) -> Work:  # fmt: skip
    """Go over the URLs of *subject*, of every host without one; *begin* with each host."""
    hosts = _all_hosts(site, progress) if subject is None else hosts_matching(
        site.rework, subject, progress
    )  # fmt: skip
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
                    entry = Entry(host, url, host_key(host) + name)
                    _again(site, progress, entry, state, first=first)
            progress.save()
            yield
        if first:
            yield from _to_the_front(site, progress, host, lambda each: wanted(each.url, _PENDING))
        progress.url = b""
    return "", {}


def _all_hosts(site: JobTarget, progress: ActionProgress) -> Iterator[str | None]:
    """Hosts that have anything that failed; None: a portion ends."""
    while rows := site.rework.hosts(progress.host, _HOSTS):
        for name, record in rows:
            if record.failed:
                yield name
            progress.host = name
        yield None


# One by one


def _again(
    site: JobTarget, progress: ActionProgress, entry: Entry, state: UrlState, *, first: bool
) -> bool:
    """Make *entry* pending; False if it is so already."""
    if state.state is State.PENDING:
        progress.count("pending_already")
        return False
    progress.count("hosts_given_up", site.rework.revive_host(entry.host))
    voucher = voucher_of_sitemap(site.store, entry.identity)
    if voucher is not None:
        entry.payload = sitemap_payload(voucher)
    entry.priority, entry.depth = FIRST if first else 0, state.depth
    entry.flags |= int(Flag.DONT_FILTER)  # what is asked for is not judged by traps
    taken = site.rework.requeue(entry, state, site.now())
    progress.count("urls" if taken else "hosts_too_many_for_their_domain")
    return True


def _to_the_front(
    site: JobTarget, progress: ActionProgress, host: str, wanted: Callable[[Entry], bool]
) -> Iterator[None]:
    after = BEHIND_FIRST
    while entries := site.rework.pending(host, after, _URLS):
        after = entries[-1].key
        for entry in entries:
            if wanted(entry):
                moved = site.rework.put_first(entry, site.now())
                progress.count("moved_to_the_front", moved)
        progress.save()
        yield


def _renewed(progress: ActionProgress, which: str, what: str) -> tuple[str, dict[str, Any]]:
    """What to say of the URLs, *which* they were and *what* becomes of them, and the counts."""
    counts = {"urls": 0} | {name: n for name, n in progress.counts.items() if n}
    others = "; ".join(
        f"{name.replace('_', ' ')}: {number}" for name, number in counts.items() if name != "urls"
    )
    urls = counted(counts["urls"], f"URL{which} is", f"URLs{which} are")
    said = f"{urls} {what}{f' ({others})' if others else ''}"
    return f"{said}; {SPIDERS_OWN}" if "requests_of_the_spider" in counts else said, counts


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sources", metavar="URL|FILE", nargs="+")
    parser.add_argument(
        "--first", action="store_true", help="before everything else of their hosts"
    )
    parser.add_argument(
        "--tag", metavar="NAME", type=_tag,
        help="where the seeds come from, unless their lines say it",
    )  # fmt: skip
    add_caution(parser)
    add_act_options(parser)


def _tag(text: str) -> str:
    if len(text) <= 100 and text.split() == [text]:
        return text
    raise argparse.ArgumentTypeError(f"{text!r}: expected a word of at most 100 characters")


def _plan_add(call: Invocation) -> Question:
    options = call.options
    sources = [
        f"{source} #tag={options.tag}" if options.tag else source for source in options.sources
    ]
    lines = read_lines(sources, str(call.settings["USER_AGENT"]))
    return Question(
        {"first": options.first}, lines, counts=options.dry_run, words=("--dry-run",),
        by_owner=True,
    )  # fmt: skip


def _count_add(call: Invocation, question: Question) -> Iterator[Row]:
    yield url_selection.count_seeds(call, question.lines or ())


_ADD = (
    JobVerb(
        "add", "URLs, host names, or files of them, for the running or the next crawl",
        add_options=_add_options, arguments="URL|FILE...", plan=_plan_add, look=_count_add,
        apply=add, show=show_counts,
        reads_only=lambda options, listed: options.sources == [listed],
        about=(
            "A file has a URL or a host name a line, plain or compressed (gz, xz, zst); @URL is a\n"
            "list that is downloaded. What is known already is left as it is: see `refetch`. All\n"
            "sources are read before anything is added; if one cannot be read, nothing is. Lines\n"
            "that are no seeds are left out and counted: `report bad-seeds` has them."
        ),
        examples=(
            "add https://example.com/ seeds.txt -j crawls/news",
            "add breaking.txt --first -j crawls/news",
            "add seeds.txt --dry-run -j crawls/news",
            "add hosts.txt.zst @https://example.org/more.txt.gz --tag spring -j crawls/news",
        ),
        exits=ACT_EXITS,
    ),
)  # fmt: skip


_PATTERN = "FILE|PATTERN"


def _refetch_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar=_PATTERN)
    parser.add_argument(
        "--first", action="store_true",
        help="before everything else of their hosts, those that are pending too",
    )  # fmt: skip
    add_caution(parser)
    add_act_options(parser)


def _plan_refetch(call: Invocation) -> Question:
    options = call.options
    arguments: dict[str, object] = {"first": options.first}
    words = ("--dry-run", *(("--first",) if options.first else ()))
    if "://" not in options.source and os.path.isfile(options.source):
        lines = read_lines([options.source], "")
        return Question(arguments, lines, counts=options.dry_run, words=words)
    if "://" not in options.source and is_file_name(options.source):
        raise ActionError(f"{options.source!r} is no URL, and there is no such file")
    pattern = without_port(options.source)
    parse_pattern(pattern)
    return Question(
        {**arguments, "pattern": pattern}, counts=options.dry_run,
        words=(*words, "--", options.source),
    )  # fmt: skip


def _count_refetch(call: Invocation, question: Question) -> Iterator[Row]:
    first = call.options.first
    if question.lines is not None:
        yield url_selection.count_listed(call, question.lines, pending_too=first)
        return
    pattern = str(question.arguments["pattern"])
    subject, wanted = parse_pattern(pattern, url_selection.normal_of(call))
    yield url_selection.count_urls(call, subject, lambda url, _: wanted(url), pending_too=first)


def _reads_only_list(options: argparse.Namespace, listed: str | None) -> bool:
    return options.source == listed or not os.path.exists(options.source)


def _reason_argument(text: str) -> str:
    try:
        return parse_reason(text).value
    except ActionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _retry_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subject", metavar="PATTERN", nargs="?", type=without_port,
        help="of these hosts or URLs only",
    )  # fmt: skip
    add_caution(parser)
    add_act_options(parser)
    parser.add_argument(
        "--reason", type=_reason_argument, required=True, metavar="REASON",
        help="why they failed: a reason of the outcome table, such as timeout",
    )  # fmt: skip


def _plan_retry(call: Invocation) -> Question:
    options = call.options
    arguments = {"reason": options.reason}
    if options.subject is not None:
        parse_pattern(options.subject)
        arguments["subject"] = options.subject
    return Question(arguments, counts=options.dry_run)


def _count_retry(call: Invocation, question: Question) -> Iterator[Row]:
    options, reason = call.options, Event(call.options.reason)
    subject, within = None, None
    if options.subject is not None:
        subject, within = parse_pattern(options.subject, url_selection.normal_of(call))
    yield url_selection.count_urls(
        call, subject,
        lambda url, state: state.event is reason and (within is None or within(url)),
        failed_only=True,
    )  # fmt: skip


_PATTERNS = (
    "PATTERN is a host, a .domain, a URL, or a URL with * for anything after its host.\n"
    "The delays hold as ever. Requests that a spider made itself cannot be made again."
)
_RENEW = (
    JobVerb(
        "refetch", "fetch URLs again that were fetched or failed", add_options=_refetch_options,
        arguments=_PATTERN, plan=_plan_refetch, look=_count_refetch, apply=refetch,
        show=show_counts, reads_only=_reads_only_list, about=f"FILE has a URL a line.\n{_PATTERNS}",
        examples=(
            "refetch changed.txt --first -j crawls/news",
            "refetch 'https://example.com/news/*' --dry-run -j crawls/news",
            "refetch .example.com -j crawls/news",
        ),
        exits=ACT_EXITS,
    ),
    JobVerb(
        "retry", "try URLs again that failed for one reason", add_options=_retry_options,
        arguments="--reason REASON", plan=_plan_retry, look=_count_retry, apply=retry,
        show=show_counts,
        about=f"{_PATTERNS}\nWith the reason trap, what is closed on these hosts is open again.",
        examples=(
            "retry --reason timeout -j crawls/news",
            "retry example.com --reason robots --why 'they changed it' -j crawls/news",
            "retry shop.example --reason trap -j crawls/news",
        ),
        exits=ACT_EXITS,
    ),
)  # fmt: skip

VERBS = (*_ADD, *_RENEW)
