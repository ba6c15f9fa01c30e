"""The writer: what it promises when a future is set, full disks, rotation, many threads."""

from __future__ import annotations

import errno
import resource
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import BinaryIO

import pytest
from support.packs import NOW, body, fetch, hand_in, make_records, plan

from scrapy_spider_suite.errors import PackError, PackRefusedError, PackWriteError
from scrapy_spider_suite.packs import cdxj, http_records, pack_file
from scrapy_spider_suite.packs.containers import BLOCK
from scrapy_spider_suite.packs.pack_file import (
    FORMATS,
    Damage,
    RecordGroup,
    index_path,
    read_records,
    scan,
)
from scrapy_spider_suite.packs.warc import URL_MAX, Link, outlinks_of
from scrapy_spider_suite.packs.writer import (
    GROUP,
    GroupWriter,
    PackRecovery,
    PackWriter,
    RecordLocation,
    WriteJob,
    recover_folder,
)

SIZES = [0, 1, 900, BLOCK - 1500, BLOCK, 3 * BLOCK + 5, 100, 4_000_000, 7]


@contextmanager
def room(size: int) -> Iterator[None]:
    """No file can grow beyond *size* bytes: a write ends there, half done, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def all_records(folder: Path) -> list[str]:
    """The URLs of all responses in the packs of *folder*; no pack is damaged."""
    found = []
    for path in sorted(folder.glob("*.warc.*")):
        if ".cdxj" not in path.name:
            for part in scan(path):
                if isinstance(part, Damage):
                    assert path.name.endswith(".open")
                    assert not part.length
                else:
                    found += [r.url for r, _ in part.records() if r.kind == "response"]
    return found


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("form", FORMATS)
def test_a_page_is_where_its_future_says(form: str, power: bool, tmp_path: Path) -> None:
    """Of every size, while the pack is open and when it is closed."""
    with_links = {}
    writer = PackWriter(plan(tmp_path, form, power=power, wait=60))
    for number, size in enumerate(SIZES):
        with_links[number] = hand_in(writer, fetch(number, body(number, size)))
    writer.flush().result(10)
    for _ in range(2):
        for number, future in with_links.items():
            place = future.result(0)
            record = read_records(tmp_path / place.filename, place.place)[0]
            assert record.url == f"http://www.example.com/{number}"
            assert http_records.split_message(record.block)[1] == body(number, SIZES[number])
        writer.close()
    assert not list(tmp_path.glob("*.open"))


@pytest.mark.parametrize("form", FORMATS)
def test_the_index_leads_to_pages_and_links(form: str, tmp_path: Path) -> None:
    """Sorted by key and time once the pack is closed; unsorted, but there, before."""
    writer = PackWriter(plan(tmp_path, form, wait=60))
    for number in (5, 3, 9, 3):
        hand_in(writer, fetch(number))
    writer.flush().result(10)
    [notes] = tmp_path.glob("*.cdxj.open")
    before = notes.read_bytes().splitlines()
    writer.close()
    [index] = tmp_path.glob("*.cdxj")
    lines = index.read_bytes().splitlines()
    assert lines == sorted(before)
    for line in lines:
        entry = cdxj.parse_entry(line)
        path = tmp_path / entry.filename
        number = int(entry.url.rpartition("/")[2])
        assert read_records(path, entry.place)[0].url == entry.url
        assert entry.metadata is not None
        assert (
            outlinks_of(read_records(path, entry.metadata)[0])[0].url
            == f"http://www.example.com/{number + 1}"
        )
        assert (entry.mime, entry.status) == ("text/html", 200)
        assert entry.line() == line


@pytest.mark.parametrize("form", FORMATS)
def test_fetches_are_made_records_in_the_thread(form: str, tmp_path: Path) -> None:
    """The same ones, side by side; who waits hears of those of which none can be made."""
    writer = PackWriter(plan(tmp_path, form, wait=60))
    waiters: list[Future[RecordLocation]] = [Future() for _ in range(3)]
    writer.recovery.result(10)
    unfit = fetch(2, url="http://www.example.com/2" + "x" * URL_MAX)
    for pages, waiter in zip([[fetch(0), fetch(1)], [unfit], [fetch(3)]], waiters, strict=True):
        writer.append(pages, waiter)
    writer.flush().result(10)
    writer.close()
    with pytest.raises(PackRefusedError, match=r"www\.example\.com/2"):
        waiters[1].result(0)
    for number, waiter in ((0, waiters[0]), (3, waiters[2])):
        place = waiter.result(0)
        found = read_records(tmp_path / place.filename, place.place)[0]
        plain = make_records(fetch(number))[0]
        assert found.block == plain.block
        assert [f for f in found.fields if f[1] != found.id] == [
            f for f in plain.fields if f[1] != plain.id
        ]
    with pytest.raises(PackWriteError, match="closed"):
        writer.append([fetch(4)], Future())


def test_what_is_no_record_yet_is_counted(tmp_path: Path, writing: threading.Event) -> None:
    """As many bytes wait as the records will have, or as its links take in memory."""
    writer = PackWriter(plan(tmp_path))
    before = 0
    many = [Link(f"http://a.test/{number}") for number in range(5000)]
    large = fetch(1, body(1, 500_000), request=b"x" * 90_000, head=b"y" * 70_000)
    for page in (fetch(1), fetch(1, links=many), large):
        waiter: Future[RecordLocation] = Future()
        writer.append([page], waiter)
        size = sum(len(record.to_bytes()) for record in make_records(page))
        assert size < writer.backlog - before < 4 * size + 2000
        before = writer.backlog
    writing.set()
    writer.close()
    assert writer.backlog == 0
    assert waiter.result(0)


def test_a_page_alone_waits_no_longer_than_said(tmp_path: Path) -> None:
    """Nobody has to flush, whether the thread was idle or at work."""
    writer = PackWriter(plan(tmp_path, wait=0.01))
    for number in range(3):
        waiter: Future[RecordLocation] = Future()
        writer.append([fetch(number)], waiter)
        assert waiter.result(20)
    writer.close()


def test_a_writer_that_is_behind_fills_its_groups(tmp_path: Path, writing: threading.Event) -> None:
    """Also where each page has waited for longer than it should before the thread comes to it."""
    writer = PackWriter(plan(tmp_path, wait=5, max_age=0), clock=count(NOW, 10).__next__)
    for number in range(200):
        writer.append([fetch(number)], Future())
    writing.set()
    writer.close()
    [path] = tmp_path.glob("*.lzo")
    sizes = [len(part.data) for part in scan(path) if isinstance(part, RecordGroup)]
    assert min(sizes[1:-1]) > GROUP * 0.95


def test_groups_fill_blocks(tmp_path: Path) -> None:
    """Small pages share a group of 128 KiB, a large one has its own, of several blocks."""
    writer = PackWriter(plan(tmp_path, "lzo", wait=60))
    for number in range(400):
        hand_in(writer, fetch(number))
    hand_in(writer, fetch(1000, body(1, 600_000)))
    hand_in(writer, fetch(1001))
    writer.close()
    [path] = tmp_path.glob("*.lzo")
    groups = [part for part in scan(path) if isinstance(part, RecordGroup)]
    sizes = [len(group.data) for group in groups]
    assert sum(len(group.places) for group in groups) == 1 + 402 * 3
    assert [size for size in sizes if size > GROUP] == sizes[-2:-1]
    assert min(sizes[1:-3]) > GROUP * 0.95


class Bench:
    """A `Packing` that is driven by hand."""

    def __init__(self, folder: Path, form: str = "lzo", **more: object) -> None:
        self.closed: list[Path] = []
        self.packing = GroupWriter(plan(folder, form, **more), self.closed.append)
        self.number = 0

    def put(self, now: float, page: int = 900) -> Future[RecordLocation]:
        """Hand in a page."""
        self.number += 1
        future: Future[RecordLocation] = Future()
        self.packing.add_job(
            WriteJob([fetch(self.number, body(self.number, page))], future), now
        )
        return future


def test_a_group_waits_no_longer_than_said(tmp_path: Path) -> None:
    """Five seconds after its first record it is written, not before."""
    bench = Bench(tmp_path, wait=5.0, max_age=0)
    assert bench.packing.seconds_to_tick(NOW) is None
    first = bench.put(NOW)
    bench.packing.tick(NOW + 3)
    second = bench.put(NOW + 4)
    assert bench.packing.seconds_to_tick(NOW + 4) == 1
    bench.packing.tick(NOW + 4.9)
    assert not first.done()
    bench.packing.tick(NOW + 5)
    assert first.done()
    assert second.done()
    third = bench.put(NOW + 6)
    bench.packing.tick(NOW - 10_000)  # the clock was set back
    assert third.done()
    bench.packing.close(NOW)


def test_packs_are_closed_by_size_and_by_age(tmp_path: Path) -> None:
    """And whoever wants to know is told, when the pack has its name."""
    bench = Bench(tmp_path, max_bytes=20_000, max_age=100.0, wait=1.0)
    bench.put(NOW)
    bench.packing.tick(NOW + 1)
    assert not bench.closed
    assert bench.packing.seconds_to_tick(NOW + 40) == 61
    bench.packing.tick(NOW + 100)
    assert not bench.closed
    bench.packing.tick(NOW + 101)
    assert len(bench.closed) == 1
    for _ in range(40):
        bench.put(NOW + 200, 3000)
        bench.packing.tick(NOW + 201)
    bench.packing.close(NOW + 300)
    names = [path.name for path in bench.closed]
    assert len(names) > 3
    assert sorted(names) == names
    assert names[0].startswith("news-20261118")
    assert names[0].endswith("-00001-a.warc.lzo")
    assert all(path.exists() and index_path(path).exists() for path in bench.closed)
    assert len(all_records(tmp_path)) == 41


def test_a_name_that_is_taken_is_not_used(tmp_path: Path) -> None:
    """By a pack, or by one that another process writes."""
    first, second = Bench(tmp_path, wait=0), Bench(tmp_path, wait=0)
    for bench in (first, second, first):
        bench.put(NOW)
        bench.packing.tick(NOW)
    first.packing.close(NOW)
    again = Bench(tmp_path, wait=0)
    again.put(NOW)
    again.packing.close(NOW)
    second.packing.close(NOW)
    assert len({path.name for b in (first, second, again) for path in b.closed}) == 3


@pytest.mark.parametrize("form", FORMATS)
def test_a_full_disk_in_the_midst_of_a_block(form: str, tmp_path: Path) -> None:
    """Who waits is told why, nothing half is visible, and it goes on when there is room."""
    bench = Bench(tmp_path, form, wait=1.0)
    fine = bench.put(NOW)
    bench.packing.tick(NOW + 1)
    [path] = tmp_path.glob("*.warc.*[oz4t].open")
    size = path.stat().st_size
    failed = bench.put(NOW + 2, 60_000)
    with room(size + 2000):
        bench.packing.tick(NOW + 3)
    error = failed.exception(0)
    assert isinstance(error, PackWriteError)
    assert error.errno == errno.EFBIG
    assert str(tmp_path) in str(error)
    assert path.stat().st_size == size
    later = bench.put(NOW + 4)
    bench.packing.close(NOW + 5)
    place = fine.result(0).filename
    assert later.result(0).filename == place
    assert all_records(tmp_path) == ["http://www.example.com/1", "http://www.example.com/3"]
    assert len(Path(f"{tmp_path / place}.cdxj").read_bytes().splitlines()) == 2


def test_a_disk_that_is_full_from_the_start(tmp_path: Path) -> None:
    """No pack is left behind; the first one comes when there is room."""
    bench = Bench(tmp_path, "gz", wait=0)
    for size in (0, 5, 100):
        with room(size):
            future = bench.put(NOW)
            bench.packing.tick(NOW)
        assert isinstance(future.exception(0), PackWriteError)
        assert not list(tmp_path.iterdir())
    assert not bench.put(NOW).done()
    bench.packing.close(NOW)
    assert len(all_records(tmp_path)) == 1


@pytest.mark.parametrize("form", FORMATS)
def test_a_disk_that_is_full_when_a_pack_is_closed(form: str, tmp_path: Path) -> None:
    """It is tried again; until then the next pages are in the next pack."""
    bench = Bench(tmp_path, form, wait=1.0, max_age=10.0)
    bench.put(NOW, 3000)
    bench.packing.tick(NOW + 1)
    [path] = tmp_path.glob("*.warc.*[oz4t].open")
    with room(path.stat().st_size):
        bench.packing.tick(NOW + 20)
    assert len(bench.closed) == (0 if form == "lzo" else 1)
    assert bench.packing.seconds_to_tick(NOW + 20) in (1.0, None)
    bench.put(NOW + 21)
    bench.packing.tick(NOW + 22)
    bench.packing.close(NOW + 23)
    assert len(bench.closed) == 2
    assert len(all_records(tmp_path)) == 2


def test_a_pack_that_somebody_deletes_is_not_written_on(tmp_path: Path) -> None:
    """What would go nowhere is no page; the next group begins another pack, in a folder anew."""
    folder = tmp_path / "packs"
    writer = PackWriter(plan(folder, "lzo", wait=60))
    hand_in(writer, fetch(0, b"gone"))
    writer.flush().result(10)
    shutil.rmtree(folder)
    refused = hand_in(writer, fetch(1, b"nowhere"))
    writer.flush().result(10)
    with pytest.raises(PackWriteError, match="was deleted while it was written"):
        refused.result(0)
    hand_in(writer, fetch(2, b"kept"))
    writer.flush().result(10)
    writer.close()
    assert all_records(folder) == ["http://www.example.com/2"]


def test_a_full_pack_that_is_gone_is_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With one line in the log: it was tried again, every few seconds, for ever."""
    bench = Bench(tmp_path, wait=1.0, max_age=10.0)
    bench.put(NOW)
    bench.packing.tick(NOW + 1)
    [path] = tmp_path.glob("*.warc.lzo.open")
    path.unlink()
    bench.packing.tick(NOW + 20)
    assert bench.packing.seconds_to_tick(NOW + 20) is None
    bench.packing.close(NOW + 30)
    assert not bench.closed
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert f"{path} is left as it is, if it is there" in caplog.text


