"""A set of fingerprints that answers at once, with most of them on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seen_contract import Seen, SeenContract

from scrapy_spider_suite.errors import JobInUseError, StoreWriteError
from scrapy_spider_suite.seen.sieve import SieveSet


class TestSieveSet(SeenContract):
    """The contract."""

    def open(self, path: Path) -> SieveSet:
        """See the contract."""
        return SieveSet(path, capacity=20)

    def settle(self, seen: Seen) -> None:
        """See the contract."""
        assert isinstance(seen, SieveSet)
        seen.poll()


def keys(start: int, stop: int) -> list[bytes]:
    """Different keys."""
    return [b"key %d" % number for number in range(start, stop)]


@settings(max_examples=30)
@given(data=st.data())
def test_it_is_a_set(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever is merged, in a thread or not, and reopened in between; without a cache too."""
    path = tmp_path_factory.mktemp("set")
    options: dict[str, Any] = {"bits": data.draw(st.sampled_from([64, 128])), "capacity": 20}
    options["cache"] = data.draw(st.sampled_from([0, 256, 1 << 14]))
    known: set[bytes] = set()
    seen = SieveSet(path, **options)
    for _ in range(data.draw(st.integers(1, 8))):
        batch = [b"%d" % number for number in data.draw(st.lists(st.integers(0, 300)))]
        assert seen.add(batch) == [each for each in dict.fromkeys(batch) if each not in known]
        known |= set(batch)
        what = data.draw(st.sampled_from(["poll", "begin", "flush", "reopen", "go on"]))
        if what == "poll":
            seen.poll()
        elif what == "begin":
            seen.begin().step()
        elif what == "flush":
            seen.flush()
        elif what == "reopen":
            seen.close()
            seen = SieveSet(path, **options)
        assert len(seen) == len(known)
    assert all(each in seen for each in known)
    assert b"301" not in seen
    seen.close()


def test_merges_in_a_thread(tmp_path: Path) -> None:
    """Memory holds what was added last; meanwhile every answer is right."""
    seen = SieveSet(tmp_path, capacity=500, cache=0)
    for start in range(0, 20_000, 100):
        assert seen.add(keys(start, start + 100)) == keys(start, start + 100)
        assert seen.add(keys(0, start + 100)[:: start // 50 + 1]) == []
        seen.poll()
        assert len(seen._recent) <= 4 * 500 + 100
    seen.wait()
    stats = seen.stats()
    assert stats.flushes > 3
    assert stats.known + stats.waiting == len(seen) == 20_000
    seen.close()
    assert SieveSet(tmp_path).add(keys(19_000, 20_001)) == keys(20_000, 20_001)


def test_the_cache_answers_first(tmp_path: Path) -> None:
    """And counts."""
    seen = SieveSet(tmp_path)
    seen.add([*keys(0, 10), *keys(0, 5)])
    assert (seen.cache.hits, seen.cache.misses) == (5, 10)
    seen.close()


def test_only_one_at_a_time(tmp_path: Path) -> None:
    """Two crawls in one folder would not know of each other."""
    seen = SieveSet(tmp_path)
    with pytest.raises(JobInUseError, match="is open in another process, or twice in this one"):
        SieveSet(tmp_path)
    seen.close()
    SieveSet(tmp_path).close()


def full(*args: Any) -> None:
    """A disk without room."""
    raise OSError(28, "No space left on device")


def test_a_full_disk(tmp_path: Path, monkeypatch: Any) -> None:
    """What cannot be logged was not added; a merge that fails is tried again later."""
    seen = SieveSet(tmp_path, capacity=40)
    seen.add(keys(0, 50))
    with monkeypatch.context() as broken:
        broken.setattr("scrapy_spider_suite.seen.sieve.write_all", full)
        with pytest.raises(StoreWriteError, match="No space left on device"):
            seen.add(keys(50, 51))
        broken.setattr("scrapy_spider_suite.seen.fingerprints.write_all", full)
        seen.poll()
        seen.wait()
    assert "No space left on device" in seen.trouble
    assert seen.add(keys(0, 55)) == keys(50, 55)
    seen.poll()
    assert seen.stats().flushes == 0
    seen.add(keys(55, 65))
    seen.poll()
    seen.wait()
    assert (seen.trouble, seen.stats().flushes) == ("", 1)
    assert seen.add(keys(0, 66)) == keys(65, 66)
    seen.flush()
    assert seen.stats().known == 66
    seen.close()
