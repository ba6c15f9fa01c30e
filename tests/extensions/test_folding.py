"""Lines of a kind: the first are written, then one an interval, and every other is counted."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.extensions.quietlog import FIRST, REST, LineFolding


def written(folding: LineFolding, kind: str, lines: int) -> int:
    """How many of so many lines are written."""
    return sum(folding.passes(kind, 20, kind.upper) for _ in range(lines))


def counted(folding: LineFolding) -> list[tuple[str, int, int, str]]:
    """End an interval; return kind, level, number and last of the lines held back."""
    return [(each.name, each.level, each.held, each.last) for each in folding.end_interval()]


def test_a_kind_that_keeps_coming() -> None:
    """First ten, then one with each count, and the counts tell the rest."""
    folding = LineFolding()
    assert written(folding, "a", 1_000) == FIRST
    assert written(folding, "b", 3) == 3
    assert counted(folding) == [("a", 20, 990, "A")]
    assert written(folding, "a", 500) == 1
    assert counted(folding) == [("a", 20, 499, "A")]
    assert folding.end_interval() == []


def test_a_kind_that_was_silent_is_new() -> None:
    """After one interval without it."""
    folding = LineFolding()
    assert written(folding, "a", 50) == FIRST
    folding.end_interval()
    assert folding.end_interval() == []
    assert written(folding, "a", 50) == FIRST


def test_a_rare_kind_is_always_written() -> None:
    """A few an interval, up to the first ten, then at least one."""
    folding = LineFolding()
    for _ in range(5):
        assert written(folding, "a", 2) == 2
        assert folding.end_interval() == []
    for _ in range(5):
        assert written(folding, "a", 1) == 1
        assert folding.end_interval() == []


def test_the_highest_level_counts() -> None:
    """A kind that is sometimes worse is said to be so."""
    folding = LineFolding(first=1)
    folding.passes("a", 20, "a".upper)
    folding.passes("a", 40, "a".upper)
    folding.passes("a", 30, "a".upper)
    assert counted(folding) == [("a", 40, 2, "A")]


def test_kinds_are_bounded() -> None:
    """What comes after so many is one kind, and still counted."""
    folding = LineFolding(first=1, kinds_max=5)
    for number in range(100):
        folding.passes(f"kind {number}", 20, f"line {number}".upper)
    assert counted(folding) == [(REST, 20, 94, "LINE 99")]


@given(
    st.lists(st.one_of(st.none(), st.sampled_from("abc")), max_size=300),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_no_line_is_lost(lines: list[str | None], first: int, kinds_max: int) -> None:
    """Written and counted ones add up to all; a kind is written before it is counted."""
    folding = LineFolding(first, kinds_max)
    total, told = Counter[str](), Counter[str]()
    for kind in lines:
        if kind is None:
            told.update({name: held for name, _, held, _ in counted(folding)})
        else:
            total[kind] += 1
            told[kind] += folding.passes(kind, 20, kind.upper)
    told.update({name: held for name, _, held, _ in counted(folding)})
    assert told.total() == total.total()
    if kinds_max >= 3:
        assert +told == total
