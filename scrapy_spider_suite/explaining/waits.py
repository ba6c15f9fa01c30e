"""Why a crawl waits: the counts of waiting hosts that it publishes, as rows and in one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scrapy_spider_suite.explaining.judging import span
from scrapy_spider_suite.frontier.waits import WaitCount, WaitReason, add_up


def counts_in(status: Mapping[str, Any]) -> list[WaitCount]:
    """The counts that a status file has."""
    return [
        WaitCount(WaitReason(row["reason"]), row["hosts"], row["next_visit"])
        for row in status.get("waits", ())
    ]


def rows(counts: Iterable[WaitCount], wall: float) -> list[dict[str, Any]]:
    """*counts* as the JSON of commands: ``next_visit`` is seconds from *wall*, the time now."""
    return [
        {
            "reason": each.reason.value, "hosts": each.hosts,
            "next_visit": None if each.next_visit is None else _left(each.next_visit, wall),
        }
        for each in counts
    ]  # fmt: skip


def counts_of(rows: Iterable[Mapping[str, Any]], wall: float) -> list[WaitCount]:
    """The counts that *rows*, of one agent or of several, say; see `rows`."""
    return add_up(
        WaitCount(
            WaitReason(row["reason"]), row["hosts"],
            None if row["next_visit"] is None else wall + row["next_visit"],
        )
        for row in rows
    )  # fmt: skip


def _left(until: float, wall: float) -> float:
    return round(max(0.0, until - wall), 1)


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
