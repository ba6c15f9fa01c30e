"""The ledger: one contract, in Redis and in a file, in virtual time."""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from support.agent_town import WORLD
from support.ledgers import AHEAD, HOLD, WINDOW, A, B, InFile, InRedis, K, L, Place, User
from support.redis_servers import RedisServer

from scrapy_spider_suite.cluster import redis_server as scripts
from scrapy_spider_suite.cluster.ledger.rate_ledger import (
    KEEP_MAX,
    KEY_MAX,
    DelayWish,
    FetchEnd,
    LedgerAnswer,
    LedgerLine,
    ReturnedGrant,
    grant_key,
)
from scrapy_spider_suite.errors import LedgerError


@pytest.fixture(params=["redis", "file"])
def place(
    request: pytest.FixtureRequest, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[Place]:  # fmt: skip
    """Each of them, empty."""
    monkeypatch.setattr(scripts, "WORLD", WORLD)
    with redis_server.client() as client:
        if request.param == "redis":
            yield InRedis(client, redis_server.url)
        else:
            yield InFile(tmp_path / "ledger")


Test = Callable[[Place, User, User], Awaitable[None]]


def contract(test: Test) -> Callable[[Place], None]:
    """Run *test* with two processes."""

    def run(place: Place) -> None:
        async def main() -> None:
            users = User(place.ledger(), A), User(place.ledger(), B)
            try:
                await test(place, *users)
            finally:
                for user in users:
                    await user.ledger.close()

        asyncio.run(main())

    run.__doc__ = test.__doc__
    return run


NOW = LedgerAnswer(0, WINDOW)


@contract
async def test_nobody_else_gets_a_grant_before_the_end_and_a_delay(
    place: Place, a: User, b: User
) -> None:
    """Which runs from the end of the fetch; a grant for later is given ahead."""
    assert await a.ask(K) == NOW
    assert (await b.ask(K)).wait
    place.wait(3_000)
    assert (await b.ask(K)).wait
    await a.end(K, ago=400)
    assert await b.ask(K) == LedgerAnswer(601, 601 + WINDOW)
    assert (await a.ask(K)).wait


@contract
async def test_a_killed_holder_blocks_until_its_grant_runs_out(
    place: Place, a: User, b: User
) -> None:
    """The window, a fetch and a delay; then the key is anybody's."""
    await a.ask(K, delay=2_000)
    place.wait(WINDOW + HOLD - 1)
    assert (await b.ask(K)).wait
    place.wait(1)
    assert await b.ask(K) == LedgerAnswer(2_000, 2_000 + WINDOW)


@contract
async def test_the_longer_delay_wins(place: Place, a: User, b: User) -> None:
    """That of who fetched, and of who wants to."""
    await a.ask(K, delay=3_000)
    await a.end(K, delay=3_000)
    assert (await b.ask(K)).opens == 3_001
    place.wait(3_001)
    await b.end(K)
    assert (await a.ask(K, delay=3_000)).opens == 3_001


@contract
async def test_keys_are_granted_together(place: Place, a: User, b: User) -> None:
    """All or none: two that wait for each other's would wait for good."""
    await a.ask(K)
    assert (await b.ask(L, K)).wait
    place.wait(5_000)
    assert await a.ask(L) == NOW  # who was next has not come back
    place.wait(60_000)
    assert (await b.ask(L, K)) == NOW


@contract
async def test_who_came_first_is_next(place: Place, a: User, b: User) -> None:
    """As long as it comes back in time; who fetched has to wait for its turn."""
    await a.ask(K)
    wait = (await b.ask(K)).wait
    await a.end(K)
    assert (await a.ask(K)).wait
    place.wait(wait)
    assert (await b.ask(K)).closes
    assert (await a.ask(K)).wait
    await b.end(K)
    assert (await b.ask(K)).wait
    place.wait(60_000)
    assert (await b.ask(K)).closes


@contract
async def test_a_wish_holds_for_all(place: Place, a: User, b: User) -> None:
    """And is no shorter by what comes later."""
    await a.say(wishes=[DelayWish(K, 3_600_000)])
    await b.say(wishes=[DelayWish(K, 60_000)])
    for user in (a, b):
        assert (await user.ask(K)).wait == 3_600_000 - AHEAD
    place.wait(3_600_000)
    assert await a.ask(K) == NOW


@contract
async def test_a_grant_that_is_returned_costs_no_delay(place: Place, a: User, b: User) -> None:
    """If it was that one."""
    await a.ask(K)
    await a.say(returns=[ReturnedGrant(K, a.serial + 1)])
    assert (await b.ask(K)).wait
    await b.say(returns=[ReturnedGrant(K, b.serial)])
    await a.say(returns=[ReturnedGrant(K, a.serial)])
    assert await b.ask(K) == NOW


@contract
async def test_asking_again_is_the_same_grant(place: Place, a: User, b: User) -> None:
    """With its window anew: for an answer that was lost, and for a visit that goes on."""
    await a.ask(K)
    place.wait(WINDOW)
    assert await a.ask(K, anew=False) == NOW
    place.wait(HOLD + WINDOW - 1)
    assert (await b.ask(K)).wait
    await a.end(K)
    await a.end(K)  # nobody heard the first
    assert (await b.ask(K)).opens == 1_001


@contract
async def test_a_longer_delay_than_was_known_waits_for_ends_that_are_forgotten(
    place: Place, a: User, b: User
) -> None:
    """Ends are remembered for the longest delay so far."""
    await a.ask(K)
    await a.end(K)
    place.wait(2_000)
    assert (await b.ask(L, delay=60_000)).wait == 59_000 - AHEAD
    assert await a.ask("host other") == NOW


@contract
async def test_after_a_restart_everything_waits(place: Place, a: User, b: User) -> None:
    """Until what nobody knows of must have ended, and a delay; and the callers know of it."""
    await a.ask(K)
    era = a.era
    place.restarted()
    await a.ledger.close()
    a.ledger = place.ledger()
    assert (await a.ask(K)).wait
    assert await a.ask(L) == LedgerAnswer(wait=WINDOW + HOLD + 1_000 - AHEAD)
    assert a.era != era
    place.wait(WINDOW + HOLD + 1_000)
    assert await a.ask(L) == NOW


@contract
async def test_after_a_loss_everything_waits(place: Place, a: User, b: User) -> None:
    """Though the first who comes is a new one, as soon as an old one has."""
    await a.ask(K)
    place.wiped()
    place.wait(1_000)
    assert await b.ask(L) == NOW
    assert (await a.ask(K)).wait
    assert (await b.ask(K)).wait
    place.wait(WINDOW + HOLD + 1_000)
    assert (await a.ask(K)).closes


@contract
async def test_nothing_is_kept_that_nobody_needs(place: Place, a: User, b: User) -> None:
    """Neither keys that were only asked for, nor those whose delay is over."""
    if isinstance(place, InRedis):
        await a.ask(K)
        await a.end(K, delay=9_000)
        left = place.client.pttl(f"suite:ledger:{{town}}:{K}")
        assert 5_000 < left <= 9_005
        await a.ask(K, L)
        assert 0 < place.client.pttl("suite:ledger:{town}") <= 2 * (15 * 86_400_000)
    for number in range(60):
        await a.ask(key := f"host {number}")
        await a.say(returns=[ReturnedGrant(key, a.serial)])
    assert place.held() <= 3
    if isinstance(place, InFile):
        for number in range(60):
            await a.ask(f"host {number}")
        place.wait(KEEP_MAX)
        for _ in range(5):
            await a.ask(K)
        assert place.held() == 1


RECORD, MARKER = ">2s8d16s16s", ">2s4d40s"  # as in ledger.lua
_TOO_FAR = struct.pack(RECORD, b"L1", 0, 1e15, *[0] * 6, b"0" * 16, b"0" * 16)
_NEVER = struct.pack(RECORD, b"L1", math.nan, *[0] * 7, b"0" * 16, b"0" * 16)


@contract
async def test_what_no_ledger_wrote_is_named_and_harms_nothing_else(
    place: Place, a: User, b: User
) -> None:
    """In a Redis, where anybody may write: there is no grant for such a key, and one for others."""
    if not isinstance(place, InRedis):
        return
    await a.ask(K)
    await a.end(K)
    for value in (b"", b"L1", b"x" * 98, _TOO_FAR, _NEVER, 7):
        place.put(K, value)
        reply = await b.say(
            (LedgerLine(K, 1, 0), LedgerLine("host other", 1, 0)), (LedgerLine(L, 1, 0),)
        )
        assert reply.damaged == (K,)
        assert [bool(answer.closes) for answer in reply.answers] == [False, True]
        reply = await b.say(
            ends=[FetchEnd(K, 1, 0, 0), FetchEnd(L, 1, 0, 0)], wishes=[DelayWish(K, 5)]
        )
        assert reply.damaged == (K,)
        place.wait(60_000)


@contract
async def test_a_marker_that_no_ledger_wrote_is_refused(place: Place, a: User, b: User) -> None:
    """In one line that says where."""
    await a.ask(K)
    endless = struct.pack(MARKER, b"L1", math.inf, 0, 0, 0, b" " * 40)
    for value in (b"", b"x" * 74, endless, 7):
        place.put(None, value)
        with pytest.raises(LedgerError, match=r"the suite did not write|another type") as caught:
            await a.ask(K)
        assert caught.value.kind in ("damaged", "type")
        assert "town" in str(caught.value) or a.ledger.where in str(caught.value)
        assert "\n" not in str(caught.value)


def test_keys_have_a_bound() -> None:
    """A host may have any length, where a spider chose its slot; two are still two."""
    long = [grant_key("host", "h" * 5_000 + end) for end in "ab"]
    assert max(map(len, long)) <= KEY_MAX
    assert len({*long, grant_key("host", "a"), grant_key("address", "a")}) == 4
