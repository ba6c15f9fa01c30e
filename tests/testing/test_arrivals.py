"""The arrival log: what is written is read back, also while it is written; gaps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.testing import Arrival, gaps, read_arrivals
from scrapy_spider_suite.testing.arrivals import FLUSH_BYTES, ArrivalLog, LineLog, QueryLog


def arrival(start: float, end: float, host: str = "a.test", address: str = "127.8.0.1") -> Arrival:
    """An arrival of which only the times, the host and the address matter."""
    return Arrival(start, end, host, address, "/", 200, 1)


def test_a_line_is_read_back(tmp_path: Path) -> None:
    """Every field survives, times to the microsecond."""
    log = ArrivalLog(tmp_path / "log", in_memory=True)
    written = Arrival(1.5, 2.25, "a.test", "127.8.0.1", "/x?y=1", 404, 7)
    log.add(written)
    log.close()
    assert list(read_arrivals(tmp_path / "log")) == [written] == log.records


@given(st.text(max_size=50), st.text(max_size=10))
def test_no_request_breaks_the_log(path: str, host: str) -> None:
    """Tabs, newlines and other bytes in a path or Host header stay inside of their field."""
    line = Arrival(1.0, 2.0, host, "127.8.0.1", path, 200, 1).line()
    assert line.count("\n") == 1
    assert Arrival.parse(line).status == 200


def test_long_paths_are_cut() -> None:
    """A URL of 100 KB does not make a line of 100 KB."""
    assert len(Arrival(1.0, 2.0, "a", "b", "/" * 100_000, 200, 1).line()) < 2100


def test_a_line_that_is_not_complete_is_left_out(tmp_path: Path) -> None:
    """A reader beside the writer, or after a kill, sees whole lines only."""
    path = tmp_path / "log"
    path.write_text("#head\n" + arrival(1, 2).line() + "3.0\t4.0\ta.te")
    assert list(read_arrivals(path)) == [arrival(1, 2)]


def test_a_log_of_something_else_is_refused(tmp_path: Path) -> None:
    """A complete line must have seven fields."""
    (tmp_path / "log").write_text("hello\n")
    with pytest.raises(ValueError, match="unpack"):
        list(read_arrivals(tmp_path / "log"))


def test_logs_are_appended_to(tmp_path: Path) -> None:
    """A second run adds to the file of the first."""
    for start in (1.0, 5.0):
        log = ArrivalLog(tmp_path / "log")
        log.add(arrival(start, start + 1))
        log.close()
    assert [each.start for each in read_arrivals(tmp_path / "log")] == [1.0, 5.0]


def test_full_buffers_are_written_at_once(tmp_path: Path) -> None:
    """Memory is bounded even if nobody calls flush."""
    log = LineLog(tmp_path / "log")
    log.write("x" * FLUSH_BYTES + "\n")
    assert os.path.getsize(tmp_path / "log") == FLUSH_BYTES + 1
    log.close()
    log.close()


def test_without_a_file_there_is_only_memory() -> None:
    """In-process users need no file, and others no memory."""
    kept, dropped = ArrivalLog(in_memory=True), ArrivalLog()
    for log in (kept, dropped):
        log.add(arrival(1, 2))
        log.flush()
    assert (kept.records, kept.count) == ([arrival(1, 2)], 1)
    assert (dropped.records, dropped.count) == ([], 1)


def test_queries_are_counted_by_name(tmp_path: Path) -> None:
    """Tests of a resolver's cache ask how often a name was asked for."""
    log = QueryLog(tmp_path / "dns")
    for name in ("a.test", "b.test", "a.test"):
        log.add(name, "A", "NOERROR")
    log.close()
    assert log.names == {"a.test": 2, "b.test": 1}
    assert (tmp_path / "dns").read_text().count("\tA\tNOERROR\n") == 3


def test_gaps_are_from_end_to_start() -> None:
    """The smallest is found, with the arrivals on both sides of it, in whatever order they come."""
    first, second, third = arrival(0, 1), arrival(5, 6), arrival(8, 9)
    found = gaps([third, first, second])["a.test"]
    assert found.values == [4, 2]
    assert found.smallest == 2
    assert found.pair == (second, third)


def test_gaps_count_from_the_latest_end() -> None:
    """A long request that is still being answered counts, even if a short one came in between."""
    found = gaps([arrival(0, 10), arrival(1, 2), arrival(4, 5)])["a.test"]
    assert found.values == [-9, -6]


def test_gaps_by_address_and_by_own_key() -> None:
    """Two hosts that share an address are close by address only."""
    records = [arrival(0, 1), arrival(1.5, 2, "b.test"), arrival(9, 10)]
    assert gaps(records, "address")["127.8.0.1"].smallest == 0.5
    assert gaps(records, "host")["a.test"].smallest == 8
    assert gaps(records, lambda each: each.host[2:])["test"].smallest == 0.5


def test_one_request_has_no_gap() -> None:
    """Nothing to be impolite about."""
    found = gaps([arrival(0, 1)])["a.test"]
    assert (found.values, found.smallest, found.pair) == ([], float("inf"), None)
    assert gaps([]) == {}
