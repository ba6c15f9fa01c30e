"""Mercator's sieve: what is new, once, in the order of its first appearance."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seen_contract import SeenContract

from scrapy_spider_suite.errors import JobDamagedError, JobSettingsError, StoreWriteError
from scrapy_spider_suite.frontier.entries import host_key, state_key
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.seen import sorted_set
from scrapy_spider_suite.seen.fingerprints import bytes_of, fingerprint, mask_of
from scrapy_spider_suite.seen.sieve import Sieve

SMALL = 64
"""Fingerprints of a part, so that few make many parts."""


class TestSieve(SeenContract):
    """The contract, with a flush after each batch."""

    def open(self, path: Path) -> Sieve:
        """See the contract."""
        return opened(path)


def url(number: int) -> str:
    """A URL in normal form; ten hosts."""
    return f"http://host{number % 10}.example/page/{number}"


def opened(path: Path, **options: Any) -> Sieve:
    """A sieve with small parts."""
    return Sieve(path, part=SMALL, **options)


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
    """Whatever is offered, flushed and reopened in between."""
    path = tmp_path_factory.mktemp("sieve")
    sieve, known = opened(path, bits=bits), {}
    numbers = st.lists(st.integers(0, 900), max_size=300)
    waiting: dict[str, None] = {}
    for _ in range(data.draw(st.integers(1, 6))):
        batch = [url(number) for number in data.draw(numbers)]
        sieve.offer(batch)
        waiting |= dict.fromkeys(batch)
        what = data.draw(st.sampled_from(["flush", "reopen", "go on"]))
        if what == "flush":
            assert sieve.flush() == [each for each in waiting if each not in known]
            known |= waiting
            waiting = {}
            assert len(sieve) == len(known)
        elif what == "reopen":
            sieve.close()
            sieve = opened(path, bits=bits)
    assert all(each in sieve for each in (*known, *waiting))
    assert not any(url(number) in sieve for number in range(901, 920))
    sieve.close()


def test_many_parts(path: Path) -> None:
    """Bases are cut, recents are merged, files that are not needed go; nothing gets lost."""
    sieve, known = opened(path, bits=64), set()
    draw = random.Random(7)
    for _ in range(25):
        batch = [url(draw.randrange(40_000)) for _ in range(2_000)]
        new = sieve.add(batch)
        assert new == [each for each in dict.fromkeys(batch) if each not in known]
        known |= set(new)
    stats = sieve.stats()
    assert stats.known == len(sieve) == len(known)
    assert 10 <= stats.parts <= 80
    assert len(list(path.glob("*.rows"))) <= 2 * stats.parts
    assert stats.disk == sum(file.stat().st_size for file in path.glob("*.rows"))
    assert stats.disk < 9 * len(known) + 200 * stats.parts
    assert sieve.check() == []
    assert all(each in sieve for each in known)
    assert not any(url(number) in sieve for number in range(40_000, 42_000))


def test_a_recent_file_stands_beside_a_large_base(path: Path, monkeypatch: Any) -> None:
    """A small batch leaves the base as it is."""
    monkeypatch.setattr("scrapy_spider_suite.seen.sorted_set.CHUNK", 16)
    sieve = Sieve(path)
    sieve.add([url(number) for number in range(4_000)])
    (base,) = path.glob("*.rows")
    assert sieve.add([url(4_001), url(3), url(4_002)]) == [url(4_001), url(4_002)]
    assert sieve.add([url(4_001)]) == []
    assert len(set(path.glob("*.rows")) - {base}) == 1
    assert base.exists()
    assert sieve.add([url(3), url(4_003)]) == [url(4_003)]
    assert all(url(number) in sieve for number in (3, 3_999, 4_001, 4_002, 4_003))
    sieve.add([url(number) for number in range(4_000, 6_000)])
    assert not base.exists()
    assert len(sieve) == 6_000


def test_half_a_fingerprint_in_common(path: Path, monkeypatch: Any) -> None:
    """128 bits count, in a batch, in memory and on disk, though files are sorted by 64 of them."""

    def colliding(key: bytes, width: int) -> bytes:
        number = int(key.rpartition(b"/")[2])
        return (number // 1_000).to_bytes(8, "big") + (number * 7919 % 1_009).to_bytes(8, "big")

    monkeypatch.setattr("scrapy_spider_suite.seen.fingerprints.fingerprint", colliding)
    monkeypatch.setattr("scrapy_spider_suite.seen.sieve.fingerprint", colliding)
    sieve = opened(path)
    even, odd = list(range(0, 4_000, 2)), list(range(1, 4_000, 2))
    assert sieve.add([url(number) for number in [*even, *even]]) == [url(n) for n in even]
    assert sieve.add([url(number) for number in range(4_000)]) == [url(n) for n in odd]
    assert len(sieve) == 4_000
    assert all(url(number) in sieve for number in range(4_000))
    assert url(4_000) not in sieve


def test_keys_and_urls_are_the_same(path: Path) -> None:
    """A crawl offers identities: that of a link is the key of its URL."""
    sieve = opened(path, own_log=False)
    here = "http://a.example:8080/x?y"
    sieve.offer([state_key("a.example", here), b"", b"x"])
    assert here in sieve
    assert b"" in sieve
    assert fingerprint(state_key("a.example", here), 8)[:2] == host_key("a.example")[:2]


def test_nothing_offered(path: Path) -> None:
    """A flush of nothing finds nothing."""
    sieve = opened(path)
    assert sieve.flush() == []
    assert sieve.add([]) == []
    assert len(sieve) == 0
    assert url(1) not in sieve


def test_when_it_is_full(path: Path) -> None:
    """It says so; what came during a flush waits for the next."""
    sieve = opened(path, capacity=10)
    sieve.offer(map(url, range(9)))
    assert not sieve.full
    sieve.offer([url(9)])
    assert sieve.full
    flush = sieve.begin()
    assert not sieve.full
    sieve.offer([url(3), url(20)])
    assert sieve.begin() is flush
    flush.run()
    assert list(flush.new()) == [url(number) for number in range(10)]
    flush.accept()
    assert (sieve.waiting, len(sieve)) == (2, 10)
    assert sieve.flush() == [url(20)]


def test_steps_are_small(path: Path) -> None:
    """A flush of a large set is cut into many; between them the set answers as before."""
    sieve = opened(path, capacity=10)
    sieve.add(map(url, range(3_000)))
    sieve.offer(map(url, range(2_000, 6_000)))
    flush = sieve.begin()
    steps = 0
    while flush.step():
        steps += 1
        assert len(sieve) == 3_000
        assert url(5_999) in sieve
    assert steps > 20
    assert len(sieve) == 6_000


def test_what_the_caller_keeps(path: Path) -> None:
    """Items by number: a kill before the verdict, one in the middle of handing out, one after."""
    rows = {number: url(number // 2) for number in range(100)}
    sieve = opened(path, own_log=False)
    assert sieve.next == 0
    sieve.offer(rows.values())
    flush = sieve.begin()
    assert flush.step()
    sieve.close()

    sieve = opened(path, own_log=False)
    assert (sieve.decided, sieve.next, sieve.under_way) == (0, 0, None)
    sieve.offer(rows.values())
    sieve.begin().run()
    sieve.close()

    sieve = opened(path, own_log=False)
    assert (sieve.decided, sieve.next) == (100, 100)
    again = sieve.under_way
    assert again is not None
    assert again.end - again.first == 100
    assert [number for number in rows if again.is_new(number)] == list(range(0, 100, 2))
    with pytest.raises(ValueError, match="item 100 is not decided about"):
        again.is_new(100)
    with pytest.raises(ValueError, match="no log of its own"):
        next(again.new())
    again.accept()
    assert sieve.under_way is None
    sieve.offer([url(1), url(77)])
    second = sieve.begin()
    with pytest.raises(ValueError, match="has steps left"):
        second.accept()
    second.run()
    assert [second.is_new(number) for number in (100, 101)] == [False, True]


def test_what_a_flush_found_is_handed_out_again_after_a_kill(path: Path) -> None:
    """From its own log, until it is accepted; and nothing else is."""
    sieve = opened(path)
    sieve.add([url(1)])
    sieve.offer([url(1), url(2), url(2), url(3)])
    sieve.begin().run()
    sieve.offer([url(3), url(4)])
    sieve.close()
    sieve = opened(path)
    assert sieve.flush() == [url(2), url(3), url(4)]
    sieve.close()
    assert opened(path).flush() == []


def test_a_kill_at_any_moment(path: Path, tmp_path: Path) -> None:
    """Of a flush that rewrites some parts and adds to others: each time, all of it is there."""
    sieve = opened(path)
    sieve.add(map(url, range(0, 2_000, 2)))
    sieve.offer(map(url, range(1_000, 1_800)))
    new = [url(number) for number in range(1_000, 1_800) if number % 2]
    flush = sieve.begin()
    moments = 0
    while True:
        moments += 1
        copy = tmp_path / f"moment {moments}"
        shutil.copytree(path, copy)
        left = opened(copy)
        assert left.flush() == new
        assert len(left) == 1_400
        assert left.check() == []
        assert not [each for each in copy.glob("*.rows") if each.name not in names_of(left)]
        left.close()
        if not flush.step():
            break
    assert moments > 10
    sieve.close()


def names_of(sieve: Sieve) -> set[str]:
    """The sorted files that a sieve goes by."""
    return {file.path.name for file in sieve.parts.files}


def test_another_width_is_refused(path: Path) -> None:
    """The files have one."""
    sieve = opened(path, bits=64)
    sieve.add([url(1)])
    sieve.close()
    with pytest.raises(JobSettingsError, match="has fingerprints of 64 bits, not of 128"):
        opened(path)


def test_the_bound(path: Path) -> None:
    """Of one host's pages all are in one slot."""
    sieve = opened(path, bits=64)
    assert sieve.stats().false_positive_bound == 0
    sieve.add(f"http://one.example/{number}" for number in range(1_000))
    assert sieve.stats().false_positive_bound == 1_000 / 2**48
    sieve.close()
    assert opened(path, bits=64).stats().false_positive_bound == 1_000 / 2**48


