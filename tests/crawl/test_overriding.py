"""The overrides file of a running crawl: read again once it is at rest, kept when it is bad."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest
from scrapy.settings import Settings

from scrapy_spider_suite.crawl.crawl_policy import PolicyFile
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.exceptions import HostExcluded
from scrapy_spider_suite.frontier.policy import Block, Rule
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.urls.host_patterns import HostPattern


def policy_file(path: Path | None, **values: object) -> PolicyFile:
    """The policy of a crawl whose overrides file is *path*."""
    if path is not None:
        values["SUITE_OVERRIDES"] = str(path)
    return PolicyFile(SuiteSettings.from_settings(Settings(values)))


async def look(crawl: PolicyFile, times: int = 2) -> None:
    """Look so often, and wait for what is being read."""
    for _ in range(times):
        crawl.poll()
    if crawl._file._reading is not None:
        await crawl._file._reading


def delay(crawl: PolicyFile) -> float:
    """The delay of a host."""
    return crawl.policy.for_host("a.t").delay


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with one rule."""
    file = tmp_path / "rules"
    file.write_text("a.t delay=7\n")
    return file


def test_a_change_holds_from_the_second_look_on(path: Path) -> None:
    """At the first it may still be being written; who waits for the policy is told."""
    crawl = policy_file(path)
    told: list[float] = []
    crawl.changed = lambda: told.append(delay(crawl))

    async def scenario() -> None:
        await look(crawl)
        assert (delay(crawl), crawl.policy.revision) == (7.0, 0)
        path.write_text("a.t delay=8 # half of a\n")
        await look(crawl, 1)
        path.write_text("a.t delay=80\nb.t delay=1\n")
        await look(crawl, 1)
        assert (delay(crawl), told) == (7.0, [])
        await look(crawl, 1)
        assert (delay(crawl), told, crawl.policy.revision) == (80.0, [80.0], 1)
        await look(crawl, 5)
        assert told == [80.0]

    asyncio.run(scenario())


def test_a_file_that_takes_its_place_counts_as_a_change(path: Path) -> None:
    """As editors and configuration tools write: same size, even the same time."""
    crawl = policy_file(path)
    other = path.with_name("other")
    other.write_text("a.t delay=9\n")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)
    asyncio.run(look(crawl))
    assert delay(crawl) == 9.0


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"a.t delay=1\nb.t delay=soon\n", "line 2: 'delay=soon'"),
        (b"a.t delay=1\n\nA.T delay=2\n", "line 3: a.t has a rule already, on line 1"),
        (b"a.t user_agent=\xff\n", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_bad_file_is_said_once_and_the_old_rules_stay(
    path: Path, content: bytes | None, complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Malformed, or gone; when it is good again, it holds again."""
    crawl = policy_file(path)

    async def scenario() -> None:
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        for _ in range(4):
            await look(crawl)
        (record,) = (each for each in caplog.records if each.levelno >= logging.ERROR)
        assert str(path) in record.getMessage()
        assert complaint in record.getMessage()
        assert "\n" not in record.getMessage()
        assert (delay(crawl), crawl.policy.revision) == (7.0, 0)
        path.write_text("a.t delay=3\n")
        await look(crawl)
        assert delay(crawl) == 3.0

    asyncio.run(scenario())


def test_a_change_while_it_is_read_is_not_lost(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read then is not taken, and a later look takes the file as it is."""
    crawl = policy_file(path)
    read = crawl._file._read

    def slow() -> object:
        rules = read()
        path.write_text("a.t delay=44\n")
        return rules

    async def scenario() -> None:
        path.write_text("a.t delay=4\n")
        monkeypatch.setattr(crawl._file, "_read", slow)
        await look(crawl)
        assert delay(crawl) == 7.0
        monkeypatch.setattr(crawl._file, "_read", read)
        await look(crawl)
        assert delay(crawl) == 44.0

    asyncio.run(scenario())


def test_a_stop_while_it_is_read(path: Path) -> None:
    """Nobody is told any more."""
    crawl = policy_file(path)

    async def scenario() -> None:
        path.write_text("a.t delay=4\n")
        crawl.poll()
        crawl.poll()
        reading = crawl._file._reading
        assert reading is not None
        crawl.stop()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert delay(crawl) == 7.0

    asyncio.run(scenario())


def test_the_start_refuses_a_bad_file(path: Path) -> None:
    """As before there is a crawl."""
    path.write_text("a.t\n")
    with pytest.raises(SettingsError, match=r"rules, line 1: nothing to change"):
        policy_file(path)


def test_without_a_file_there_is_nothing_to_look_at() -> None:
    """The policy is what the settings say."""
    crawl = policy_file(None, SUITE_HOST_DELAY=3, SUITE_REQUESTS_PER_VISIT=2)
    asyncio.run(look(crawl))
    assert crawl.policy.for_host("a.t").delay == 3.0
    assert crawl.policy.for_host("a.t").burst == 2
    assert crawl.obeys_robots("http://a.t/") is None


def test_rules_by_url(path: Path) -> None:
    """In whatever spelling; by its address where that is known; other schemes have no rule."""
    path.write_text("a.t robots=ignore\n10.0.0.0/8 user_agent='night bot' robots=obey\n")
    crawl = policy_file(path)
    crawl.address_of = lambda host: "10.1.1.1" if host in ("a.t", "b.t") else ""
    assert crawl.obeys_robots("HTTP://user@A.T:80/x") is False
    assert crawl.user_agent("https://a.t:8443/") == "night bot"
    assert crawl.obeys_robots("http://b.t/") is True
    assert crawl.user_agent("http://c.t/") is None
    assert crawl.user_agent("data:,x") is None


def test_refusing_what_is_barred(path: Path) -> None:
    """By host, by the address that is about to be used, and below a URL."""
    path.write_text("a.t blocked=yes reason=asked\n10.0.0.0/8 blocked=yes\n")
    crawl = policy_file(path)
    subject = HostPattern.parse("http://c.t/shop")
    crawl.policy.blocks.put(subject, Block(Rule(str(subject), "ops")))
    with pytest.raises(HostExcluded, match=r"^blocked \(a\.t, \S+rules, line 1\): asked$"):
        crawl.refuse_excluded("a.t", "http://A.t/")
    with pytest.raises(HostExcluded, match="line 2"):
        crawl.refuse_excluded("b.t", "http://b.t/", "10.2.3.4")
    crawl.refuse_excluded("b.t", "http://b.t/", "11.2.3.4")
    with pytest.raises(HostExcluded, match="ops"):
        crawl.refuse_excluded("c.t", "http://c.t/%73hop/1")
    crawl.refuse_excluded("c.t", "http://c.t/")
