"""Why a crawl waits, in one line."""

from __future__ import annotations

from collections.abc import Iterable

from scrapy_spider_suite.explaining.judging import span
from scrapy_spider_suite.frontier.waits import WaitCount, WaitReason


def summary(counts: Iterable[WaitCount], wall: float) -> str:
    """How many hosts wait, by reason and with the next time of each; *wall* is the time now."""
    waiting = [each for each in counts if each.reason is not WaitReason.READY]
    ready = sum(each.hosts for each in counts if each.reason is WaitReason.READY)
    hosts = sum(each.hosts for each in waiting)
    words = f"{_hosts(hosts)} wait{'s' if hosts == 1 else ''}"
    if waiting:
        words += f": {', '.join(_count(each, wall) for each in waiting)}"
    return f"{words}; {_hosts(ready)} {'is' if ready == 1 else 'are'} ready" if ready else words


def _hosts(number: int) -> str:
    return f"{number:,} host{'' if number == 1 else 's'}"


def _count(count: WaitCount, wall: float) -> str:
    words = f"{count.hosts:,} {count.reason}"
    left = 0.0 if count.next_visit is None else count.next_visit - wall
    return f"{words} (next in {span(left)})" if left >= 1.0 else words
