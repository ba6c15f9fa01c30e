"""Orders as key forms: what comes before what, in bounded keys."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_spider_suite.frontier.entries import (
    BREADTH_FIRST,
    LAST,
    LONGEST,
    BestFirst,
    BottomUp,
    Entry,
    Order,
    last_key,
    order_key,
    sequence_of,
)

PATHS = st.text("ab/?=0", max_size=12).map(lambda text: f"/{text}")
ORDERS = [BREADTH_FIRST, BottomUp(), BottomUp(alternating=True), BestFirst(lambda e: e.depth)]


def entry(path: str, priority: int = 0, depth: int = 0) -> Entry:
    """The entry of a page of a.t."""
    return Entry("a.t", f"http://a.t{path}", priority=priority, depth=depth)


def sort(order: Order, paths: list[str], head: bytes = b"") -> list[str]:
    """*paths* as they leave when all come at once."""
    keys = {order.key(entry(path), n, head): path for n, path in enumerate(paths, 1)}
    return [keys[key] for key in sorted(keys)]


def test_breadth_first_keys_are_those_of_earlier_releases() -> None:
    """Ten bytes, tried or not: a job that was begun with them goes on."""
    key = BREADTH_FIRST.key(entry("/a", 5), 7, b"")
    assert key == order_key(5, 7) == BREADTH_FIRST.key(entry("/b", 5), 7, b"", tried=True)
    assert len(key) == 10


def test_the_papers_example() -> None:
    """Tarantula, figure 3: the leaf, then its parents (T13)."""
    paths = ["/", "/video/", "/video/clips/"]
    assert sort(BottomUp(), paths) == ["/video/clips/", "/video/", "/"]


def test_bottom_up_goes_from_left_to_right() -> None:
    """All below a folder before the folder, folders by name."""
    paths = ["/b/", "/", "/a/2", "/b/1", "/a/", "/a/1", "/b/1?page=2"]
    expected = ["/a/1", "/a/2", "/a/", "/b/1?page=2", "/b/1", "/b/", "/"]
    assert sort(BottomUp(), paths) == expected


@given(st.lists(PATHS, unique=True, max_size=8))
@settings(max_examples=60)
def test_no_url_comes_before_one_that_begins_with_it(paths: list[str]) -> None:
    """Children before their parent, whatever they are called."""
    left = sort(BottomUp(), paths)
    for n, path in enumerate(left):
        assert not any(other.startswith(path) for other in left[n + 1 :])


def _head(order: BottomUp, path: str, sweep: int) -> bytes:
    """A head from which on a window is in its sweep number *sweep*, at its beginning."""
    head = order.key(entry(path), 0, b"")
    return head[:5] + sweep.to_bytes(2, "big")


@given(st.lists(PATHS, unique=True, max_size=8))
@settings(max_examples=60)
def test_on_the_way_back_leaves_come_from_right_to_left(paths: list[str]) -> None:
    """Siblings, that is: children come before their parent on both ways."""
    order = BottomUp(alternating=True)
    there, back = sort(order, paths), sort(order, paths, _head(order, "/", 1))
    leaves = {p for p in paths if not any(q != p and q.startswith(p) for q in paths)}
    assert [p for p in back if p in leaves] == [p for p in reversed(there) if p in leaves]
    for n, path in enumerate(back):
        assert not any(other.startswith(path) for other in back[n + 1 :])


def test_what_is_found_behind_the_window_waits_until_it_comes_back() -> None:
    """To the right: d, e, f; then b and a; then what lies to the right again (T16)."""
    order = BottomUp(alternating=True)
    head = order.key(entry("/c"), 1, b"")
    assert sort(order, ["/a", "/f", "/d", "/b", "/e"], head) == ["/d", "/e", "/f", "/b", "/a"]
    back = order.key(entry("/b"), 2, head)
    assert sort(order, ["/a", "/y", "/x", "/a/1"], back) == ["/a/1", "/a", "/x", "/y"]


def test_best_first_is_by_falling_score() -> None:
    """Negative ones last; those that are no numbers count as zero."""
    scores = {"/a": -1.5, "/b": 0.25, "/c": 1e300, "/d": math.nan, "/e": -0.0, "/f": math.inf}
    order = BestFirst(lambda each: scores[each.url[10:]])
    assert sort(order, list(scores)) == ["/c", "/b", "/d", "/e", "/f", "/a"]


@given(st.lists(st.floats(-1e308, 1e308), min_size=2, max_size=8))
@settings(max_examples=60)
def test_scores_sort_as_numbers_do(scores: list[float]) -> None:
    """Bytes against floats."""
    order = BestFirst(lambda each: scores[each.depth])
    keys = sorted(order.key(entry("/", depth=n), n, b"") for n in range(len(scores)))
    left = [scores[sequence_of(key)] for key in keys]
    assert all(a >= b for a, b in pairwise(left))


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_what_every_order_keeps_to(order: Order) -> None:
    """Priorities first, retries behind the untried of their priority, then what was put aside."""
    low, high = entry("/a", -3), entry("/z", 3)
    assert order.key(high, 2, b"") < order.key(low, 1, b"")
    again = order.key(entry("/a"), 9, b"", tried=True)
    assert order.key(entry("/zz"), 8, b"") < again < order.key(low, 1, b"") < last_key(1)
    assert order.key(entry("/" + "x" * 5_000), 1, b"") < last_key(1)
    assert not again.startswith(LAST)
    assert sequence_of(again) == 9
    assert sequence_of(last_key(11)) == 11


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
@given(st.lists(st.text("ab/", max_size=130), max_size=6, unique=True), st.data())
@settings(max_examples=20)
def test_keys_are_short_and_none_comes_twice(
    order: Order, paths: list[str], data: st.DataObject
) -> None:
    """However long URLs are: a host's record holds a key of at most 255 bytes."""
    keys = [order.key(entry(f"/{path * 20}"), n, b"") for n, path in enumerate(paths, 1)]
    assert len(set(keys)) == len(keys)
    assert all(len(key) <= LONGEST <= 255 for key in keys)
    head = data.draw(st.sampled_from(keys)) if keys else b""
    assert len(order.key(entry("/" + "b" * 999), 99, head)) <= LONGEST
