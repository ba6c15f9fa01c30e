"""Tests of letters over UDP on real sockets; what is decided there is tested with the exchange."""

from __future__ import annotations

import asyncio
import logging
import socket
from random import Random
from typing import Any

import pytest
from contracts_transport import Agent, TransportContract, until

from scrapy_spider_suite.agents.datagrams import Datagrams, parse_agents

KEY = b"sixteen bytes or more"


def free_addresses(count: int) -> list[tuple[str, int]]:
    """Addresses of loopback at which nobody listened a moment ago."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [each.getsockname() for each in sockets]
    for each in sockets:
        each.close()
    return addresses


class TestDatagrams(TransportContract):
    """The contract."""

    @pytest.fixture(autouse=True)
    def _addresses(self) -> None:
        self.addresses = dict(zip("ab", free_addresses(2), strict=True))

    def open(self, name: str, incarnation: int) -> Datagrams:
        """With a small window, so that it is filled soon."""
        return Datagrams(name, self.addresses, KEY, window=24)

    def test_what_strangers_send(self, both: Any, caplog: pytest.LogCaptureFixture) -> None:
        """It is refused and counted with one line for each kind, and letters go on."""

        async def test(a: Agent, b: Agent) -> None:
            await b.start()
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                for _ in range(20):
                    stranger.sendto(b"GET / HTTP/1.1\r\n\r\n" * 10, self.addresses["b"])
                    stranger.sendto(bytes(20_000), self.addresses["b"])
            a.write("b", [b"one"])
            await self.settle(a, b)
            counters = b.transport.counters
            await until(lambda: counters.refused == 40)
            assert counters.malformed == counters.oversized == 20

        caplog.set_level(logging.WARNING)
        both(test)
        assert [record.message for record in caplog.records if "refused" in record.message] == [
            "letters over UDP, agent b: refused a datagram that is none of an agent's (said once; "
            "further ones are counted)",
            "letters over UDP, agent b: refused a datagram of 20000 bytes (said once; further ones "
            "are counted)",
        ]


class LossyDatagrams(Datagrams):
    """Loses one datagram in ten that come, and gets one in ten twice."""

    draw = Random(21)

    def _take(self, datagram: bytes) -> None:
        for _ in range(self.draw.choice((0, 1, 1, 1, 1, 1, 1, 1, 1, 2))):
            super()._take(datagram)


class TestLossyDatagrams(TestDatagrams):
    """The contract, with losses."""

    count = 1_000
    loses = True

    def open(self, name: str, incarnation: int) -> Datagrams:
        """One that loses."""
        return LossyDatagrams(name, self.addresses, KEY, window=24)

    def test_what_strangers_send(self, both: Any, caplog: pytest.LogCaptureFixture) -> None:
        """Counting is for those that lose nothing."""


def test_an_agent_that_runs_twice() -> None:
    """One line says what is in use, and which settings lead there."""
    (place,) = free_addresses(1)

    async def test() -> None:
        first, second = (Datagrams("a", {"a": place}, KEY) for _ in range(2))
        await first.start(print, print)
        with pytest.raises(OSError, match=r"SUITE_AGENTS: 127.* agent a .* in use.* SUITE_AGENT_N"):
            await second.start(print, print)
        await first.close(0)
        away = Datagrams("a", {"a": ("192.0.2.1", 9)}, KEY)
        with pytest.raises(OSError, match=r"192\.0\.2\.1:9, .*: Cannot assign requested"):
            await away.start(print, print)

    asyncio.run(test())


def test_parse_agents() -> None:
    """Names and addresses, IPv6 too."""
    assert parse_agents([" a=10.0.0.1:9000", "b=[fe80::1]:9001", "c=left.lan:9000"]) == {
        "a": ("10.0.0.1", 9000),
        "b": ("fe80::1", 9001),
        "c": ("left.lan", 9000),
    }


@pytest.mark.parametrize(
    "text", ["", "a", "a=", "a=host", "a=host:", "a=host:0", "a=host:65536", "a=:1", "=h:1",
             "old=h:2", "new=h:1", "a\n=h:3"],
)  # fmt: skip
def test_parse_bad_agents(text: str) -> None:
    """What is no agent, or one that is there already."""
    with pytest.raises(ValueError, match="agent"):
        parse_agents(["old=h:1", text])


def test_bad_arguments() -> None:
    """A key that can be guessed, an agent that is not listed, a name that is none."""
    with pytest.raises(ValueError, match="5 bytes, not 16"):
        Datagrams("a", {"a": ("127.0.0.1", 1)}, b"short")
    with pytest.raises(ValueError, match="agent 'b' is not in the list"):
        Datagrams("b", {"a": ("127.0.0.1", 1)}, KEY)
    with pytest.raises(ValueError, match="no name for an agent"):
        Datagrams("a", {"a": ("127.0.0.1", 1), "b\n": ("127.0.0.1", 2)}, KEY)
