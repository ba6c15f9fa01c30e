"""Tests of c-ares on the event loop; what the resolver makes of it is tested with the resolver."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from pycares import errno

from scrapy_spider_suite.fetch.resolver import MAX_ADDRESSES, AresChannel

if TYPE_CHECKING:
    from support.dns_server import NameServer, Run


def test_many_addresses_are_cut(nameserver: NameServer, run_on_loop: Run) -> None:
    """Of an answer with hundreds of addresses, which comes over TCP, the first few are kept."""
    nameserver.add("big.example", *(f"1.2.{i // 250}.{i % 250 + 1}" for i in range(400)))

    async def main() -> None:
        channel = AresChannel([nameserver.address], 5.0)
        answer = await channel.ask("big.example", socket.AF_INET)
        assert len(answer.addresses) == MAX_ADDRESSES
        assert nameserver.over_tcp == 1
        assert channel.idle
        channel.close()

    run_on_loop(main())


def test_sockets_are_let_go(nameserver: NameServer, run_on_loop: Run) -> None:
    """An idle channel watches no socket, a closed one neither, even if questions were open."""
    nameserver.add("a.example", "1.1.1.1")
    nameserver.silence("silent.example")

    async def main() -> None:
        channel = AresChannel([nameserver.address], 5.0)
        await channel.ask("a.example", socket.AF_INET)
        assert not channel._watched
        question = channel.ask("silent.example", socket.AF_INET)
        assert not channel.idle
        assert channel._watched
        channel.close()
        channel.close()
        assert (await question).code == errno.ARES_ECANCELLED
        assert not channel._watched
        assert channel.idle

    run_on_loop(main())


def test_the_least_ttl_counts(nameserver: NameServer, run_on_loop: Run) -> None:
    """An answer at the end of a chain is good for as long as the chain is."""
    nameserver.add("www.example", "1.1.1.1", ttl=77, cnames=("cdn.example",))

    async def main() -> None:
        channel = AresChannel([nameserver.address], 5.0)
        answer = await channel.ask("www.example", socket.AF_INET)
        assert answer == (("1.1.1.1",), 77, None)
        channel.close()

    run_on_loop(main())


def test_a_slow_name_behind_a_fast_server(nameserver: NameServer) -> None:
    """A server that is quick as a rule, and drops or is late for one name, is asked on for it."""
    nameserver.add("slow.example", "1.1.1.1")
    for i in range(5):
        nameserver.add(f"quick{i}.example", "1.1.1.1")
    lost = []

    def lose_three(wire: bytes) -> bytes:
        lost.append(wire)
        return wire if len(lost) > 3 else b""

    nameserver.garble("slow.example", lose_three)

    async def main() -> None:
        channel = AresChannel([nameserver.address], 10.0)
        for i in range(5):
            await channel.ask(f"quick{i}.example", socket.AF_INET)
        answer = await asyncio.wait_for(channel.ask("slow.example", socket.AF_INET), 5.0)
        assert answer.addresses == ("1.1.1.1",)
        channel.close()

    asyncio.run(main())


def test_a_lost_question_is_asked_again(nameserver: NameServer, run_on_loop: Run) -> None:
    """A second try comes in time when the first answer never arrived."""
    nameserver.add("lost.example", "1.1.1.1")
    lost = []

    def lose_first(wire: bytes) -> bytes:
        lost.append(wire)
        return wire if len(lost) > 1 else b""

    nameserver.garble("lost.example", lose_first)

    async def main() -> None:
        channel = AresChannel([nameserver.address], 2.0)
        answer = await channel.ask("lost.example", socket.AF_INET)
        assert answer.addresses == ("1.1.1.1",)
        channel.close()

    run_on_loop(main())
