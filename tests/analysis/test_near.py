"""Near duplicates: how many pairs are found, how many that are none, and the memory it takes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from scrapy_spider_suite.analysis.near_duplicates import NearIndex, signature, similarity
from scrapy_spider_suite.store.interface import MemoryKV

WORDS = ["".join(random.Random(n).choices("abcdefghij", k=6)) for n in range(2000)]


def words(draw: random.Random, number: int = 300) -> list[str]:
    """A text."""
    return draw.choices(WORDS, k=number)


def page(text: list[str]) -> bytes:
    """A page with it."""
    return f"<html><script>var x;</script><p class=1>{' '.join(text)}</p>".encode()


def shared(one: list[str], other: list[str]) -> float:
    """The part of their runs of three words that two texts share."""
    a, b = ({tuple(t[n : n + 3]) for n in range(len(t) - 2)} for t in (one, other))
    return len(a & b) / len(a | b)


def sign(text: list[str]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """The signature of a page with *text*."""
    found = signature(page(text))
    assert found is not None
    return found


def test_likeness_is_the_part_that_is_shared() -> None:
    """Within what 64 numbers can tell, over many pairs of every likeness."""
    draw = random.Random(1)
    errors = []
    for _ in range(150):
        one = words(draw)
        cut = draw.randrange(1, 300)
        other = one[:cut] + words(draw, 300 - cut)
        errors.append(similarity(sign(one), sign(other)) - shared(one, other))
    assert abs(float(np.mean(errors))) < 0.03
    assert float(np.std(errors)) < 0.07


def test_pairs_are_found_and_strangers_are_not() -> None:
    """Of pages of which a few words changed nearly all, whatever else is remembered."""
    draw = random.Random(2)
    index = NearIndex(1 << 20)
    texts = [words(draw) for _ in range(500)]
    for number, text in enumerate(texts):
        assert index.find(sign(text)) is None
        index.add(sign(text), number)
    found = 0
    for number, text in enumerate(texts):
        changed = list(text)
        changed[draw.randrange(300)] = "changed"
        got = index.find(sign(changed))
        found += got is not None
        assert got is None or got[0] == number
    assert found > 480


def test_memory_is_fixed_and_the_oldest_go() -> None:
    """A ring: what is overwritten is not found, and what overwrote it is."""
    draw = random.Random(3)
    index = NearIndex(136 * 20)
    assert index.capacity == 20
    taken = sum(a.nbytes for a in (index._signatures, index._numbers, index._tables))
    assert taken <= 136 * 20
    signatures = [sign(words(draw)) for _ in range(50)]
    for number, each in enumerate(signatures):
        index.add(each, number)
    assert all(index.find(each) is None for each in signatures[:30])
    found = [index.find(each) for each in signatures[30:]]
    assert sum(got == (number, 1.0) for number, got in enumerate(found, 30)) == 20


def test_the_next_run_remembers() -> None:
    """All that this one does, and goes on as it does; of less memory, the youngest pages."""
    draw = random.Random(4)
    rows = MemoryKV()
    signatures = [sign(words(draw)) for _ in range(60)]
    index = NearIndex(136 * 20, rows=rows)
    for number, each in enumerate(signatures[:50]):
        index.add(each, number)
    again = NearIndex(136 * 20, rows=rows)
    for number, each in enumerate(signatures[50:], 50):
        assert [again.find(one) for one in signatures] == [index.find(one) for one in signatures]
        index.add(each, number)
        again.add(each, number)
    more = NearIndex(136 * 21, rows=rows)
    assert sum(more.find(one) is not None for one in signatures) == 20
    less = NearIndex(136 * 5, rows=rows)
    found = [less.find(one) for one in signatures]
    assert found[:55] == [None] * 55
    assert found[55:] == [(number, 1.0) for number in range(55, 60)]


@pytest.mark.parametrize("body", [b"", b"<p>two words", b"\xff\xfe", b"<script>a b c d e</script>"])
def test_pages_with_little_text_have_none(body: bytes) -> None:
    """There is nothing to compare."""
    assert signature(body) is None
