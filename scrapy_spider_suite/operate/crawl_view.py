"""What page, terminal, metrics and report show of a crawl: read from its job, running or at rest.

`open_view` opens the job of one process; `cluster_view` has the same for the agents of a crawl.
Every value that is read may be foreign or torn: it is checked, or the last good one stays.
"""

from __future__ import annotations

import argparse
import heapq
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from scrapy_spider_suite.analysis.time_series import Rows, SeriesReader
from scrapy_spider_suite.crawl.pulse import PULSE, RATES, SERIES_FOLDER
from scrapy_spider_suite.errors import JobError, PackError, SearchError
from scrapy_spider_suite.fetch import fetch_log
from scrapy_spider_suite.fetch.resolver import server_names
from scrapy_spider_suite.operate import alerts, verb
from scrapy_spider_suite.operate.explanations import explain_host, explain_url, host_rows
from scrapy_spider_suite.operate.job_target import OPERATOR
from scrapy_spider_suite.operate.judge import display_duration, end_in_words
from scrapy_spider_suite.runtime.refusal import ExitCode
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.store.job_directory import FOLDER, JobFile
from scrapy_spider_suite.store.job_reader import CrawlState, StoreReader, read_status, state_of

if TYPE_CHECKING:
    from scrapy_spider_suite.operate.cluster_view import AskAgents
    from scrapy_spider_suite.packs.reader import Packs

Overview = dict[str, Any]
T = TypeVar("T")

_KEPT_FOR: Final = 10.0  # times as long as it took to find out, an answer stays
_TAIL: Final = 1 << 20  # bytes of the fetch log that are read for recent fetches
_FOUND: Final = 20  # pages that a search shows
_ALERT_ROWS: Final = 60
_HUGE: Final = 1e300
RATE_MIN: Final = 0.05  # a second: less is shown as 0.0
OTHERS: Final = "(others)"  # the sum of the agents without a row; no agent has this name


class View(Protocol):
    """Methods raise `JobError`; all but `overview` may take a while.

    *name*: the job, without a password. *crawl*: its name, if agents share it. *missing*: what the
    last answer lacks, and why; "": nothing.
    """

    name: str
    crawl: str | None
    missing: str

    def overview(self) -> Overview: ...
    def series(self, start: float, end: float, points: int, width: int = 0) -> Rows: ...
    def hosts(self, by: str, limit: int) -> list[dict[str, Any]]: ...
    def why(self, target: str) -> list[dict[str, Any]]: ...
    def pages(self, limit: int) -> list[dict[str, Any]]: ...
    def links(self) -> dict[str, Any]: ...
    def search(self, words: str) -> list[dict[str, Any]]: ...


def open_view(job: str, settings: Any, ask: AskAgents | None = None) -> View:
    """Open the job directory, or the crawl at a Redis URL. Raises `JobError`, `ClusterError`.

    *ask* asks agents for what Redis does not know: see `executors.agent_rows`.
    """
    from scrapy_spider_suite.cluster.local_redis import redis_of

    url = redis_of(job)
    if url is None:
        return CrawlView(Path(job), settings)
    from scrapy_spider_suite.cluster.redis_server import require_redis
    from scrapy_spider_suite.operate.cluster_view import ClusterView

    require_redis("-j redis://...")
    view = ClusterView(url, settings, ask, folder="" if url == job else job)
    view.require()
    return view


