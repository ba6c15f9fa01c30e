"""``history``: counters and gauges of a crawl over time, as a table or a file."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from scrapy.exceptions import UsageError

from scrapy_spider_suite.analysis.time_series import TIERS, Columns, Rows, SeriesReader
from scrapy_spider_suite.crawl.pulse import SERIES_FOLDER
from scrapy_spider_suite.errors import JobError
from scrapy_spider_suite.operate import verb
from scrapy_spider_suite.operate.verbs.log import moment
from scrapy_spider_suite.runtime.files import replacing_file

_USUAL: Final = ("pages", "failed", "bytes", "new_urls", "pending", "under_way")
_TIERS: Final = {tier.name: tier for tier in TIERS}


def _plan(call: verb.Invocation) -> verb.Question:
    options = call.options
    if options.since >= options.until:
        raise UsageError("history: --since must be before --until", print_help=False)
    since, until = (
        datetime.fromtimestamp(when, UTC).isoformat() for when in (options.since, options.until)
    )
    words = (*options.series, "--since", since, "--until", until, "--points", str(options.points))
    return verb.Question(words=(*words, *(("--tier", options.tier) if options.tier else ())))


def _read(call: verb.Invocation, question: verb.Question) -> Iterator[verb.Row]:
    options = call.options
    start, points = options.since, options.points
    if options.tier:
        width = _TIERS[options.tier].width
        start = start // width * width
        points = math.ceil((options.until - start) / width)
    rows = SeriesReader(call.folder() / SERIES_FOLDER).read(start, options.until, points)
    return series_rows(rows, options.series)


def series_rows(rows: Rows, wanted: Sequence[str]) -> Iterator[verb.Row]:
    """The rows in which something is known: increase of counters, mean and maximum of gauges.

    Raises `JobError`: no series has one of the *wanted* names or patterns.
    """
    columns = rows.columns
    names = _chosen(columns, wanted)
    if not len(rows.times):
        return
    values: dict[str, list[float]] = {}
    for name in names:
        if name in columns.counters:
            values[name] = rows.total(name).tolist()
        else:
            values[name] = rows.mean(name).tolist()
            values[f"{name}.max"] = rows.maximum(name).tolist()
    covered = rows.values[:, 1].tolist()
    for number, when in enumerate(rows.times.tolist()):
        if covered[number] > 0:
            found = ((name, each[number]) for name, each in values.items())
            yield {"when": when, "seconds": rows.width} | {
                name: None if math.isnan(value) else _plain(value) for name, value in found
            }


def _chosen(columns: Columns, wanted: Sequence[str]) -> list[str]:
    known = columns.counters + columns.gauges
    chosen: dict[str, None] = {}
    for pattern in wanted or _USUAL:
        found = [name for name in known if fnmatchcase(name, pattern)]
        if wanted and known and not found:
            raise JobError(f"no series {pattern!r}; there are: {', '.join(known)}")
        chosen |= dict.fromkeys(found)
    return list(chosen)


def _plain(value: float) -> float:
    return int(value) if value.is_integer() else round(value, 3)


def _show(call: verb.Invocation, found: verb.Found) -> int:
    options, rows = call.options, list(found.rows())
    names = tuple(dict.fromkeys(name for row in rows for name in row if name != "agent"))
    columns = found.columns(*(names or ("when",)))
    for path, write in ((options.csv, _write_csv), (options.parquet, _write_parquet)):
        if path is not None:
            try:
                with replacing_file(path.absolute()) as new:
                    write(new, rows, columns)
            except OSError as error:
                raise JobError(f"{path} cannot be written: {error.strerror}") from error
    if call.json or not (options.csv or options.parquet):
        call.table(rows, columns)
    return 0


def _write_csv(path: Path, rows: Iterable[verb.Row], columns: tuple[str, ...]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([row.get(column) for column in columns] for row in rows)


def _write_parquet(path: Path, rows: Iterable[verb.Row], columns: tuple[str, ...]) -> None:
    try:
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]
    except ImportError:
        raise JobError(
            "--parquet needs pyarrow: pip install 'scrapy-spider-suite[parquet]'"
        ) from None
    rows = list(rows)
    found: dict[str, Any] = {}
    for column in columns:
        values: list[Any] = [row.get(column) for row in rows]
        if column == "agent":
            found[column] = pa.array(values, pa.string())
        elif column == "when":
            found[column] = pa.array([round(1_000 * value) for value in values],
                                     pa.timestamp("ms", tz="UTC"))  # fmt: skip
        else:
            found[column] = pa.array(values, pa.float64(), from_pandas=True)
    pq.write_table(pa.table(found), path)


VERBS = (
    verb.JobVerb(
        "history", "counters and gauges over time, from seconds to years",
        options=(
            verb.option(
                "series", metavar="SERIES", nargs="*",
                help=f"names or patterns such as 'errors.*' ({' '.join(_USUAL)})",
            ),
            verb.option(
                "--since", type=moment, default="1h", metavar="TIME",
                help="2h, 7d (ago), or a date, UTC (1h)",
            ),
            verb.option(
                "--until", type=moment, default="0s", metavar="TIME",
                help="the end of the range (now)",
            ),
            verb.one_of(
                verb.option("--tier", choices=tuple(_TIERS), help="a row for each second, day, …"),
                verb.option(
                    "--points", type=verb.COUNT, default=60, metavar="N",
                    help="rows to print at most (60)",
                ),
            ),
            verb.option("--csv", type=Path, metavar="FILE", help="write a CSV file"),
            verb.option("--parquet", type=Path, metavar="FILE", help="write a Parquet file"),
        ),
        arguments="[SERIES]...", plan=_plan, look=_read, show=_show,
        about=(
            "A row tells by how much each counter rose in so many seconds, and the mean and the\n"
            "maximum of each gauge. Seconds are kept for 2 hours, minutes for 7 days, hours for\n"
            "400 days, days for 20 years. Times without a running crawl have no row.\n"
            "docs/watching.md explains the series."
        ),
        examples=(
            "history -j crawls/news --since 6h",
            "history pages 'errors.*' --tier day --since 2026-01-01 --csv days.csv -j crawls/news",
        ),
    ),
)  # fmt: skip
