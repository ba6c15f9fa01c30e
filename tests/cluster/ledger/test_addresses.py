"""Which addresses go by the ledger: those that several agents fetch from, and no others."""

from __future__ import annotations

from collections import Counter
from random import Random

from support.agent_town import ALL, GRACE, InTown, Town, back, beat, candidate

from scrapy_spider_suite.cluster.assignment import Units
from scrapy_spider_suite.cluster.ledger.shared_limits import (
    ADDRESSES_PER_CALL,
    AddressBook,
    AddressSharing,
)
from scrapy_spider_suite.cluster.membership import SILENCE
from scrapy_spider_suite.cluster.registry import AgentRegistry

HERE, THERE = "10.0.0.1", "10.0.0.2"
NOTHING = ALL[:0]


class Process:
    """An agent and its book; `busy` are the addresses at which something is under way."""

    def __init__(self, registry: AgentRegistry) -> None:
        self.registry = registry
        self.era = registry.answer.era
        self.busy: set[str] = set()
        self.book = AddressBook(lambda address: address not in self.busy)

    async def ask(self, *addresses: str) -> list[AddressSharing]:
        """How those stand, after a call."""
        for address in addresses:
            self.book.standing(address)
        asked = self.book.question(self.era)
        states, news = await self.registry.ask_addresses(asked)
        if self.era != self.registry.answer.era:
            self.book.report_again()
        self.era = self.registry.answer.era
        self.book.answered(asked, states, news)
        return [self.book.standing(address) for address in addresses]


async def process(town: Town, name: str) -> Process:
    """One that has joined, and asked about nothing yet."""
    here = Process(await town.agent(name))
    await here.ask()
    return here


def test_who_is_alone_at_an_address_needs_no_ledger(in_town: InTown) -> None:
    """Until another agent comes, and then both of them do: the one who came, after the other."""

    async def test(town: Town) -> None:
        a, b = await process(town, "a"), await process(town, "b")
        assert await a.ask(HERE, THERE) == [AddressSharing.ALONE, AddressSharing.ALONE]
        assert await b.ask(HERE) == [AddressSharing.ASK]
        assert a.book.standing(HERE) is AddressSharing.ALONE  # a has heard nothing
        a.busy.add(HERE)
        assert await a.ask(HERE) == [AddressSharing.SHARED]
        await a.ask()
        assert await b.ask(HERE) == [AddressSharing.ASK]  # a fetch of before is under way there
        a.busy.clear()
        await a.ask()
        assert await b.ask(HERE) == [AddressSharing.SHARED]
        assert a.book.standing(THERE) is AddressSharing.ALONE

    in_town(test)


def test_who_is_dead_is_not_waited_for(in_town: InTown) -> None:
    """But who is only missing is, as long as its lease lasts."""

    async def test(town: Town) -> None:
        a, b = await process(town, "a"), await process(town, "b")
        await a.ask(HERE)
        town.wait(GRACE / 2)
        await beat(b.registry)
        assert await b.ask(HERE) == [AddressSharing.ASK]
        town.wait(GRACE / 2 + 1)
        await beat(b.registry)
        assert await b.ask(HERE) == [AddressSharing.ALONE]

    in_town(test)


def test_who_has_gone_shares_nothing(in_town: InTown) -> None:
    """A book forgets addresses at which it has no host and nothing is under way."""

    async def test(town: Town) -> None:
        a, b = await process(town, "a"), await process(town, "b")
        await a.ask(HERE, THERE)
        a.busy.add(HERE)
        a.book.drop_quiet([])
        assert a.book.counts()["addresses"] == 1
        await a.ask()
        assert await b.ask(HERE, THERE) == [AddressSharing.ASK, AddressSharing.ALONE]
        a.busy.clear()
        a.book.drop_quiet([])
        await a.ask()
        assert await b.ask(HERE) == [AddressSharing.ALONE]
        await b.ask()
        assert await a.ask(THERE) == [AddressSharing.ASK]

    in_town(test)


