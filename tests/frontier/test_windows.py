"""Sliding windows, without hosts, stores and clocks."""

from __future__ import annotations

import math

from scrapy_spider_suite.frontier.windows import Window


def test_the_two_windows_of_the_paper() -> None:
    """One row of so many hosts, or so many rows of as many hosts as there is room for."""
    top, leaf = Window.from_settings("top", 5), Window.from_settings("leaf", 5)
    assert top is not None
    assert leaf is not None
    assert (top.columns, top.rows) == (5, 1)
    assert (leaf.columns, leaf.rows) == (math.inf, 5)
    assert Window.from_settings("none", 5) is None


def test_a_place_is_full_until_the_window_moves() -> None:
    """Whoever was visited and left makes no room: the others of its crawl come first (T15)."""
    window = Window(2, 1)
    assert not window.over
    window.enter("a")
    window.enter("b")
    assert window.room == 0
    window.mark_visited("a")
    window.leave("a")
    assert window.room == 0
    assert not window.over
    window.mark_visited("b")
    assert window.over
    assert not window.next_row(["b"])
    window.move([])
    assert window.room == 2
    assert not window.over  # nobody came yet


def test_rows() -> None:
    """A row is over when every host that has a leaf was visited; hosts that have none sit out."""
    window = Window(math.inf, 3)
    for host in "abc":
        window.enter(host)
    rows = []
    for having in ("abc", "ac", "c"):
        assert window.owing == set(having)
        rows.append(sorted(window.owing))
        for host in having:
            assert not window.over
            window.mark_visited(host)
        assert window.over
        more = window.next_row({"abc": "ac", "ac": "c", "c": "abc"}[having])
    assert not more  # three rows were all
    window.move("ab")
    assert window.owing == {"a", "b"}
    assert list(window.hosts) == ["a", "b"]


def test_a_window_of_hosts_without_leaves_moves_on() -> None:
    """Although it has rows left."""
    window = Window(2, 9)
    window.enter("a")
    window.mark_visited("a")
    assert not window.next_row([])
