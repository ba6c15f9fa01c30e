"""Mercator's sieve: what is new, once, in the order of its first appearance."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_spider_suite.errors import JobDamagedError, JobSettingsError, StoreWriteError
from scrapy_spider_suite.frontier.entries import host_key, state_key
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.seen import fingerprints as module
from scrapy_spider_suite.seen import sorted_set
from scrapy_spider_suite.seen.fingerprints import bytes_of, fingerprint, mask_of
from scrapy_spider_suite.seen.sieve import Sieve

SMALL = 64
"""Fingerprints of a part, so that few make many parts."""


def key(number: int) -> bytes:
    """The key of a URL; ten hosts."""
    host = f"host{number % 10}.example"
    return state_key(host, f"http://{host}/page/{number}")


def opened(path: Path, **options: Any) -> Sieve:
    """A sieve with small parts."""
    return Sieve(path, part=SMALL, **options)


def reopened(path: Path, handed_out: int, **options: Any) -> Sieve:
    """The sieve of a later process; all new keys up to the number *handed_out* are stored."""
    sieve = Sieve(path, **options)
    if sieve.under_way is not None and sieve.under_way.end <= handed_out:
        sieve.under_way.accept()
    return sieve


def flush(sieve: Sieve, waiting: Iterable[int]) -> list[int]:
    """Flush the *waiting* numbers, which were offered in this order; return the new ones."""
    verdict = sieve.begin()
    verdict.run()
    new = [each for at, each in enumerate(waiting, verdict.first) if verdict.is_new(at)]
    verdict.accept()
    return new


def has(sieve: Sieve, number: int) -> bool:
    """Whether a flush has met this *number*."""
    return sieve.parts.has(module.fingerprint(key(number), sieve.parts.words * 8))


def add(sieve: Sieve, numbers: Iterable[int]) -> list[int]:
    """Offer *numbers*, and flush."""
    listed = [*numbers]
    sieve.offer(map(key, listed))
    return flush(sieve, listed)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder for it."""
    return tmp_path / "sieve"