def test_another_process_of_an_agent_is_the_same_agent(in_town: InTown) -> None:
    """Who was asked to wait for it still waits; where it is not any more, it is not for long."""

    async def test(town: Town) -> None:
        a, b = await process(town, "a"), await process(town, "b")
        await a.ask(HERE, THERE)
        assert await b.ask(HERE, THERE) == [AddressSharing.ASK, AddressSharing.ASK]
        a = Process((await back(town, "a"))[0])
        assert await a.ask(HERE) == [AddressSharing.SHARED]
        await a.ask()
        assert await b.ask(HERE, THERE) == [AddressSharing.SHARED, AddressSharing.ALONE]

    in_town(test)


def all_lost(town: Town) -> None:
    """Redis has lost the crawl, and who fetches where."""
    town.wait(1)
    town.wiped()
    for key in town.client.scan_iter("suite:{web}:address*"):
        town.client.delete(key)


async def returned(town: Town, here: Process, name: str, held: Units = NOTHING) -> None:
    """That agent takes part again, in the process that it was, with what it held."""
    await here.registry.join(candidate(name, id=here.registry.answer.id, number=ord(name) - 96))
    await here.registry.claim(held, town.now)


def test_a_server_that_has_lost_all_lets_nobody_be_alone_anew_before_all_have_spoken(
    in_town: InTown,
) -> None:
    """Who is cut off goes on where it was alone, as long as its lease may last."""

    async def test(town: Town) -> None:
        a, b = await process(town, "a"), await process(town, "b")
        await a.ask(HERE)
        await b.ask(THERE)
        all_lost(town)
        await returned(town, b, "b")
        assert await b.ask(HERE) == [AddressSharing.ASK]  # a has not come back yet
        town.wait(4 * SILENCE)
        await beat(b.registry)
        assert await b.ask(HERE, THERE) == [AddressSharing.ASK, AddressSharing.ALONE]
        await returned(town, a, "a", ALL)
        assert await b.ask(HERE) == [AddressSharing.ASK]
        assert a.book.standing(HERE) is AddressSharing.ALONE
        a.busy.add(HERE)
        await a.ask()
        await a.ask()
        assert a.book.standing(HERE) is AddressSharing.SHARED
        assert await b.ask(HERE) == [AddressSharing.ASK]  # a fetch of before is under way there
        a.busy.clear()
        for _ in range(2):
            await a.ask()
        assert await b.ask(HERE) == [AddressSharing.SHARED]

    in_town(test)


def test_after_a_loss_a_lease_is_waited_for_at_most(in_town: InTown) -> None:
    """By then whoever did not come back fetches nothing."""

    async def test(town: Town) -> None:
        a, b = await process(town, "a"), await process(town, "b")
        await a.ask(HERE)
        all_lost(town)
        await returned(town, b, "b")
        town.wait(GRACE / 2)
        await beat(b.registry)
        assert await b.ask(HERE) == [AddressSharing.ASK]
        town.wait(GRACE / 2)
        await beat(b.registry)
        assert await b.ask(HERE) == [AddressSharing.ALONE]

    in_town(test)


def test_who_has_stopped_is_waited_for_until_its_last_delay_is_over(in_town: InTown) -> None:
    """And not until it is back, or its lease over; then it asks like any other."""

    async def test(town: Town) -> None:
        a, b = await process(town, "a"), await process(town, "b")
        await a.ask(HERE)
        assert await b.ask(HERE) == [AddressSharing.ASK]
        await a.registry.announce_stop(lambda: 10.0)
        assert await b.ask(HERE) == [AddressSharing.ASK]
        town.wait(10)
        assert await b.ask(HERE, THERE) == [AddressSharing.ALONE, AddressSharing.ALONE]
        a = Process((await back(town, "a"))[0])
        assert await a.ask(HERE) == [AddressSharing.ASK]
        for _ in range(2):
            await b.ask()
        assert await a.ask(HERE) == [AddressSharing.SHARED]
        assert b.book.standing(HERE) is AddressSharing.SHARED

    in_town(test)


