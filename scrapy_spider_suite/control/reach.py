"""Which hosts of a job an action is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from scrapy_spider_suite.control.progress import Progress
from scrapy_spider_suite.crawl.queue.frontier import UrlEdits
from scrapy_spider_suite.urls.host_patterns import Kind, Subject

_HOSTS = 200
"""Hosts that are looked at in one portion."""


def hosts_of(rework: UrlEdits, subject: Subject, progress: Progress) -> Iterator[str | None]:
    """The hosts of *subject* that the job knows, from where *progress* is; None: a portion ends."""
    if subject.kind is not Kind.DOMAIN:
        yield subject.host
        return
    belongs = within(subject)
    while rows := rework.hosts(progress.host, _HOSTS):
        for name, _ in rows:
            if belongs(name):
                yield name
            progress.host = name
        yield None


def within(subject: Subject) -> Callable[[str], bool]:
    """Whether a host belongs to *subject*, a domain or a host."""
    if subject.kind is Kind.DOMAIN:
        return lambda name: name == subject.host or name.endswith(subject.text)
    return lambda name: name == subject.host