@pytest.mark.parametrize("bits", [64, 128])
def test_hosts_can_be_handed_over(tmp_path: Path, bits: int) -> None:
    """By slots, without what they lead to."""
    giver = opened(tmp_path / "a", bits=bits)
    taker = opened(tmp_path / "b", bits=bits, own_log=False)
    giver.add(map(url, range(3_000)))
    taker.offer(map(url, range(2_990, 3_100)))
    slots = [int.from_bytes(host_key(f"host{number}.example")[:2], "big") for number in range(10)]
    going = sorted(slots)[1:8:2]
    moved = {number for number in range(10) if slots[number] in going}
    assert len(moved) == 4
    mask = mask_of(going)
    for low, high in giver.parts.spans(mask, 200):
        for rows in giver.parts.rows(mask, low, high):
            taker.offer_prints((), bytes_of(rows))
    taker.begin().run()
    for _ in giver.removing(mask):
        pass
    assert len(giver) == 1_800
    assert giver.stats().false_positive_bound == pytest.approx(300 / 2 ** (bits - 16))
    for number in range(3_000):
        assert (url(number) in giver) == (number % 10 not in moved)
        assert (url(number) in taker) == (number % 10 in moved or number >= 2_990)
    for _ in giver.removing(mask_of(range(1 << 16))):
        pass
    assert len(giver) == 0
    assert giver.add(map(url, range(5))) == [url(number) for number in range(5)]
    giver.close()
    assert len(opened(tmp_path / "a", bits=bits)) == 5


