"""Letting a crawler crawl the in-vitro web: the web's process, and the settings it needs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from scrapy import signals

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.refusal import refuse
from scrapy_spider_suite.testing.config import FakeWebConfig
from scrapy_spider_suite.testing.process import FakeWebProcess

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

_PACE = {"SUITE_HOST_DELAY": 0.5, "SUITE_IP_DELAY": 0.02}
"""So that a first crawl ends within a minute; a real web gets the defaults."""


def serve(crawler: Crawler, **knobs: Any) -> list[str]:
    """Start an in-vitro web for *crawler* and return its seeds; to be called in ``from_crawler``.

    *knobs* are fields of `FakeWebConfig`; text, as a command line gives it, is a whole number.
    Sets the name server, allows the loopback range, and paces the crawl for a server of one's own,
    all at spider priority. The web ends with the crawl.
    Ends the process with one line if a knob is wrong or the web cannot start.
    """
    try:
        for name, value in knobs.items():
            knobs[name] = _number(name, value)
        knobs.setdefault("addresses", max(1, knobs.get("hosts", 100) // 10))
        web = FakeWebProcess(FakeWebConfig(**knobs))
        ready = web.start()
    except SettingsError as error:
        refuse(error)
    crawler.signals.connect(web.stop, signals.engine_stopped, weak=False)
    for name, value in (_PACE | ready.settings).items():
        crawler.settings.set(name, value, priority="spider")
    logger.info(
        "crawling an in-vitro web of %d hosts on %d addresses", ready.hosts, ready.addresses
    )
    return list(ready.seeds)


def _number(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return int(value)
    except ValueError:
        raise SettingsError.of(name, value, "a whole number") from None
