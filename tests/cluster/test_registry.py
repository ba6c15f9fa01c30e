"""Joining, leaving, dying and coming back; and units that change hands meanwhile."""

from __future__ import annotations

import numpy as np
import pytest
from support.agent_town import (
    ALL,
    FETCH,
    GRACE,
    NOON,
    InTown,
    Town,
    back,
    beat,
    candidate,
    held,
    units,
)

from scrapy_spider_suite.cluster.membership import HEARTBEAT, SILENCE, MemberState
from scrapy_spider_suite.errors import (
    ClusterError,
    FencedError,
    JoinRefusedError,
    RegistryError,
)
from scrapy_spider_suite.frontier.entries import UNITS

THIRD = ALL[::3]


def test_the_first_agent_holds_everything_and_gives_what_is_not_its_own(in_town: InTown) -> None:
    """Whoever joins holds nothing until it is given, and everybody hears of both."""

    async def test(town: Town) -> None:
        a = await town.agent("a")
        assert await held(a) == [0, UNITS, 0, 0]
        b = await town.agent("b", weight=2.0)
        assert await held(b) == [0, UNITS, 0, 0]
        before, moves = a.view.epoch, a.answer.moves
        answer = await beat(a)
        assert a.view.epoch > before
        assert a.view.members == b.view.members == (("a", 1.0), ("b", 2.0))
        moved = await a.give(THIRD, to=2, epoch=answer.epoch)
        assert (moved.units.tolist(), moved.why) == (THIRD.tolist(), "")
        assert (await beat(b)).moves > moves
        tokens = await b.holders()
        assert np.flatnonzero(tokens.holders == 2).tolist() == THIRD.tolist()
        assert (await beat(b)).members is None  # nothing new of members

    in_town(test)


def test_units_move_only_from_who_holds_them_and_under_the_epoch(in_town: InTown) -> None:
    """Each is looked at by itself; what was moved already may be moved again."""

    async def test(town: Town) -> None:
        a, b = await town.agent("a"), await town.agent("b")
        old = a.answer.epoch
        epoch = (await beat(a)).epoch
        assert (await a.give(units(1, 2), to=2, epoch=old)).why == "epoch"
        assert (await a.give(units(1, 2), to=7, epoch=epoch)).why == "target"
        assert (await a.give(units(1, 2), to=2, epoch=epoch)).units.tolist() == [1, 2]
        assert (await a.give(units(2, 3), to=2, epoch=epoch)).units.tolist() == [2, 3]
        assert (await b.give(units(3, 4, 65535), to=1, epoch=epoch)).units.tolist() == [3, 4, 65535]
        assert await held(a) == [0, UNITS - 2, 2, 0]
        assert (await b.seize(ALL, epoch)).units.tolist() == [1, 2]  # its own already

    in_town(test)


def test_a_missing_agent_keeps_its_units_and_a_dead_one_loses_them(in_town: InTown) -> None:
    """Nothing happens for the whole of the grace; then the epoch changes, and others may take."""

    async def test(town: Town) -> None:
        a, b = await town.agent("a"), await town.agent("b")
        town.wait(GRACE - 1)
        epoch = (await beat(b)).epoch
        assert b.view.row("a").missing(town.now)
        assert (await b.seize(ALL, epoch)).units.size == 0
        town.wait(1)
        assert not a.lease.live(town.now, town.now)
        answer = await beat(b)
        assert answer.epoch > epoch
        assert b.view.row("a").state is MemberState.DEAD
        assert [member.name for member in b.view.members] == ["b"]
        assert (await b.seize(THIRD, epoch)).why == "epoch"
        assert (await b.seize(THIRD, answer.epoch)).units.size == len(THIRD)
        for call in (beat(a), a.give(units(1), 2, answer.epoch), a.leave()):
            with pytest.raises(FencedError, match="ended before it was renewed") as caught:
                await call
            assert caught.value.again
        assert not a.lease.may_fetch(town.now, town.now)
        assert not (await a.join(candidate("a", number=1))).kept
        assert await held(a) == [0, UNITS - len(THIRD), len(THIRD), 0]
        assert a.answer.epoch > answer.epoch

    in_town(test)


