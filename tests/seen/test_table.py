"""The index of fresh rows against a dict."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_spider_suite.seen.url_keys import FreshTable

_small = st.integers(1, 300)
_ids = st.one_of(st.integers(1, 2**64 - 1), _small, _small.map(lambda n: n << 24))


@settings(max_examples=50)
@given(st.sets(_ids, max_size=200), st.sets(_ids, max_size=20))
def test_against_a_dict(ids: set[int], others: set[int]) -> None:
    """One by one or all at once; close together, far apart, and all in one place."""
    rows = {ident: number for number, ident in enumerate(ids)}
    table = FreshTable()
    for ident, handle in rows.items():
        table.put(ident, handle)
    keys, handles = np.array(list(rows), np.uint64), np.array(list(rows.values()), np.int64)
    made = FreshTable.from_rows(keys, handles)
    for each in (table, made):
        assert each.count == len(rows)
        assert each.oldest == (0 if rows else -1)
        assert {ident: each.find(ident) for ident in rows} == rows
        assert all(each.find(ident) == -1 for ident in others - ids)
        pieces = [zip(a.tolist(), b.tolist(), strict=True) for a, b in each.pieces()]
        assert dict(chain.from_iterable(pieces)) == rows


def test_the_last_of_two_holds() -> None:
    """A log may hold a row twice, if the first was removed."""
    table = FreshTable.from_rows(np.array([5, 6, 5], np.uint64), np.array([1, 2, 3], np.int64))
    assert table.count == 2
    assert table.find(5) == 3


def test_memory_a_row() -> None:
    """What the bound of memory is reckoned with, whatever the stage of growth."""
    table = FreshTable()
    worst = []
    for number in range(1, 60_000):
        table.put(number * 0x9E3779B97F4A7C15 & (1 << 64) - 1, number)
        if number > 10_000 and number % 1_000 == 0:
            worst.append(sum(16 * len(part[0]) for part in table._parts) / number)
    assert max(worst) <= 48.5
    assert sum(worst) / len(worst) == pytest.approx(32, abs=5)