def test_handing_over_waits_for_a_flush(path: Path) -> None:
    """Whose verdict would not know of it."""
    sieve = opened(path)
    sieve.offer([url(1)])
    sieve.begin()
    with pytest.raises(ValueError, match="accept it first"):
        next(sieve.removing(mask_of([0])))


def files_of(path: Path) -> Iterator[Path]:
    """What a sieve consists of."""
    return (each for each in sorted(path.iterdir()) if each.stat().st_size)


def test_cut_off_at_any_byte(tmp_path: Path) -> None:
    """Every file, anywhere: an error that names it, or what is left serves and it is named."""
    source = tmp_path / "whole"
    sieve = Sieve(source)
    sieve.add(map(url, range(30)))
    sieve.offer(map(url, range(20, 40)))
    sieve.close()
    draw = random.Random(3)
    for file in files_of(source):
        size = file.stat().st_size
        for length in {0, size - 1, *(draw.randrange(size) for _ in range(12))}:
            copy = tmp_path / f"{file.name}-{length}"
            copy.mkdir()
            for each in files_of(source):
                data = each.read_bytes()
                (copy / each.name).write_bytes(data[:length] if each == file else data)
            _check_damaged(copy, file.name)


def _check_damaged(path: Path, name: str) -> None:
    if name.endswith(".manifest"):
        with pytest.raises(JobDamagedError, match=name):
            Sieve(path)
        return
    sieve = Sieve(path)
    new = sieve.flush()
    if name.endswith(".rows"):
        assert any(name in line for line in sieve.stats().damaged)
        assert new == [url(number) for number in range(20, 40)]
    else:
        assert new == [url(number) for number in range(30, 30 + len(new))]
        assert sieve.stats().damaged == ()
    assert sieve.add([url(50)]) == [url(50)]
    sieve.close()
    assert Sieve(path).add([url(50), url(51)]) == [url(51)]


