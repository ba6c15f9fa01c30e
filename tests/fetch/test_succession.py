"""Tests of the replacement of channels."""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import TYPE_CHECKING

import pytest
from pycares import errno

from scrapy_spider_suite.fetch import resolver
from scrapy_spider_suite.fetch.resolver import MAX_AGE, MIN_AGE, DnsClient

if TYPE_CHECKING:
    from support.dns_server import Clock, NameServer, Run


def test_cares_repeats_answers_for_a_minute_at_most(
    nameserver: NameServer, run_on_loop: Run, clock: Clock
) -> None:
    """The cache inside c-ares lives as long as a channel, whatever the TTL."""
    nameserver.add("a.example", "1.1.1.1", ttl=86_400)

    async def main() -> None:
        servers = DnsClient([nameserver.address], 5.0, clock)
        for seconds, asked in [(0.0, 1), (MAX_AGE - 1, 1), (1.0, 2)]:
            clock.time += seconds
            await servers.ask("a.example", socket.AF_INET, 5.0)
            assert len(nameserver.asked) == asked
        servers.close()

    run_on_loop(main())


def test_outdated(nameserver: NameServer, run_on_loop: Run, clock: Clock) -> None:
    """After `outdate` an answer is repeated only while it is younger than a second."""
    nameserver.add("a.example", "1.1.1.1")

    async def main() -> None:
        servers = DnsClient([nameserver.address], 5.0, clock)
        await servers.ask("a.example", socket.AF_INET, 5.0)
        servers.skip_cache()
        await servers.ask("a.example", socket.AF_INET, 5.0)
        assert len(nameserver.asked) == 1
        clock.time += MIN_AGE
        await servers.ask("a.example", socket.AF_INET, 5.0)
        assert len(nameserver.asked) == 2
        servers.close()

    run_on_loop(main())


def test_questions_survive_their_channel(
    nameserver: NameServer, run_on_loop: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel that was replaced answers what it was asked before, and is then closed."""
    monkeypatch.setattr(resolver, "MAX_ASKED", 3)
    for i in range(20):
        nameserver.add(f"{i}.example", f"1.1.1.{i}")

    async def main() -> None:
        servers = DnsClient([nameserver.address], 5.0, clock)
        asks = [servers.ask(f"{i}.example", socket.AF_INET, 5.0) for i in range(20)]
        answers = await asyncio.gather(*asks)
        assert [a.addresses[0] for a in answers] == [f"1.1.1.{i}" for i in range(20)]
        for i in range(3):
            await servers.ask(f"{i}.example", socket.AF_INET, 5.0)
        assert not servers._retired
        servers.close()

    run_on_loop(main())


def test_a_question_ends_in_time(nameserver: NameServer, run_on_loop: Run, clock: Clock) -> None:
    """The time given bounds the wait even where c-ares would wait longer."""
    nameserver.silence("silent.example")

    async def main() -> None:
        servers = DnsClient([nameserver.address], 60.0, clock)
        answer = await servers.ask("silent.example", socket.AF_INET, 0.02)
        assert answer.code == errno.ARES_ETIMEOUT
        servers.close()
        assert (await servers.ask("a.example", socket.AF_INET, 1.0)).code == errno.ARES_ECANCELLED

    run_on_loop(main())


def test_out_of_files(nameserver: NameServer, run_on_loop: Run, clock: Clock) -> None:
    """Without a file for a socket the answer is that no server can be reached, and it recovers."""
    nameserver.add("a.example", "1.1.1.1")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def main() -> None:
        servers = DnsClient([nameserver.address], 5.0, clock)
        # The name server, in the same process, must have the files that it needs.
        await servers.ask("none.example", socket.AF_INET, 5.0)
        clock.time += MAX_AGE
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            answer = await servers.ask("a.example", socket.AF_INET, 5.0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert answer.code == errno.ARES_ECONNREFUSED
        clock.time += MIN_AGE
        assert (await servers.ask("a.example", socket.AF_INET, 5.0)).addresses == ("1.1.1.1",)
        servers.close()

    run_on_loop(main())