class CrawlView:
    """A view of the job directory *jobdir*. Raises `JobError`: there is no job."""

    def __init__(self, jobdir: Path, settings: Any) -> None:
        self._jobdir = jobdir
        self._folder = jobdir / FOLDER
        self._settings = settings
        self._id = JobFile.require(self._folder).id
        self._status: dict[str, Any] = {}  # the last good one
        self._series = SeriesReader(self._folder / SERIES_FOLDER)
        self._kept = KeptAnswers()
        self.name, self.missing = str(jobdir), ""
        self.crawl: str | None = None

    def overview(self) -> Overview:
        if not self._folder.is_dir():
            raise JobError(f"{self._jobdir} is gone")
        now, job = time.time(), JobFile.require(self._folder)
        if job.id != self._id:  # another one is in its place
            self._id, self._status = job.id, {}
        self._status = read_status(self._folder) or self._status
        try:
            state = state_of(self._folder, self._status, now)
            found = make_overview(self._status, state, now)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            raise JobError(f"the status of {self._jobdir} cannot be read ({error})") from error
        found |= {
            "job": str(self._jobdir), "spider": job.spider, "began": job.created,
            "acts": os.access(self._folder, os.W_OK),
            "phases": _phases(job, found["gauges"].get("phase"), now),
        }  # fmt: skip
        if state.running:
            recent = self.series(now - alerts.WINDOW, now, _ALERT_ROWS)
            add_alerts(found, recent)
        return found

    def series(self, start: float, end: float, points: int, width: int = 0) -> Rows:
        return self._series.read(start, end, points, width)

    def hosts(self, by: str, limit: int) -> list[dict[str, Any]]:
        if by == "slowest":
            return self._slowest(limit)
        column = attrgetter("failed" if by == "failed" else "pending")

        def read() -> list[dict[str, Any]]:
            with self._reader() as reader:
                records = (each for each in reader.store.records() if column(each[1]))
                first = heapq.nlargest(limit, records, key=lambda each: column(each[1]))
                return list(host_rows(reader, first))

        return self._kept.get(("hosts", by, limit), read)

    def _slowest(self, limit: int) -> list[dict[str, Any]]:
        """The hosts whose recent fetches took longest, by their mean."""
        spent: dict[str, list[int]] = {}
        for fetch in self._recent_fetches():
            host = fetch_log.host_in_field(fetch.url.encode()).decode("utf-8", "replace")
            spent.setdefault(host, []).append(fetch.ms)
        rows = (
            {"host": host, "seconds": round(sum(ms) / len(ms) / 1_000, 3), "fetches": len(ms)}
            for host, ms in spent.items()
        )  # fmt: skip
        return heapq.nlargest(limit, rows, key=lambda row: float(str(row["seconds"])))

    def why(self, target: str) -> list[dict[str, Any]]:
        try:
            subject = target if "://" in target else verb.host_argument(target)
        except argparse.ArgumentTypeError as error:
            raise JobError(str(error)) from None
        explain = explain_url if "://" in target else explain_host

        def read() -> list[dict[str, Any]]:
            with self._reader() as reader:
                return [explain(self._settings, reader, subject)]

        return _store_errors(read)

    def pages(self, limit: int) -> list[dict[str, Any]]:
        from scrapy_spider_suite.packs.reader import Packs

        fetches = (each for each in self._recent_fetches() if not each.remarks)
        folder = self._packs()
        packs = None if folder is None else Packs([folder])
        return [
            {
                "url": each.url, "status": each.status, "reason": each.reason,
                "bytes": each.bytes, "seconds": each.ms / 1_000, "ended": each.time,
                "pack": None if packs is None else _place_in_packs(packs, each.url),
            }
            for each in islice(fetches, limit)
        ]  # fmt: skip

    def _recent_fetches(self) -> Iterator[fetch_log.FetchLine]:
        """The fetches at the end of the fetch log, the latest first."""
        chosen = JobFile.require(self._folder).settings.get("fetch_log")
        folder = fetch_log.log_folder(self._folder, chosen)
        tail = _tail(folder / fetch_log.ACTIVE)
        if len(tail) < _TAIL:  # it was rotated lately
            for before in fetch_log.closed_files(folder)[-1:]:
                tail = self._kept.get(before, partial(_tail, before)) + tail
        for line in reversed(tail.split(b"\n")):
            with suppress(ValueError):  # a comment, or torn
                yield fetch_log.parse_line(line)

    def _packs(self) -> Path | None:
        folder = JobFile.require(self._folder).settings.get("packs_dir")
        return Path(folder) if isinstance(folder, str) and folder else None

    def links(self) -> dict[str, Any]:
        from scrapy_spider_suite.analysis.link_stats import ROWS, LinkStats, degree_counts

        def read() -> dict[str, Any]:
            with self._reader() as reader:
                stats = LinkStats(reader.store.kv(ROWS))
                totals = stats.totals()
                counts = {
                    name: sorted(counts.items()) for name, counts in degree_counts(stats).items()
                    if set(counts) - {0}
                }  # fmt: skip
                if not totals.pages and not counts:
                    return {}
                return {
                    "pages": totals.pages, "links": totals.links, "internal": totals.internal,
                    "external": totals.external, "degrees": counts,
                }  # fmt: skip

        return self._kept.get(("links",), read)

    def search(self, words: str) -> list[dict[str, Any]]:
        from scrapy_spider_suite.analysis import search

        folder = self._packs()
        if folder is None:
            raise JobError("the crawl keeps no pages (SUITE_PACKS_DIR), so there is no index")
        try:
            hits = search.open_index(folder).search(words, limit=_FOUND)
        except (PackError, SearchError, OSError) as error:
            raise JobError(str(error)) from error
        return [
            {
                "url": hit.url, "title": hit.title, "when": hit.time.timestamp(),
                "language": hit.language, "snippet": hit.snippet.marked("", ""),
                "pack": {"file": hit.entry.filename, "offset": hit.entry.place.offset},
            }
            for hit in hits
        ]  # fmt: skip

    def _reader(self) -> StoreReader:
        return StoreReader(self._folder)


