"""``block`` and ``unblock``: nothing is sent to a host, a domain, an address range, below a URL.

What is pending there waits, unless it is to be dropped; what is under way is fetched to its end.
"""

from __future__ import annotations

from typing import Any

from scrapy_spider_suite.errors import ActionError
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.operate import restrictions
from scrapy_spider_suite.operate.actions import Action
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.operate.restrictions import StoredBlock
from scrapy_spider_suite.operate.url_selection import hosts_matching, parse_subject
from scrapy_spider_suite.operate.verb import ActionProgress, Result, Work
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.urls.host_patterns import HostPattern, PatternKind

_ROWS = 50
"""Rows that are looked at in one portion."""


def block(site: JobTarget, action: Action) -> Result | Work:
    """Block a subject, for so many seconds or until it is unblocked; drop what is pending."""
    action.expect("subject", "seconds", "drop")
    subject = parse_subject(action.get("subject", str))
    seconds = action.get("seconds", float) if "seconds" in action.arguments else None
    if seconds is not None and not 0 < seconds < 1e10:
        raise ActionError(f"a block lasts for some seconds, not {seconds:g}")
    drop = action.get("drop", bool, False)
    if drop and subject.kind is PatternKind.RANGE:
        raise ActionError("which hosts live in an address range is not known: drop them by name")
    # The time for which it holds runs from when it was asked, also if it is carried out later.
    until = {} if seconds is None else {"until": action.when + seconds}
    kept = StoredBlock(str(subject), action.who, action.when, action.why, **until)
    kv = site.store.kv(restrictions.BLOCKS)
    old = kv.get(kept.subject.encode()) is not None
    kept.put(kv)
    site.blocks_changed()
    said = f"{subject} is blocked{' anew' if old else ''}"
    if seconds is not None:
        said += f" for {seconds:g} s"
    facts: dict[str, Any] = {
        "subject": str(subject), "until": until.get("until"), "blocked_before": old,
    }  # fmt: skip
    if not drop:
        return said, facts
    return _drop(site, action, subject, said, facts)


def unblock(site: JobTarget, action: Action) -> Result:
    """Let a subject be visited again."""
    action.expect("subject")
    subject = parse_subject(action.get("subject", str))
    kv = site.store.kv(restrictions.BLOCKS)
    if kv.get(str(subject).encode()) is None:
        line = site.frontier.policy.overrides.line(subject)
        if line is not None and line.override.blocked:
            raise ActionError(f"{subject} is blocked by {line.rule.source}: change it there")
        known = ", ".join(each.subject for each in restrictions.stored_blocks(kv)) or "nothing"
        raise ActionError(f"{subject} is not blocked by itself; blocked is: {known[:2000]}")
    kv.delete(str(subject).encode())
    site.blocks_changed()
    return f"{subject} is no longer blocked", {"subject": str(subject)}


def _drop(
    site: JobTarget, action: Action, subject: HostPattern, said: str, facts: dict[str, Any]
) -> Work:
    """Fail what is pending there: `retry --reason barred` would bring it back."""
    rework, progress = site.rework, ActionProgress(site.kv, action.id)
    for host in hosts_matching(rework, subject, progress):
        if host is None:
            progress.save()
            yield
            continue
        after = b""
        while entries := rework.pending(host, after, _ROWS):
            after = entries[-1].key
            for entry in entries:
                if subject.kind is not PatternKind.PREFIX or entry.url.startswith(subject.text):
                    progress.count("dropped", rework.fail(entry, Event.BARRED, site.now()))
            progress.save()
            yield
    progress.forget()
    dropped = progress.counts.get("dropped", 0)
    urls = counted(dropped, "pending URL was dropped", "pending URLs were dropped")
    return f"{said}; {urls}", facts | {"dropped": dropped}
