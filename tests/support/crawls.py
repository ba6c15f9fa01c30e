"""Real crawls for tests: a spider in a process of its own, with or without a sudden end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.forks import LEAN, Fork

ADDON = {"scrapy_spider_suite.Addon": 500}

_ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = """
import importlib, json, logging, sys
from scrapy import signals
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.utils.misc import load_object
from scrapy_spider_suite.runtime.refusal import exit_code_for_error
job = json.loads(sys.argv[1])
for path, value in job["settings"].pop("TEST_CONSTANTS", {}).items():
    module, _, name = path.rpartition(".")
    module = importlib.import_module(module)
    getattr(module, name)
    setattr(module, name, value)
process = AsyncCrawlerProcess(job["settings"])
crawler = process.create_crawler(load_object(job["spider"]))
def closed(reason):
    with open(job["stats"], "w") as file:
        json.dump({k: v for k, v in crawler.stats.get_stats().items()} | {"closed": reason},
                  file, default=str)
crawler.signals.connect(closed, signals.spider_closed)
crawl = process.crawl(crawler, **job["arguments"])
process.start()
refused = crawl.done() and not crawl.cancelled() and crawl.exception()
if refused:
    logging.critical(refused)
    sys.exit(int(exit_code_for_error(refused)))
"""
_ENTER = """
import ctypes, os
with open({!r}) as space:
    if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), 0):
        raise OSError(ctypes.get_errno(), "setns")
"""


Process = Fork


@dataclass(frozen=True)
class Crawl:
    """What a crawl left behind; *stats* is empty if it was killed."""

    code: int
    stats: dict[str, Any]
    log: str
    seconds: float

    @property
    def reason(self) -> str | None:
        """The finish reason."""
        return self.stats.get("closed")


def loopback_settings(**settings: Any) -> dict[str, Any]:
    """Settings for a crawl of addresses of loopback."""
    return {
        "ADDONS": ADDON,
        "LOG_LEVEL": "INFO",
        "SUITE_ALLOW_PRIVATE_ADDRESSES": ["127.0.0.0/8"],
        "SUITE_MEMORY": "16M",
        "TELNETCONSOLE_ENABLED": False,
        "USER_AGENT": "suite-tests/1.0 (+https://tests.example/)",
        **settings,
    }


def web_settings(dns_port: int, **settings: Any) -> dict[str, Any]:
    """Settings for a crawl of an in-vitro web whose name server listens on *dns_port*."""
    own = {"ROBOTSTXT_OBEY": True, "SUITE_DNS_SERVERS": [f"127.0.0.1:{dns_port}"]}
    return loopback_settings(**(own | settings))


def start(
    spider: str, settings: dict[str, Any], folder: Path, *, namespace: Path | None = None,
    **arguments: Any,
) -> Process:  # fmt: skip
    """Start a crawl of *spider* (a dotted path); its log and stats go to *folder*.

    *namespace* is the file of the network that it is in.
    """
    job = {
        "spider": spider, "settings": {"EXTENSIONS_BASE": LEAN, **settings},
        "arguments": arguments, "stats": str(folder / "stats.json"),
    }  # fmt: skip
    (folder / "stats.json").unlink(missing_ok=True)
    path = [str(_ROOT), str(_ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    script = _SCRIPT if namespace is None else _ENTER.format(str(namespace)) + _SCRIPT
    with (folder / "log").open("ab") as log:
        return Fork(script, [json.dumps(job)], folder, environment, log, log)


def crawl(
    spider: str,
    settings: dict[str, Any],
    folder: Path,
    *,
    kill_after: float | None = None,
    timeout: float = 120.0,
    **arguments: Any,
) -> Crawl:
    """Run a crawl to its end, or kill it (SIGKILL) *kill_after* seconds after its spider's opening.

    Raises `subprocess.TimeoutExpired` if it does not end within *timeout* seconds.
    """
    began = time.monotonic()
    before = _openings(folder)
    process = start(spider, settings, folder, **arguments)
    try:
        if kill_after is not None:
            while process.poll() is None and _openings(folder) == before:
                time.sleep(0.01)
        process.wait(timeout if kill_after is None else kill_after)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        if kill_after is None:
            raise
    stats_file = folder / "stats.json"
    stats = json.loads(stats_file.read_text()) if stats_file.exists() else {}
    log = (folder / "log").read_text(errors="replace")
    return Crawl(process.returncode, stats, log, time.monotonic() - began)


def crawl_over_kills(
    spider: str, settings: dict[str, Any], folder: Path, times: Iterable[float],
    killed: Callable[[], object] = lambda: None, reason: str = "finished", **arguments: Any,
) -> Crawl:  # fmt: skip
    """Kill a crawl after each of *times* (seconds), unless it is over by then; then let it end.

    *killed* is called after each kill; in the end it ends for *reason*.
    """
    for seconds in times:
        ended = crawl(spider, settings, folder, kill_after=seconds, **arguments)
        if ended.code == 0:  # a fast machine
            break
        assert ended.code == -signal.SIGKILL, ended.log[-3000:]
        killed()
    last = crawl(spider, settings, folder, **arguments)
    assert last.reason == reason, last.log[-3000:]
    return last


def _openings(folder: Path) -> int:
    """How often the crawls that log to *folder* have opened their spider."""
    log = folder / "log"
    return log.read_bytes().count(b"Spider opened") if log.exists() else 0