def test_who_was_dead_asks_like_any_other(in_town: InTown) -> None:
    """Though it stood at the address when another one began to wait there."""

    async def test(town: Town) -> None:
        a, b = await process(town, "a"), await process(town, "b")
        await a.ask(HERE)
        await b.ask(HERE)
        town.wait(GRACE / 2)
        await beat(b.registry)
        town.wait(GRACE / 2)
        await beat(b.registry)
        assert await b.ask(HERE) == [AddressSharing.ALONE]
        await a.registry.join(candidate("a", number=1))
        a.book.forget()
        assert await a.ask(HERE) == [AddressSharing.ASK]
        for _ in range(2):
            await b.ask()
        assert await a.ask(HERE) == [AddressSharing.SHARED]

    in_town(test)


def test_who_has_all_units_back_waits_for_nobody(in_town: InTown) -> None:
    """Also not for an agent that has said that it stops."""

    async def test(town: Town) -> None:
        a, b = await process(town, "a"), await process(town, "b")
        tokens = await a.registry.holders()
        await b.registry.announce_stop()
        town.restarted()
        assert await a.ask(HERE) == [AddressSharing.ASK]
        assert await a.ask(HERE) == [AddressSharing.ASK]
        await a.registry.claim(ALL, tokens.at)
        assert await a.ask(HERE) == [AddressSharing.ALONE]

    in_town(test)


def test_more_addresses_than_one_call_takes(in_town: InTown) -> None:
    """They are asked about in the order in which they were met."""

    async def test(town: Town) -> None:
        a = await process(town, "a")
        addresses = [f"10.1.{n // 256}.{n % 256}" for n in range(ADDRESSES_PER_CALL + 10)]
        standing = Counter(await a.ask(*addresses))
        assert standing == {AddressSharing.ALONE: ADDRESSES_PER_CALL, AddressSharing.NEW: 10}
        assert set(await a.ask(*addresses)) == {AddressSharing.ALONE}

    in_town(test)


def test_no_two_are_alone_whatever_they_do(in_town: InTown) -> None:
    """Four agents, five addresses, calls whose answers are lost, in any order; and a server that
    loses all that it knew."""

    async def test(town: Town) -> None:
        random = Random(5)
        agents = [await process(town, name) for name in "abcd"]
        addresses = [f"10.0.0.{n}" for n in range(5)]
        first = agents[0].registry
        epoch = (await beat(first)).epoch
        for number in range(1, 4):
            await first.give(ALL[number::4], number + 1, epoch)
        away: set[Process] = set()
        for turn in range(600):
            each, address = random.choice(agents), random.choice(addresses)
            if turn % 100 == 99:
                all_lost(town)
                town.wait(4 * SILENCE)
                away = set(agents)
            if each in away:
                if random.randrange(4):
                    continue
                number = agents.index(each)
                await returned(town, each, "abcd"[number], ALL[number::4])
                away.discard(each)
            match random.randrange(5):
                case 0:
                    each.busy.discard(address)
                    each.book.drop_quiet([a for a in addresses if a != address])
                case 1:  # nobody hears the answer
                    await each.registry.ask_addresses(each.book.question(each.era))
                case 2 if each.book.standing(address) is AddressSharing.ALONE:
                    each.busy.add(address)
                case 3:
                    each.busy.discard(address)
                case _:
                    await each.ask(address)
            for one in addresses:
                alone = [a for a in agents if a.book._known.get(one) is AddressSharing.ALONE]
                shared = [a for a in agents if a.book._known.get(one) is AddressSharing.SHARED]
                assert len(alone) <= 1
                assert not (alone and shared)

    in_town(test)
