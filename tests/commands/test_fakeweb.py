"""``scrapy fakeweb``: the in-vitro web as a Scrapy command."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support import forks
from support.command_line import process_of, script_of
from support.loaded_modules import loaded_by
from support.projects import environment

from scrapy_spider_suite.commands.fakeweb import Command


def scrapy(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``scrapy fakeweb`` as a process, whether or not the entry point is installed."""
    return forks.run(
        script_of("fakeweb"), *arguments, folder=Path.cwd(), environment=environment(), timeout=600
    )


def test_it_serves() -> None:
    """No project, no reactor, exit code 0."""
    done = scrapy("--hosts", "3", "--seconds", "0.05", "--port", "0")
    assert done.returncode == 0, done.stderr
    assert "3 hosts on 3 addresses" in done.stdout


def test_help_has_the_examples() -> None:
    """Line by line, with Scrapy's own options beside ours."""
    done = scrapy("--help")
    assert done.returncode == 0, done.stderr
    for line in ("  scrapy fakeweb --hosts 0 --hostile  ", "--robots-crawl-delay", "--logfile"):
        assert line in done.stdout
    # Scrapy's own formatter makes a heading of whatever ends with a colon.
    assert "(Default" not in done.stdout


@pytest.mark.parametrize(
    "arguments", [("--hosts", "x"), ("--hosts", "0"), ("--speed", "2"), ("extra",)]
)
def test_bad_options_are_one_line(arguments: tuple[str, ...]) -> None:
    """And exit code 2."""
    done = scrapy(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_has_read_enough() -> None:
    """``--list-hostile | head`` ends without a traceback."""
    listing = subprocess.Popen(
        [*process_of("fakeweb"), "--list-hostile"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert listing.stdout is not None
    listing.stdout.close()
    assert listing.communicate(timeout=600)[1] == ""


def test_it_is_light() -> None:
    """Scrapy loads all commands at each start; ours must not load the web for that."""
    loaded = loaded_by("import scrapy_spider_suite.commands.fakeweb")
    assert not [name for name in loaded if name.startswith("scrapy_spider_suite.testing")]


def test_scrapy_lists_it() -> None:
    """It says what it is for, and needs neither project nor crawler."""
    command = Command()
    assert "local web" in command.short_desc()
    assert not command.requires_project
    assert not command.requires_crawler_process
