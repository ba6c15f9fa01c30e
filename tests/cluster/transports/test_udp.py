"""Tests of messages over UDP on real sockets; what is decided there is tested with the exchange."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from random import Random
from typing import Any

import pytest
from support.message_transport_contract import (
    Agent,
    TransportContract,
    message_of,
    refused,
    until,
)
from support.udp_ports import KEY, free_addresses

from scrapy_spider_suite.cluster.messages import Message
from scrapy_spider_suite.cluster.transports import udp
from scrapy_spider_suite.cluster.transports.udp import UdpTransport, parse_agents


class TestDatagrams(TransportContract):
    """The contract."""

    @pytest.fixture(autouse=True)
    def _addresses(self) -> None:
        self.addresses = dict(zip("ab", free_addresses(2), strict=True))

    def open(self, name: str, incarnation: int) -> UdpTransport:
        """With a small window, so that it is filled soon."""
        return UdpTransport(name, self.addresses, KEY, window=24)

    def test_what_strangers_send(self, both: Any, caplog: pytest.LogCaptureFixture) -> None:
        """It is refused and counted with one line for each kind, and messages go on."""

        async def test(a: Agent, b: Agent) -> None:
            await b.start()
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                for _ in range(20):
                    stranger.sendto(b"GET / HTTP/1.1\r\n\r\n" * 10, self.addresses["b"])
                    stranger.sendto(bytes(20_000), self.addresses["b"])
            a.write("b", [b"one"])
            await self.settle(a, b)
            counters = b.transport.counters
            await until(lambda: refused(counters) == 40)
            assert counters.malformed == counters.oversized == 20

        caplog.set_level(logging.WARNING)
        both(test)
        assert [record.message for record in caplog.records if "refused" in record.message] == [
            "messages over UDP, agent b: refused a datagram that is none of an agent's (said once; "
            "further ones are counted)",
            "messages over UDP, agent b: refused a datagram of 20000 bytes (said once; further "
            "ones are counted)",
        ]


class LossyDatagrams(UdpTransport):
    """Loses one datagram in ten that come, and gets one in ten twice."""

    draw = Random(21)

    def datagram_received(self, data: bytes, addr: object) -> None:
        for _ in range(self.draw.choice((0, 1, 1, 1, 1, 1, 1, 1, 1, 2))):
            super().datagram_received(data, addr)


class TestLossyDatagrams(TestDatagrams):
    """The contract, with losses."""

    count = 1_000
    loses = True

    def open(self, name: str, incarnation: int) -> UdpTransport:
        """One that loses."""
        return LossyDatagrams(name, self.addresses, KEY, window=24)

    def test_what_strangers_send(self, both: Any, caplog: pytest.LogCaptureFixture) -> None:
        """Counting is for those that lose nothing."""


def test_an_agent_that_runs_twice() -> None:
    """One line says what is in use, and which settings lead there."""
    (place,) = free_addresses(1)

    async def test() -> None:
        first, second = (UdpTransport("a", {"a": place}, KEY) for _ in range(2))
        await first.start(print, print)
        with pytest.raises(OSError, match=r"SUITE_AGENTS: 127.* agent a .* in use.* SUITE_AGENT_N"):
            await second.start(print, print)
        await first.close(0)
        away = UdpTransport("a", {"a": ("192.0.2.1", 9)}, KEY)
        with pytest.raises(OSError, match=r"192\.0\.2\.1:9, .*: Cannot assign requested"):
            await away.start(print, print)

    asyncio.run(test())


class Names:
    """What the names of machines stand for by now, and how often each was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places: dict[str, list[tuple[str, int]]] = {}
        self.asked: Counter[str] = Counter()
        monkeypatch.setattr(socket, "getaddrinfo", self.find)
        monkeypatch.setattr(udp, "LOOK", 0.05)

    def find(self, host: str, port: int, *args: object, **more: object) -> list[Any]:
        """As `socket.getaddrinfo`."""
        self.asked[host] += 1
        if host not in self.places:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        kind = socket.AF_INET, socket.SOCK_DGRAM, 17, ""
        return [(*kind, place) for place in self.places[host]]


