"""A crawl whose agents are all restarted, one after the other."""

from __future__ import annotations

import numpy as np
from support.agent_town import ALL, GRACE, InTown, Town, back, beat


def test_ten_agents_are_restarted_and_nothing_moves(in_town: InTown) -> None:
    """Each rests and comes back in turn, some when others count it as missing, half of them after
    a kill: same epoch, same holders, and nothing of either to be looked at again.
    """

    async def test(town: Town) -> None:
        names = [f"a{number:02}" for number in range(1, 11)]
        agents = [await town.agent(name) for name in names]
        epoch = (await beat(agents[0])).epoch
        for number in range(2, 11):
            await agents[0].give(ALL[number - 1 :: 10], to=number, epoch=epoch)
        answers = [await beat(agent) for agent in agents]
        before = {(answer.epoch, answer.era, answer.moves) for answer in answers}
        holders = (await agents[0].holders()).holders
        assert (len(before), np.bincount(holders).size) == (1, 11)
        for number, agent in enumerate(agents, 1):
            if number % 2:
                await agent.announce_stop()
            for _ in range(2):
                town.wait(GRACE / 3)
                for other in agents:
                    if other is not agent:
                        await beat(other)
            await agents[number % 10].seize(ALL, epoch)
            agents[number - 1], joined = await back(town, names[number - 1], number=number)
            assert (joined.number, joined.id, joined.kept) == (number, agent.answer.id, True)
        answers = [await beat(agent) for agent in agents]
        assert {(answer.epoch, answer.era, answer.moves) for answer in answers} == before
        assert (await agents[-1].holders()).holders.tolist() == holders.tolist()

    in_town(test)
