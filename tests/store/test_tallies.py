"""Tallies of fetches: counted, bounded, kept, and refused if they are damaged."""

from __future__ import annotations

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.store.counters import KEYS_MAX, OTHER, UNUSUAL_MAX, USUAL, FetchTotals
from scrapy_spider_suite.store.interface import MemoryStore

counted = st.lists(
    st.tuples(
        st.sampled_from(["200", "404", "timeout"]), st.sampled_from(["text/html", "-"]),
        st.sampled_from(["page", "robots"]), st.integers(0, 1 << 40), st.integers(0, 1 << 40),
    )
)  # fmt: skip


@given(counted, counted)
def test_every_fetch_counts_once_in_each_table(
    first: list[tuple[str, str, str, int, int]], second: list[tuple[str, str, str, int, int]]
) -> None:
    """In this run and those before, which are added up."""
    store = MemoryStore()
    tallies = FetchTotals()
    for fetch in first:
        tallies.count(*fetch)
    tallies.save(store)
    loaded, later = FetchTotals.load(store), FetchTotals()
    assert loaded == tallies
    for fetch in second:
        later.count(*fetch)
    loaded.add(later)
    assert loaded.changed == bool(second)
    both = first + second
    assert loaded.total() == (len(both), sum(f[3] for f in both), sum(f[4] for f in both))
    for at, table in enumerate((loaded.statuses, loaded.types, loaded.kinds)):
        assert {key: row[0] for key, row in table.items()} == {
            key: sum(f[at] == key for f in both) for key in {f[at] for f in both}
        }


def test_a_server_cannot_fill_the_memory() -> None:
    """Media types without end share a row; those that were there, or are usual, have theirs."""
    tallies = FetchTotals()
    for number in range(3 * KEYS_MAX):
        tallies.count("200", f"x/{number}", "page", 1, 1)
    for usual in ("x/0", "text/html", "application/pdf", "-"):
        tallies.count("200", usual, "page", 1, 1)
    assert len(tallies.types) == UNUSUAL_MAX + 1 + 3
    assert tallies.types["x/0"] == [2, 2, 2]
    assert tallies.types["text/html"] == [1, 1, 1]
    assert tallies.types[OTHER][0] == 3 * KEYS_MAX - UNUSUAL_MAX
    assert tallies.total()[0] == 3 * KEYS_MAX + 4


def test_a_server_cannot_take_the_place_of_usual_types() -> None:
    """Whatever came first, as many rows are left for what is none of them."""
    tallies = FetchTotals()
    for name in sorted(USUAL):
        tallies.count("200", name, "page", 1, 1)
    for number in range(2 * UNUSUAL_MAX):
        tallies.count("200", f"x/{number}", "page", 1, 1)
    assert len(tallies.types) == len(USUAL) + UNUSUAL_MAX < KEYS_MAX
    assert tallies.types[OTHER][0] == 1 + UNUSUAL_MAX


def test_a_new_job_has_none() -> None:
    """Nothing to read back is no damage."""
    assert FetchTotals.load(MemoryStore()) == FetchTotals()


@pytest.mark.parametrize(
    "row", [b"", b"\xc1", 7, {
        "statuses": {"200": [1]}, "types": {}, "kinds": {}
    }, {"statuses": 1, "types": {}, "kinds": {}}],
)  # fmt: skip
def test_damage(row: object) -> None:
    """Is said in one line."""
    store = MemoryStore()
    store.kv("counters").put(b"tallies", row if isinstance(row, bytes) else msgpack.packb(row))
    with pytest.raises(JobDamagedError, match="tallies cannot be read"):
        FetchTotals.load(store)
