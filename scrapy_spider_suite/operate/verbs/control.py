"""``block``, ``unblock``, ``blocks``, ``pause``, ``resume``, ``set``, ``drain``."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

from scrapy_spider_suite.errors import ActionError
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.operate import job_target, url_selection, verb
from scrapy_spider_suite.operate.actions import Action
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.urls.host_patterns import HostPattern, PatternKind

_ROWS = 50  # rows that are looked at in one portion


def block(site: job_target.JobTarget, action: Action) -> verb.Result | verb.Work:
    """Block a subject, for a number of seconds or until `unblock`; *drop* fails pending URLs."""
    subject = url_selection.parse_subject(action.get("subject", str))
    seconds = action.get("seconds", float) if "seconds" in action.arguments else None
    if seconds is not None and not 0 < seconds < 1e10:
        raise ActionError(f"a block lasts for some seconds, not {seconds:g}")
    drop = action.get("drop", bool, False)
    if drop and subject.kind is PatternKind.RANGE:
        raise ActionError("which hosts live in an address range is not known: drop them by name")
    # The time runs from the call, also if the action is carried out later.
    until = math.inf if seconds is None else action.when + seconds
    kept = job_target.StoredBlock(str(subject), action.who, action.when, action.why, until)
    kv = site.store.kv(job_target.BLOCKS)
    old = kv.get(kept.subject.encode()) is not None
    kept.put(kv)
    site.blocks_changed()
    said = f"{subject} is blocked{' anew' if old else ''}"
    if seconds is not None:
        said += f" for {seconds:g} s"
    ends = None if seconds is None else until
    facts = {"subject": str(subject), "until": ends, "blocked_before": old}
    if not drop:
        return said, facts
    return _drop(site, action, subject, said, facts)


def unblock(site: job_target.JobTarget, action: Action) -> verb.Result:
    """Let a subject be visited again."""
    subject = url_selection.parse_subject(action.get("subject", str))
    kv = site.store.kv(job_target.BLOCKS)
    if kv.get(str(subject).encode()) is None:
        line = site.frontier.policy.overrides.lines.get(subject)
        if line is not None and line.override.blocked:
            raise ActionError(f"{subject} is blocked by {line.rule.source}: change it there")
        known = ", ".join(each.subject for each in job_target.stored_blocks(kv)) or "nothing"
        raise ActionError(f"{subject} is not blocked by itself; blocked is: {known[:2000]}")
    kv.delete(str(subject).encode())
    site.blocks_changed()
    return f"{subject} is no longer blocked", {"subject": str(subject)}


def _drop(
    site: job_target.JobTarget, action: Action, subject: HostPattern, said: str,
    facts: dict[str, Any],
) -> verb.Work:
    rework, progress = site.rework, verb.ActionProgress(site.kv, action.id)
    for host in url_selection.hosts_matching(rework, subject, progress):
        if host is None:
            progress.save()
            yield
            continue
        after = b""
        while entries := rework.pending(host, after, _ROWS):
            after = entries[-1].key
            for entry in entries:
                if subject.has_url(entry.url):
                    progress.count("dropped", rework.fail(entry, Event.BARRED, site.now()))
            progress.save()
            yield
    progress.forget()
    dropped = progress.counts.get("dropped", 0)
    urls = counted(dropped, "pending URL was dropped", "pending URLs were dropped")
    return f"{said}; {urls}", facts | {"dropped": dropped}


_COLUMNS = ("subject", "who", "since", "until", "reason")


_SUBJECT = verb.option(
    "subject", metavar="HOST|.domain|CIDR|URL",
    type=verb.argument_type(lambda text: str(HostPattern.parse(verb.without_port(text)))),
)  # fmt: skip


def _plan_block(call: verb.Invocation) -> verb.Question:
    options = call.options
    arguments = {"subject": options.subject, "drop": options.drop}
    if options.drop and not options.dry_run:
        verb.confirm(call, f"Block {options.subject}, and fail all that is pending there?")
    if options.seconds is not None:
        arguments["seconds"] = options.seconds
    return verb.Question(arguments)


def _blocks(call: verb.Invocation, question: verb.Question) -> Iterator[verb.Row]:
    now = time.time()
    with StoreReader(call.folder()) as reader:
        for block in job_target.stored_blocks(reader.store.kv(job_target.BLOCKS)):
            if block.until > now:
                until = None if math.isinf(block.until) else verb.display_text("when", block.until)
                yield {
                    "subject": block.subject, "who": block.who,
                    "since": verb.display_text("when", block.when), "until": until,
                    "reason": block.reason,
                }  # fmt: skip


def _show_blocks(call: verb.Invocation, found: verb.Found) -> int:
    if found.one_job:
        call.table(found.rows(), _COLUMNS)
        return 0
    alike: dict[tuple[Any, ...], list[str]] = {}
    for row in found.rows():
        alike.setdefault(tuple(row.get(each) for each in _COLUMNS), []).append(row["agent"])
    rows = (
        {**dict(zip(_COLUMNS, block, strict=True)),
         "agents": names if call.json else found.names(names)}
        for block, names in alike.items()
    )  # fmt: skip
    call.table(rows, (*_COLUMNS, "agents"))
    return 0


def pause(site: job_target.JobTarget, action: Action) -> verb.Result:
    """Send nothing more; what is under way is fetched to its end."""
    before = job_target.paused_by(site.kv)
    if before:
        return f"it was paused already: {before}", {"paused": True, "changed": False}
    site.pause(action)
    how = "what is under way is finished" if site.running else "a crawl that is started waits"
    return f"paused; {how}", {"paused": True, "changed": True}


def resume(site: job_target.JobTarget, action: Action) -> verb.Result:
    if not job_target.paused_by(site.kv):
        return "it was not paused", {"paused": False, "changed": False}
    site.resume()
    return "the crawl goes on", {"paused": False, "changed": True}


def set_value(site: job_target.JobTarget, action: Action) -> verb.Result:
    """Change one setting."""
    name = action.get("name", str)
    old, new = site.set(name, action.get("value", str))
    said = f"was {old} and is {new} until this crawl ends" if old != new else f"is {new} already"
    return f"{name} {said}", {"name": name, "old": old, "new": new}


def drain(site: job_target.JobTarget, action: Action) -> verb.Result:
    """Begin to hand over everything to the other agents."""
    site.drain()
    return "it hands over what it has, and ends then", {"draining": True}


VERBS = (
    verb.JobVerb(
        "block", "send nothing to a host, a domain, an address range, or below a URL",
        options=(
            _SUBJECT,
            verb.option(
                "--for", dest="seconds", type=verb.SECONDS, metavar="TIME",
                help="how long, such as 3600, 12h or 7d (default: until it is unblocked)",
            ),
            verb.option(
                "--drop", action="store_true",
                help="fail the URLs that are pending there; asks for confirmation",
            ),
        ),
        arguments="HOST|.domain|CIDR|URL", plan=_plan_block,
        look=lambda call, question: [
            url_selection.count_pending(call, HostPattern.parse(call.options.subject))
        ],
        apply=block, urgent=True, stands="block",
        about=(
            "Holds within a second in a running crawl, for robots.txt, media and redirects too.\n"
            "Requests in progress run to their end; pending URLs wait. The job keeps the block.\n"
            ".example.com is example.com and all hosts below it, on all ports."
        ),
        examples=(
            'block example.com --for 7d --why "complaint of 3 May" -j crawls/news',
            'block .example.com --drop --yes --why "asked to leave" -j crawls/news',
            'block https://example.com/calendar/ --why "endless" -j crawls/news',
        ),
    ),
    verb.JobVerb(
        "unblock", "remove a block", options=(_SUBJECT,), arguments="HOST|.domain|CIDR|URL",
        plan=lambda call: verb.Question({"subject": call.options.subject}),
        look=lambda call, question: [
            url_selection.count_pending(
                call, HostPattern.parse(call.options.subject), blocked=True
            )
        ],
        apply=unblock,
        urgent=True, stands="block", ends_standing=True,
        examples=("unblock example.com -j crawls/news",),
    ),
    verb.JobVerb(
        "blocks", "the blocks that hold: who set them, why, until when", look=_blocks,
        show=_show_blocks,
        examples=("blocks -j crawls/news --json",),
    ),
    verb.JobVerb(
        "pause", "send nothing more until `resume`",
        plan=lambda call: verb.Question(future_job="the crawl that begins a job there waits"),
        apply=pause, urgent=True, stands="pause",
        about=(
            "Requests in progress run to their end. A paused crawl neither ends nor times out.\n"
            "The job keeps the pause: a crawl that is started again stays paused. Where DIR holds\n"
            "no job yet, the crawl that begins one there waits at once."
        ),
        examples=('pause -j crawls/news --why "maintenance of the proxy"',),
    ),
    # It stands until the next pause: an agent that was removed, and comes back, has the pause in
    # its job.
    verb.JobVerb(
        "resume", "continue a paused crawl",
        plan=lambda call: verb.Question(future_job="the crawl that begins a job there goes on"),
        apply=resume, urgent=True, stands="pause",
        examples=("resume -j crawls/news",),
    ),
    verb.JobVerb(
        "set", "change a setting of a running crawl",
        options=(
            verb.option("name", metavar="NAME", help="such as SUITE_HOST_DELAY"),
            verb.option("value", metavar="VALUE", help="as after `-s NAME=`"),
        ),
        arguments="NAME VALUE",
        plan=lambda call: verb.Question({"name": call.options.name, "value": call.options.value}),
        apply=set_value, urgent=True,
        about=(
            "VALUE is written as after `-s NAME=`; `default` is the default. It holds until the\n"
            "crawl ends. `scrapy frontier settings NAME` says whether a setting can be set; of\n"
            "Scrapy's own, CONCURRENT_REQUESTS, DOWNLOAD_TIMEOUT and LOG_LEVEL can."
        ),
        examples=(
            'set SUITE_HOST_DELAY 10 --why "they asked for it" -j crawls/news',
            "set SUITE_MAX_PAGES 500000 -j crawls/news",
        ),
    ),
    # `scrapy cluster drain` asks one agent, and waits until the agent has left.
    verb.JobVerb("drain", "have an agent hand over all it has, and end", apply=drain),
)  # fmt: skip
