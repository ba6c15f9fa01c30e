"""Files of a trie store cut off or changed at any byte: what can be read is served."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.trie_stores import build_at_once, small

from scrapy_spider_suite.errors import JobDamagedError, JobFormatError, StoreWriteError
from scrapy_spider_suite.seen import fresh_log, segments, trie_upkeep
from scrapy_spider_suite.seen.segments import Catalogue
from scrapy_spider_suite.seen.trie_store import TrieStore

FLUSHED = [f"http://host{number % 23}.t/page/{number}" for number in range(200)]
FRESH = [
    [f"http://host{number % 7}.t/fresh/{batch}/{number}" for number in range(9)]
    for batch in range(9)
]
REMOVED = "http://host3.t/"


@pytest.fixture(autouse=True, scope="module")
def at_once() -> Iterator[None]:
    """Build in this process."""
    with pytest.MonkeyPatch.context() as patch:
        build_at_once(patch)
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several ranges, some with two segments, a prefix that was removed, fresh rows in frames."""
    path = tmp_path_factory.mktemp("damage") / "seen"
    with small(path) as seen:
        seen.add(FLUSHED[:150])
        seen.flush()
        seen.add(FLUSHED[150:])
        seen.flush()
        seen.remove(REMOVED)
        for batch in FRESH:
            seen.add(batch)
        assert seen.stats().segments > seen.stats().ranges
    return path


def files(store: Path) -> list[str]:
    """All but the lock, which is empty."""
    return sorted(path.name for path in store.iterdir()
                  if path.is_file() and path.name != "lock")  # fmt: skip


@settings(max_examples=25)
@given(data=st.data())
def test_at_any_byte(
    data: st.DataObject, store: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What is lost is named, with its number; the repair leaves a store that is whole."""
    path = tmp_path_factory.mktemp("damaged") / "seen"
    shutil.copytree(store, path)
    name = data.draw(st.sampled_from(files(store)))
    content = bytearray((path / name).read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    cut = data.draw(st.booleans())
    if cut:
        del content[at:]
    else:
        content[at] ^= data.draw(st.integers(1, 255))
    (path / name).write_bytes(content)

    held = {url for url in FLUSHED if not url.startswith(REMOVED)}
    if name == segments.CATALOGUE:
        with pytest.raises(JobDamagedError, match="the catalogue of seen URLs cannot be read"):
            small(path)
        return
    with small(path) as seen:
        assert set(seen.damaged) <= {name}
        found = set(seen)
        assert found <= held | set().union(*FRESH)
        assert all(url in seen for url in found)
        for batch in FRESH:  # a frame is there as a whole or not at all
            assert len(found & set(batch)) in (0, 9)
        if not name.startswith(fresh_log._PREFIX):
            assert all(found >= set(batch) for batch in FRESH)
        if not name.startswith("segment"):
            assert found >= held
        else:
            assert list(seen.damaged) == [name]
        _check_and_repair(seen, name, held, found)
    with small(path) as seen:
        assert not seen.damaged
        assert not seen.check()


def _check_and_repair(seen: TrieStore, name: str, held: set[str], found: set[str]) -> None:
    damaged = bool(seen.damaged)
    findings = seen.check()
    assert [finding.file for finding in findings] == [name] * damaged
    missing = sum(finding.urls for finding in findings)
    assert missing == len(held - found)
    assert seen.check(repair=True) == findings
    again = set(seen)
    assert again == found
    assert all(seen.url(seen.id(url)) == url for url in again)
    assert seen.add(held) == [url for url in held if url not in again]
    seen.flush()


def test_nothing_is_written_that_would_leave_out_a_damaged_segment(
    store: Path, tmp_path: Path
) -> None:
    """What is fresh in its range stays in the log until it is repaired."""
    path = shutil.copytree(store, tmp_path / "seen")
    damaged = sorted(path.glob("segment-*"))[0]
    damaged.write_bytes(b"")
    with small(path) as seen:
        seen.flush()
        assert damaged.exists()
        assert list(seen.damaged) == [damaged.name]
        assert all(url in seen for batch in FRESH for url in batch)
        with pytest.raises(JobDamagedError, match="repair it"):
            seen.remove("http")
        assert all(url in seen for batch in FRESH for url in batch)
        seen.check(repair=True)
        assert (path / f"damaged-{damaged.name}").exists()
        assert not seen.damaged
        assert seen.stats().fresh == 0


def test_a_damaged_catalogue(store: Path, tmp_path: Path) -> None:
    """Then nothing can be said, and nothing is changed."""
    path = shutil.copytree(store, tmp_path / "seen")
    (path / segments.CATALOGUE).write_bytes(b"x")
    before = files(path)
    with pytest.raises(JobDamagedError, match="the catalogue of seen URLs cannot be read"):
        TrieStore(path)
    assert files(path) == before


def test_a_newer_format(tmp_path: Path) -> None:
    """Is not read."""
    (tmp_path / segments.CATALOGUE).write_bytes(Catalogue(1, 2, True, format=9).encode())
    with pytest.raises(JobFormatError, match="in format 9; this release reads 1"):
        TrieStore(tmp_path)


def test_a_catalogue_is_what_was_written() -> None:
    """Whatever it says; and nothing that it does not."""
    one = Catalogue(3, 4, True, twins={"ff": 9}, removed=(("00", 5),))
    assert Catalogue.decode(one.encode()) == one
    assert Catalogue.decode(one.encode()[:-1]) is None
    assert Catalogue.decode(b"") is None


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", range(5))
def test_killed_at_any_step_of_an_installation(
    step: int, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after each rename: the store is the old or the new one, with the same URLs."""
    path = shutil.copytree(store, tmp_path / "seen")
    rename, count = Path.rename, 0

    def until(self: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count > step:
            raise Killed
        return rename(self, target)

    seen = small(path)
    known = sorted(seen)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", until)
        patch.setattr(Path, "replace", until)
        with pytest.raises(Killed):
            seen.flush()
    copy = shutil.copytree(path, tmp_path / "copy")
    seen.close()
    with small(copy) as seen:
        assert sorted(seen) == known
        assert not seen.check()
        assert not (copy / trie_upkeep.MADE).exists()
        seen.flush()
        assert sorted(seen) == known


@pytest.mark.parametrize("written", [0, 1, 30])
def test_a_full_disk_while_adding(
    written: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the batch is added, and the next one can be read."""
    with TrieStore(tmp_path) as seen:
        seen.add(["http://a.t/1"])
        real, calls = fresh_log.os.write, 0

        def full(fd: int, content: bytes) -> int:
            nonlocal calls
            calls += 1
            if calls > 1 or not written:
                raise OSError(28, "No space left on device")
            return real(fd, content[:written])

        with monkeypatch.context() as patch:
            patch.setattr(fresh_log.os, "write", full)
            with pytest.raises(StoreWriteError, match="No space left on device"):
                seen.add(["http://a.t/2"])
        assert "http://a.t/2" not in seen
        assert seen.add(["http://a.t/3"])
    with TrieStore(tmp_path) as seen:
        assert sorted(seen) == ["http://a.t/1", "http://a.t/3"]
        assert not seen.damaged
