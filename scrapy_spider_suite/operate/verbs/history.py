"""``history``: counters and gauges of a crawl over time, as a table or a file."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

from scrapy.exceptions import UsageError

from scrapy_spider_suite.analysis.time_series import TIERS, Columns, Rows, SeriesReader, Tier
from scrapy_spider_suite.cluster.local_redis import LocalRedis
from scrapy_spider_suite.cluster.pulses import AGENT, PART_TIERS, PHASE, QUEUE
from scrapy_spider_suite.cluster.redis_server import require_redis
from scrapy_spider_suite.crawl.pulse import SERIES_FOLDER
from scrapy_spider_suite.errors import JobError
from scrapy_spider_suite.operate import verb
from scrapy_spider_suite.operate.cluster_view import ClusterView
from scrapy_spider_suite.operate.fleet import agents_in
from scrapy_spider_suite.operate.judge import display_duration
from scrapy_spider_suite.operate.verbs.log import moment
from scrapy_spider_suite.runtime.files import replacing_file
from scrapy_spider_suite.store.job_directory import FOLDER

_USUAL: Final = ("pages", "failed", "bytes", "new_urls", "pending", "under_way")
_STDOUT: Final = Path("-")
_TIERS: Final = {tier.name: tier for tier in TIERS}


Read = Callable[[float, float, int, int], Rows]


def _run(call: verb.Invocation) -> int:
    options = call.options
    if options.since >= options.until:
        text = "--since (an hour ago unless given) must be before --until"
        raise UsageError(f"history: {text}", print_help=False)
    own = LocalRedis.find(call.jobdir)
    url = own.url if own is not None and own.answers else call.redis
    part = f"{AGENT}{options.agent}" if options.agent else ""
    part = part or (f"{PHASE}{options.phase}" if options.phase else "")
    part = part or (f"{QUEUE}{options.queue}" if options.queue else "")
    if url is not None:
        require_redis("-j redis://...")
        view = ClusterView(url, call.settings)

        rows = _read(options, partial(view.series, part=part), PART_TIERS if part else TIERS)
        if part and not rows.columns.counters:
            raise JobError(f"Redis has no rows of {part.replace(':', ' ')} in this time")
        return _show(call, verb.Found({"": series_rows(rows, options.series)}))
    folders = {"": call.folder()} if own is None else {
        name: Path(str(call.jobdir)) / name / FOLDER for name in agents_in(Path(str(call.jobdir)))
    }  # fmt: skip
    if options.agent in folders and options.agent:
        folders = {"": folders[options.agent]}
    elif part:
        raise JobError("--agent, --phase and --queue are of a crawl of several agents that runs")
    return _show(call, verb.Found({
        name: series_rows(
            _read(options, SeriesReader(folder / SERIES_FOLDER).read, TIERS), options.series
        )
        for name, folder in folders.items()
    }))  # fmt: skip


def _read(options: Any, read: Read, tiers: Sequence[Tier]) -> Rows:
    """The rows that *options* ask for. Raises `JobError`: those of their tier are gone."""
    if not options.tier:
        return read(options.since, options.until, options.points, 0)
    width = _TIERS[options.tier].width
    start = options.since // width * width
    for begin in (start, start + 2 * width):  # the oldest may have just gone
        rows = read(begin, options.until, 0, width)
        if rows.width == width:
            return rows
    kept = ", ".join(
        f"{each.name}s for {display_duration(each.width * each.kept)}" for each in tiers
    )
    raise JobError(f"no rows of a {options.tier} go back to --since: there are {kept}")


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
        if path == _STDOUT and write is _write_csv:
            _write_csv_rows(sys.stdout, rows, columns)
        elif path is not None:
            try:
                with replacing_file(path.absolute()) as new:
                    write(new, rows, columns)
            except OSError as error:
                raise JobError(f"{path} cannot be written: {error.strerror}") from error
    if call.json or (rows and not (options.csv or options.parquet)):
        call.table(rows, columns, spell=False)
    elif not rows:
        print("no rows: the crawl did not run in this time", file=sys.stderr)
    return 0


def _write_csv(path: Path, rows: Iterable[verb.Row], columns: tuple[str, ...]) -> None:
    with path.open("w", newline="") as file:
        _write_csv_rows(file, rows, columns)


def _write_csv_rows(
    file: TextIO, rows: Iterable[verb.Row], columns: tuple[str, ...]
) -> None:  # fmt: skip
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
            verb.one_of(
                verb.option("--agent", metavar="NAME", help="-j redis://...: of one agent"),
                verb.option(
                    "--phase", type=verb.NUMBER, metavar="N", help="-j redis://...: of one phase"
                ),
                verb.option(
                    "--queue", metavar="NAME", help="-j redis://...: of a queue of a shared-queue"
                ),
            ),
            verb.option("--csv", type=Path, metavar="FILE", help="write a CSV file; - prints it"),
            verb.option("--parquet", type=Path, metavar="FILE", help="write a Parquet file"),
        ),
        arguments="[SERIES]...", run=_run,
        about=(
            "A row tells by how much each counter rose in so many seconds, and the mean and the\n"
            "maximum of each gauge. Seconds are kept for 2 hours, minutes for 7 days, hours for\n"
            "400 days, days for 20 years. Times without a running crawl have no row.\n"
            "-j redis://... has the whole crawl. --agent, --phase and --queue have a part of it:\n"
            "minutes for a day, hours for 30 days, days for 400 days, also of agents that left.\n"
            "docs/watching.md explains the series."
        ),
        examples=(
            "history -j crawls/news --since 6h",
            "history -j redis://localhost/0 --crawl news --agent a1",
            "history pages 'errors.*' --tier day --since 2026-01-01 --csv days.csv -j crawls/news",
        ),
    ),
)  # fmt: skip
