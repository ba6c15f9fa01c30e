"""``scrapy frontier`` for tests: in this process, or as one of its own."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scrapy_spider_suite.commands.frontier import Command
from support import command_line as commandline
from support import forks
from support.crawls import Crawl, crawl, web_settings
from support.projects import environment
from support.webs import FakeWebProcess

COMMAND = commandline.process_of("frontier")
SCRIPT = commandline.script_of("frontier")
HOST = "h000000.fake.test"
FAST = {"SUITE_HOST_DELAY": 0.01, "SUITE_IP_DELAY": 0, "SUITE_IP_CONCURRENCY": 0}


@dataclass
class Said:
    """What the command printed, and its exit code."""

    code: int
    out: str
    """Standard output and standard error, as a terminal shows them."""
    stdout: str | None = field(default=None, compare=False)

    @property
    def rows(self) -> list[Any]:
        """The values of ``--json``, which are on standard output alone."""
        text = self.out if self.stdout is None else self.stdout
        return [json.loads(line) for line in text.splitlines()]


Frontier = Callable[..., Said]


def parsed(
    arguments: Sequence[str], settings: dict[str, Any]
) -> tuple[Command, argparse.Namespace, list[str]]:
    """The command, its options, and what is left for the verb, as Scrapy's command line does it."""
    return commandline.parsed(Command(), arguments, settings)


def scrapy(*arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run ``scrapy frontier`` as a process."""
    given = environment()
    return forks.run(SCRIPT, *arguments, folder=Path.cwd(), environment=given, timeout=timeout)


def small_crawl(web: FakeWebProcess, folder: Path, **settings: Any) -> Crawl:
    """Crawl all of *web* quickly, as the job in *folder*."""
    job = {"JOBDIR": str(folder / "job"), "SUITE_RETRY_TIMES": 0}
    given = web_settings(web.ready.dns_port, **{**job, **FAST, **settings})
    return crawl("support.spiders.Bulk", given, folder, seeds=web.ready.seeds[0])
