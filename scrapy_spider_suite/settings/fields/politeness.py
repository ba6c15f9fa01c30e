"""How often hosts and addresses are asked, and how often anew what failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scrapy_spider_suite.frontier.outcomes import OUTCOMES, Retry, State
from scrapy_spider_suite.settings import values as v
from scrapy_spider_suite.settings.declarations import FREE, FROM_NOW_ON, Derived, setting
from scrapy_spider_suite.settings.project import ProjectSettings

_MAY_FAIL = tuple(
    event.value for event, outcome in OUTCOMES.items()
    if outcome.state is State.FAILED or outcome.retry is Retry.STORE
)  # fmt: skip
_MAY_PASS = tuple(
    event.value for event, outcome in OUTCOMES.items() if outcome.retry is Retry.STORE
)


def _host_concurrency(project: ProjectSettings, given: Mapping[str, Any]) -> int:
    """As many as the project asked for; one where it only asked for a pause between requests."""
    if project.concurrency_was_set or given.get("host_delay", project.download_delay) == 0:
        return project.concurrent_requests_per_domain
    return 1


def _broad_delay(project: ProjectSettings, given: Mapping[str, Any]) -> float:
    """Never less polite than the project wants to be; Scrapy's template sets one second."""
    return max(4.0, project.download_delay)


def _ip_concurrency(project: ProjectSettings, given: Mapping[str, Any]) -> int:
    """Without a promise for addresses there is none to keep; with one, the careful number."""
    return project.concurrent_requests_per_ip or (1 if given.get("ip_delay") else 0)


def _ip_delay(project: ProjectSettings, given: Mapping[str, Any]) -> float:
    """Scrapy keeps its delay by address, not by host, when it counts requests by address."""
    return project.download_delay if project.concurrent_requests_per_ip else 0.0


@dataclass(frozen=True, kw_only=True)
class Politeness:
    """How often hosts and addresses are asked, and how often anew what failed."""

    host_delay: float = setting(
        v.duration(), Derived("DOWNLOAD_DELAY", lambda project, given: project.download_delay),
        FREE, "Least pause between the end of a request to a host and the start of the next.",
        broad=Derived("4, or DOWNLOAD_DELAY if that is longer", _broad_delay),
    )
    ip_delay: float = setting(
        v.duration(), Derived("0", _ip_delay), FREE,
        "Least pause between the end of a request to an IP address and the start of the next.",
        broad=0.5,
    )
    host_concurrency: int = setting(
        v.integer(1, 1000, "requests"),
        Derived(
            "CONCURRENT_REQUESTS_PER_DOMAIN if the project sets it or there is no host delay, "
            "else 1", _host_concurrency),
        FREE, "Most requests to one host at the same time.", broad=1,
    )
    ip_concurrency: int = setting(
        v.integer(0, 1000, "requests"), Derived("0; 1 with SUITE_IP_DELAY", _ip_concurrency),
        FREE, "Most requests to one IP address at the same time; 0 is no limit.", broad=1,
    )
    ipv6_prefix: int = setting(
        v.integer(16, 128, "bits"), 64, FREE,
        "How many leading bits of an IPv6 address count as one address.",
    )
    burst: int = setting(
        v.integer(1, 20, "requests"), 1, FREE,
        "Most requests to a host in one visit, one after the other without a pause; for one's "
        "own servers.",
    )
    overrides: Path | None = setting(
        v.file(), None, FREE,
        "A file of exceptions by host, .domain and CIDR, read again whenever it changes.",
    )
    backoff_base: float = setting(
        v.duration(), 5.0, FREE,
        "First pause of a host after a 429, a 503, a timeout or a failed connection; each "
        "further one in a row doubles it.",
    )
    backoff_max: float = setting(
        v.duration(), 3600.0, FREE, "Longest pause that such failures grow to."
    )
    dead_host_failures: int = setting(
        v.integer(1, unit="failures"), 10, FROM_NOW_ON,
        "Failed connections in a row after which a host is given up.",
    )
    retry_times: int = setting(
        v.integer(0, unit="retries"), 5, FROM_NOW_ON,
        "How often a URL that the frontier found is tried again before it has failed.",
    )

    retry_failed_after: float = setting(
        v.duration(), 0.0, FROM_NOW_ON,
        "Let a URL that failed be tried anew when a link leads there so long afterwards; 0 never "
        "does.",
    )
    retry_failed: tuple[str, ...] = setting(
        v.choices(*_MAY_FAIL), _MAY_PASS, FROM_NOW_ON,
        "The reasons of such failures; 'host_dead' gives the host another chance, too.",
    )
