"""The ways in which a trie store looks things up quickly, and where they do not hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.trie_stores import build_at_once, small

from scrapy_spider_suite.errors import UnknownUrlError
from scrapy_spider_suite.seen import segments
from scrapy_spider_suite.seen.segments import LOW, SLOT_SHIFT, digest
from scrapy_spider_suite.seen.trie_store import TrieStore

URLS = [f"http://host{number % 23}.t/page/{number}" for number in range(300)]


@pytest.fixture(autouse=True, scope="module")
def at_once() -> Iterator[None]:
    """Build in this process."""
    with pytest.MonkeyPatch.context() as patch:
        build_at_once(patch)
        yield


@pytest.mark.parametrize("count", [0, 1, 5_000])
def test_a_filter(count: int) -> None:
    """It lets pass what it was made of, and of all else one in seven."""
    draw = np.random.default_rng(7)
    ids = draw.integers(1, 1 << 64, count, np.uint64)
    others = draw.integers(1, 1 << 64, 5_000, np.uint64)
    words = np.frombuffer(segments.filter_words(ids), np.uint16)
    assert len(words) * 16 <= count * 4.5 + 16

    def passes(ident: int) -> bool:
        low = ident & segments.USED
        pattern = segments.PATTERNS[low & 255]
        return int(words[low % len(words)]) & pattern == pattern

    assert all(map(passes, ids.tolist()))
    assert sum(map(passes, others.tolist())) <= 0.2 * len(others)
    assert all(pattern.bit_count() == 2 for pattern in segments.PATTERNS)


@pytest.mark.parametrize("count", [1, 2, 300, 20_000, 70_000])
def test_a_way_back(count: int) -> None:
    """It leads to the numbers of its ids."""
    draw = np.random.default_rng(count)
    ids = draw.integers(1, 1 << 64, count, np.uint64)
    numbers = draw.permutation(count).astype(np.uint32)
    table, places, window = segments.build_id_table(ids, numbers, 3)
    total = places + window
    assert len(table) == 4 * total
    assert total <= count * 8 / 7 + 200
    checks, rest = np.frombuffer(table[:total], np.uint8), table[total:]

    def found(ident: int) -> Iterator[int]:
        for at in range(ident % places, ident % places + window):
            if checks[at] == ident % segments.CHECKS:
                yield int.from_bytes(rest[3 * at : 3 * at + 3], "little")

    some = list(zip(ids.tolist(), numbers.tolist(), strict=True))[:500]
    assert all(number in found(ident) for ident, number in some)


def test_the_way_back_of_a_large_segment(tmp_path: Path) -> None:
    """Whatever differs from an id, in its slot alone or beyond it, is none."""
    urls = [f"http://host{number % 97}.t/page/{number}" for number in range(20_000)]
    with TrieStore(tmp_path) as one:
        one.add(urls)
        one.remove("http://host7.t/")
        one.flush()
        (part,) = one._ranges
        assert part.base is not None
        places = part.base.row.places
        for url in urls[::80]:
            if "//host7." in url:
                continue
            ident = one.id(url)
            assert one.url(ident) == url
            beyond = segments.CHECKS * places << SLOT_SHIFT
            slots = [n * segments.CHECKS << SLOT_SHIFT for n in range(1, 200)]
            wrong = [(ident ^ 1 << bit) for bit in range(64)] + [ident + beyond, ident - beyond]
            for other in [*wrong, *((ident + slot) % (1 << 64) for slot in slots), 0]:
                with pytest.raises(UnknownUrlError):
                    one.url(other)


def _host_of_slot_0() -> str:
    hosts = (f"h{number}.t" for number in range(1 << 20))
    return next(host for host in hosts if digest(host.encode()) >> SLOT_SHIFT == 0)


@pytest.mark.parametrize("low", [0, 1, 5])
def test_hosts_whose_urls_all_have_the_same_hash(
    low: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is found all the same, fresh or not; and an id that differs in its slot is another."""

    def poor(key: bytes, seed: int | None = None) -> int:
        return digest(key) if seed is None else digest(key) & ~LOW | low

    monkeypatch.setattr(segments, "digest", poor)
    urls = [f"http://{host}/" for host in (_host_of_slot_0(), "a.t", "b.t", "c.t", "d.t")]
    others = ["http://e.t/", "http://a.t/x"]
    with small(tmp_path) as one:
        for url in urls:
            assert url not in one
            assert one.add([url]) == [url]
            assert url in one
        for step in (lambda: None, one.flush):
            step()
            assert [url in one for url in urls] == [True] * len(urls)
            assert not any(url in one for url in others)
            assert [one.url(one.id(url)) for url in urls] == urls
            for ident in (0, one.id(urls[1]) ^ 1 << SLOT_SHIFT):
                with pytest.raises(UnknownUrlError):
                    one.url(ident)
        # A twin: nothing can be told from a hash any more.
        assert one.add(["http://a.t/x"]) == ["http://a.t/x"]
        assert [url in one for url in [*urls, *others]] == [True] * len(urls) + [False, True]
