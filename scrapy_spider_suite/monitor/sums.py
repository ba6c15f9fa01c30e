"""Sums in rows of the store: exact, however many there are, in a fixed amount of memory.

What is added lies in memory until `merge` adds it to the rows; rows are part of the store's next
batch, so a sum and the page that it counts become durable together or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.store.interface import KV


class Sums:
    """Vectors of *width* whole numbers by key, below *prefix* in *rows*.

    A row of an older release, whose vectors were shorter, counts as 0 in what it lacks.
    """

    def __init__(self, rows: KV, prefix: bytes, width: int) -> None:
        self._rows = rows
        self._prefix = prefix
        self._width = width
        self._added: dict[bytes, list[int]] = {}

    def __len__(self) -> int:
        """How many keys wait for `merge`."""
        return len(self._added)

    def vector(self, key: bytes) -> list[int]:
        """What was added to *key* since the last `merge`, to be changed in place."""
        vector = self._added.get(key)
        if vector is None:
            vector = self._added[key] = [0] * self._width
        return vector

    def merge(self) -> list[bytes]:
        """Put all that was added into the rows; the keys that had none before.

        Raises `JobDamagedError`.
        """
        new = []
        prefix, get, put = self._prefix, self._rows.get, self._rows.put
        for key, vector in self._added.items():
            row = prefix + key
            data = get(row)
            if data is None:
                new.append(key)
            else:
                for place, number in enumerate(self._numbers(data)):
                    vector[place] += number
            put(row, msgpack.packb(vector))
        self._added.clear()
        return new

    def items(self, begin: bytes = b"") -> Iterator[tuple[bytes, list[int]]]:
        """The keys that begin with *begin* in their order, as of the last `merge`."""
        n = len(self._prefix)
        for key, data in self._rows.items(self._prefix + begin):
            yield key[n:], self._numbers(data)

    def get(self, key: bytes) -> list[int] | None:
        """The vector of *key* as of the last `merge`; None if nothing was ever added."""
        data = self._rows.get(self._prefix + key)
        return None if data is None else self._numbers(data)

    def delete(self, key: bytes) -> None:
        """Forget *key*."""
        self._rows.delete(self._prefix + key)

    def _numbers(self, data: bytes) -> list[int]:
        try:
            numbers = [int(number) for number in msgpack.unpackb(data)]
        except (ValueError, TypeError) as error:
            raise JobDamagedError(f"a row of the link statistics is damaged ({error})") from error
        if len(numbers) > self._width:
            raise JobDamagedError("a row of the link statistics has more numbers than are known")
        return numbers + [0] * (self._width - len(numbers))