def test_an_agent_back_within_its_grace_keeps_all_and_disturbs_nobody(in_town: InTown) -> None:
    """A rolling restart: no epoch, no hand-over; the process before it may write no more."""

    async def test(town: Town) -> None:
        a, b = await town.agent("a"), await town.agent("b")
        epoch = (await beat(b)).epoch
        town.wait(GRACE - SILENCE)
        await beat(b)
        new, joined = await back(town, "a", number=1, address="10.0.0.1:7")
        assert (joined.number, joined.id, joined.kept) == (1, new.answer.id, True)
        assert (await beat(b)).epoch == epoch
        assert b.view.row("a").address == "10.0.0.1:7"
        with pytest.raises(FencedError, match="another process") as caught:
            await beat(a)
        assert not caught.value.again
        assert not a.lease.live(town.now, town.now)
        assert (await new.give(units(5), to=2, epoch=epoch)).units.tolist() == [5]

    in_town(test)


def test_a_second_process_of_a_name_is_refused_while_the_first_may_live(in_town: InTown) -> None:
    """Unless it sits in the same place, whose lock tells that the other is gone."""

    async def test(town: Town) -> None:
        a = await town.agent("a")
        town.wait(HEARTBEAT)
        with pytest.raises(JoinRefusedError, match=r"the name a runs already \(heard 5 s ago"):
            await town.agent("a", folder="elsewhere")
        await beat(a)  # it is not disturbed
        await town.agent("a")
        moved = await back(town, "b", folder="here")
        await moved[0].announce_stop()
        assert (await back(town, "b", folder="elsewhere"))[1].kept
        town.wait(SILENCE + 1)
        with pytest.raises(JoinRefusedError, match="belongs to an agent with another job"):
            await town.agent("b", folder="elsewhere", job="other")
        assert (await back(town, "b", folder="third"))[1].kept

    in_town(test)


def test_another_job_under_the_name_of_a_dead_one_is_another_agent(in_town: InTown) -> None:
    """It has not what the dead one had, so it does not hold its units."""

    async def test(town: Town) -> None:
        await town.agent("a")
        town.wait(GRACE)
        new, joined = await back(town, "a", job="other")
        assert joined.number == 2
        assert (await new.seize(ALL, new.answer.epoch)).units.size == UNITS

    in_town(test)


def test_who_leaves_is_gone_when_it_holds_nothing(in_town: InTown) -> None:
    """And the last one cannot leave."""

    async def test(town: Town) -> None:
        a = await town.agent("a")
        assert not await a.leave()
        b = await town.agent("b")
        epoch = (await beat(a)).epoch
        assert await a.leave()
        answer = await beat(a)
        assert (answer.state, answer.epoch > epoch) == (MemberState.LEAVING, True)
        await a.give(ALL[1:], to=2, epoch=answer.epoch)
        assert not await a.finish_leaving()
        assert (await b.give(ALL[1:2], to=1, epoch=answer.epoch)).why == "target"
        await a.give(ALL[:1], to=2, epoch=answer.epoch)
        assert await a.finish_leaving()
        assert await a.finish_leaving()  # as if no answer had come
        with pytest.raises(FencedError, match="has left the crawl"):
            await beat(a)
        _, joined = await back(town, "a", number=1)
        assert (joined.number, joined.id, joined.kept) == (1, a.answer.id, False)

    in_town(test)


