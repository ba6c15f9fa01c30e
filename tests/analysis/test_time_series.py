"""Series of counters and gauges: exact sums in every tier, across kills, new columns and clocks."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_spider_suite.analysis import time_series
from scrapy_spider_suite.analysis.time_series import (
    TIERS,
    Columns,
    RollUp,
    SeriesReader,
    SeriesWriter,
)

COLUMNS = Columns(("pages", "bytes"), ("pending",))
BEGIN = 1_750_000_000.0 // 86_400 * 86_400


def write(folder: Path, *pulses: tuple[float, float, float], columns: Columns = COLUMNS) -> None:
    """Write *pulses*: time, pages (and ten times as many bytes), pending."""
    writer = SeriesWriter(folder, columns)
    for when, pages, pending in pulses:
        writer.add(when, 1.0, np.array([pages, 10 * pages]), np.array([pending]))
    writer.close()


def test_rows_of_a_minute_are_the_sums_of_its_seconds(tmp_path: Path) -> None:
    """Counters add up, gauges have mean and maximum, and missing rows are NaN."""
    write(tmp_path, *((BEGIN + second, 2.0, float(second)) for second in range(90)))
    reader = SeriesReader(tmp_path)
    seconds = reader.read(BEGIN, BEGIN + 120, 120)
    assert seconds.width == 1
    assert seconds.rate("pages")[:90].tolist() == [2.0] * 90
    assert np.isnan(seconds.rate("pages")[90:]).all()
    minutes = reader.read(BEGIN, BEGIN + 180, 3)
    assert (minutes.width, minutes.times.tolist()) == (60, [BEGIN, BEGIN + 60, BEGIN + 120])
    assert minutes.total("bytes").tolist()[:2] == [1_200.0, 600.0]
    assert minutes.rate("pages").tolist()[:2] == [2.0, 2.0]  # the second one is not over yet
    assert minutes.mean("pending").tolist()[:2] == [29.5, 74.5]
    assert minutes.maximum("pending").tolist()[:2] == [59.0, 89.0]
    for values in (minutes.total("pages"), minutes.mean("pending"), minutes.maximum("pending")):
        assert np.isnan(values[2])


def test_old_ranges_come_from_coarser_tiers(tmp_path: Path) -> None:
    """The finest tier that still has the beginning answers, in no more rows than wanted."""
    write(tmp_path, (BEGIN, 1.0, 0.0), (BEGIN + 86_400, 2.0, 0.0))
    reader = SeriesReader(tmp_path)
    end = BEGIN + 86_401
    assert reader.read(end - 600, end, 1_000).width == 1
    assert reader.read(end - 86_400, end, 2_000).width == 60
    assert reader.read(end - 8 * 86_400, end, 1_000).width == 3_600
    assert reader.read(end - 500 * 86_400, end, 1_000).width == 86_400
    few = reader.read(0, end, 7)
    assert len(few.times) <= 8  # with that around the beginning
    assert np.nansum(few.total("pages")) == 3.0


@pytest.mark.parametrize("hour", range(0, 24, 5))
def test_rows_of_one_width(tmp_path: Path, hour: int) -> None:
    """Rows of a day, or of an hour, at any time of the day; none shorter than those kept."""
    write(tmp_path, (BEGIN, 1.0, 0.0), (BEGIN + 86_400 + 3_600 * hour, 2.0, 0.0))
    reader, end = SeriesReader(tmp_path), BEGIN + 86_401 + 3_600 * hour
    for width, span in ((1, 3_600), (60, 1_200), (3_600, 1_500), (86_400, 3_600), (86_400, 86_400)):
        start = (end - span) // width * width
        rows = reader.read(start, end, 0, width)
        assert (rows.width, rows.times[0]) == (width, start)
        assert np.nansum(rows.total("pages")) == (3.0 if start <= BEGIN else 2.0)
    assert reader.read(BEGIN, end, 0, 1).width > 1


def test_nothing_is_known_without_a_folder(tmp_path: Path) -> None:
    """A missing or foreign folder, and a column that is not there, read as unknown."""
    (tmp_path / "minute").write_bytes(b"something else")
    now = time.time() // 60 * 60
    rows = SeriesReader(tmp_path).read(now - 600, now, 10)
    assert (len(rows.times), rows.width) == (10, 60)
    assert np.isnan(rows.total("pages")).all()
    assert not len(SeriesReader(tmp_path / "no").read(BEGIN + 60, BEGIN, 60).times)


def test_a_torn_row_is_ignored_and_made_again(tmp_path: Path) -> None:
    """A torn row counts as missing; the next pulse of its span brings all of it back."""
    write(tmp_path, *((BEGIN + second, 1.0, 5.0) for second in range(30)))
    for name in ("minute", "hour", "day"):
        data = bytearray((tmp_path / name).read_bytes())  # of a row, after its time
        at = data.index(np.float64(BEGIN).tobytes()) + 17
        data[at : at + 16] = b"torn torn torn!!"
        (tmp_path / name).write_bytes(data)
    hour = SeriesReader(tmp_path)
    assert np.isnan(total(tmp_path, "hour")).all()
    write(tmp_path, (BEGIN + 30, 1.0, 7.0))
    for name in ("second", "minute", "hour", "day"):
        assert np.nansum(total(tmp_path, name)) == 31.0
    assert hour.read(BEGIN, BEGIN + 60, 1).maximum("pending").tolist() == [7.0]


def test_columns_are_matched_by_name(tmp_path: Path) -> None:
    """A run with other columns keeps the series of those before, and of columns that come back."""
    write(tmp_path, (BEGIN, 1.0, 4.0))
    other = Columns(("errors", "pages"), ("phase", "pending"))
    writer = SeriesWriter(tmp_path, other)
    writer.add(BEGIN + 1, 1.0, np.array([7.0, 2.0]), np.array([np.nan, 6.0]))
    writer.close()
    write(tmp_path, (BEGIN + 2, 3.0, 8.0))
    rows = SeriesReader(tmp_path).read(BEGIN, BEGIN + 3, 3)
    assert rows.total("pages").tolist() == [1.0, 2.0, 3.0]
    assert rows.total("bytes").tolist() == [10.0, 0.0, 30.0]
    assert rows.total("errors").tolist() == [0.0, 7.0, 0.0]
    assert rows.mean("pending").tolist() == [4.0, 6.0, 8.0]
    assert np.isnan(rows.mean("phase")).all()


def total(folder: Path, tier: str, name: str = "pages") -> np.ndarray:
    """Every row of *tier* that is on disk."""
    rows, columns = time_series._read_rows(folder / tier, 0.0, BEGIN + 1e9)
    return rows[:, columns.places(name)[0]] if len(rows) else np.array([np.nan])


_steps = st.lists(
    st.tuples(
        # The clock goes on, stands, is set back or ahead; or the process is killed and starts.
        st.sampled_from([0.0, 0.5, 1.0, 1.0, 1.0, 59.0, 61.0, -30.0, -3_700.0, 3_700.0]),
        st.integers(0, 1 << 40), st.booleans(),
    ), max_size=40,
)  # fmt: skip


@given(_steps)
@settings(max_examples=60, deadline=None)
def test_no_tier_loses_a_count(steps: list[tuple[float, int, bool]]) -> None:
    """Whatever the clock does, and however often it is killed, all tiers have the same sums."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder, now, expected = Path(name), BEGIN + 7_000, 0
        writer = SeriesWriter(folder, COLUMNS)
        for step, pages, killed in steps:
            now += step
            if killed:
                writer.close()
                columns = Columns(("pages", "bytes", f"new {pages % 3}"), ("pending",))
                writer = SeriesWriter(folder, columns)
            writer.add(now, 1.0, np.array([float(pages), 0.0]), np.array([1.0]))
            expected += pages
        writer.close()
        span = max((step for step, _, _ in steps), default=0) * len(steps)
        if steps:
            for tier in TIERS[0 if span < 7_200 else 1 :]:
                assert int(total(folder, tier.name).sum()) == expected


