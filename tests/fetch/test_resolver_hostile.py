"""Tests of the resolver against names, addresses and name servers that mean no good."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from scrapy_spider_suite.errors import (
    NoSuchHostError,
    PrivateAddressError,
    ResolveError,
    ResolveTimeoutError,
    SuiteError,
)
from scrapy_spider_suite.fetch import resolver as resolving
from scrapy_spider_suite.fetch.address_rules import AddressPolicy
from scrapy_spider_suite.fetch.resolver import Resolution, Resolver, ResolverLimits

if TYPE_CHECKING:
    from support.dns_server import NameServer, Run

SHORT = ResolverLimits(timeout=0.5)


async def error_of(resolver: Resolver, host: str) -> SuiteError:
    """Return the error that resolving *host* ends in."""
    with pytest.raises(SuiteError) as caught:
        await resolver.resolve(host)
    return caught.value


def test_a_silent_server_costs_bounded_time(nameserver: NameServer, use: Any) -> None:
    """A look-up that is never answered ends when its time is up, and is not followed by another."""
    nameserver.silence("silent.example")

    async def scenario(resolver: Resolver) -> None:
        start = time.monotonic()
        for _ in range(3):
            error = await error_of(resolver, "silent.example")
            assert isinstance(error, ResolveTimeoutError)
        assert time.monotonic() - start < 8.0  # the default would take 10
        assert resolver.counts["timeouts"] == 1

    use(scenario, limits=SHORT)


def test_an_unreachable_server(run_on_loop: Run) -> None:
    """Where nobody listens the error comes at once, and is not that the host does not exist."""

    async def main() -> None:
        resolver = Resolver(AddressPolicy(), servers=["127.0.0.1:1"])
        assert type(await error_of(resolver, "www.example")) is ResolveError
        resolver.close()

    run_on_loop(main())


@pytest.mark.parametrize("chain", [("www.example",), ("a.example", "b.example", "a.example")])
def test_cname_loop(nameserver: NameServer, use: Any, chain: tuple[str, ...]) -> None:
    """Aliases that lead to each other lead nowhere, after one question per family."""
    nameserver.add("www.example", cnames=chain)

    async def scenario(resolver: Resolver) -> None:
        assert isinstance(await error_of(resolver, "www.example"), NoSuchHostError)
        assert len(nameserver.asked) == 2

    use(scenario)


def test_one_answer_without_sense_fails_nobody_else(nameserver: NameServer, use: Any) -> None:
    """A datagram that is no DNS message costs the name that it is about, not those beside it."""
    nameserver.garble("garbage.example", lambda message: b"\x00garbage")
    names = [f"h{number}.example" for number in range(50)]
    for name in names:
        nameserver.add(name, "1.1.1.1")

    async def scenario(resolver: Resolver) -> None:
        tasks = [asyncio.ensure_future(resolver.resolve(name)) for name in names[:25]]
        bad = asyncio.ensure_future(error_of(resolver, "garbage.example"))
        tasks += [asyncio.ensure_future(resolver.resolve(name)) for name in names[25:]]
        found = await asyncio.gather(*tasks)
        assert all(each.addresses == ("1.1.1.1",) for each in found)
        assert type(await bad) in (ResolveError, ResolveTimeoutError)

    use(scenario)


def test_private_addresses_are_refused(nameserver: NameServer, use: Any) -> None:
    """A public name that leads to private addresses only is refused, and remembered as such."""
    nameserver.add("metadata.example", "169.254.169.254")

    async def scenario(resolver: Resolver) -> None:
        for _ in range(2):
            error = await error_of(resolver, "metadata.example")
            assert isinstance(error, PrivateAddressError)
            assert str(error) == "metadata.example: 169.254.169.254 is a link-local address"
        assert resolver.cached("metadata.example") is None
        assert len(nameserver.asked) == 2
        assert resolver.counts["refused"] == 1

    use(scenario)


def test_private_addresses_among_public_ones(nameserver: NameServer, use: Any) -> None:
    """Of a mixed answer the public addresses are used; and public IPv6 beside private IPv4."""
    nameserver.add("mixed.example", "10.0.0.1", "1.1.1.1", "127.0.0.1", "1.1.1.2")
    nameserver.add("split.example", "10.0.0.1")
    nameserver.add("split.example", "::1", "2606:4700::1", "::ffff:10.0.0.1")

    async def scenario(resolver: Resolver) -> None:
        assert (await resolver.resolve("mixed.example")).addresses == ("1.1.1.1", "1.1.1.2")
        assert (await resolver.resolve("split.example")).addresses == ("2606:4700::1",)

    use(scenario)


def test_hosts_that_are_addresses(nameserver: NameServer, use: Any) -> None:
    """An address written as a host is not asked for, and is judged like any other."""

    async def scenario(resolver: Resolver) -> None:
        assert await resolver.resolve("1.1.1.1") == Resolution(("1.1.1.1",), 86_400.0)
        assert resolver.cached("[2606:4700:0::1]") == Resolution(("2606:4700::1",), 86_400.0)
        for host in ("127.0.0.1", "[::1]", "[::ffff:7f00:1]", "[fe80::1%eth0]"):
            assert isinstance(await error_of(resolver, host), PrivateAddressError)
            assert resolver.cached(host) is None
        assert nameserver.asked == []

    use(scenario)


BAD_NAMES = [
    "",
    ".",
    "a..example",
    f"{'a' * 64}.example",
    "a." * 130 + "example",
    "x" * 100_000,
    "bücher.example",
    "☃.example",
    "\ud800.example",
    "a\0.example",
    "a b.example",
    "a%2e.example",
    "[::1",
    "1.2.3",
    "2130706433",
    "0x7f.1",
]


@pytest.mark.parametrize("host", BAD_NAMES, ids=range(len(BAD_NAMES)))
def test_hosts_that_cannot_be_names(nameserver: NameServer, use: Any, host: str) -> None:
    """Such a host does not exist: no question, no other error, no message of its length."""

    async def scenario(resolver: Resolver) -> None:
        error = await error_of(resolver, host)
        assert isinstance(error, NoSuchHostError)
        assert str(error).isascii()
        assert len(str(error)) < 1000
        assert resolver.cached(host) is None
        resolver.forget(host)
        assert nameserver.asked == []
        assert repr(resolver).startswith("<Resolver: 0 cached")

    use(scenario)


def test_random_names_leak_no_other_error(nameserver: NameServer, use: Any) -> None:
    """Whatever the host, the error is one of the tree."""
    nameserver.everything = bytes([10, 0, 0, 1])
    rng = random.Random(2)
    alphabet = "aZ0-_.*%[]:/@\\ \t\0é☃\udc80"

    async def scenario(resolver: Resolver) -> None:
        for _ in range(500):
            host = "".join(rng.choices(alphabet, k=rng.randrange(12)))
            assert isinstance(await error_of(resolver, host), ResolveError | PrivateAddressError)

    use(scenario)


@pytest.mark.parametrize(
    "damage",
    [
        lambda wire: b"",
        lambda wire: wire[:11],
        lambda wire: wire[:-3],
        lambda wire: wire[:2] + b"\xff" * 60,
        lambda wire: wire[:6] + b"\xff\xff" + wire[8:],
        lambda wire: bytes([wire[0] ^ 255]) + wire[1:],
        lambda wire: wire[:12] + b"\xc0\x0c" * 20,
        lambda wire: wire + b"\0" * 2000,
        lambda wire: bytes(reversed(wire)),
    ],
    ids=["empty", "no-header", "cut", "ones", "count", "id", "pointers", "tail", "reversed"],
)
def test_garbled_answers(
    nameserver: NameServer, use: Any, damage: Callable[[bytes], bytes]
) -> None:
    """An answer that makes no sense costs bounded time, and ends well or in a `ResolveError`."""
    nameserver.add("www.example", "1.1.1.1")
    nameserver.garble("www.example", damage)

    async def scenario(resolver: Resolver) -> None:
        start = time.monotonic()
        with suppress(ResolveError):
            assert (await resolver.resolve("www.example")).addresses == ("1.1.1.1",)
        assert time.monotonic() - start < 8.0  # the default would take 10

    use(scenario, limits=SHORT)


def test_an_answer_to_another_question_is_not_believed(nameserver: NameServer, use: Any) -> None:
    """An answer to another question than was asked counts neither for the one nor the other."""
    nameserver.add("evil.example", "1.1.1.1")
    nameserver.add("fine.example", "2.2.2.2")
    swap = (b"\4evil", b"\4fine")
    nameserver.garble("evil.example", lambda wire: wire.replace(*swap))

    async def scenario(resolver: Resolver) -> None:
        assert isinstance(await error_of(resolver, "evil.example"), ResolveError)
        assert (await resolver.resolve("fine.example")).addresses == ("2.2.2.2",)

    use(scenario, limits=SHORT)


def test_large_answers_come_over_tcp(nameserver: NameServer, use: Any) -> None:
    """A truncated answer is fetched again over TCP."""
    nameserver.add("big.example", *(f"1.2.3.{i}" for i in range(100)))

    async def scenario(resolver: Resolver) -> None:
        assert (await resolver.resolve("big.example")).addresses[0] == "1.2.3.0"
        assert nameserver.over_tcp == 1

    use(scenario)


def test_bounded_memory(
    nameserver: NameServer, use: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 2,500 names as many are known as there is room for, and nothing else is left."""
    nameserver.everything = bytes([1, 1, 1, 1])
    monkeypatch.setattr(resolving, "MAX_ASKED", 1_024)

    async def scenario(resolver: Resolver) -> None:
        for start in range(0, 2_500, 500):
            names = (f"h{i}.example" for i in range(start, start + 500))
            await asyncio.gather(*map(resolver.resolve, names))
        gc.collect()
        assert resolver.counts["queries"] == 2_500
        assert repr(resolver) == "<Resolver: 300 cached, 0 in flight>"
        assert resolver.cached("h0.example") is None
        assert resolver.cached("h2499.example") is not None
        assert len(resolver._client._retired) <= 1

    use(scenario, limits=ResolverLimits(cache_size=300))
