"""The crawl is over when nothing is left to do anywhere, nor on its way."""

from __future__ import annotations

from typing import Any

import pytest
from support.agent_town import ALL, GRACE, InTown, Town, back, beat, two

from scrapy_spider_suite.cluster.membership import SILENCE
from scrapy_spider_suite.cluster.registry import AgentRegistry
from scrapy_spider_suite.errors import JoinRefusedError


async def idle(agent: AgentRegistry, **said: int) -> bool:
    """A heartbeat of an agent that has nothing to do: is the crawl over?"""
    return (await beat(agent, idle=True, **said)).ended


async def rounds(*agents: AgentRegistry, beats: int = 4) -> bool:
    """All are idle for a while: is the crawl over?"""
    return any([await idle(agent) for _ in range(beats) for agent in agents])


async def over_and_unheard(town: Town, **given: Any) -> None:
    """Agent a has ended the crawl and closed; b was killed before it heard of that."""
    a, b = await two(town, **given)
    while not await idle(a):
        assert not await idle(b)
    await a.announce_stop()
    town.wait(SILENCE + 1)


def test_one_agent_that_is_idle_twice_has_ended_the_crawl(in_town: InTown) -> None:
    """Once is not enough."""

    async def test(town: Town) -> None:
        a = await town.agent("a")
        assert not (await beat(a)).ended
        assert [await idle(a), await idle(a)] == [False, True]

    in_town(test)


def test_all_have_to_be_idle_in_two_rounds(in_town: InTown) -> None:
    """And each in the second one after it has heard that the first one is over."""

    async def test(town: Town) -> None:
        a, b = await two(town)
        assert not await rounds(a)
        assert not await idle(b)  # the first round is complete
        assert not await idle(b)  # of the second, as b knows
        assert not await idle(a)  # still of the first, for all that a knew
        assert await idle(a)
        assert (await beat(b)).ended

    in_town(test)


def test_the_last_url_in_flight_keeps_the_crawl_from_ending(in_town: InTown) -> None:
    """Sent by one that is idle since, to one that was idle before."""

    async def test(town: Town) -> None:
        a, b = await two(town)
        for _ in range(3):
            assert not await idle(a, sent=1)
            assert not await idle(b)
        # It arrives, is fetched, and leads back to a, while a says the same as ever.
        assert not (await beat(b, received=1, activity=1)).ended
        assert not await idle(a, sent=1)
        assert not await idle(b, received=1, sent=1, activity=1)
        assert not await idle(a, sent=1)
        assert not await idle(b, received=1, sent=1, activity=1)
        # It arrives there too, and leads nowhere.
        assert not await idle(a, sent=1, received=1, activity=1)
        for _ in range(3):
            await idle(b, received=1, sent=1, activity=1)
            await idle(a, sent=1, received=1, activity=1)
        assert (await beat(b)).ended

    in_town(test)


def test_work_between_two_heartbeats_is_not_overlooked(in_town: InTown) -> None:
    """As much is sent as is received, everybody is idle whenever it speaks, and yet it goes on."""

    async def test(town: Town) -> None:
        a, b = await two(town)
        for count in range(5):
            assert not await idle(a, sent=count, received=count, activity=count)
            assert not await idle(b, sent=count, received=count, activity=count)
        for _ in range(3):  # the numbers stand still now, but for what a did for itself
            assert not await idle(b, sent=4, received=4, activity=4)
        for count in range(5, 9):
            assert not await idle(a, sent=4, received=4, activity=count)
            assert not await idle(b, sent=4, received=4, activity=4)

    in_town(test)


def test_who_is_missing_keeps_the_crawl_from_ending(in_town: InTown) -> None:
    """Until it is back, or is dead and its units are taken."""

    async def test(town: Town) -> None:
        a, b = await two(town)
        assert not await rounds(a)
        town.wait(GRACE / 2)
        assert not await rounds(a)
        town.wait(GRACE / 2)
        assert (await beat(a)).epoch != b.answer.epoch
        assert not await rounds(a)  # half of the units are nobody's
        await a.seize(ALL, a.answer.epoch)
        assert await rounds(a)

    in_town(test)


def test_who_has_left_is_not_waited_for(in_town: InTown) -> None:
    """Nor who was removed once it is dead; who is on its way out still is."""

    async def test(town: Town) -> None:
        a, b = await two(town)
        await b.leave()
        await beat(a)
        assert not await rounds(a)
        await beat(b)
        await b.give(ALL, to=1, epoch=b.answer.epoch)
        assert await b.finish_leaving()
        await beat(a)
        assert await rounds(a)

    in_town(test)