def _phases(job: JobFile, phase: float | None, now: float) -> dict[str, Any] | None:
    count, seconds = job.settings.get("phases"), job.settings.get("phase_seconds")
    if phase is None or not isinstance(count, int) or not isinstance(seconds, int | float):
        return None
    return {"count": count, "active": int(phase) - 1, "left": seconds - now % seconds}


def _tail(path: Path) -> bytes:
    """The last `_TAIL` bytes of a file of the fetch log, or less."""
    tail = b""
    with suppress(*fetch_log.ReadError), fetch_log.open_log_file(path) as log:
        if path.suffix != fetch_log.ZST:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL))
        while block := log.read(_TAIL):
            tail = (tail + block)[-_TAIL:]
    return tail


class KeptAnswers:
    """Answers that take long to find: each is kept `_KEPT_FOR` times as long as it took."""

    def __init__(self) -> None:
        self._answers: dict[object, tuple[float, Any]] = {}

    def get(self, key: object, find: Callable[[], T]) -> T:
        now = time.monotonic()
        self._answers = {each: kept for each, kept in self._answers.items() if kept[0] > now}
        if key not in self._answers:
            found = _store_errors(find)
            spent = time.monotonic() - now
            self._answers[key] = time.monotonic() + max(1.0, _KEPT_FOR * spent), found
        answer: T = self._answers[key][1]
        return answer


def _store_errors(find: Callable[[], T]) -> T:
    try:
        return find()
    except OSError as error:
        raise JobError(f"the job cannot be read: {error}") from error


def _place_in_packs(packs: Packs, url: str) -> dict[str, Any] | None:
    with suppress(PackError, OSError):
        if found := packs.history(url):
            return {"file": found[-1].filename, "offset": found[-1].place.offset}
    return None


