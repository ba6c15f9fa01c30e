"""Tests of the bounded map whose values expire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.fetch.resolver import ExpiringCache

KEYS = st.integers(0, 5)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.integers(0, 9), st.integers(1, 5)),
        st.tuples(st.just("get"), KEYS),
        st.tuples(st.just("drop"), KEYS),
        st.tuples(st.just("wait"), st.integers(1, 3)),
    ),
    max_size=60,
)


class ModelCache:
    """The same in the plainest words: pairs in order of use, searched from end to end."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rows: list[tuple[int, int, float]] = []

    def take(self, key: int) -> tuple[int, int, float] | None:
        """Remove and return the row of *key*."""
        for row in self.rows:
            if row[0] == key:
                self.rows.remove(row)
                return row
        return None

    def get(self, key: int, now: float) -> tuple[int, float] | None:
        """Move a live row to the end, forget an expired one."""
        row = self.take(key)
        if row is None or row[2] <= now:
            return None
        self.rows.append(row)
        return row[1:]

    def put(self, key: int, value: int, expires: float) -> None:
        """Add the row at the end and let the first one go if they are too many."""
        self.take(key)
        self.rows = [*self.rows, (key, value, expires)][-self.size :]


@given(size=st.integers(1, 6), operations=OPERATIONS)
def test_equals_the_model(size: int, operations: list[tuple[object, ...]]) -> None:
    """Whatever is done to it, the cache answers as a searched list does and holds as much."""
    cache: ExpiringCache[int, int] = ExpiringCache(size)
    model = ModelCache(size)
    now = 0.0
    for operation in operations:
        match operation:
            case "put", int(key), int(value), int(seconds):
                cache.put(key, value, now + seconds)
                model.put(key, value, now + seconds)
            case "get", int(key):
                assert cache.get(key, now) == model.get(key, now)
            case "drop", int(key):
                cache.drop(key)
                model.take(key)
            case "wait", int(seconds):
                now += seconds
        assert len(cache) == len(model.rows) <= size


@given(st.dictionaries(st.text(), st.tuples(st.integers(), st.floats(1, 100))), st.floats(0, 100))
def test_equals_a_dict_with_expiry(pairs: dict[str, tuple[int, float]], now: float) -> None:
    """With room for all, exactly the values that are not expired are found."""
    cache: ExpiringCache[str, int] = ExpiringCache(max(1, len(pairs)))
    for key, (value, expires) in pairs.items():
        cache.put(key, value, expires)
    found = {key: pair for key in pairs if (pair := cache.get(key, now)) is not None}
    assert found == {key: pair for key, pair in pairs.items() if pair[1] > now}


def test_least_recently_used_goes_first() -> None:
    """A key that was asked for outlives an older one that was not."""
    cache: ExpiringCache[str, int] = ExpiringCache(2)
    cache.put("a", 1, 10)
    cache.put("b", 2, 10)
    cache.get("a", 0)
    cache.put("c", 3, 10)
    assert cache.get("b", 0) is None
    assert cache.get("a", 0) == (1, 10)
    assert repr(cache) == "<ExpiringCache: 2 of 2>"


def test_clear() -> None:
    """A cleared cache is empty."""
    cache: ExpiringCache[str, int] = ExpiringCache(2)
    cache.put("a", 1, 10)
    cache.clear()
    assert len(cache) == 0


def test_needs_room() -> None:
    """A cache without room for one value is refused."""
    with pytest.raises(ValueError, match="at least one value, not 0"):
        ExpiringCache(0)
