"""The fingerprint cache: what it knows was added, and what is used stays."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_spider_suite.seen.fingerprint_cache import WAYS, FingerprintCache


def keys(count: int) -> list[bytes]:
    """So many different keys."""
    return [b"%d" % number for number in range(count)]


def test_what_is_added_twice_is_known() -> None:
    """And counted."""
    cache = FingerprintCache(1 << 16)
    assert cache.new([b"a", b"b", b"a"]) == [b"a", b"b"]
    assert not cache.add(b"b")
    assert (cache.hits, cache.misses) == (2, 2)
    assert cache.hit_rate == 0.5


@settings(max_examples=60)
@given(st.lists(st.integers(0, 60)), st.sampled_from([0, 128, 1024, 1 << 14]))
def test_it_never_knows_what_was_not_added(numbers: list[int], size: int) -> None:
    """It may forget, but what it calls known was there before; its memory is what it was."""
    cache, added = FingerprintCache(size), set()
    for number in numbers:
        key = b"%d" % number
        if not cache.add(key):
            assert number in added
        added.add(number)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60))))
def test_what_was_forgotten_is_not_known(steps: list[tuple[bool, int]]) -> None:
    """What is known was added, and not forgotten since."""
    cache, added = FingerprintCache(1 << 9), set()
    for forget, number in steps:
        key = b"%d" % number
        if forget:
            cache.forget(key)
            added.discard(number)
        else:
            assert cache.add(key) or number in added
            added.add(number)
    assert {number for number in range(61) if cache.knows(b"%d" % number)} <= added


def test_the_least_recently_used_goes() -> None:
    """Exactly so within a set, which here is all there is."""
    cache = FingerprintCache(WAYS * 8)
    first, *others = keys(WAYS)
    cache.new([first, *others])
    cache.add(first)
    cache.add(b"one more")
    assert cache.knows(first)
    assert not cache.knows(others[0])
    assert all(cache.knows(other) for other in others[1:])


def test_it_holds_about_as_many_as_there_is_room_for() -> None:
    """Of as many keys as fit, few are pushed out by an uneven spread."""
    cache = FingerprintCache(1 << 18)
    many = keys((1 << 18) // 8 * 3 // 4)
    cache.new(many)
    assert sum(cache.knows(key) for key in many) > 0.93 * len(many)


def test_a_working_set_stays_while_strangers_pass() -> None:
    """Links that are on every page are not pushed out by those that are on one."""
    cache = FingerprintCache(1 << 14)
    menu = [b"menu %d" % number for number in range(100)]
    for page in range(200):
        cache.new([*menu, *(b"page %d, %d" % (page, link) for link in range(10))])
    assert sum(cache.knows(key) for key in menu) == len(menu)


def test_forgetting() -> None:
    """One key, or all; the others of its set keep their order."""
    cache = FingerprintCache(WAYS * 8)
    cache.new(keys(WAYS))
    cache.forget(b"3")
    cache.forget(b"unknown")
    assert not cache.knows(b"3")
    assert cache.add(b"3")
    assert sum(cache.knows(key) for key in keys(WAYS)) == WAYS
    cache.clear()
    assert not cache.knows(b"4")
    assert cache.add(b"4")


def test_without_memory_nothing_is_known() -> None:
    """Size 0 switches it off."""
    cache = FingerprintCache(0)
    assert cache.new([b"a", b"a"]) == [b"a", b"a"]
    assert not cache.knows(b"a")
    cache.forget(b"a")
    assert cache.hit_rate == 0


def test_asking_counts_as_use() -> None:
    """What is asked for stays; what is not known is not remembered by asking."""
    cache = FingerprintCache(WAYS * 8)
    cache.new(keys(WAYS))
    assert cache.knows(b"0")
    assert not cache.knows(b"one more")
    assert not cache.knows(b"one more")
    cache.add(b"one more")
    assert cache.knows(b"0")
    assert not cache.knows(b"1")
    assert cache.hits == 2
    assert not FingerprintCache(0).knows(b"0")