def test_who_is_removed_loses_its_units_when_its_lease_is_over(in_town: InTown) -> None:
    """At once if the operator knows that its process is gone; until then it can hand them over."""

    async def test(town: Town) -> None:
        a, b = await town.agent("a"), await town.agent("b")
        office = town.office()
        with pytest.raises(ClusterError, match="no agent of the crawl has the name x"):
            await office.remove("x")
        await office.remove("a")
        epoch = (await beat(b)).epoch
        answer = await beat(a)
        assert (answer.state, answer.epoch) == (MemberState.REMOVED, epoch)
        assert (await b.seize(THIRD, epoch)).units.size == 0
        assert (await a.give(units(1), to=2, epoch=epoch)).units.tolist() == [1]
        town.wait(FETCH)
        await beat(a)
        await beat(b)
        town.wait(GRACE - FETCH - 1)
        assert not a.lease.may_fetch(town.now, town.now)  # it was not renewed
        await office.remove("a", dead=True)
        epoch = (await beat(b)).epoch
        assert (await b.seize(ALL, epoch)).units.size == UNITS
        with pytest.raises(FencedError, match="removed"):
            await beat(a)

    in_town(test)


def test_with_leases_for_ever_only_an_operator_takes_from_who_is_away(in_town: InTown) -> None:
    """And says that the process is gone."""

    async def test(town: Town) -> None:
        a, b = await town.agent("a", grace=None), await town.agent("b", grace=None)
        town.wait(10**7)
        answer = await beat(b)
        assert (await b.seize(ALL, answer.epoch)).units.size == 0
        assert a.lease.may_fetch(town.now, town.now)
        with pytest.raises(ClusterError, match="has no end: see that its process is gone"):
            await town.office().remove("a")
        await town.office().remove("a", dead=True)
        assert (await b.seize(ALL, (await beat(b)).epoch)).units.size == UNITS

    in_town(test)


