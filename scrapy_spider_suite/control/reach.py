"""Which hosts of a job an action is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from scrapy_spider_suite.control.progress import Progress
from scrapy_spider_suite.crawl.queue.frontier import UrlEdits
from scrapy_spider_suite.urls.host_patterns import HostPattern, PatternKind

_HOSTS = 200
"""Hosts that are looked at in one portion."""


def hosts_of(rework: UrlEdits, subject: HostPattern, progress: Progress) -> Iterator[str | None]:
    """The hosts of *subject* that the job knows, from where *progress* is; None: a portion ends."""
    if subject.kind is not PatternKind.DOMAIN:
        yield subject.host
        return
    belongs = within(subject)
    while rows := rework.hosts(progress.host, _HOSTS):
        for name, _ in rows:
            if belongs(name):
                yield name
            progress.host = name
        yield None


def within(subject: HostPattern) -> Callable[[str], bool]:
    """Whether a host belongs to *subject*, a domain or a host."""
    if subject.kind is PatternKind.DOMAIN:
        return lambda name: name == subject.host or name.endswith(subject.text)
    return lambda name: name == subject.host
