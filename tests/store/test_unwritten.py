"""What waits for the next batch, laid over what is on disk."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.store.rocks_store import PendingWrites

keys = st.binary(max_size=2)
changes = st.lists(st.tuples(keys, st.none() | st.binary(max_size=2)), max_size=12)


@given(st.dictionaries(keys, st.binary(max_size=2)), changes, keys)
def test_reads_see_what_the_batch_will_do(
    disk: dict[bytes, bytes], writes: list[tuple[bytes, bytes | None]], start: bytes
) -> None:
    """In the order of the keys, the last write of each, and no deleted ones."""
    unwritten, after = PendingWrites(), dict(disk)
    for key, value in writes:
        unwritten.set("family", key, value)
        if value is None:
            after.pop(key, None)
        else:
            after[key] = value
    rows = iter(sorted(row for row in disk.items() if row[0] >= start))
    expected = sorted(row for row in after.items() if row[0] >= start)
    assert list(unwritten.overlay(rows, "family", start)) == expected
    everything = unwritten.overlay_all(iter(sorted(disk.items())), "family")
    assert list(everything) == sorted(after.items())
    assert unwritten.changes("family") == dict(writes)


def test_groups_are_walked_over_apart() -> None:
    """The rows of a host are not those of the others, but all of them are written."""
    unwritten = PendingWrites()
    unwritten.set("queue", b"a1", b"1", b"a")
    unwritten.set("queue", b"b1", b"2", b"b")
    assert list(unwritten.overlay(iter([]), "queue", b"", None, b"a")) == [(b"a1", b"1")]
    assert list(unwritten.overlay_all(iter([]), "queue")) == [(b"a1", b"1"), (b"b1", b"2")]
    assert unwritten.families == {"queue": {b"a": {b"a1": b"1"}, b"b": {b"b1": b"2"}}}
    assert unwritten.size == 2


def test_long_values_count_as_several() -> None:
    """What waits is bounded by number, and must be in bytes as well."""
    unwritten = PendingWrites()
    unwritten.set("queue", b"key", bytes(100))
    assert unwritten.size == 1
    unwritten.set("queue", bytes(5_000), bytes(95_240))
    assert unwritten.size == 1 + 98
    unwritten.set("queue", b"gone", None)
    unwritten.clear()
    assert unwritten.size == 0


def test_nothing_waits_after_a_write() -> None:
    """And it costs nothing to look."""
    unwritten = PendingWrites()
    assert not unwritten.size
    unwritten.set("family", b"key", None)
    assert unwritten.changes("family") == {b"key": None}
    assert unwritten.changes("other") == {}
    unwritten.clear()
    assert not unwritten.size
    assert not unwritten.families
    assert unwritten.changes("family") == {}