def test_a_full_pack_that_cannot_be_put_right_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that fails to write, and to cut off: the next run recovers that pack."""
    bench = Bench(tmp_path, wait=1.0, max_age=10.0)
    bench.put(NOW)
    bench.packing.tick(NOW + 1)

    def stale(*arguments: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    def cut(file: BinaryIO, size: int) -> None:
        file.close()

    with monkeypatch.context() as patch:
        patch.setattr(pack_file, "write_all", stale)
        patch.setattr(pack_file, "cut", cut)
        bench.packing.tick(NOW + 20)
    bench.packing.tick(NOW + 30)
    later = bench.put(NOW + 31)
    bench.packing.close(NOW + 40)
    assert later.done()
    assert len(bench.closed) == 1
    assert "Stale file handle" in caplog.text
    [recovery] = recover_folder(tmp_path)
    assert recovery.path is not None
    assert len(all_records(tmp_path)) == 2


def test_an_index_that_cannot_be_written_costs_no_page(tmp_path: Path) -> None:
    """The pack is closed without one; `build_index` makes it."""
    bench = Bench(tmp_path, "lzo", wait=0)
    bench.put(NOW)
    bench.packing.tick(NOW)
    [notes] = tmp_path.glob("*.cdxj.open")
    bench.packing._pack._index.close()  # type: ignore[union-attr]
    bench.packing._pack._index = notes.open("rb")  # type: ignore[union-attr,assignment]
    future = bench.put(NOW)
    bench.packing.tick(NOW)
    assert future.result(0)
    bench.packing.close(NOW)
    assert len(all_records(tmp_path)) == 2
    assert not list(tmp_path.glob("*.cdxj*"))


def test_many_threads(tmp_path: Path) -> None:
    """Each page once, each future set, whatever the order."""
    writer = PackWriter(plan(tmp_path, wait=0.01, max_bytes=30_000))
    with ThreadPoolExecutor(6) as pool:
        futures = list(pool.map(lambda n: hand_in(writer, fetch(n)), range(300)))
    writer.close()
    wanted = sorted(f"http://www.example.com/{number}" for number in range(300))
    assert sorted(all_records(tmp_path)) == wanted
    for number, future in enumerate(futures):
        place = future.result(0)
        assert read_records(tmp_path / place.filename, place.place)[0].url.endswith(f"/{number}")


def test_a_writer_that_is_closed_takes_nothing(tmp_path: Path) -> None:
    """Closing twice is fine, and so is closing one that wrote nothing."""
    writer = PackWriter(plan(tmp_path / "new"))
    writer.close()
    writer.close()
    with pytest.raises(PackWriteError, match="closed"):
        hand_in(writer, fetch(1))
    assert not list((tmp_path / "new").iterdir())
    with pytest.raises(PackError, match="no format"):
        PackWriter(plan(tmp_path, "zip"))


@pytest.mark.parametrize("fault", ["callback", "thread"])
def test_faults_of_others_stop_nothing(
    fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback that fails, an error that nobody thought of."""

    def fail(*arguments: object) -> None:
        raise RuntimeError("not thought of")

    closed: Callable[[Path], None] = fail if fault == "callback" else print
    writer = PackWriter(plan(tmp_path, wait=60), closed=closed)
    future = hand_in(writer, fetch(1))
    if fault == "thread":
        writer.flush().result(10)
        monkeypatch.setattr(writer._groups, "add_job", fail)
        other = hand_in(writer, fetch(1))
        writer.flush()
        with pytest.raises(RuntimeError):
            other.result(10)
        with pytest.raises(RuntimeError):
            writer.close()
        with pytest.raises(PackWriteError):
            hand_in(writer, fetch(1))
    else:
        writer.close()
        assert future.result(0)
        assert ("not thought of" in caplog.text) is (fault == "callback")


