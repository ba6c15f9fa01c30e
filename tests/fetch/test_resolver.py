"""Tests of the resolver against a name server on loopback."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from scrapy_spider_suite.errors import (
    NoSuchHostError,
    PrivateAddressError,
    ResolveError,
    SuiteError,
)
from scrapy_spider_suite.fetch.address_rules import AddressPolicy
from scrapy_spider_suite.fetch.resolver import (
    DnsAnswer,
    DnsClient,
    Resolution,
    Resolver,
    ResolverLimits,
)

if TYPE_CHECKING:
    from support.dns_server import Clock, NameServer


async def error_of(resolver: Resolver, host: str) -> SuiteError:
    """Return the error that resolving *host* ends in."""
    with pytest.raises(SuiteError) as caught:
        await resolver.resolve(host)
    return caught.value


def test_addresses_in_the_order_of_the_answer(nameserver: NameServer, use: Any) -> None:
    """A host has the addresses that the name server gives, for as long as it says."""
    nameserver.add("www.example", "1.1.1.2", "1.1.1.1", ttl=3600)

    async def scenario(resolver: Resolver) -> None:
        expected = Resolution(("1.1.1.2", "1.1.1.1"), 3600.0)
        assert await resolver.resolve("www.example") == expected
        assert await resolver.resolve("WWW.Example.") == expected
        assert resolver.cached("www.example") == expected
        assert nameserver.asked == [("www.example", "A")]

    use(scenario)


@pytest.mark.parametrize(
    ("ttl", "seconds"), [(0, 600.0), (1, 60.0), (777, 777.0), (2**31 - 1, 86_400.0)]
)
def test_ttl(nameserver: NameServer, use: Any, clock: Clock, ttl: int, seconds: float) -> None:
    """Answers are used for their TTL within the bounds, TTL 0 for ten minutes, then asked anew."""
    nameserver.add("www.example", "1.1.1.1", ttl=ttl)

    async def scenario(resolver: Resolver) -> None:
        assert (await resolver.resolve("www.example")).expires_in == seconds
        clock.time += seconds - 1
        assert (await resolver.resolve("www.example")).expires_in == 1.0
        assert len(nameserver.asked) == 1
        clock.time += 1
        assert resolver.cached("www.example") is None
        await resolver.resolve("www.example")
        assert len(nameserver.asked) == 2

    use(scenario)


def test_an_answer_of_an_earlier_run_is_restored(
    nameserver: NameServer, use: Any, clock: Clock
) -> None:
    """It holds as long as it did there, and no longer than this run allows."""
    nameserver.add("www.example", "1.1.1.1")

    async def scenario(resolver: Resolver) -> None:
        assert resolver.restore("WWW.example", "1.1.1.2", 5.0) == Resolution(("1.1.1.2",), 5.0)
        clock.time += 4
        assert (await resolver.resolve("www.example")).addresses == ("1.1.1.2",)
        clock.time += 1
        assert (await resolver.resolve("www.example")).addresses == ("1.1.1.1",)
        assert nameserver.asked == [("www.example", "A")]
        assert resolver.restore("b.example", "1.1.1.2", 1e9) == Resolution(("1.1.1.2",), 86_400.0)

    use(scenario)


@pytest.mark.parametrize(("address", "family"), [("127.0.0.1", "any"), ("1.1.1.1", "6"),
                                                 ("2606:4700::1", "4")])  # fmt: skip
def test_an_answer_that_the_settings_forbid_is_not_restored(
    use: Any, address: str, family: str
) -> None:
    async def scenario(resolver: Resolver) -> None:
        assert resolver.restore("www.example", address, 5.0) is None
        assert resolver.cached("www.example") is None

    use(scenario, family=family)


def test_no_such_host_is_remembered(nameserver: NameServer, use: Any, clock: Clock) -> None:
    """A name that does not exist is asked for again only after the negative TTL."""

    async def scenario(resolver: Resolver) -> None:
        for _ in range(3):
            error = await error_of(resolver, "none.example")
            assert isinstance(error, NoSuchHostError)
            assert str(error) == "none.example: no such host"
        assert resolver.cached("none.example") is None
        assert nameserver.asked == [("none.example", "A"), ("none.example", "AAAA")]
        clock.time += 300
        nameserver.add("none.example", "1.1.1.1")
        assert (await resolver.resolve("none.example")).addresses == ("1.1.1.1",)

    use(scenario)


@pytest.mark.parametrize("rcode", ["SERVFAIL", "REFUSED", "NOTIMP"])
def test_a_failing_server_is_forgotten_sooner(
    nameserver: NameServer, use: Any, clock: Clock, rcode: str
) -> None:
    """A server failure is not the absence of the host, and is remembered for half a minute only."""
    nameserver.fail("bad.example", rcode)

    async def scenario(resolver: Resolver) -> None:
        error = await error_of(resolver, "bad.example")
        assert type(error) is ResolveError
        asked = len(nameserver.asked)
        assert ("bad.example", "AAAA") not in nameserver.asked
        clock.time += 29
        await error_of(resolver, "bad.example")
        assert len(nameserver.asked) == asked
        clock.time += 1
        await error_of(resolver, "bad.example")
        assert len(nameserver.asked) > asked

    use(scenario)


def test_cname_chain(nameserver: NameServer, use: Any) -> None:
    """The addresses at the end of a chain of aliases are those of its beginning."""
    chain = tuple(f"alias{i}.example" for i in range(6))
    nameserver.add("www.example", "1.1.1.1", cnames=chain)

    async def scenario(resolver: Resolver) -> None:
        assert (await resolver.resolve("www.example")).addresses == ("1.1.1.1",)

    use(scenario)


def test_ipv6_where_there_is_no_ipv4(nameserver: NameServer, use: Any) -> None:
    """A host with IPv6 alone is found, and one with both is taken at its IPv4 address."""
    nameserver.add("six.example", "2606:4700::1")
    nameserver.add("both.example", "1.1.1.1")
    nameserver.add("both.example", "2606:4700::1")

    async def scenario(resolver: Resolver) -> None:
        assert (await resolver.resolve("six.example")).addresses == ("2606:4700::1",)
        assert (await resolver.resolve("both.example")).addresses == ("1.1.1.1",)
        assert ("both.example", "AAAA") not in nameserver.asked

    use(scenario)


@pytest.mark.parametrize(
    ("family", "address", "missing"),
    [("4", "1.1.1.1", "six.example"), ("6", "2606:4700::1", "four.example")],
)
def test_one_family(
    nameserver: NameServer, use: Any, family: str, address: str, missing: str
) -> None:
    """With one family chosen the other is neither asked for nor used."""
    nameserver.add("both.example", "1.1.1.1")
    nameserver.add("both.example", "2606:4700::1")
    nameserver.add("four.example", "1.1.1.1")
    nameserver.add("six.example", "2606:4700::1")

    async def scenario(resolver: Resolver) -> None:
        assert (await resolver.resolve("both.example")).addresses == (address,)
        error = await error_of(resolver, missing)
        assert str(error) == f"{missing}: the host has no address"
        assert len({kind for _, kind in nameserver.asked}) == 1

    use(scenario, family=family)


def test_allowed_private_addresses(nameserver: NameServer, use: Any) -> None:
    """An exception lets a private address through."""
    nameserver.add("fake.example", "127.0.1.1", "10.0.0.1")

    async def scenario(resolver: Resolver) -> None:
        assert (await resolver.resolve("fake.example")).addresses == ("127.0.1.1",)

    use(scenario, policy=AddressPolicy(["127.0.0.0/8"]))


def test_one_question_for_many_who_wait(nameserver: NameServer, use: Any) -> None:
    """Look-ups of one host at the same time share a question, and one that gives up harms none."""
    nameserver.add("www.example", "1.1.1.1")

    async def scenario(resolver: Resolver) -> None:
        tasks = [asyncio.ensure_future(resolver.resolve("www.example")) for _ in range(50)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert found[1:] == [Resolution(("1.1.1.1",), 3600.0)] * 49
        assert len(nameserver.asked) == 1
        assert resolver.counts["shared"] == 49

    use(scenario)


def test_bounded_concurrency(
    nameserver: NameServer, use: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more questions are open than allowed, and the rest get their turn."""
    nameserver.everything = bytes([1, 1, 1, 1])

    async def scenario(resolver: Resolver) -> None:
        ask = DnsClient.ask
        now = most = 0

        async def counted(*args: Any) -> DnsAnswer:
            nonlocal now, most
            now += 1
            most = max(most, now)
            answer = await ask(*args)
            now -= 1
            return answer

        monkeypatch.setattr(DnsClient, "ask", counted)
        await asyncio.gather(*(resolver.resolve(f"h{i}.example") for i in range(100)))
        assert (now, most) == (0, 5)

    use(scenario, limits=ResolverLimits(concurrency=5))


