"""Writing the fetch log and reading it back: rotation, sudden ends, full disks, other writers."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.running_crawl import until
from support.small_disks import tmpfs

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.fetch import fetch_log
from scrapy_spider_suite.fetch import fetch_log as fetchlog
from scrapy_spider_suite.fetch.fetch_log import (
    ACTIVE,
    HEAD,
    FetchFilter,
    FetchLine,
    FetchLog,
    FetchLogReader,
    closed_files,
    compress_file,
    format_line,
    host_in_field,
    parse_line,
    parsed_lines,
    times_in_name,
)

START = 1_795_287_839.0


def fetch_of(number: int, url: str = "") -> FetchLine:
    """The fetch that ended *number* seconds after the start."""
    url = url or f"http://h{number % 7}.test/{number}"
    return FetchLine(
        START + number, 200, 1_000, 5, url, "http://h0.test/", 1, "text/html",
        "3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ", f"192.0.2.{number % 7}", "success",
    )  # fmt: skip


def add(log: FetchLog, *numbers: int) -> None:
    """Log these fetches."""
    for number in numbers:
        fetch = fetch_of(number)
        log.add(format_line(*fetch), fetch.time)


def numbers_in(folder: Path, target: str | None = None, since: float = 0.0) -> list[int]:
    """Which fetches a reader finds."""
    wanted = None if target is None else FetchFilter.parse(target)
    lines = FetchLogReader(folder).lines(wanted, since)
    return [round(parse_line(line).time - START) for line in lines]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[FetchLog]:
    """A log that begins a new file after a kilobyte."""
    log = FetchLog(tmp_path / "log", size=1_000)
    yield log
    if log._file is not None:
        log.close()


def compress_all(folder: Path) -> None:
    """Open the log again, which compresses what is left, and wait for that."""
    log = FetchLog(folder)
    if log._busy is not None:
        log._busy.result(30)
    log.close()


class FullDisk:
    """Takes *room* bytes more in place of `os.pwrite`; any number if None."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self._write: Callable[[int, bytes, int], int] = os.pwrite
        monkeypatch.setattr(fetchlog.os, "pwrite", self._pwrite)

    def _pwrite(self, file: int, data: bytes, at: int) -> int:
        if self.room is None:
            return self._write(file, data, at)
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = self._write(file, data[: self.room], at)
        self.room -= count
        return count


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    """A disk whose room can be chosen."""
    return FullDisk(monkeypatch)


def test_what_is_flushed_can_be_read(log: FetchLog) -> None:
    """By another, while it is being written; what is not flushed cannot."""
    add(log, 1, 2)
    assert numbers_in(log.folder) == []
    log.flush()
    add(log, 3)
    assert numbers_in(log.folder) == [1, 2]
    assert (log.folder / ACTIVE).read_bytes().startswith(HEAD)
    log.close()
    assert numbers_in(log.folder) == [1, 2, 3]
    assert log.lines == 3
    assert log.written == (log.folder / ACTIVE).stat().st_size


def test_files_are_rotated_and_compressed(log: FetchLog) -> None:
    """Each holds whole lines and is named by their times; nothing is read twice or left out."""
    for number in range(60):
        add(log, number)
        log.flush()
    log.close()
    files = closed_files(log.folder)
    assert len(files) > 5
    for path in files:
        with fetch_log.open_log_file(path) as file:
            head, *lines = file.read().splitlines(keepends=True)
        assert head == HEAD
        assert times_in_name(path) == (parse_line(lines[0]).time, parse_line(lines[-1]).time)
    assert numbers_in(log.folder) == list(range(60))
    compress_all(log.folder)
    assert not [p for p in closed_files(log.folder) if p.suffix != ".zst"]