def test_settings_and_protocols_that_differ_are_named(
    in_town: InTown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as anybody is at work; then the newcomer's hold, also for who was only silent."""

    async def test(town: Town) -> None:
        a = await town.agent("a", fixed={"SUITE_SEEN_STORE": "trie", "SUITE_ORDER": "fifo"})
        fixed = {"SUITE_SEEN_STORE": "sieve", "SUITE_ORDER": "fifo"}
        with pytest.raises(JoinRefusedError) as caught:
            await town.agent("b", fixed=fixed, grace=60)
        assert str(caught.value) == (
            "agents of one crawl need the same fixed settings: SUITE_AGENT_GRACE is 60 here and "
            "900 there; SUITE_SEEN_STORE is sieve here and trie there"
        )
        town.wait(SILENCE + 1)
        await town.agent("b", fixed={"SUITE_SEEN_STORE": "sieve"})
        with pytest.raises(FencedError) as fenced:
            await beat(a)
        assert fenced.value.again
        with pytest.raises(JoinRefusedError, match="SUITE_SEEN_STORE is trie here and sieve there"):
            await a.join(candidate("a", fixed={"SUITE_SEEN_STORE": "trie"}))
        monkeypatch.setattr("scrapy_spider_suite.cluster.registry.PROTOCOL", 2)
        with pytest.raises(JoinRefusedError, match="need the same protocol") as caught:
            await town.agent("c", fixed={"SUITE_SEEN_STORE": "sieve"})
        assert caught.value.kind == "protocol"

    in_town(test)


def test_a_clock_minutes_apart_is_refused(in_town: InTown) -> None:
    """Before anything is written."""

    async def test(town: Town) -> None:
        here = town.registry()
        town.now -= 300
        with pytest.raises(JoinRefusedError, match="is 300 s behind that of Redis: expected 60 s"):
            await here.join(candidate("a"))
        assert here.skew.offset == 300
        assert town.client.exists(*town.keys) == 0
        town.now += 250
        await here.join(candidate("a"))

    in_town(test)


def test_a_job_of_another_crawl_is_refused(in_town: InTown) -> None:
    """The name is the same, the crawl is not."""

    async def test(town: Town) -> None:
        a = await town.agent("a")
        with pytest.raises(JoinRefusedError, match=f"crawl beef, and Redis holds {a.answer.id}"):
            await town.agent("b", id="beef")

    in_town(test)


def test_a_call_that_was_overtaken_changes_nothing(in_town: InTown) -> None:
    """It was held up on its way, its sender gave up and went on; it comes after all."""

    async def test(town: Town) -> None:
        a, b = await town.agent("a"), await town.agent("b")
        epoch = (await beat(a)).epoch
        run, kept = a._server.run, []

        async def hold_up(*arguments: object) -> None:
            kept.append(arguments)
            raise TimeoutError

        a._server.run = hold_up
        with pytest.raises(TimeoutError):
            await a.give(THIRD, to=2, epoch=epoch)
        a._server.run = run
        await beat(a)
        assert b'"late"' in (await run(*kept[0]))[0]
        assert await held(b) == [0, UNITS, 0, 0]

    in_town(test)


def test_what_agents_say_of_themselves_is_shown_and_nothing_else_is(in_town: InTown) -> None:
    """Facts are data: of bounded size, and left out if they are something else."""

    async def test(town: Town) -> None:
        assert await town.office().overview() is None
        a, b = await town.agent("a"), await town.agent("b")
        await beat(a, facts={"hosts": 7, "rate": 1.5, "phase": None})
        await beat(b, facts={"text": "x" * 10_000})
        town.client.hset(town.keys[2], "c", "[1, 2")
        overview = await town.office().overview()
        assert overview.facts == {"a": {"hosts": 7, "rate": 1.5, "phase": None}, "b": {}}
        assert [row.name for row in overview.view.rows] == ["a", "b"]
        assert overview.holders.holders.tolist() == [1] * UNITS
        assert (overview.id, overview.now, overview.ended) == (a.answer.id, town.now, False)
        with pytest.raises(ClusterError, match="is at work on the crawl"):
            await town.office().forget()
        town.wait(SILENCE + 1)
        mail = [town.keys[0].replace("crawl", f"{kind}:a") for kind in ("inbox", "receipts")]
        for key in mail:
            town.client.xadd(key, {"message": b"of the crawl"})
        parts = ("agent:a", "phase:1", "phase:70")
        rows = [town.keys[0].replace("crawl", f"series:hour:{part}") for part in parts]
        for key in rows:
            town.client.hset(key, "1", b"a row")
        await town.office().forget()
        assert town.client.exists(*town.keys, *mail, *rows) == 0

    in_town(test)


def test_there_are_no_more_agents_than_phases(in_town: InTown) -> None:
    """Those that are away count, too; who has its place has it again (K5)."""

    async def test(town: Town) -> None:
        for name in "ab":
            await town.agent(name, most=2)
        with pytest.raises(JoinRefusedError, match=r"^SUITE_PHASES = 2: the crawl has") as no:
            await town.agent("c", most=2)
        assert no.value.kind == "most"
        town.wait(SILENCE + 1)
        await back(town, "b", most=2)
        with pytest.raises(JoinRefusedError):
            await town.agent("c", most=2)

    in_town(test)


def test_a_clock_that_phases_cannot_do_with_is_refused(in_town: InTown) -> None:
    """By less than others may differ."""

    async def test(town: Town) -> None:
        here = town.registry()
        town.now += 4
        with pytest.raises(JoinRefusedError, match="is 4 s ahead of that of Redis: expected 3 s"):
            await here.join(candidate("a", skew=3.0))
        town.now -= 1
        await here.join(candidate("a", skew=3.0))

    in_town(test)


def test_an_answer_that_is_late_says_nothing_of_clocks(
    in_town: InTown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again, and not refused: the clock may be right."""

    async def test(town: Town) -> None:
        here = town.registry()
        ticks = iter([NOON, NOON + 8.0, NOON, NOON])
        monkeypatch.setattr(here, "_clock", lambda: next(ticks))
        town.wait(4.0)
        monkeypatch.setattr(here, "_wall", lambda: NOON)
        with pytest.raises(RegistryError, match="too late to compare clocks"):
            await here.join(candidate("a", skew=3.0))
        monkeypatch.setattr(here, "_wall", lambda: town.now)
        await here.join(candidate("a", skew=3.0))

    in_town(test)