@pytest.mark.parametrize("bits", [64, 128])
@settings(max_examples=25)
@given(data=st.data())
def test_it_is_a_set_that_keeps_the_order(
    bits: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever is offered, flushed and reopened in between; the caller keeps what waits."""
    path = tmp_path_factory.mktemp("sieve")
    sieve, known = opened(path, bits=bits), dict[int, None]()
    waiting: list[int] = []
    for _ in range(data.draw(st.integers(1, 6))):
        batch = data.draw(st.lists(st.integers(0, 900), max_size=300))
        sieve.offer(map(key, batch))
        waiting += batch
        what = data.draw(st.sampled_from(["flush", "reopen", "go on"]))
        if what == "flush":
            new = [each for each in dict.fromkeys(waiting) if each not in known]
            assert flush(sieve, waiting) == new
            known |= dict.fromkeys(waiting)
            waiting = []
            assert len(sieve) == len(known)
        elif what == "reopen":
            sieve.close()
            sieve = reopened(path, sieve.decided, bits=bits, part=SMALL)
            sieve.offer(map(key, waiting))
    assert all(has(sieve, each) for each in known)
    assert not any(has(sieve, number) for number in range(901, 920))
    sieve.close()


def test_many_parts(path: Path) -> None:
    """Bases are cut, recents are merged, files that are not needed go; nothing gets lost."""
    sieve, known = opened(path, bits=64), set[int]()
    draw = random.Random(7)
    for _ in range(25):
        batch = [draw.randrange(40_000) for _ in range(2_000)]
        new = add(sieve, batch)
        assert new == [each for each in dict.fromkeys(batch) if each not in known]
        known |= set(new)
    number, size = len(sieve.parts.parts), sieve.parts.size
    assert len(sieve) == len(known)
    assert 10 <= number <= 80
    assert len(list(path.glob("*.rows"))) <= 2 * number
    assert size == sum(file.stat().st_size for file in path.glob("*.rows"))
    assert size < 9 * len(known) + 200 * number
    assert sieve.parts.check() == []
    assert all(has(sieve, each) for each in known)
    assert not any(has(sieve, number) for number in range(40_000, 42_000))


def test_a_recent_file_stands_beside_a_large_base(path: Path, monkeypatch: Any) -> None:
    """A small batch leaves the base as it is."""
    monkeypatch.setattr("scrapy_spider_suite.seen.sorted_set.CHUNK", 16)
    sieve = Sieve(path)
    add(sieve, range(4_000))
    (base,) = path.glob("*.rows")
    assert add(sieve, [4_001, 3, 4_002]) == [4_001, 4_002]
    assert add(sieve, [4_001]) == []
    assert len(set(path.glob("*.rows")) - {base}) == 1
    assert base.exists()
    assert add(sieve, [3, 4_003]) == [4_003]
    assert all(has(sieve, number) for number in (3, 3_999, 4_001, 4_002, 4_003))
    add(sieve, range(4_000, 6_000))
    assert not base.exists()
    assert len(sieve) == 6_000


def test_half_a_fingerprint_in_common(path: Path, monkeypatch: Any) -> None:
    """128 bits count, in a batch, in memory and on disk, though files are sorted by 64 of them."""

    def colliding(key: bytes, width: int) -> bytes:
        number = int(key.rpartition(b"/")[2])
        return (number // 1_000).to_bytes(8, "big") + (number * 7919 % 1_009).to_bytes(8, "big")

    monkeypatch.setattr("scrapy_spider_suite.seen.fingerprints.fingerprint", colliding)
    sieve = opened(path)
    even, odd = list(range(0, 4_000, 2)), list(range(1, 4_000, 2))
    assert add(sieve, [*even, *even]) == even
    assert add(sieve, range(4_000)) == odd
    assert len(sieve) == 4_000
    assert all(has(sieve, number) for number in range(4_000))
    assert not has(sieve, 4_000)


def test_any_bytes_are_a_key() -> None:
    """Those of a crawl begin with the slot of a host, and so do their fingerprints."""
    assert [len(fingerprint(each, 8)) for each in (b"", b"x", key(1))] == [8, 8, 8]
    assert fingerprint(key(1), 8)[:2] == host_key("host1.example")[:2]


def test_nothing_offered(path: Path) -> None:
    """A flush of nothing finds nothing."""
    sieve = opened(path)
    assert add(sieve, []) == []
    assert len(sieve) == 0
    assert not has(sieve, 1)


def test_when_it_is_full(path: Path) -> None:
    """It says so; what came during a flush waits for the next."""
    sieve = opened(path, capacity=10)
    sieve.offer(map(key, range(9)))
    assert not sieve.full
    sieve.offer([key(9)])
    assert sieve.full
    first = sieve.begin()
    assert not sieve.full
    sieve.offer([key(3), key(20)])
    assert sieve.begin() is first
    assert flush(sieve, range(10)) == [*range(10)]
    assert (sieve.waiting, len(sieve)) == (2, 10)
    assert flush(sieve, [3, 20]) == [20]


def test_steps_are_small(path: Path) -> None:
    """A flush of a large set is cut into many; between them the set answers as before."""
    sieve = opened(path, capacity=10)
    add(sieve, range(3_000))
    sieve.offer(map(key, range(2_000, 6_000)))
    verdict = sieve.begin()
    steps = 0
    while verdict.step():
        steps += 1
        assert len(sieve) == 3_000
        assert has(sieve, 2_999)
        assert not has(sieve, 5_999)
    assert steps > 20
    assert len(sieve) == 6_000


def test_what_the_caller_keeps(path: Path) -> None:
    """Keys by number: a kill before the verdict, one in the middle of handing out, one after."""
    rows = {number: key(number // 2) for number in range(100)}
    sieve = opened(path)
    assert sieve.next == 0
    sieve.offer(rows.values())
    verdict = sieve.begin()
    assert verdict.step()
    sieve.close()

    sieve = opened(path)
    assert (sieve.decided, sieve.next, sieve.under_way) == (0, 0, None)
    sieve.offer(rows.values())
    sieve.begin().run()
    sieve.close()

    sieve = opened(path)
    assert (sieve.decided, sieve.next, sieve.flushes) == (100, 100, 1)
    again = sieve.under_way
    assert again is not None
    assert again.end - again.first == 100
    assert [number for number in rows if again.is_new(number)] == list(range(0, 100, 2))
    with pytest.raises(ValueError, match="key 100 is not decided about"):
        again.is_new(100)
    again.accept()
    assert sieve.under_way is None
    sieve.offer([key(1), key(77)])
    second = sieve.begin()
    with pytest.raises(ValueError, match="has steps left"):
        second.accept()
    second.run()
    assert [second.is_new(number) for number in (100, 101)] == [False, True]


def test_a_kill_at_any_moment(path: Path, tmp_path: Path) -> None:
    """Of a flush that rewrites some parts and adds to others: each time, all of it is there."""
    sieve, waiting = opened(path), range(1_000, 1_800)
    add(sieve, range(0, 2_000, 2))
    sieve.offer(map(key, waiting))
    verdict = sieve.begin()
    moments = 0
    while True:
        moments += 1
        copy = tmp_path / f"moment {moments}"
        shutil.copytree(path, copy)
        left = reopened(copy, 1_000, part=SMALL)
        if left.under_way is None:
            left.offer(map(key, waiting))
        assert flush(left, waiting) == [number for number in waiting if number % 2]
        assert len(left) == 1_400
        assert left.parts.check() == []
        assert not [each for each in copy.glob("*.rows") if each.name not in names_of(left)]
        left.close()
        if not verdict.step():
            break
    assert moments > 10
    sieve.close()


def names_of(sieve: Sieve) -> set[str]:
    """The sorted files that a sieve goes by."""
    return {file.path.name for file in sieve.parts.files}


def test_another_width_is_refused(path: Path) -> None:
    """The files have one."""
    sieve = opened(path, bits=64)
    add(sieve, [1])
    sieve.close()
    with pytest.raises(JobSettingsError, match="has fingerprints of 64 bits, not of 128"):
        opened(path)


def test_the_bound(path: Path) -> None:
    """Of one host's pages all are in one slot."""
    sieve = opened(path, bits=64)
    assert sieve.parts.false_positive_bound == 0
    add(sieve, range(5, 10_000, 10))
    assert sieve.parts.false_positive_bound == 1_000 / 2**48
    sieve.close()
    assert opened(path, bits=64).parts.false_positive_bound == 1_000 / 2**48


@pytest.mark.parametrize("bits", [64, 128])
def test_hosts_can_be_handed_over(tmp_path: Path, bits: int) -> None:
    """By slots, without what they lead to."""
    giver = opened(tmp_path / "a", bits=bits)
    taker = opened(tmp_path / "b", bits=bits)
    add(giver, range(3_000))
    taker.offer(map(key, range(2_990, 3_100)))
    slots = [int.from_bytes(host_key(f"host{number}.example")[:2], "big") for number in range(10)]
    going = sorted(slots)[1:8:2]
    moved = {number for number in range(10) if slots[number] in going}
    assert len(moved) == 4
    mask = mask_of(going)
    for low, high in giver.parts.spans(mask, 200):
        for rows in giver.parts.rows(mask, low, high):
            taker.offer_prints(bytes_of(rows))
    taker.begin().run()
    for _ in giver.removing(mask):
        pass
    assert len(giver) == 1_800
    assert giver.parts.false_positive_bound == pytest.approx(300 / 2 ** (bits - 16))
    for number in range(3_000):
        assert (has(giver, number)) == (number % 10 not in moved)
        assert (has(taker, number)) == (number % 10 in moved or number >= 2_990)
    for _ in giver.removing(mask_of(range(1 << 16))):
        pass
    assert len(giver) == 0
    assert add(giver, range(5)) == [*range(5)]
    giver.close()
    assert len(opened(tmp_path / "a", bits=bits)) == 5


def test_handing_over_waits_for_a_flush(path: Path) -> None:
    """Whose verdict would not know of it."""
    sieve = opened(path)
    sieve.offer([key(1)])
    sieve.begin()
    with pytest.raises(ValueError, match="accept it first"):
        next(sieve.removing(mask_of([0])))


def test_cut_off_at_any_byte(tmp_path: Path) -> None:
    """Either file, anywhere: an error that names it, or what is left serves and it is named."""
    source = tmp_path / "whole"
    sieve = Sieve(source)
    add(sieve, range(30))
    sieve.close()
    draw = random.Random(3)
    files = [each for each in sorted(source.iterdir()) if each.stat().st_size]
    for file in files:
        size = file.stat().st_size
        for length in {0, size - 1, *(draw.randrange(size) for _ in range(12))}:
            copy = tmp_path / f"{file.name}-{length}"
            copy.mkdir()
            for each in files:
                data = each.read_bytes()
                (copy / each.name).write_bytes(data[:length] if each == file else data)
            _check_damaged(copy, file.name)


def _check_damaged(path: Path, name: str) -> None:
    if name.endswith(".manifest"):
        with pytest.raises(JobDamagedError, match=name):
            Sieve(path)
        return
    sieve = reopened(path, 30)
    assert add(sieve, range(20, 40)) == [*range(20, 40)]
    assert any(name in line for line in sieve.parts.damaged.values())
    assert add(sieve, [50]) == [50]
    sieve.close()
    assert add(reopened(path, sieve.decided), [50, 51]) == [51]


def test_a_bit_that_tipped(path: Path) -> None:
    """Its block is named and no more believed; the others serve; a repair writes them anew."""
    sieve = Sieve(path)
    add(sieve, range(3_000))
    sieve.close()
    (file,) = path.glob("*.rows")
    data = bytearray(file.read_bytes())
    data[600 * 16] ^= 4
    file.write_bytes(data)
    sieve = reopened(path, 3_000)
    lost = [number for number in range(3_000) if not has(sieve, number)]
    assert len(lost) == 256
    assert sieve.parts.check() == [f"{file} is damaged: block 2 cannot be read"]
    assert list(sieve.parts.damaged.values()) == sieve.parts.check()
    sieve.repair()
    assert not sieve.parts.damaged
    assert sieve.parts.check() == []
    assert len(sieve) == 3_000 - 256
    assert add(sieve, range(3_000)) == lost


class Full:
    """A disk that has room for some more writes."""

    def __init__(self, monkeypatch: Any, after: int) -> None:
        self.left = after
        monkeypatch.setattr("scrapy_spider_suite.seen.fingerprints.write_all", self.write)

    def write(self, file: int, data: bytes) -> None:
        """As `write_all`, half of the last write."""
        self.left -= 1
        os.write(file, data if self.left >= 0 else data[: len(data) // 2])
        if self.left < 0:
            raise OSError(28, "No space left on device")


@pytest.mark.parametrize("after", [0, 3, 7])
def test_a_full_disk_loses_nothing(path: Path, after: int) -> None:
    """A clear error, and the next try does it."""
    sieve = opened(path)
    add(sieve, range(500))
    waiting = range(400, 600)
    sieve.offer(map(key, waiting))
    with pytest.MonkeyPatch.context() as monkeypatch:
        Full(monkeypatch, after)
        with pytest.raises(StoreWriteError, match="No space left on device"):
            sieve.begin().run()
    assert all(has(sieve, number) for number in range(500))
    if after % 2:
        sieve.close()
        sieve = reopened(path, 500, part=SMALL)
        sieve.offer(map(key, waiting))
    assert flush(sieve, waiting) == [*range(500, 600)]


def test_it_never_blocks_for_long(path: Path, monkeypatch: Any) -> None:
    """A step touches a chunk of one file; none holds a whole part."""
    most = 0
    read = np.frombuffer

    def counting(data: Any, *args: Any) -> Any:
        nonlocal most
        most = max(most, len(data))
        return read(data, *args)

    sieve = Sieve(path, part=sorted_set.PART_ROWS)
    add(sieve, range(5, 1_000_000, 10))
    monkeypatch.setattr("scrapy_spider_suite.seen.fingerprints.np.frombuffer", counting)
    add(sieve, range(1_000_005, 1_001_000, 10))
    assert len(sieve) == 100_100
    assert 0 < most <= 128 * 256 * 16


def test_a_disk_that_cannot_sync_names(path: Path, monkeypatch: Any) -> None:
    """What is decided stays so: its files are not taken for those of a flush that failed."""

    def failing(path: Path) -> None:
        if path.is_dir():
            raise OSError(5, "Input/output error")
        sync(path)

    sieve, sync = opened(path), files.sync_path
    monkeypatch.setattr(files, "sync_path", failing)
    assert add(sieve, range(100)) == [*range(100)]
    sieve.close()
    assert add(reopened(path, 100, part=SMALL), range(101)) == [100]
