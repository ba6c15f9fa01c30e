"""Work in slices: nobody is starved, and nothing is lost where nobody wants a turn."""

from __future__ import annotations

import asyncio

from scrapy_spider_suite.runtime.event_loop import SLICE, TimeSlices, quiet_turn


async def _turns_of_a_neighbour(
    worked: float, takes: float, first: float = 0.0
) -> tuple[int, float]:
    """After *worked* seconds in a slice: turns of a neighbour that *takes* so long for each.

    And *first* seconds more for the first.
    """
    now, count, over = 0.0, 0, False

    async def neighbour() -> None:
        nonlocal now, count
        while not over:
            count += 1
            now += takes + first * (count == 1)
            await asyncio.sleep(0)

    turns = TimeSlices(lambda: now)
    other = asyncio.ensure_future(neighbour())
    now += worked
    await turns.yield_turn()
    seen, over = (count, now - worked), True
    await other
    return seen


def test_within_a_slice_the_work_goes_on() -> None:
    """Nobody else has a turn yet."""
    assert asyncio.run(_turns_of_a_neighbour(SLICE * 0.9, takes=0.001)) == (0, 0.0)


def test_a_busy_neighbour_has_several_slices() -> None:
    """As long as it has something to do, but not for ever."""
    turns, seconds = asyncio.run(_turns_of_a_neighbour(SLICE, takes=0.004))
    assert turns > 1
    assert 2 * SLICE < seconds < 5 * SLICE


def test_a_long_turn_is_not_made_longer() -> None:
    """What took long is followed by a turn without a slice, however long it took."""
    turns, _ = asyncio.run(_turns_of_a_neighbour(SLICE, takes=0.001, first=7 * SLICE))
    assert turns == 2
    turns, _ = asyncio.run(_turns_of_a_neighbour(SLICE, takes=7 * SLICE))
    assert turns == 4  # but not for ever


def test_an_idle_neighbour_costs_one_turn() -> None:
    """Reading stays fast when nothing else is to do."""
    turns, _ = asyncio.run(_turns_of_a_neighbour(SLICE, takes=0.00001))
    assert turns == 1


async def _calm_turn_after(takes: list[float]) -> tuple[int, list[str]]:
    """The turn that is chosen, of turns that take so long; and what happened, in order."""
    now, count, happened = 0.0, 0, []

    async def neighbour() -> None:
        nonlocal now, count
        for seconds in takes:
            now += seconds
            count += 1
            await asyncio.sleep(0)

    async def worker() -> None:
        nonlocal now
        turns = TimeSlices(lambda: now)
        now += SLICE
        await turns.yield_turn()
        happened.append("slice")

    others = [asyncio.ensure_future(work()) for work in (neighbour, worker)]
    async with quiet_turn(lambda: now):
        chosen = count
        happened.append("calm")
        await asyncio.sleep(0)
    await asyncio.gather(*others)
    return chosen, happened


def test_a_calm_turn_follows_a_short_one() -> None:
    """And no slice falls in it; where no turn is short, it is one of the long ones."""
    long, short = SLICE, SLICE / 50
    assert asyncio.run(_calm_turn_after([long] * 5 + [short] * 9)) == (6, ["calm", "slice"])
    chosen, happened = asyncio.run(_calm_turn_after([long] * 200))
    assert 50 < chosen < 150
    assert happened[0] == "calm"
    assert not TimeSlices.withheld
