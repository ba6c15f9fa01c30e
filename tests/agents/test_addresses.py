"""Which addresses go by the ledger: those that several agents fetch from, and no others."""

from __future__ import annotations

from collections import Counter
from random import Random

from membership import ALL, GRACE, InTown, Town, back, beat

from scrapy_spider_suite.agents.addresses import MOST, AddressBook, Standing
from scrapy_spider_suite.agents.members import SILENCE
from scrapy_spider_suite.agents.registry import Registry

HERE, THERE = "10.0.0.1", "10.0.0.2"


class Process:
    """An agent and its book; `busy` are the addresses at which something is under way."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.busy: set[str] = set()
        self.book = AddressBook(lambda address: address not in self.busy)

    async def ask(self, *addresses: str) -> list[Standing]:
        """How those stand, after a call."""
        for address in addresses:
            self.book.standing(address)
        asked = self.book.question()
        states, news = await self.registry.meet(asked)
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
        assert await a.ask(HERE, THERE) == [Standing.ALONE, Standing.ALONE]
        assert await b.ask(HERE) == [Standing.ASK]
        assert a.book.standing(HERE) is Standing.ALONE  # a has heard nothing
        a.busy.add(HERE)
        assert await a.ask(HERE) == [Standing.SHARED]
        await a.ask()
        assert await b.ask(HERE) == [Standing.ASK]  # a fetch of before is under way there
        a.busy.clear()
        await a.ask()
        assert await b.ask(HERE) == [Standing.SHARED]
        assert a.book.standing(THERE) is Standing.ALONE
        assert not a.book.pressing
        assert not b.book.pressing

    in_town(test)


def test_who_is_dead_is_not_waited_for(in_town: InTown) -> None:
    """But who is only missing is, as long as its lease lasts."""

    async def test(town: Town) -> None:
        a, b = await process(town, "a"), await process(town, "b")
        await a.ask(HERE)
        town.wait(GRACE / 2)
        await beat(b.registry)
        assert await b.ask(HERE) == [Standing.ASK]
        town.wait(GRACE / 2 + 1)
        await beat(b.registry)
        assert await b.ask(HERE) == [Standing.ALONE]

    in_town(test)


def test_who_has_gone_shares_nothing(in_town: InTown) -> None:
    """A book forgets addresses at which it has no host and nothing is under way."""

    async def test(town: Town) -> None:
        a, b = await process(town, "a"), await process(town, "b")
        await a.ask(HERE, THERE)
        a.busy.add(HERE)
        a.book.keep([])
        assert len(a.book) == 1
        await a.ask()
        assert await b.ask(HERE, THERE) == [Standing.ASK, Standing.ALONE]
        a.busy.clear()
        a.book.keep([])
        await a.ask()
        assert await b.ask(HERE) == [Standing.ALONE]
        await b.ask()
        assert await a.ask(THERE) == [Standing.ASK]

    in_town(test)


def test_another_process_of_an_agent_is_the_same_agent(in_town: InTown) -> None:
    """Who was asked to wait for it still waits; where it is not any more, it is not for long."""

    async def test(town: Town) -> None:
        a, b = await process(town, "a"), await process(town, "b")
        await a.ask(HERE, THERE)
        assert await b.ask(HERE, THERE) == [Standing.ASK, Standing.ASK]
        a = Process((await back(town, "a"))[0])
        assert await a.ask(HERE) == [Standing.SHARED]
        await a.ask()
        assert await b.ask(HERE, THERE) == [Standing.SHARED, Standing.ALONE]

    in_town(test)


def test_a_server_that_has_lost_all_lets_nobody_be_alone_before_all_have_spoken(
    in_town: InTown,
) -> None:
    """Else two agents would be, at one address."""

    async def test(town: Town) -> None:
        a, b = await process(town, "a"), await process(town, "b")
        await a.ask(HERE)
        town.wiped()
        town.client.delete("suite:{web}:addresses", "suite:{web}:address-eras")
        known = a.registry.answer.id
        b.registry, _ = await back(town, "b", id=known)
        b.book.forget()
        assert await b.ask(HERE) == [Standing.ASK]  # a has not come back yet
        a.registry, _ = await back(town, "a", id=known)
        assert await b.ask(HERE) == [Standing.ASK]
        assert a.book.standing(HERE) is Standing.ALONE
        a.book.forget()
        assert await a.ask(HERE) == [Standing.ASK]
        town.wait(SILENCE)  # whoever there was has spoken by now
        for _ in range(2):
            await b.ask()
        assert await a.ask(HERE) == await b.ask(HERE) == [Standing.SHARED]

    in_town(test)


def test_who_has_all_units_back_waits_for_nobody(in_town: InTown) -> None:
    """Also not for an agent that has said that it stops."""

    async def test(town: Town) -> None:
        a, b = await process(town, "a"), await process(town, "b")
        tokens = await a.registry.tokens()
        await b.registry.rest()
        town.restarted()
        a.book.forget()
        assert await a.ask(HERE) == [Standing.ASK]
        await a.registry.claim(ALL, tokens.at)
        assert await a.ask(HERE) == [Standing.ALONE]

    in_town(test)


def test_more_addresses_than_one_call_takes(in_town: InTown) -> None:
    """They are asked about in the order in which they were met."""

    async def test(town: Town) -> None:
        a = await process(town, "a")
        addresses = [f"10.1.{n // 256}.{n % 256}" for n in range(MOST + 10)]
        standing = Counter(await a.ask(*addresses))
        assert standing == {Standing.ALONE: MOST, Standing.NEW: 10}
        assert set(await a.ask(*addresses)) == {Standing.ALONE}

    in_town(test)


def test_no_two_are_alone_whatever_they_do(in_town: InTown) -> None:
    """Four agents, five addresses, calls whose answers are lost, in any order."""

    async def test(town: Town) -> None:
        random = Random(5)
        agents = [await process(town, name) for name in "abcd"]
        addresses = [f"10.0.0.{n}" for n in range(5)]
        for _ in range(400):
            each, address = random.choice(agents), random.choice(addresses)
            match random.randrange(5):
                case 0:
                    each.busy.discard(address)
                    each.book.keep([a for a in addresses if a != address])
                case 1:
                    await each.registry.meet(each.book.question())  # nobody hears the answer
                case 2 if each.book.standing(address) is Standing.ALONE:
                    each.busy.add(address)
                case 3:
                    each.busy.discard(address)
                case _:
                    await each.ask(address)
            for one in addresses:
                alone = [a for a in agents if a.book._known.get(one) is Standing.ALONE]
                shared = [a for a in agents if a.book._known.get(one) is Standing.SHARED]
                assert len(alone) <= 1
                assert not (alone and shared)

    in_town(test)