def test_closing_waits_for_no_compression(
    log: FetchLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is broken off after the block it is at; the next writer does it."""
    began, ended = threading.Event(), threading.Event()

    def slowly(path: Path, stop: Callable[[], bool]) -> None:
        began.set()
        while not stop():
            pass
        with pytest.raises(InterruptedError):
            compress_file(path, stop)
        ended.set()
        raise InterruptedError

    monkeypatch.setattr(fetchlog, "compress_file", slowly)
    add(log, *range(30))
    log.flush()

    def has_begun() -> bool:
        log.tidy()  # the look that the open log began with may not have been over at the flush
        return began.is_set()

    until(has_begun)
    log.close()
    assert ended.is_set()
    [closed] = closed_files(log.folder)
    assert closed.suffix == ".log"
    assert not list(log.folder.glob("*.new"))
    monkeypatch.undo()
    compress_all(log.folder)
    assert [path.suffix for path in closed_files(log.folder)] == [".zst"]
    assert numbers_in(log.folder) == list(range(30))


def test_the_oldest_files_go(log: FetchLog) -> None:
    """So that all of them, with that which is written, take no more than they may."""
    for number in range(60):
        add(log, number)
        log.flush()
    before = closed_files(log.folder)
    log.most = 3_000
    while log._busy is None or not log._busy.done():
        time.sleep(0.001)
    log.tidy()
    assert log._busy is not None
    log._busy.result(30)
    left = closed_files(log.folder)
    assert 0 < len(left) < len(before)
    assert [path.stem for path in left] == [path.stem for path in closed_files(log.folder)]
    assert sum(path.stat().st_size for path in left) <= 2_000
    assert numbers_in(log.folder)[-1] == 59
    kept = numbers_in(log.folder)
    assert kept == list(range(kept[0], 60))


def test_a_day_that_is_over_is_not_opened(
    log: FetchLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only files that reach into the time asked for."""
    for number in range(60):
        add(log, number)
        log.flush()
    log.close()
    opened: list[Path] = []
    real = fetch_log.open_log_file
    monkeypatch.setattr(
        fetch_log, "open_log_file", lambda path: (opened.append(path), real(path))[1]
    )
    assert numbers_in(log.folder, since=START + 50) == list(range(50, 60))
    assert 0 < len(opened) <= 3
    assert numbers_in(log.folder, "h3.test", since=START + 50) == [52, 59]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("a.test", ["http://a.test/1", "https://A.TEST:8080/?q=1", "http://u:p@a.test?b.test"]),
        (".a.test", [
            "http://a.test/1", "https://A.TEST:8080/?q=1", "http://u:p@a.test?b.test",
            "http://b.a.test/",
        ]),
        ("A.Test.", ["http://a.test/1", "https://A.TEST:8080/?q=1", "http://u:p@a.test?b.test"]),
        ("http://a.test/1", ["http://a.test/1"]),
        ("http://a.test/x y", ["http://a.test/x y"]),
        ("http://a.test/", []),
        ("test", []),
        ("2001:db8::1", ["http://[2001:db8::1]:80/"]),
        ("192.0.2.9", ["http://192.0.2.9/"]),
    ],
)  # fmt: skip
def test_targets(log: FetchLog, target: str, expected: list[str]) -> None:
    """A host whatever its port, case and userinfo; a domain; a URL; an address. Nothing else."""
    urls = [
        "http://a.test/1", "http://a.test/12", "https://A.TEST:8080/?q=1", "http://xa.test/",
        "http://b.a.test/", "http://b.test/?u=http://a.test/1", "http://b.test/a.test",
        "http://a.test.b.test/", "http://u:p@a.test?b.test", "http://a.test@b.test/",
        "http://[2001:db8::1]:80/", "http://192.0.2.9/", "http://a.test/x y",
    ]  # fmt: skip
    if target == "a.test" or target.lower().rstrip(".") in ("a.test", ".a.test"):
        extra = ["http://a.test/12", "http://a.test/x y"]
        expected = [url for url in urls if url in expected or url in extra]
    for number, url in enumerate(urls):
        fetch = fetch_of(number, url)
        log.add(format_line(*fetch._replace(via="http://a.test/1")), fetch.time)
    log.flush()
    found = list(FetchLogReader(log.folder).lines(FetchFilter.parse(target)))
    assert [line.split(b" ")[4] for line in found] == [
        url.replace(" ", "%20").encode() for url in expected
    ]


@pytest.mark.parametrize("target", ["", ".", "..", " ", "http://", "https:///page", "http://."])
def test_what_names_no_host_is_refused(target: str) -> None:
    """It would be in every line, again and again."""
    with pytest.raises(ValueError, match="names no host"):
        FetchFilter.parse(target)


def test_a_long_word_is_cut() -> None:
    """Of a server's header of 64 KiB, a line has the beginning only."""
    fetch = fetch_of(1)
    lines = {format_line(*fetch._replace(type="x" * 100 + str(tail) * 65_000)) for tail in range(3)}
    assert len(lines) == 1


def test_an_address_is_found_by_what_was_connected_to(log: FetchLog) -> None:
    """Whatever host was asked for."""
    add(log, *range(14))
    log.flush()
    assert numbers_in(log.folder, "192.0.2.3") == [3, 10]