def test_invalidate(nameserver: NameServer, use: Any, clock: Clock) -> None:
    """A host whose address refused a connection is asked for anew, past the cache of c-ares too."""
    nameserver.add("moved.example", "1.1.1.1")

    async def scenario(resolver: Resolver) -> None:
        await resolver.resolve("moved.example")
        nameserver.add("moved.example", "1.1.1.2")
        clock.time += 5
        assert (await resolver.resolve("moved.example")).addresses == ("1.1.1.1",)
        resolver.forget("Moved.example.")
        assert resolver.cached("moved.example") is None
        assert (await resolver.resolve("moved.example")).addresses == ("1.1.1.2",)

    use(scenario)


def test_close_while_look_ups_are_in_flight(nameserver: NameServer, use: Any) -> None:
    """Closing ends what is open and what waits for its turn at once, and later look-ups too."""
    nameserver.silence("silent.example")

    async def scenario(resolver: Resolver) -> None:
        hosts = ["silent.example", *(f"h{i}.example" for i in range(5))]
        tasks = [asyncio.ensure_future(resolver.resolve(host)) for host in hosts]
        await asyncio.sleep(0.02)
        resolver.close()
        resolver.close()
        errors = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 1.0)
        assert [type(error) for error in errors] == [ResolveError] * 6
        assert str(await error_of(resolver, "a.example")) == "a.example: the resolver was closed"

    use(scenario, limits=ResolverLimits(concurrency=1))


