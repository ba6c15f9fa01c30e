"""Runs the in-vitro web beside a crawler: the process of the web, and its settings."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from scrapy import signals
from scrapy.crawler import Crawler

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.runtime.refusal import refuse
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.project import uses_job
from scrapy_spider_suite.testing.config import FakeWebConfig
from scrapy_spider_suite.testing.fake_web import FakeWebProcess

logger = logging.getLogger(__name__)

_PACE = {"SUITE_HOST_DELAY": 0.5, "SUITE_IP_DELAY": 0.02}
"""So that a first crawl ends within a minute; a real web gets the defaults."""
_PORT = "fakeweb.port"  # the file in a job directory with the port of the web


def serve(crawler: Crawler, **knobs: Any) -> list[str]:
    """Start an in-vitro web for *crawler* and return its seeds; call it in ``from_crawler``.

    *knobs* are fields of `FakeWebConfig`; text, as from a command line, is a whole number. Sets the
    name server, allows the loopback range, and sets short delays, all at spider priority. The web
    ends with the crawl; a resumed job finds it at the same port. Raises `SettingsError` in a script
    if a knob is wrong or the web cannot start; a command ends with one line and exit code 2.
    """
    try:
        for name, value in knobs.items():
            knobs[name] = _number(name, value)
        knobs.setdefault("addresses", max(1, knobs.get("hosts", 100) // 10))
        knobs.setdefault("port", _port_of_last_run(crawler))
        web = FakeWebProcess(FakeWebConfig(**knobs))
        ready = web.start()
    except SettingsError as error:
        refuse(error)
    if uses_job(crawler):
        # A directory that cannot be written is refused by whoever needs it.
        with suppress(OSError):
            folder = Path(str(crawler.settings["JOBDIR"]))
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _PORT).write_text(f"{ready.http_port}\n")
    crawler.signals.connect(web.stop, signals.engine_stopped, weak=False)
    for name, value in (_PACE | ready.settings).items():
        crawler.settings.set(name, value, priority="spider")
    logger.info(
        "crawling an in-vitro web of %s on %s",
        counted(ready.hosts, "host"), counted(ready.addresses, "address", "addresses"),
    )
    return list(ready.seeds)


def _port_of_last_run(crawler: Crawler) -> int:
    # 0: any port.
    path = Path(str(crawler.settings["JOBDIR"]), _PORT)
    if not uses_job(crawler) or not path.exists():
        return 0
    port: int = _number(str(path), path.read_text().strip())
    return port


def _number(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return int(value)
    except ValueError:
        raise SettingsError.of(name, value, "a whole number") from None
