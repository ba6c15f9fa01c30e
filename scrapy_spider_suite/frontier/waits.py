"""Why a host waits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from scrapy_spider_suite.frontier.workbench import FOREVER, HostState


class WaitReason(StrEnum):
    ROBOTS = "robots.txt unavailable"
    RETRY_AFTER = "Retry-After"
    BACK_OFF = "back-off"
    CRAWL_DELAY = "Crawl-delay"
    HOST_DELAY = "host delay"
    ADDRESS = "address delay"
    NAME = "name look-up"
    BLOCKED = "blocked"
    HOURS = "outside its hours"
    PHASE = "not in its phase"
    AGENTS = "others fetch there, too"
    ELSEWHERE = "held by another agent"
    WINDOW = "next row of the window"
    MEMORY = "room in memory"
    OTHER = "other reasons"
    READY = "ready"
    """It does not wait: it is visited as soon as the crawl has a place for it."""


_BEGINNINGS = {
    "status ": WaitReason.BACK_OFF,
    "kept from before": WaitReason.HOST_DELAY,
    **{reason.value: reason for reason in WaitReason},
}


@dataclass(frozen=True, slots=True)
class WaitCount:
    """*hosts* wait for *reason*, the first until *next_visit* (wall); None: for something else."""

    reason: WaitReason
    hosts: int
    next_visit: float | None = None


def reason_of_words(words: str) -> WaitReason:
    """The reason that *words*, stored with a host's clock, stand for; "" is the host's delay."""
    if not words:
        return WaitReason.HOST_DELAY
    for beginning, reason in _BEGINNINGS.items():
        if words.startswith(beginning):
            return reason
    return WaitReason.OTHER


def wait_of(host: HostState, now: float) -> tuple[WaitReason, float] | None:
    """Why *host* in memory waits, and until when; None: it has nothing to fetch, or is visited."""
    if host.out or not (host.front or host.more):
        return None
    until, address = host.ready_at(), host.address
    if until > now:
        if host.exclusion is not None and host.excluded_until >= host.next_fetch:
            return reason_of_words(host.exclusion.why), until
        return reason_of_words(reason_of_clock(host)), until
    if address is None:
        return WaitReason.NAME, now
    if host.held:
        return WaitReason.WINDOW, now
    if address.next_fetch > now or not address.free():
        return WaitReason.ADDRESS, max(now, address.next_fetch)
    return WaitReason.READY, now


def reason_of_clock(host: HostState) -> str:
    """Why the clock of *host* says what it says, in words; "": its ordinary delay."""
    return host.why or ("Crawl-delay" if host.crawl_delay > host.delay else "")


def add_up(counts: Iterable[WaitCount]) -> list[WaitCount]:
    """*counts* as one for each reason, the most hosts first."""
    hosts: dict[WaitReason, int] = {}
    earliest: dict[WaitReason, float] = {}
    for each in counts:
        until = FOREVER if each.next_visit is None else each.next_visit
        hosts[each.reason] = hosts.get(each.reason, 0) + each.hosts
        earliest[each.reason] = min(earliest.get(each.reason, FOREVER), until)
    order = sorted(hosts, key=lambda reason: (-hosts[reason], reason))
    return [
        WaitCount(each, hosts[each], earliest[each] if earliest[each] < FOREVER else None)
        for each in order
    ]