def make_overview(status: Mapping[str, Any], state: CrawlState, now: float) -> Overview:
    """What `View.overview` returns, of the status file of one process; without its alerts."""
    pulse = status.get(PULSE) or {}
    counters, gauges = numbers(pulse.get("counters")), numbers(pulse.get("gauges"))
    rates = numbers(pulse.get("rates")) if state.running else {}
    end = pulse.get("end") or {}
    trend = str(end.get("trend", ""))
    found: Overview = {
        "crawl": "", "state": state.value, "alerts": [],
        "paused": state.running and bool(status.get("pauses")),
        "when": numbers(pulse).get("when") or status.get("when") or status.get("started") or now,
        "started": status.get("started"), "ended": status.get("ended"),
        "counters": counters or {"pages": status.get("done", 0), "failed": status.get("failed", 0)},
        "rates": dict.fromkeys(RATES, 0.0) | rates,
        "gauges": {"pending": status.get("pending", 0), **gauges},
        "waits": [
            {
                "reason": str(each["reason"]), "hosts": int(each["hosts"]),
                "next": None if each["next_visit"] is None
                else round(max(0.0, each["next_visit"] - now), 1),
            }
            for each in status.get("waits", ())
        ],
        "end": {"text": "", "seconds": None}, "agents": [], "queues": [], "processes": 1,
        "phases": None,
    }  # fmt: skip
    if state.running and trend:
        seconds = numbers(end).get("seconds")
        found["end"] = {"text": end_in_words(trend, seconds), "seconds": seconds}
    trouble, words = _state_in_words(status, state, found, now)
    return found | {"healthy": not trouble, "words": trouble or words}


def numbers(found: object) -> dict[str, float]:
    """The finite numbers of a mapping that was read."""
    if not isinstance(found, Mapping):
        return {}
    return {
        str(name): value for name, value in found.items()
        if isinstance(value, int | float) and abs(value) < _HUGE  # nor is NaN
    }  # fmt: skip


def _state_in_words(
    status: Mapping[str, Any], state: CrawlState, found: Overview, now: float
) -> tuple[str, str]:
    """What is wrong, "" if nothing is; and how the crawl goes."""
    ago = display_duration(now - float(status.get("when") or status.get("started") or now))
    pages = counted(int(found["counters"].get("pages", 0)), "page")
    if state is CrawlState.KILLED:
        return f"The crawl was killed {ago} ago, after {pages}.", ""
    if state is CrawlState.SILENT:
        return f"The crawl has been silent for {ago}: its event loop stands still.", ""
    if not state.running:
        if not status:
            return "", "The crawl has not begun."
        reason, code = str(status.get("finish_reason")), status.get("exit_code")
        words = f"The crawl ended ({reason}) after {pages}."
        ago = display_duration(now - float(status.get("ended") or now))
        good = code in (None, ExitCode.FINISHED, ExitCode.WORK_LEFT, ExitCode.INTERRUPTED)
        return "" if good else words, f"The crawl ended {ago} ago ({reason}) after {pages}."
    if servers := status.get("silent_name_servers"):
        return f"No name server answers ({server_names(servers)}).", ""
    if pauses := [str(each) for each in status.get("pauses", ())]:
        words = f"The crawl is paused by {', '.join(pauses)}."
        return "" if pauses == [OPERATOR] else words, words
    if status.get("closing"):
        return "", "The crawl is stopping."
    rate, pending = found["rates"]["pages"], int(found["gauges"]["pending"])
    left = f"{counted(pending, 'URL')} to go ({found['end']['text'] or 'no end in sight'})"
    if rate < RATE_MIN and (failed := found["rates"]["failed"]) >= RATE_MIN:
        return "", f"The crawl fetches no page: {failed:,.1f} a second fail, {left}."
    return "", f"The crawl runs well: it fetches {rate:,.1f} a second, {left}."


def add_alerts(found: Overview, recent: Rows) -> None:
    """Add the alerts of *recent* rows to an overview, and what they mean to its words."""
    alarms = alerts.find_alerts(found, recent)
    found["alerts"] = [{"name": each.name, "text": each.text} for each in alarms]
    if alarms and found["healthy"]:
        found |= {"healthy": False, "words": sentence(each.text for each in alarms)}


def sentence(texts: Iterable[str]) -> str:
    joined = "; ".join(texts)
    return f"{joined[:1].upper()}{joined[1:]}."
