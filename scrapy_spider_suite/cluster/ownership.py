"""What of a crawl is this agent's: who owns each unit, and who holds it, as far as is known here.

The owner of a unit is who should have it, by the members of an epoch; its holder is who may fetch
it, by what stands in Redis. Where both are not the same a hand-over is due (``agents.registry``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from scrapy_spider_suite.cluster.assignment import Assignment, Member, OwnerTable, Units
from scrapy_spider_suite.cluster.membership import Holders, MemberRecord, Membership, MemberState
from scrapy_spider_suite.frontier.entries import UNITS

_NOBODY: Final = 0


class Ownership:
    """Of the agent *name*, where *assignment* says which unit a URL lies in.

    To begin with it owns everything and holds nothing.

    Attributes:
        epoch: that of the members.
        table: who owns what; None while no member owns anything.
        in_transfer: for each unit whether it is being handed over, so that nobody fetches it.
        number: this agent's among the holders; 0 while it has none.
    """

    def __init__(self, assignment: Assignment, name: str) -> None:
        self.assignment = assignment
        self.name = name
        self.epoch = 0
        self.number = _NOBODY
        self.table: OwnerTable | None = None
        self.in_transfer: npt.NDArray[np.bool_] = np.zeros(UNITS, np.bool_)
        self._rows: dict[int, MemberRecord] = {}
        self._holders: Units = np.zeros(UNITS, np.uint16)
        self._names: list[str] = [name] * UNITS
        self._free = bytearray(UNITS)  # 1: it may be fetched here

    # What is known

    def table_of(self, members: Iterable[Member]) -> OwnerTable | None:
        """Who owns what if those are the members; None if there are none.

        Takes up to 0.2 s with many that are new, and may be called in a thread. Raises
        `SettingsError`: the assignment has no answer for them.
        """
        members = tuple(members)
        return OwnerTable.of(self.assignment, members) if members else None

    def set_members(
        self, epoch: int, members: Iterable[Member], table: OwnerTable | None = None
    ) -> bool:  # fmt: skip
        """Those are the *members* of *epoch*; whether others own what they owned not before.

        *table* is what `table_of` made of them, if it was asked. Raises as that does.
        """
        before, self.epoch = self._names, epoch
        self.table = table or self.table_of(members)
        if self.table is not None:
            names = [member.name for member in self.table.members]
            self._names = [names[index] for index in self.table.owners.tolist()]
        return self._names != before

    def set_membership(self, members: Membership, table: OwnerTable | None = None) -> bool:
        """`settle`, by the *view* that Redis has of them."""
        self._rows = members.numbers
        return self.set_members(members.epoch, members.members, table)

    def update_members(self, members: Membership) -> None:
        """Nobody owns anything else, but who was away may be back, at another address."""
        self._rows = members.numbers

    def set_number(self, number: int) -> None:
        """This agent has that *number* among the holders; what another had under it is not its."""
        if number != self.number:
            self._holders = np.zeros(UNITS, np.uint16)
        self.number = number
        self.refresh()

    def set_holders(self, holders: Holders) -> None:
        """These are the holders."""
        self._holders = holders.holders
        self.refresh()

    def hold_own(self) -> None:
        """Everybody holds what he owns, as where no membership ever changes."""
        self.number = 1
        mine = np.array([name == self.name for name in self._names])
        self._holders = mine.astype(np.uint16)
        self.refresh()

    def refresh(self) -> None:
        """`in_transfer` has changed."""
        self._free[:] = (self.mine & ~self.in_transfer).astype(np.uint8).tobytes()

    # What follows

    @property
    def mine(self) -> npt.NDArray[np.bool_]:
        """For each unit whether this agent holds it."""
        if self.number == _NOBODY:
            return np.zeros(UNITS, np.bool_)
        return np.equal(self._holders, self.number)

    @property
    def own(self) -> npt.NDArray[np.bool_]:
        """For each unit whether this agent owns it."""
        if self.table is None:
            return np.ones(UNITS, np.bool_)
        names = [member.name for member in self.table.members]
        if self.name not in names:
            return np.zeros(UNITS, np.bool_)
        return np.equal(self.table.owners, names.index(self.name))

    @property
    def settled(self) -> bool:
        """Whether this agent holds what it owns, and nothing else."""
        return bool(np.array_equal(self.mine, self.own))

    def owner(self, host: str, url: str) -> str:
        """The agent that is to have *url* of *host*."""
        return self._names[self.assignment.unit(host, url)]

    def is_held_elsewhere(self, host: str, url: str) -> bool:
        """Whether this agent may not fetch *url* of *host*."""
        return not self._free[self.assignment.unit(host, url)]

    def units_of_others(self) -> dict[int, Units]:
        """The units that others own, by the number of the owner: they are to have them."""
        if self.table is None:
            return {}
        numbers = {row.name: number for number, row in self._rows.items()}
        found: dict[int, Units] = {}
        for index, member in enumerate(self.table.members):
            if member.name != self.name and member.name in numbers:
                units = np.flatnonzero(self.table.owners == index).astype(np.uint16)
                found[numbers[member.name]] = units
        return found

    def record(self, number: int) -> MemberRecord | None:
        """The member with that number."""
        return self._rows.get(number)

    def free(self) -> Units:
        """The units that this agent owns and nobody holds who may still fetch them, it seems."""
        gone = [_NOBODY] + [
            number for number, row in self._rows.items()
            if row.state in (MemberState.DEAD, MemberState.LEFT, MemberState.REMOVED)
        ]  # fmt: skip
        lost = np.isin(self._holders, gone) | ~np.isin(self._holders, [_NOBODY, *self._rows])
        return np.flatnonzero(self.own & lost).astype(np.uint16)
