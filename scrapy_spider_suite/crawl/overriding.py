"""The policy of a crawl: what its settings say, and its overrides file, read again as it changes.

A file that cannot be used stops the start. While the crawl runs, it is said once, and the rules
of before stay in force: a slip of the pen, or a file that is away for a moment, changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy_spider_suite.crawl.requests import hostname
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.exceptions import HostBarred
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.overrides import Overrides
from scrapy_spider_suite.frontier.policy import Phases, Policy
from scrapy_spider_suite.frontier.politeness import BackOff, Pace
from scrapy_spider_suite.frontier.robots_rules import origin_of
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings
from scrapy_spider_suite.urls.normalize import host_of, normalize
from scrapy_spider_suite.urls.traps import Limits
from scrapy_spider_suite.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

Stamp = tuple[int, int, int]
_REFUSED = 1.0
"""Seconds; the first pause after a refused connection in the spider profile."""
_NEVER = 1 << 30
_AWAY: Stamp = (0, 0, 0)
_NO_FILE: Stamp = (0, 0, 1)

_kept: WeakKeyDictionary[Crawler, Overriding] = WeakKeyDictionary()


def overriding_of(crawler: Crawler) -> Overriding:
    """The one of *crawler*, made when first asked for. Raises `SettingsError` for a bad file."""
    found = _kept.get(crawler)
    if found is None:
        found = _kept[crawler] = Overriding(suite_settings(crawler))
    return found


class Overriding:
    """Holds the policy of a crawl in step with its overrides file.

    *path* may change. *changed* is called after each change; *address_of* knows where a host
    lives ("": it does not).
    """

    def __init__(self, settings: SuiteSettings) -> None:
        self.path = settings.overrides
        # Of the file whose rules are in force, or that was complained of.
        self._stamp = stamp_of(self.path)
        self._seen = self._stamp
        self.policy = Policy(overrides=read_overrides(self.path), **policy_fields(settings))
        self.changed: Callable[[], None] = _nobody
        self.address_of: Callable[[str], str] = _nowhere
        self._reading: asyncio.Task[None] | None = None

    def adopt(self, path: Path | None, rules: Overrides) -> None:
        """Go by the *rules* of the file *path* from now on."""
        self.path = path
        self.policy.change(overrides=rules)

    def look(self) -> None:
        """Read the file again if it has changed, once it is at rest: equal at two looks.

        In a thread of its own: 100,000 rules take seconds.
        """
        if self._reading is not None:
            return
        stamp = stamp_of(self.path)
        if stamp != self._stamp and stamp == self._seen:
            self._reading = asyncio.ensure_future(self._read_again(self.path, stamp))
        self._seen = stamp

    def stop(self) -> None:
        """Read nothing more, and forget who asked to be told."""
        if self._reading is not None:
            self._reading.cancel()
        self.changed, self.address_of = _nobody, _nowhere

    async def _read_again(self, path: Path | None, stamp: Stamp) -> None:
        try:
            rules = await asyncio.to_thread(read_overrides, path)
        except SettingsError as error:
            self._stamp = stamp
            logger.error("%s: the rules of before stay in force", error)
        else:
            if stamp_of(path) == stamp:  # else a later look takes what it is then
                self._stamp = stamp
                self.policy.change(overrides=rules)
                number = counted(len(rules), "rule")
                logger.info("now in force: %s of %s", number, path or "no file")
                self.changed()
        finally:
            self._reading = None

    # What holds for a request

    def obeys_robots(self, url: str) -> bool | None:
        """Whether robots.txt counts for *url*; None where no rule for its host says so."""
        return self.policy.obeys_robots(*self._place_of(url)) if self.policy.overrides else None

    def user_agent(self, url: str) -> str | None:
        """As whom *url* is asked for; None where no rule for its host says so."""
        return self.policy.user_agent(*self._place_of(url)) if self.policy.overrides else None

    def _place_of(self, url: str) -> tuple[str, str]:
        """The host of *url* and its address; "" for what there is not, or is not known."""
        origin = origin_of(url)
        host = host_of(origin) if origin else ""
        return host, self.address_of(host)

    def refuse_barred(self, request: Request, address: str = "") -> None:
        """Raise `HostBarred` if nothing may be asked of the host of *request*, at *address*, now.

        *address* is "" while it is not known.
        """
        policy, wall, host = self.policy, time.time(), hostname(request)
        bar = policy.bar(host, address, wall)
        if bar is None and policy.blocks:
            bar = policy.bar_of_url(normalize(request.url) or request.url, host, wall)
        if bar is not None:
            raise HostBarred(str(bar), bar.until)


def read_overrides(path: Path | None) -> Overrides:
    """The rules of a file; none without one. Raises `SettingsError`, which names file and line."""
    if path is None:
        return Overrides()
    try:
        with path.open(encoding="utf-8-sig") as lines:
            return Overrides.parse(lines, str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"SUITE_OVERRIDES: {path} cannot be read: {error}") from error


def policy_fields(settings: SuiteSettings) -> dict[str, Any]:
    """What the settings say, by the names of `Policy`."""
    project = settings.project
    general = Pace(settings.host_delay, settings.host_concurrency, settings.burst)
    return {
        "host": general,
        "address": Pace(settings.ip_delay, settings.ip_concurrency),
        "host_max_pages": settings.host_max_pages,
        "host_max_depth": settings.host_max_depth,
        "domain_max_pages": settings.domain_max_pages,
        "domain_max_hosts": settings.domain_max_hosts,
        "job_max_pages": settings.max_pages,
        "retry_times": settings.retry_times,
        "retry_failed_after": settings.retry_failed_after,
        "retry_failed": frozenset(map(Event, settings.retry_failed)),
        "back_off": BackOff(
            settings.backoff_base,
            settings.backoff_max,
            # A project's own requests are not given up before its RetryMiddleware does.
            settings.dead_host_failures if settings.profile == "broad" else _NEVER,
            # Somebody looks on, who may have mistyped a port.
            math.inf if settings.profile == "broad" else _REFUSED,
        ),
        "slots": {
            name: Pace(
                float(slot.get("delay", general.delay)),
                int(slot.get("concurrency", general.concurrency)),
                general.burst,
            )
            for name, slot in project.download_slots.items()
        },
        "start_delay": project.autothrottle_start_delay if project.autothrottle_enabled else 0.0,
        "phases": phases_of(settings),
        "shared": settings.ledger is not None,
        "traps": Limits(**{each: getattr(settings, f"trap_{each}") for each in Limits.names()}),
    }


def phases_of(settings: SuiteSettings) -> Phases | None:
    """The phases of a crawl; None if all hosts are visited at any time."""
    if settings.phases == 1:
        return None
    return Phases(settings.phases, settings.phase_seconds, settings.phase_guard)


def stamp_of(path: Path | None) -> Stamp:
    """What changes whenever the file at *path* does, also by another that takes its place."""
    if path is None:
        return _NO_FILE
    try:
        found = path.stat()
    except OSError:
        return _AWAY
    return found.st_mtime_ns, found.st_size, found.st_ino


def _nobody() -> None:
    """Nobody waits for a change."""


def _nowhere(host: str) -> str:
    """It is not known where any host lives."""
    return ""
