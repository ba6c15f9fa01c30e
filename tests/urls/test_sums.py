"""The seeds' hash sums, by their own examples."""

from __future__ import annotations

import pytest

from scrapy_spider_suite.urls.hosts import node_of, phase_of, terminal_of, thread_of

SUN, SGI = "www.sun.com", "www.sgi.com"


@pytest.mark.parametrize(
    ("url", "total", "node"),
    [
        (f"http://{SUN}/", 1757, 2),
        (f"http://{SGI}/", 1738, 3),
        (f"http://{SUN}/news/", 2249, 4),
        (f"http://{SUN}/news/archive/", 3034, 4),
    ],
)
def test_nodes(url: str, total: int, node: int) -> None:
    """KSpider's five machines: all of the URL counts, so that a host's pages lie on many."""
    assert node_of(url, 5) == node
    assert node_of(url, 10_000) == total


def test_phases() -> None:
    """KSpider's six phases: the host alone counts, so that all of it is in one."""
    assert (phase_of(SUN, 10_000), phase_of(SGI, 10_000)) == (1110, 1091)
    assert (phase_of(SUN, 6), phase_of(SGI, 6)) == (0, 5)


def test_terminals_and_threads() -> None:
    """Tarantula's two sums over half of the characters each, the first of them an even one."""
    assert (terminal_of(SUN, 10_000), thread_of(SUN, 10_000)) == (671, 439)
    assert (terminal_of(SGI, 10_000), thread_of(SGI, 10_000)) == (666, 425)
    assert (terminal_of(SUN, 4), thread_of(SUN, 8)) == (671 % 4, 439 % 8)


def test_bytes_are_added_up() -> None:
    """One that was not brought into normal form has an answer, too; without any nodes none has."""
    assert node_of("ä", 1_000) == 0xC3 + 0xA4
    with pytest.raises(ValueError, match="at least 1"):
        phase_of(SUN, 0)
