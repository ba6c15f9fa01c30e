"""Sliding windows, without stores and clocks."""

from __future__ import annotations

import math

from scrapy_spider_suite.frontier.windows import HostWindow, Window
from scrapy_spider_suite.frontier.workbench import HostState, Workbench


def test_the_two_windows_of_the_paper() -> None:
    """One row of so many hosts, or so many rows of as many hosts as there is room for."""
    top, leaf = Window.from_settings("top", 5), Window.from_settings("leaf", 5)
    assert top is not None
    assert leaf is not None
    assert (top.columns, top.rows) == (5, 1)
    assert (leaf.columns, leaf.rows) == (math.inf, 5)
    assert Window.from_settings("none", 5) is None


def host(bench: Workbench, key: str) -> HostState:
    """A host in memory with rows on disk."""
    bench.hosts[key] = state = HostState(key, 1.0, 1, 1)
    state.more = True
    return state


def test_a_place_is_full_until_the_window_moves() -> None:
    """Whoever was visited and left makes no room: the others of its crawl come first (T15)."""
    bench = Workbench()
    window = HostWindow(Window(2, 1), bench)
    assert not window.row_over()  # nobody came yet
    a, b = host(bench, "a"), host(bench, "b")
    for each in (a, b):
        window.host_entered(each, expected=False)
    assert window.room == 0
    window.visit_over(a, visited=True)
    window.host_left("a")
    assert window.room == 0
    assert not window.row_over()
    window.visit_over(b, visited=True)
    assert window.row_over()
    b.more = False
    window.moved()
    assert window.room == 2
    assert not window.row_over()


def test_rows() -> None:
    """A row is over when every host that has a leaf was visited; hosts that have none sit out."""
    bench = Workbench()
    window = HostWindow(Window(math.inf, 3), bench)
    hosts = {key: host(bench, key) for key in "abc"}
    for each in hosts.values():
        window.host_entered(each, expected=False)
    for having, left in (("abc", "ac"), ("ac", "c"), ("c", "ab")):
        for key in having:
            assert not window.row_over()
            window.visit_over(hosts[key], visited=True)
        for key, each in hosts.items():
            each.more = key in left
        assert window.row_over() is (left == "ab")  # three rows were all
    window.moved()
    assert [each.key for each in window.hosts()] == ["a", "b"]


def test_a_window_of_hosts_without_leaves_moves_on() -> None:
    """Although it has rows left."""
    bench = Workbench()
    window, a = HostWindow(Window(2, 9), bench), host(bench, "a")
    window.host_entered(a, expected=True)
    window.visit_over(a, visited=True)
    a.more = False
    assert window.row_over()
