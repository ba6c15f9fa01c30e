"""Agents as they should behave, for tests that let anything happen to them.

Each name has a `Job`, which survives its processes, as a job directory does. A `Process` acts on
what the registry answers, and remembers what it may fetch; nobody tells it what others do.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from scrapy_spider_suite.cluster.assignment import Units
from scrapy_spider_suite.cluster.membership import MemberState
from scrapy_spider_suite.errors import FencedError, JoinRefusedError, RegistryError
from support.agent_town import ALL, GRACE, Town, beat, candidate

SOME: Units = ALL[:: 2**10 + 1]
"""The units that are looked at."""

Flags = npt.NDArray[np.bool_]
"""For each of `SOME`."""


@dataclass
class Job:
    """What is on the disk of an agent: the units it held when it last looked, and when that was."""

    name: str
    id: str = ""
    number: int = 0
    era: int = 0
    at: float = 0.0
    units: Flags = field(default_factory=lambda: np.zeros(len(SOME), bool))


class Process:
    """One process of an agent. What goes wrong on the wire, it tries again with its next `sync`."""

    def __init__(self, town: Town, job: Job, late: list[Callable[[], Any]]) -> None:
        self.town = town
        self.job = job
        self.registry = town.registry()
        self.mine = np.zeros(len(SOME), bool)
        self.paused = self.ended = False
        self.fault = ""
        self._late = late
        self._run = self.registry._server.run
        self.registry._server.run = self._faulty  # type: ignore[method-assign]

    async def _faulty(self, *call: Any) -> Any:
        """A call of which the answer is lost, or that is held up on its way."""
        fault, self.fault = self.fault, ""
        if fault == "hold":
            self._late.append(lambda: self._run(*call))
        elif fault == "lose":
            await self._run(*call)
        if fault:
            raise RegistryError("gone", "away")
        return await self._run(*call)

    @property
    def live(self) -> Flags:
        """What nobody else may fetch now, for all that this process knows."""
        now = self.town.now
        return self.mine if self.registry.lease.live(now, now) else np.zeros(len(SOME), bool)

    def end(self) -> None:
        """It is gone."""
        self.mine[:] = False
        self.ended = True

    async def join(self) -> None:
        """Take the place of the job, unless that is refused."""
        try:
            known = candidate(self.job.name, id=self.job.id, number=self.job.number, grace=GRACE)
            joined = await self.registry.join(known)
        except JoinRefusedError:
            return self.end()
        except RegistryError:
            return None
        self.job.id, self.job.number = joined.id, joined.number
        return await self.attempt(self.look())

    async def sync(self) -> None:
        """A heartbeat, and what follows from its answer."""
        try:
            await beat(self.registry)
            await self.look()
        except RegistryError:
            pass
        except FencedError as error:
            await (self.join() if error.again else self.gone())

    async def gone(self) -> None:
        """Another is in its place, or it was sent away."""
        self.end()

    async def attempt(self, what: Any) -> None:
        """Do *what*; the next `sync` finds out what became of it."""
        with suppress(RegistryError, FencedError):
            await what

    async def look(self) -> None:
        """Claim what was held in another era, and see what is held now."""
        job = self.job
        if job.era not in (0, self.registry.answer.era):
            await self.registry.claim(SOME[job.units], job.at)
        tokens = await self.registry.holders()
        self.mine = tokens.holders[SOME] == job.number
        known = job.era in (0, tokens.era) or self.mine[job.units].all()
        if known or tokens.claims <= self.town.now:
            job.units, job.era, job.at = self.mine.copy(), tokens.era, tokens.at
        else:
            job.units |= self.mine

    def owned(self) -> Units:
        """The units of which it is the owner in the epoch that it knows."""
        names = [member.name for member in self.registry.view.members]
        if self.job.name not in names:
            return SOME[:0]
        return SOME[SOME % len(names) == names.index(self.job.name)]

    async def give(self, which: Flags, to: int) -> None:
        """Hand over what it holds of *which*, and fetch it no more from before that is asked."""
        given = SOME[self.mine & which]
        self.mine[which] = self.job.units[which] = False
        await self.attempt(self.registry.give(given, to, self.registry.view.epoch))

    async def give_back(self) -> None:
        """Hand over to its owners whatever it does not own."""
        rows = [row for row in self.registry.view.rows if row.state is MemberState.ACTIVE]
        for index, row in enumerate(rows):
            if row.name != self.job.name:
                await self.give(SOME % len(rows) == index, row.number)

    async def take(self) -> None:
        """Take what it owns and nobody holds who may."""
        await self.attempt(self.registry.seize(self.owned(), self.registry.view.epoch))
        await self.attempt(self.look())
