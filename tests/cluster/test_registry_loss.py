"""Redis forgets: each unit has one holder all the same, the one it had where that can be known."""

from __future__ import annotations

import numpy as np
import pytest
from support.agent_town import ALL, GRACE, InTown, Town, back, beat, candidate, held, two, units

from scrapy_spider_suite.cluster.membership import SILENCE
from scrapy_spider_suite.errors import ClusterError, FencedError, JoinRefusedError
from scrapy_spider_suite.frontier.entries import UNITS

EVEN, ODD = ALL[::2], ALL[1::2]


def test_after_a_restart_each_agent_claims_what_it_holds(in_town: InTown) -> None:
    """What Redis remembers may be older than what was done, so it is not believed."""

    async def test(town: Town) -> None:
        a, b = await two(town)
        era, at, epoch = a.answer.era, town.now, a.answer.epoch
        town.restarted()
        answer = await beat(a)
        assert answer.era > era
        assert answer.epoch > epoch
        assert await held(a) == [UNITS, 0, 0, 0]
        assert (await b.seize(ODD, answer.epoch)).units.size == 0
        assert (await a.claim(ODD, at)).units.tolist() == ODD.tolist()
        assert (await b.claim(ALL, at)).units.tolist() == EVEN.tolist()
        assert await held(a) == [0, UNITS // 2, UNITS // 2, 0]

    in_town(test)


def test_epochs_go_on_though_redis_is_back_at_an_older_state(in_town: InTown) -> None:
    """An epoch that was seen once never means anything else."""

    async def test(town: Town) -> None:
        a = await town.agent("a")
        dumps = {key: town.client.dump(key) for key in town.keys}
        town.wait(10)
        for name in "bcdefgh":
            await town.agent(name)
        seen = (await beat(a)).epoch
        town.wait(1)
        town.wiped()
        for key, dump in dumps.items():
            if dump is not None:
                town.client.restore(key, 0, dump)
        town.restarted()
        assert (await beat(a)).epoch > seen

    in_town(test)


def test_after_a_loss_agents_come_back_under_their_numbers(in_town: InTown) -> None:
    """With what they held, if their leases were live all the time."""

    async def test(town: Town) -> None:
        a, b = await two(town)
        at, id_ = town.now, b.answer.id
        town.wait(100)
        town.wiped()
        with pytest.raises(FencedError, match="does not know this agent") as caught:
            await beat(b)
        assert caught.value.again
        assert b.lease.may_fetch(town.now, town.now)
        joined = await b.join(candidate("b", id=id_, number=2))
        assert (joined.number, joined.id, joined.kept) == (2, id_, False)
        assert await held(b) == [UNITS, 0, 0, 0]
        assert (await b.claim(EVEN, at)).units.size == UNITS // 2
        assert (await b.seize(ODD, b.answer.epoch)).units.size == 0
        await a.join(candidate("a", id=id_, number=1))
        assert (await a.claim(ODD, at)).units.size == UNITS // 2

    in_town(test)


def test_after_a_loss_who_was_restarted_waits_for_those_who_were_not(in_town: InTown) -> None:
    """Somebody may have taken its units while it was away, and speak up later."""

    async def test(town: Town) -> None:
        a, b = await two(town)
        at, id_ = town.now, b.answer.id
        town.wait(1)
        town.wiped()
        new, joined = await back(town, "b", id=id_, number=2)
        assert (joined.number, joined.kept) == (2, False)
        assert (await new.claim(EVEN, at)).units.size == 0
        tokens = await new.holders()
        assert tokens.claims == town.now + GRACE
        town.wait(GRACE / 2)
        await a.join(candidate("a", id=id_, number=1))
        assert (await a.claim(units(0, 1), at)).units.tolist() == [0, 1]
        assert not (await beat(new)).ended
        town.wait(GRACE / 2)
        assert (await new.claim(EVEN, at)).units.tolist() == EVEN[1:].tolist()
        # What is left now is for the owners.
        assert (await new.seize(ODD, new.answer.epoch)).units.tolist() == ODD[1:].tolist()

    in_town(test)


def test_a_lease_that_lapsed_is_no_proof_though_it_was_renewed_since(in_town: InTown) -> None:
    """What an agent knows from before may have been taken meanwhile."""

    async def test(town: Town) -> None:
        _, b = await two(town)
        at, id_ = town.now, b.answer.id
        town.wait(GRACE)
        town.wiped()
        await b.join(candidate("b", id=id_, number=2))
        assert b.lease.live(town.now, town.now)
        assert (await b.claim(EVEN, at)).units.size == 0

    in_town(test)


def test_after_a_restart_who_is_back_in_time_need_not_wait(in_town: InTown) -> None:
    """If Redis remembers that its lease is not over, nobody has taken what it held."""

    async def test(town: Town) -> None:
        await two(town)
        at = town.now
        town.wait(GRACE / 2)
        town.restarted()
        new, joined = await back(town, "b", number=2)
        assert joined.kept
        assert (await new.claim(EVEN, at)).units.size == UNITS // 2

    in_town(test)


def test_with_leases_for_ever_what_nobody_claims_waits_for_a_word(in_town: InTown) -> None:
    """Its holder is away, and nobody but an operator knows for how long."""

    async def test(town: Town) -> None:
        a = await town.agent("a", grace=None)
        at, id_ = town.now, a.answer.id
        town.wait(1)
        town.wiped()
        new, _ = await back(town, "a", grace=None, id=id_, number=1)
        assert (await new.claim(EVEN, at)).units.size == 0
        town.wait(SILENCE)
        assert (await new.claim(EVEN, at)).units.size == UNITS // 2
        assert (await new.seize(ODD, new.answer.epoch)).units.size == 0
        await town.office().release()
        assert (await new.seize(ODD, new.answer.epoch)).units.size == UNITS // 2

    in_town(test)


def test_a_new_crawl_on_a_server_that_was_just_started_waits_a_moment(in_town: InTown) -> None:
    """For the agents of a crawl that the server has lost: they have the older claim."""

    async def test(town: Town) -> None:
        a, _ = await two(town)
        at, id_ = town.now, a.answer.id
        town.wiped()
        town.client.set("test:uptime", 1_000)
        c = await town.agent("c")
        assert (await c.seize(ALL, c.answer.epoch)).units.size == 0
        await a.join(candidate("a", id=id_, number=1))
        assert a.answer.id == id_
        assert (await a.claim(ODD, at)).units.size == UNITS // 2
        assert (await beat(c)).id == id_
        town.wait(SILENCE)
        assert (await c.seize(ALL, c.answer.epoch)).units.size == 0
        town.wiped()
        d = await town.agent("d")
        town.wait(SILENCE)
        assert (await d.seize(ALL, d.answer.epoch)).units.size == UNITS
        with pytest.raises(JoinRefusedError, match=f"belongs to the crawl {id_}"):
            await a.join(candidate("a", id=id_, number=1))

    in_town(test)


@pytest.mark.parametrize("part", [1, 3])
def test_a_part_that_is_gone_is_as_bad_as_all(in_town: InTown, part: int) -> None:
    """Somebody removed a key: members, or holders."""

    async def test(town: Town) -> None:
        a, b = await two(town)
        at = town.now
        town.client.delete(town.keys[part])
        for agent, mine in ((a, ODD), (b, EVEN)):
            try:
                await beat(agent)
            except FencedError:
                name = "a" if agent is a else "b"
                await agent.join(candidate(name, number=1 + (agent is b), id=agent.answer.id))
            assert (await agent.claim(mine, at)).units.size == UNITS // 2
        assert np.bincount((await b.holders()).holders).tolist() == [0, UNITS // 2, UNITS // 2]

    in_town(test)


def test_there_is_nothing_to_order_where_there_is_no_crawl(in_town: InTown) -> None:
    """One line says so."""

    async def test(town: Town) -> None:
        with pytest.raises(ClusterError, match="no crawl of that name"):
            await town.office().release()

    in_town(test)