@pytest.mark.parametrize("cut", [1, 30, 199])
def test_a_torn_last_line_is_cut_off(tmp_path: Path, cut: int) -> None:
    """By the next writer; a reader leaves it out until then."""
    log = FetchLog(tmp_path)
    add(log, 1, 2)
    log.close()
    active = tmp_path / ACTIVE
    size = active.stat().st_size
    os.truncate(active, size - min(cut, len(format_line(*fetch_of(2)))))
    assert numbers_in(tmp_path) == [1]
    log = FetchLog(tmp_path)
    add(log, 3)
    log.close()
    assert numbers_in(tmp_path) == [1, 3]
    assert active.read_bytes().count(HEAD) == 1


def test_a_file_that_is_no_log_is_not_cut(tmp_path: Path) -> None:
    """Lines are added to it; what was there stays."""
    (tmp_path / ACTIVE).write_bytes(b"x" * 20_000)
    log = FetchLog(tmp_path)
    add(log, 1)
    log.close()
    assert (tmp_path / ACTIVE).read_bytes().startswith(b"x" * 20_000 + b"\n")
    assert numbers_in(tmp_path) == [1]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 900)), max_size=8))
def test_a_full_disk_tears_nothing(
    tmp_path_factory: pytest.TempPathFactory, rooms: list[int | None]
) -> None:
    """Room that comes and goes at any byte: every line is there once, whole, in order."""
    with pytest.MonkeyPatch.context() as patch:
        disk = FullDisk(patch)
        log = FetchLog(tmp_path_factory.mktemp("full"), size=700)
        count = 0
        for room in rooms:
            disk.room = room
            for _ in range(3):
                add(log, count)
                count += 1
            log.flush()
        disk.room = None
        log.close()
    assert numbers_in(log.folder) == list(range(count))
    assert log.lost == 0


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """A real one: nothing is torn, and all is there once there is room."""
    with tmpfs(tmp_path / "disk", "256k") as disk:
        log = FetchLog(disk / "log", size=40_000)
        filler = disk / "filler"
        for number in range(1_200):
            add(log, number)
            if number % 50 == 0:
                log.flush()
            if number == 300:
                with filler.open("wb", 0) as file, contextlib.suppress(OSError):
                    while True:
                        file.write(b"x" * 4_096)
            if number == 700:
                assert log.error is not None
                assert log.error.errno == errno.ENOSPC
                assert 200 < len(numbers_in(log.folder)) < 700
                filler.unlink()
                log.size = 20_000
        log.close()
        assert log.lost == 0
        assert numbers_in(log.folder) == list(range(1_200))


def test_what_does_not_fit_is_counted(tmp_path: Path, disk: FullDisk) -> None:
    """In the log itself, too."""
    line = format_line(*fetch_of(0))
    log = FetchLog(tmp_path, room=3 * len(line))
    disk.room = 0
    add(log, *range(10))
    log.flush()
    assert isinstance(log.error, OSError)
    add(log, *range(10, 20))
    log.flush()
    disk.room = None
    log.flush()
    assert log.error is None
    assert numbers_in(tmp_path) == list(range(log.lines))
    assert log.lost == 20 - log.lines > 15
    assert f"# {log.lost} lines lost".encode() in (tmp_path / ACTIVE).read_bytes()
    add(log, 20)
    log.close()
    assert numbers_in(tmp_path)[-1] == 20


def test_an_end_on_a_full_disk_counts_what_is_lost(tmp_path: Path, disk: FullDisk) -> None:
    """And raises nothing."""
    log = FetchLog(tmp_path)
    add(log, 1)
    log.flush()
    disk.room = 100
    add(log, 2, 3)
    log.close()
    assert log.lost == 2
    assert numbers_in(tmp_path) == [1]


