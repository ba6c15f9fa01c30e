"""A bounded map whose values expire. Pure: the time is an argument, in seconds on any one clock."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class ExpiringCache(Generic[Key, Value]):
    """The values last used, at most *size* of them, each until it expires.

    Invariant: at most *size* pairs are held, and no value is returned at or after its expiry. When
    a new key finds the cache full, the key that was used least recently goes. An expired pair may
    keep its place until it is asked for or pushed out: it costs one place, never an answer.

    Raises:
        ValueError: *size* is less than 1.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a cache holds at least one value, not {size}")
        self._size = size
        # Least recently used first. An OrderedDict, because taking the first key of a plain dict
        # again and again walks over the places of those taken before.
        self._pairs: OrderedDict[Key, tuple[Value, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pairs)

    def __repr__(self) -> str:
        return f"<ExpiringCache: {len(self._pairs)} of {self._size}>"

    def get(self, key: Key, now: float) -> tuple[Value, float] | None:
        """Return the live value of *key* and when it expires, or None; finding it is a use."""
        pair = self._pairs.get(key)
        if pair is None:
            return None
        if pair[1] <= now:
            del self._pairs[key]
            return None
        self._pairs.move_to_end(key)
        return pair

    def put(self, key: Key, value: Value, expires: float) -> None:
        """Store *value* under *key* until *expires*, in place of what was there."""
        self._pairs[key] = (value, expires)
        self._pairs.move_to_end(key)
        if len(self._pairs) > self._size:
            self._pairs.popitem(last=False)

    def drop(self, key: Key) -> None:
        """Forget *key*. Forgetting an unknown key is not an error."""
        self._pairs.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        self._pairs.clear()