def test_a_year_is_read_in_a_tenth_of_a_second(tmp_path: Path) -> None:
    """A year of full tiers, with as many columns as a crawl has; a busy machine may take longer."""
    columns = Columns(tuple(f"c{i}" for i in range(60)), tuple(f"g{i}" for i in range(25)))
    SeriesWriter(tmp_path, columns).close()
    now = time.time() // 3_600 * 3_600
    for tier in TIERS:
        ring = time_series._Ring(tier.width, tier.kept, columns)
        with (tmp_path / tier.name).open("r+b") as file:
            for number in range(min(tier.kept, int(365 * 86_400 / tier.width))):
                row = columns.blank_row((now // tier.width - number) * tier.width)
                row[1], row[2] = tier.width, 1.0
                file.seek(ring.offset(row[0]))
                file.write(ring.pack(row))
    spent = []
    for _ in range(3):
        began = time.thread_time()
        rows = SeriesReader(tmp_path).read(now - 365 * 86_400 + 3_600, now + 3_600, 500)
        spent.append(time.thread_time() - began)
    assert np.nansum(rows.total("c0")) == 365 * 24
    assert min(spent) < 0.3


def test_a_roll_up_is_the_sum_of_its_sources() -> None:
    """1,000 sources of 200 counters and some gauges add up to 100 aggregates.

    10 ms on a machine at rest; five times that are allowed to a busy one.
    """
    random = np.random.default_rng(1)
    members = [np.flatnonzero(random.random(1_000) < 0.3) for _ in range(99)] + [np.array([], int)]
    counters = random.integers(0, 1 << 40, (1_000, 200)).astype(np.float64)
    gauges = random.random((1_000, 20))
    gauges[random.random(gauges.shape) < 0.2] = np.nan
    roll_up = RollUp(members, 1_000)
    found = roll_up.add_counters(counters)
    sums, counts, maxima = roll_up.add_gauges(gauges)
    for number, each in enumerate(members):
        exact = [sum(int(value) for value in column) for column in counters[each].T]
        assert found[number].tolist() == exact
        assert np.allclose(sums[number], np.nansum(gauges[each], axis=0))
        assert counts[number].tolist() == (~np.isnan(gauges[each])).sum(axis=0).tolist()
        if len(each):
            assert maxima[number].tolist() == np.nanmax(gauges[each], axis=0).tolist()
    assert np.isnan(maxima[-1]).all()
    spent = []
    for _ in range(20):
        began = time.thread_time()
        roll_up = RollUp(members, 1_000)
        roll_up.add_counters(counters)
        roll_up.add_gauges(gauges)
        spent.append(time.thread_time() - began)
    assert min(spent) < 0.05


def test_a_pulse_costs_little(tmp_path: Path) -> None:
    """A pulse of as many columns as a crawl has is in all tiers within half a millisecond."""
    columns = Columns(tuple(f"c{i}" for i in range(60)), tuple(f"g{i}" for i in range(25)))
    writer = SeriesWriter(tmp_path, columns)
    increase, gauges = np.ones(60), np.ones(25)
    spent = []
    for second in range(100):
        began = time.thread_time()
        writer.add(BEGIN + second, 1.0, increase, gauges)
        spent.append(time.thread_time() - began)
    writer.close()
    assert sorted(spent)[50] < 0.002