def test_statistics(nameserver: NameServer, use: Any) -> None:
    """Each look-up is counted under what became of it."""
    nameserver.add("www.example", "1.1.1.1")
    nameserver.add("private.example", "10.0.0.1")

    async def scenario(resolver: Resolver) -> None:
        for host in ("www.example", "none.example", "private.example") * 2:
            await asyncio.gather(resolver.resolve(host), return_exceptions=True)
        resolver.cached("www.example")
        assert resolver.counts == {
            "queries": 5, "hits": 2, "negative_hits": 2, "failures": 1, "refused": 1
        }  # fmt: skip

    use(scenario)


def test_the_least_recently_used_name_is_forgotten_first(nameserver: NameServer, use: Any) -> None:
    """A full cache keeps the names that were asked for last."""
    for name in "abc":
        nameserver.add(f"{name}.example", "1.1.1.1")

    async def scenario(resolver: Resolver) -> None:
        for name in "abac":
            await resolver.resolve(f"{name}.example")
        assert resolver.cached("a.example") is not None
        assert resolver.cached("b.example") is None
        assert resolver.cached("c.example") is not None

    use(scenario, limits=ResolverLimits(cache_size=2))


def test_two_resolvers_on_one_loop(nameserver: NameServer, use: Any) -> None:
    """Two resolvers share nothing: each has its policy, its cache, its end."""
    nameserver.add("fake.example", "127.0.0.1")

    async def scenario(resolver: Resolver) -> None:
        other = Resolver(AddressPolicy(True), servers=[nameserver.address])
        assert (await other.resolve("fake.example")).addresses == ("127.0.0.1",)
        other.close()
        assert isinstance(await error_of(resolver, "fake.example"), PrivateAddressError)

    use(scenario)


def test_a_trusted_host_that_is_public_stays_outside(
    nameserver: NameServer, use: Any, clock: Clock
) -> None:
    """Who was named at a public address must not move the name inside later (DNS rebinding)."""
    nameserver.add("shop.example", "1.1.1.1")
    nameserver.add("both.example", "10.0.0.1", "1.1.1.1")
    nameserver.add("intranet.example", "10.0.0.1")

    async def scenario(resolver: Resolver) -> None:
        for host in ("shop.example", "both.example", "intranet.example"):
            assert resolver.trust(host)
            assert not resolver.trust(host)
        assert (await resolver.resolve("shop.example")).addresses == ("1.1.1.1",)
        assert (await resolver.resolve("both.example")).addresses == ("1.1.1.1",)
        nameserver.add("shop.example", "10.0.0.1")
        clock.time += 100_000
        assert isinstance(await error_of(resolver, "shop.example"), PrivateAddressError)
        assert not resolver.trust("shop.example")
        assert isinstance(await error_of(resolver, "shop.example"), PrivateAddressError)
        for _ in range(2):
            assert (await resolver.resolve("intranet.example")).addresses == ("10.0.0.1",)
            clock.time += 100_000

    use(scenario)


def test_a_host_that_the_operator_lists_may_be_inside_and_outside(
    nameserver: NameServer, use: Any
) -> None:
    """Unlike trust, SUITE_ALLOW_PRIVATE_ADDRESSES is for good."""
    nameserver.add("both.example", "10.0.0.1", "1.1.1.1")

    async def scenario(resolver: Resolver) -> None:
        assert not resolver.trust("both.example")
        assert (await resolver.resolve("both.example")).addresses == ("10.0.0.1", "1.1.1.1")

    use(scenario, policy=AddressPolicy(["both.example"]))