def test_a_bit_that_tipped(path: Path) -> None:
    """Its block is named and no more believed; the others serve; a repair writes them anew."""
    sieve = Sieve(path)
    sieve.add(map(url, range(3_000)))
    sieve.close()
    (file,) = path.glob("*.rows")
    data = bytearray(file.read_bytes())
    data[600 * 16] ^= 4
    file.write_bytes(data)
    sieve = Sieve(path)
    lost = [number for number in range(3_000) if url(number) not in sieve]
    assert len(lost) == 256
    assert sieve.check() == [f"{file} is damaged: block 2 cannot be read"]
    assert sieve.stats().damaged == tuple(sieve.check())
    sieve.repair()
    assert sieve.stats().damaged == ()
    assert sieve.check() == []
    assert len(sieve) == 3_000 - 256
    assert sieve.add(map(url, range(3_000))) == [url(number) for number in lost]


class Full:
    """A disk that has room for some more writes."""

    def __init__(self, monkeypatch: Any, after: int) -> None:
        self.left = after
        for module in ("fingerprints", "sieve"):
            name = f"scrapy_spider_suite.seen.{module}.write_all"
            monkeypatch.setattr(name, self.write)

    def write(self, file: int, data: bytes) -> None:
        """As `write_all`, half of the last write."""
        self.left -= 1
        os.write(file, data if self.left >= 0 else data[: len(data) // 2])
        if self.left < 0:
            raise OSError(28, "No space left on device")


@pytest.mark.parametrize("after", [0, 3, 9, 10, 12, 17])
def test_a_full_disk_loses_nothing(path: Path, after: int) -> None:
    """Neither in the log nor in a flush: a clear error, and the next try does it."""
    sieve = opened(path)
    sieve.add(map(url, range(500)))
    waiting: list[int] = []

    def fill() -> None:
        for number in range(400, 600, 20):
            sieve.offer(map(url, range(number, number + 20)))
            waiting.extend(range(number, number + 20))
        sieve.flush()

    with pytest.MonkeyPatch.context() as monkeypatch:
        Full(monkeypatch, after)
        with pytest.raises(StoreWriteError, match="No space left on device"):
            fill()
    assert all(url(number) in sieve for number in (*range(500), *waiting))
    if after % 2:
        sieve.close()
        sieve = opened(path)
    assert sieve.flush() == [url(number) for number in waiting if number >= 500]


def test_a_power_failure_in_an_older_log(path: Path) -> None:
    """What is left of it is numbered anew, and no verdict goes to the wrong item."""
    sieve = opened(path)
    sieve.add([url(1), url(2)])
    sieve.offer([url(2), url(10), url(11)])
    sieve.begin()
    sieve.offer([url(1), url(12), url(2), url(13)])
    sieve.close()
    older = sorted(path.glob("waiting-*.log"))[-2]
    older.write_bytes(older.read_bytes()[:-1])
    assert opened(path).flush() == [url(10), url(12), url(13)]


def test_it_never_blocks_for_long(path: Path, monkeypatch: Any) -> None:
    """A step touches a chunk of one file; none holds a whole part."""
    most = 0
    read = np.frombuffer

    def counting(data: Any, *args: Any) -> Any:
        nonlocal most
        most = max(most, len(data))
        return read(data, *args)

    sieve = Sieve(path, part=sorted_set.PART_ROWS)
    sieve.add(state_key("h", f"{number}") for number in range(100_000))
    monkeypatch.setattr("scrapy_spider_suite.seen.fingerprints.np.frombuffer", counting)
    sieve.add(state_key("h", f"{number}") for number in range(100_000, 100_100))
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
    assert sieve.add(map(url, range(100))) == [url(number) for number in range(100)]
    sieve.close()
    assert opened(path).add(map(url, range(101))) == [url(100)]
