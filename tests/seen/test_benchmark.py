"""The benchmark of what remembers URLs, and KSpider's store that it is measured beside."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def module(name: str) -> ModuleType:
    """A module of the benchmarks, which are no package."""
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


AvlStore = module("kspider").AvlStore


def test_figure_9() -> None:
    """The four URLs of the paper, in its order: references, common prefixes, tails."""
    store = AvlStore()
    urls = [
        b"http://www.sun.com/",
        b"http://www.sgi.com/",
        b"http://www.sun.com/news/",
        b"http://www.sun.com/news/archive/",
    ]
    assert [store.add(url) for url in urls] == [0, 1, 2, 3]
    assert store.node(0)[1:] == (0, urls[0])
    assert store.node(1) == (0, 12, b"gi.com/")
    assert store.node(2) == (0, 19, b"news/")
    assert store.node(3) == (2, 24, b"archive/")
    assert [store.get(ident) for ident in range(4)] == urls
    assert store.add(urls[2]) is None
    assert store.size == 4 * 13 + 19 + 7 + 5 + 8


@settings(max_examples=30)
@given(st.lists(st.text("ab/", max_size=12).map(str.encode), max_size=80))
def test_the_tree_is_a_map_both_ways(urls: list[bytes]) -> None:
    """Whatever rotates; and it stays as low as an AVL tree does."""
    store = AvlStore()
    known: dict[bytes, int] = {}
    for url in urls:
        ident = store.add(url)
        assert ident == (None if url in known else len(known))
        known.setdefault(url, len(known))
        assert all(store.get(number) == held for held, number in known.items())
    assert all(url in store for url in known)
    assert b"c" not in store
    assert store._height(store._root) <= 1.45 * (len(known) + 2).bit_length()


@pytest.mark.slow
@pytest.mark.parametrize("store", ["trie", "sieve"])
def test_growing_in_small(store: str) -> None:
    """A line for each tenth; nothing is lost on the way."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "seen.py"), "grow", "--small", "--store", store],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["urls"] for row in rows] == [2_000 * tenth for tenth in range(11)]
    assert all(row["held"] == row["urls"] for row in rows[1:])


@pytest.mark.slow
def test_the_table_in_small() -> None:
    """Two of its lines; with ids it is a few bytes more."""
    rows = []
    for store in ("trie", "trie with ids"):
        done = subprocess.run(
            [sys.executable, str(BENCHMARKS / "seen.py"), "one", "--small", "--store", store],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        rows.append(json.loads(done.stdout))
    assert 0 < rows[1]["bytes"] - rows[0]["bytes"] <= 5