AGENTS = {"a": ("one.lan", 7000), "b": ("two.lan", 7000)}


def test_the_own_name_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says whose, and which settings lead there; so with what cannot be a name."""
    Names(monkeypatch)
    line = r"^SUITE_AGENTS: one\.lan:7000, the address of agent a .*, cannot be used: Name or serv"
    with pytest.raises(OSError, match=line):
        asyncio.run(UdpTransport("a", AGENTS, KEY).start(print, print))
    monkeypatch.undo()
    long = {"a": ("x" * 70 + ".lan", 7000)}
    with pytest.raises(OSError, match=r"SUITE_AGENTS: x.* cannot be used: no name of a machine"):
        asyncio.run(UdpTransport("a", long, KEY).start(print, print))


def test_a_name_that_is_not_known_yet(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, and its agent is found when it is known."""
    names = Names(monkeypatch)
    place, other = free_addresses(2)

    async def test() -> None:
        a, b = (UdpTransport(name, AGENTS, KEY) for name in "ab")
        came: list[Message] = []
        names.places = {"one.lan": [place]}
        await a.start(print, print)
        assert a.send("b", message_of("a", b"row", bounds=a.bounds))
        await until(lambda: names.asked["two.lan"] > 2)
        names.places["two.lan"] = [other]
        await b.start(came.append, print)
        await until(lambda: came)
        await a.close(0)
        await b.close(0)

    asyncio.run(test())
    (line,) = [record.message for record in caplog.records]
    assert "SUITE_AGENTS: the address of agent b, two.lan:7000, is not known: Name or" in line


def test_an_agent_comes_back_at_another_address(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was sent to the old one is sent to the new one; and b, who was there alone, is heard."""
    caplog.set_level(logging.INFO)
    names = Names(monkeypatch)
    place, old, new = free_addresses(3)

    async def test() -> None:
        came: list[Message] = []
        names.places = {"one.lan": [place], "two.lan": [old]}
        a, b = (UdpTransport(name, AGENTS, KEY) for name in "ab")
        await a.start(came.append, print)
        await b.start(came.append, print)
        assert a.send("b", message_of("a", b"row", bounds=a.bounds))
        await until(lambda: came)
        a.acknowledge(came[0].receipt)
        await b.close(0)
        names.places["two.lan"] = [new]
        again = UdpTransport("b", AGENTS, KEY)
        await again.start(came.append, print)
        assert again.send("a", message_of("b", b"back", bounds=a.bounds))  # a has to answer it
        await until(lambda: len(came) == 3)
        assert {message.sender for message in came[1:]} == {"a", "b"}
        await a.close(0)
        await again.close(0)

    asyncio.run(test())
    assert "agent b has another address: 127.0.0.1" in caplog.text


def test_one_of_several_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """That which is used is kept, though another one is named first by now."""
    names = Names(monkeypatch)
    place, used, other = free_addresses(3)

    async def test() -> None:
        names.places = {"one.lan": [place], "two.lan": [used, other]}
        a = UdpTransport("a", AGENTS, KEY)
        await a.start(print, print)
        names.places["two.lan"] = [other, used]
        assert a.send("b", message_of("a", b"row", bounds=a.bounds))
        await until(lambda: names.asked["two.lan"] > 2)
        assert a._places["b"] == used
        await a.close(0)

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
        UdpTransport("a", {"a": ("127.0.0.1", 1)}, b"short")
    with pytest.raises(ValueError, match="agent 'b' is not in the list"):
        UdpTransport("b", {"a": ("127.0.0.1", 1)}, KEY)
    with pytest.raises(ValueError, match="no name for an agent"):
        UdpTransport("a", {"a": ("127.0.0.1", 1), "b\n": ("127.0.0.1", 2)}, KEY)
