"""What waits for the next batch, and how reads see it before it is written.

Reads must never write: a batch ends where an operation of the frontier ends, or a kill between
two batches would find half of it (a page done, and its links nowhere). So reads look here first.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge

Row = tuple[bytes, bytes]
_Changes = dict[bytes, bytes | None]


class Unwritten:
    """The last value of each key that changed since the last batch; None: it was deleted.

    Keys belong to a family and, within it, to a *group*: whoever walks over one group (the rows
    of one host) does not walk over the others.
    """

    def __init__(self) -> None:
        self._families: dict[str, dict[bytes, _Changes]] = {}
        self._size = 0

    def __len__(self) -> int:
        """How many keys wait (one that changed twice counts twice, and a KiB as much as a key)."""
        return self._size

    def set(self, family: str, key: bytes, value: bytes | None, group: bytes = b"") -> None:
        """Let *key* have *value* with the next batch."""
        groups = self._families.setdefault(family, {})
        changes = groups.get(group)
        if changes is None:
            changes = groups[group] = {}
        changes[key] = value
        self._size += 1 + (len(key) + len(value or b"") >> 10)

    def find(self, family: str, key: bytes) -> tuple[bool, bytes | None]:
        """Whether *key* (of no group) waits, and its value."""
        changes = self._families.get(family, {}).get(b"")
        if changes is None or key not in changes:
            return False, None
        return True, changes[key]

    def over(
        self, disk: Iterator[Row], family: str, start: bytes, group: bytes = b""
    ) -> Iterator[Row]:
        """The rows of *disk*, which begins at *start*, as they will be after the next batch."""
        changes = self._families.get(family, {}).get(group)
        if not changes:
            return disk
        mine = sorted(item for item in changes.items() if item[0] >= start)
        return _newest(mine, disk)

    def everywhere(self, disk: Iterator[Row], family: str) -> Iterator[Row]:
        """All rows of a family, over all groups, as they will be after the next batch."""
        groups = self._families.get(family, {}).values()
        return _newest(sorted(item for changes in groups for item in changes.items()), disk)

    def __iter__(self) -> Iterator[tuple[str, bytes, bytes | None]]:
        """Everything that waits, each key once."""
        for family, groups in self._families.items():
            for changes in groups.values():
                for key, value in changes.items():
                    yield family, key, value

    def clear(self) -> None:
        """It was written."""
        self._families.clear()
        self._size = 0


def _newest(mine: list[tuple[bytes, bytes | None]], disk: Iterator[Row]) -> Iterator[Row]:
    last = None
    # Of equal keys the merge yields that of its first argument first.
    for key, value in merge(mine, disk, key=_key):
        if key != last:
            last = key
            if value is not None:
                yield key, value


def _key(row: tuple[bytes, bytes | None]) -> bytes:
    return row[0]