def test_what_a_crash_left_is_recovered_first(tmp_path: Path) -> None:
    """Its own packs, not those of another agent."""
    bench = Bench(tmp_path, wait=0)
    bench.put(NOW)
    bench.packing.tick(NOW)
    bench.packing.give_up(RuntimeError())
    writer = PackWriter(plan(tmp_path))
    assert [found.cut for found in writer.recovery.result()] == [0]
    writer.close()
    assert len(all_records(tmp_path)) == 1


def test_recovery_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not who starts the writer: what is handed in waits, and nothing is written before its end."""
    began, go_on = threading.Event(), threading.Event()

    def slow(folder: Path, agent: str) -> list[PackRecovery]:
        began.set()
        assert go_on.wait(20)
        return []

    monkeypatch.setattr("scrapy_spider_suite.packs.writer.recover_folder", slow)
    writer = PackWriter(plan(tmp_path))
    assert began.wait(20)
    future = hand_in(writer, fetch(1))
    assert not writer.recovery.done()
    assert list(tmp_path.iterdir()) == []
    assert writer.backlog > 0
    go_on.set()
    writer.flush().result(20)
    assert writer.recovery.result() == []
    assert future.done()
    writer.close()


def test_recovery_that_fails_costs_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was left stays as it is, and others are written."""

    def fail(folder: Path, agent: str) -> list[PackRecovery]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("scrapy_spider_suite.packs.writer.recover_folder", fail)
    writer = PackWriter(plan(tmp_path))
    hand_in(writer, fetch(1))
    writer.close()
    with pytest.raises(OSError, match="No space"):
        writer.recovery.result()
    assert len(all_records(tmp_path)) == 1
