"""A set of fingerprints that answers at once, with most of them on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seen_contract import Seen, SeenContract, SieveUrls

from scrapy_spider_suite.errors import JobInUseError, StoreWriteError
from scrapy_spider_suite.seen.sieve import SieveSet


class TestSieveSet(SeenContract):
    """The contract."""

    def open(self, path: Path) -> SieveUrls:
        """See the contract."""
        return SieveUrls(path)

    def settle(self, seen: Seen) -> None:
        """See the contract."""
        assert isinstance(seen, SieveUrls)
        seen.keys.poll()


def keys(start: int, stop: int) -> list[bytes]:
    """Different keys."""
    return [b"key %d" % number for number in range(start, stop)]


def add(seen: SieveSet, keys: list[bytes]) -> list[bytes]:
    """Add *keys*; return the new ones."""
    return [key for key in keys if seen.add(key)]


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
        assert add(seen, batch) == [each for each in dict.fromkeys(batch) if each not in known]
        known |= set(batch)
        what = data.draw(st.sampled_from(["poll", "flush", "reopen", "go on"]))
        if what == "poll":
            seen.poll()
        elif what != "go on":
            seen.flush()
            assert len(seen) == len(known)
        if what == "reopen":
            seen.close()
            seen = SieveSet(path, **options)
    assert all(each in seen for each in known)
    assert b"301" not in seen
    seen.close()


def test_merges_in_a_thread(tmp_path: Path) -> None:
    """Memory holds what was added last; meanwhile every answer is right."""
    seen = SieveSet(tmp_path, capacity=500, cache=0)
    for start in range(0, 20_000, 100):
        assert add(seen, keys(start, start + 100)) == keys(start, start + 100)
        assert add(seen, keys(0, start + 100)[:: start // 50 + 1]) == []
        seen.poll()
        assert len(seen._recent) <= 4 * 500 + 100
    seen.flush()
    assert seen.parts.manifest.generation > 3
    assert len(seen.parts) == len(seen) == 20_000
    seen.close()
    assert add(SieveSet(tmp_path), keys(19_000, 20_001)) == keys(20_000, 20_001)


def test_the_cache_answers_first(tmp_path: Path) -> None:
    """And counts."""
    seen = SieveSet(tmp_path)
    add(seen, [*keys(0, 10), *keys(0, 5)])
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
    """A merge that fails is tried again later; its keys stay in memory."""
    seen = SieveSet(tmp_path, capacity=40)
    add(seen, keys(0, 50))
    with monkeypatch.context() as broken:
        broken.setattr("scrapy_spider_suite.seen.fingerprints.write_all", full)
        with pytest.raises(StoreWriteError, match="No space left on device"):
            seen.flush()
    assert "No space left on device" in seen.trouble
    assert add(seen, keys(0, 55)) == keys(50, 55)
    seen.poll()
    assert (len(seen), len(seen.parts)) == (55, 0)
    add(seen, keys(55, 65))
    seen.flush()
    assert (seen.trouble, len(seen.parts)) == ("", 65)
    assert add(seen, keys(0, 66)) == keys(65, 66)
    seen.close()