def test_compressing_on_a_full_disk(log: FetchLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the file as it was."""

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch_log.os, "fsync", full)
    for number in range(30):
        add(log, number)
        log.flush()
    log.close()
    assert {path.suffix for path in closed_files(log.folder)} == {".log"}
    assert not list(log.folder.glob("*.new"))
    assert numbers_in(log.folder) == list(range(30))


@pytest.mark.parametrize("moment", ["half", "both"])
def test_an_end_while_compressing(log: FetchLog, moment: str) -> None:
    """Half a compressed file is done again; of two whole ones the second is kept."""
    for number in range(30):
        add(log, number)
        log.flush()
    log.close()
    compress_all(log.folder)
    path = closed_files(log.folder)[0]
    with fetch_log.open_log_file(path) as file:
        text = file.read()
    path.with_suffix("").write_bytes(text)
    if moment == "half":
        path.rename(path.with_name(path.name + ".new"))
    assert numbers_in(log.folder) == list(range(30))
    compress_all(log.folder)
    assert numbers_in(log.folder) == list(range(30))
    assert not list(log.folder.glob("*.new"))
    assert {path.suffix for path in closed_files(log.folder)} == {".zst"}


def test_a_file_compressed_between_listing_and_opening(log: FetchLog) -> None:
    """Is opened all the same."""
    for number in range(12):
        add(log, number)
        log.flush()
    log.close()
    compress_all(log.folder)
    path = closed_files(log.folder)[0]
    with fetch_log.open_log_file(path.with_suffix("")) as file:
        assert file.readline() == HEAD


def test_a_file_that_is_closed_while_being_read(log: FetchLog) -> None:
    """Is read once, under whatever name."""
    add(log, *range(3))
    log.flush()
    lines = FetchLogReader(log.folder).lines()
    first = parse_line(next(lines)).time
    add(log, *range(3, 30))
    log.flush()
    rest = [round(parse_line(line).time - START) for line in lines]
    assert first == START
    assert rest[:2] == [1, 2]
    assert len(rest) == len(set(rest))


def test_a_damaged_file_is_named(log: FetchLog) -> None:
    """And the others are read."""
    for number in range(30):
        add(log, number)
        log.flush()
    log.close()
    compress_all(log.folder)
    path = closed_files(log.folder)[1]
    os.truncate(path, path.stat().st_size // 2)
    reader = FetchLogReader(log.folder)
    found = [parse_line(line).time - START for line in reader.lines()]
    assert reader.damaged == [path]
    assert found[0] == 0
    assert found[-1] == 29


def test_one_writer(log: FetchLog) -> None:
    """A second one is refused in one line that says what to do."""
    with pytest.raises(SettingsError, match="written by another crawl: set SUITE_FETCH_LOG"):
        FetchLog(log.folder)
    log.close()
    FetchLog(log.folder).close()


def test_a_folder_that_cannot_be_one(tmp_path: Path) -> None:
    """Is refused in one line."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot be written"):
        FetchLog(tmp_path / "file")
    (tmp_path / "log" / ACTIVE).mkdir(parents=True)
    for _ in range(2):  # it is not in use after that
        with pytest.raises(SettingsError, match="cannot be written: Is a directory"):
            FetchLog(tmp_path / "log")


def test_other_files_in_the_folder(log: FetchLog) -> None:
    """Are neither read nor touched."""
    names = ("fetch-old.log", "fetch-99999999T000000.000Z-99999999T000000.000Z.log", "notes")
    for name in names:
        (log.folder / name).write_text("http://h0.test/")
    add(log, 7)
    log.close()
    assert numbers_in(log.folder) == [7]
    assert {name for name in names if (log.folder / name).exists()} == set(names)


def test_two_files_of_the_same_moment(tmp_path: Path) -> None:
    """Have two names."""
    log = FetchLog(tmp_path, size=1)
    for _ in range(3):
        add(log, 5)
        log.flush()
    log.close()
    assert len(closed_files(tmp_path)) == 3
    assert numbers_in(tmp_path) == [5, 5, 5]


def test_compressing_does_not_hold_up_the_writer(
    log: FetchLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It happens in a thread."""
    go = threading.Event()

    def slow(path: Path) -> None:
        assert go.wait(30)
        compress_file(path)

    monkeypatch.setattr(fetchlog, "compress_file", slow)
    for number in range(30):
        add(log, number)
        log.flush()
    assert numbers_in(log.folder) == list(range(30))
    go.set()
    log.close()


def test_as_json(log: FetchLog) -> None:
    """Every field by its name; what cannot be read is left out."""
    add(log, 3)
    log.flush()
    lines = iter([*FetchLogReader(log.folder).lines(), b"x y z\n"])
    expected: dict[str, Any] = fetch_of(3)._asdict() | {
        "time": "2026-11-21T19:04:02.000Z", "remarks": []
    }  # fmt: skip
    assert list(parsed_lines(lines)) == [expected]


@pytest.mark.parametrize(
    ("url", "host"),
    [
        (b"http://A.test./x", b"a.test"), (b"https://u@h.test:1?x", b"h.test"), (b"data:,x", b""),
        (b"http://[2001:DB8::1]:80#x", b"[2001:db8::1]"), (b"-", b""),
    ],
)  # fmt: skip
def test_host_of(url: bytes, host: bytes) -> None:
    """The name alone."""
    assert host_in_field(url) == host
