"""The units that this agent owns and holds.

The owner follows from the members of an epoch; the holder, which may fetch, stands in Redis. Where
they differ a hand-over is due.
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
    """Units of the agent *name*; at first it owns all and holds none.

    Attributes:
        table: the owners; None without members.
        in_transfer: units in hand-over, which nobody fetches.
        number: of this agent among the holders; 0: none.
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
        """Return the owners for *members*; None without members.

        Takes up to 0.2 s; may run in a thread. Raises `SettingsError`.
        """
        members = tuple(members)
        return OwnerTable.of(self.assignment, members) if members else None

    def set_members(
        self, epoch: int, members: Iterable[Member], table: OwnerTable | None = None
    ) -> bool:  # fmt: skip
        """Set the *members* of *epoch*, or their *table*; return whether owners changed."""
        before, self.epoch = self._names, epoch
        self.table = table or self.table_of(members)
        if self.table is not None:
            names = [member.name for member in self.table.members]
            self._names = [names[index] for index in self.table.owners.tolist()]
        return self._names != before

    def set_membership(self, members: Membership, table: OwnerTable | None = None) -> bool:
        """Set the members in Redis; return whether owners changed."""
        self._rows = members.numbers
        return self.set_members(members.epoch, members.members, table)

    def set_records(self, members: Membership) -> None:
        self._rows = members.numbers

    def set_number(self, number: int) -> None:
        """Set this agent's number; another number drops the holders."""
        if number != self.number:
            self._holders = np.zeros(UNITS, np.uint16)
        self.number = number
        self.refresh()

    def set_holders(self, holders: Holders) -> None:
        self._holders = holders.holders
        self.refresh()

    def hold_own(self) -> None:
        self.number = 1
        mine = np.array([name == self.name for name in self._names])
        self._holders = mine.astype(np.uint16)
        self.refresh()

    def refresh(self) -> None:
        self._free[:] = (self.mine & ~self.in_transfer).astype(np.uint8).tobytes()

    # What follows

    @property
    def mine(self) -> npt.NDArray[np.bool_]:
        if self.number == _NOBODY:
            return np.zeros(UNITS, np.bool_)
        return np.equal(self._holders, self.number)

    @property
    def own(self) -> npt.NDArray[np.bool_]:
        if self.table is None:
            return np.ones(UNITS, np.bool_)
        names = [member.name for member in self.table.members]
        if self.name not in names:
            return np.zeros(UNITS, np.bool_)
        return np.equal(self.table.owners, names.index(self.name))

    @property
    def settled(self) -> bool:
        return bool(np.array_equal(self.mine, self.own))

    def owner(self, host: str, url: str) -> str:
        return self._names[self.assignment.unit(host, url)]

    def is_held_elsewhere(self, host: str, url: str) -> bool:
        return not self._free[self.assignment.unit(host, url)]

    def units_of_others(self) -> dict[int, Units]:
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
        return self._rows.get(number)

    def free(self) -> Units:
        gone = [_NOBODY] + [
            number for number, row in self._rows.items()
            if row.state in (MemberState.DEAD, MemberState.LEFT, MemberState.REMOVED)
        ]  # fmt: skip
        lost = np.isin(self._holders, gone) | ~np.isin(self._holders, [_NOBODY, *self._rows])
        return np.flatnonzero(self.own & lost).astype(np.uint16)