def test_who_joins_or_has_not_heard_of_the_epoch_starts_the_rounds_again(in_town: InTown) -> None:
    """It may have found work for others."""

    async def test(town: Town) -> None:
        a, b = await two(town)
        await idle(a)
        await idle(b)
        await town.agent("a")
        assert not await idle(b)
        old = b.answer.epoch
        town.wait(1)
        c = await town.agent("c")
        a = (await back(town, "a"))[0]
        for _ in range(4):
            assert not await idle(a)
            assert not await idle(c)
            assert not (await beat(b, idle=True, epoch=old)).ended
        assert await rounds(a, b, c)

    in_town(test)


def test_a_crawl_that_is_over_begins_again_when_all_have_closed(in_town: InTown) -> None:
    """Not before."""

    async def test(town: Town) -> None:
        a, b = await two(town)
        assert await rounds(a, b)
        await a.announce_stop()
        with pytest.raises(JoinRefusedError, match="is over and its agents are closing"):
            await town.agent("a")
        town.wait(SILENCE + 1)
        a = await town.agent("a")
        assert not (await beat(a)).ended

    in_town(test)


@pytest.mark.parametrize("grace", [GRACE, None])
def test_who_was_killed_before_it_heard_of_the_end_hears_of_it(
    in_town: InTown, grace: float | None
) -> None:
    """As it comes back with nothing to do, every time."""

    async def test(town: Town) -> None:
        await over_and_unheard(town, grace=grace)
        killed, _ = await back(town, "b", grace=grace, idle=True)
        assert await idle(killed)
        await killed.announce_stop()
        again, _ = await back(town, "b", grace=grace, idle=True)
        assert await idle(again)

    in_town(test)


def test_who_has_something_to_do_after_the_end_begins_anew(in_town: InTown) -> None:
    """Although it was killed before it had heard of it."""

    async def test(town: Town) -> None:
        await over_and_unheard(town)
        killed, _ = await back(town, "b", idle=False)
        assert not await idle(killed)

    in_town(test)


def test_who_is_given_more_after_the_end_opens_the_crawl_again(in_town: InTown) -> None:
    """With nobody there who may be about to close; so others can join."""

    async def test(town: Town) -> None:
        await over_and_unheard(town)
        killed, _ = await back(town, "b", idle=True)
        assert (await beat(killed)).ended  # it has only begun
        assert (await beat(killed, idle=True)).ended
        assert not (await beat(killed, left=True)).ended
        again, _ = await back(town, "a")
        assert not await idle(killed)
        assert await rounds(killed, again)  # and is over again when all have done what there was

    in_town(test)


def test_all_that_have_nothing_to_do_may_come_after_the_end_together(in_town: InTown) -> None:
    """Neither waits for the other to be gone; one that finds more opens the crawl for both."""

    async def test(town: Town) -> None:
        a, b = await two(town)
        assert await rounds(a, b)
        await a.announce_stop()
        await b.announce_stop()
        town.wait(SILENCE + 1)
        first, _ = await back(town, "a", idle=True)
        second, _ = await back(town, "b", idle=True)
        assert await idle(first)
        assert await idle(second)
        assert not (await beat(second, left=True)).ended
        assert not await idle(first)
        assert await rounds(first, second)
        await first.announce_stop()
        assert (await beat(second, left=True)).ended  # it was there at this end

    in_town(test)


def test_who_is_about_to_close_is_left_to_it(in_town: InTown) -> None:
    """Although another agent has something to do again."""

    async def test(town: Town) -> None:
        a, b = await two(town)
        while not await idle(a):
            await idle(b)
        town.wait(SILENCE + 1)
        killed, _ = await back(town, "b", idle=True)
        assert await idle(a)  # it only had to wait for something
        assert (await beat(killed, left=True)).ended
        await a.announce_stop()
        assert not (await beat(killed, left=True)).ended

    in_town(test)


def test_who_was_there_at_the_end_closes(in_town: InTown) -> None:
    """Whatever it is given in that moment: nobody else might ever come back."""

    async def test(town: Town) -> None:
        a, b = await two(town)
        assert await rounds(a, b)
        await a.announce_stop()
        assert (await beat(b, left=True)).ended
        town.wait(SILENCE + 1)
        assert (await beat(b, left=True)).ended

    in_town(test)
