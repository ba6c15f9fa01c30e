"""What page, terminal, metrics and report show of a crawl of several agents: read from Redis.

What only the jobs of the agents know (hosts, pages, links) is asked of the agents.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from scrapy_spider_suite.analysis.time_series import Rows
from scrapy_spider_suite.cluster.local_redis import LocalRedis, not_running
from scrapy_spider_suite.cluster.membership import MemberRecord, MemberState
from scrapy_spider_suite.cluster.pulses import AgentPulse, SeriesClient, all_gauges
from scrapy_spider_suite.cluster.registry import ClusterAdmin, ClusterOverview, find_crawl
from scrapy_spider_suite.cluster.run_queue import RunQueue
from scrapy_spider_suite.crawl.pulse import COLUMNS, RATES, CrawlPace
from scrapy_spider_suite.errors import ClusterError, JobError, RegistryError
from scrapy_spider_suite.frontier.entries import UNITS
from scrapy_spider_suite.frontier.workbench import WaitReason
from scrapy_spider_suite.operate import alerts
from scrapy_spider_suite.operate.crawl_view import (
    OTHERS,
    RATE_MIN,
    KeptAnswers,
    Overview,
    add_alerts,
    sentence,
)
from scrapy_spider_suite.operate.job_target import OPERATOR
from scrapy_spider_suite.operate.judge import end_in_words
from scrapy_spider_suite.runtime.text import counted, listed
from scrapy_spider_suite.settings.values import RedisUrl, redis_url

T = TypeVar("T")
Row = dict[str, Any]


class AgentRows(NamedTuple):
    """The *rows* of each agent that answers, and why the others do not."""

    rows: dict[str, list[Row]]
    missing: dict[str, str]


AskAgents = Callable[[str, str, str, Sequence[str]], AgentRows]
"""Asks the agents of a crawl (URL, name) to look (verb, words)."""

_AGENTS: Final = 100  # that an overview has a row of
_ROWS: Final = 60  # of the time that alerts and the end are judged by
_MINUTE, _DAY = 60.0, 86_400.0
_HOST_KEYS: Final = {"slowest": "seconds", "pending": "pending", "failed": "failed"}


class ClusterView:
    """A view of the crawl at a Redis URL: that of SUITE_CRAWL_NAME, or the only one.

    *crawl*: its name. *missing* names the agents that did not answer. Raises `JobError`,
    `ClusterError`; so do its methods.
    """

    def __init__(
        self, url: str, settings: Any, ask: AskAgents | None = None, folder: str = ""
    ) -> None:  # fmt: skip
        """*folder*: that of the agents of `scrapy cluster up`, whose Redis ends with them."""
        try:
            found = redis_url.parse(url)
        except ValueError as error:
            raise JobError(str(error)) from None
        assert isinstance(found, RedisUrl)
        self._redis = found
        self.name = str(found)
        self.crawl: Any = _run(find_crawl(found, settings.get("SUITE_CRAWL_NAME")))
        self.missing = ""
        self._folder = folder
        self._ask = ask
        self._kept = KeptAnswers()

    def require(self) -> None:
        """Raise `ClusterError` unless Redis holds the crawl."""
        _run(self._require())

    async def _require(self) -> None:
        admin = ClusterAdmin(self._redis.url, self.crawl)
        try:
            if await admin.overview() is None:
                raise self._unknown()
        finally:
            await admin.close()

    def _unknown(self) -> ClusterError:
        return ClusterError(f"Redis at {self._redis} holds no crawl {self.crawl!r}")

    def overview(self) -> Overview:
        try:
            return _run(self._overview())
        except RegistryError as error:
            own = LocalRedis.find(self._folder) if self._folder else None
            if own is None or own.answers:
                raise
            raise JobError(not_running(self._folder)) from error

    async def _overview(self) -> Overview:
        admin = ClusterAdmin(self._redis.url, self.crawl)
        client = SeriesClient(self._redis.url, self.crawl)
        try:
            cluster = await admin.overview()
            if cluster is None:
                raise self._unknown()
            pulses, (first, totals) = await client.last_pulses(), await client.totals()
            recent = await client.read(cluster.now - alerts.WINDOW, cluster.now, _ROWS)
            queues = await self._queues(cluster)
        finally:
            await admin.close()
            await client.close()
        found = make_cluster_overview(cluster, pulses, recent)
        found |= {"job": self.name, "crawl": self.crawl, "acts": True}
        if first and found["began"] and found["began"] > first + _DAY:  # all agents came anew
            found["began"] = first
        found["counters"] = dict.fromkeys(COLUMNS.counters, 0) | totals
        if found["state"] == "running":
            add_alerts(found, recent)
        found["agents"] = shorten_agents(found["agents"])
        found["queues"] = queues
        return found

    async def _queues(self, cluster: ClusterOverview) -> list[Row]:
        if "shared-queue" not in cluster.fixed.get("SUITE_CLUSTER", ""):
            return []
        queue = RunQueue(self._redis.url, self.crawl)
        try:
            return (await queue.counts()).rows()
        finally:
            await queue.close()

    def series(
        self, start: float, end: float, points: int, width: int = 0, part: str = ""
    ) -> Rows:
        """As `SeriesClient.read`."""

        async def read() -> Rows:
            client = SeriesClient(self._redis.url, self.crawl)
            try:
                return await client.read(start, end, points, part, width)
            finally:
                await client.close()

        return _run(read())

    def hosts(self, by: str, limit: int) -> list[Row]:
        rows = self._look("view", "hosts", "--by", by, "--limit", str(limit))
        return heapq.nlargest(limit, rows, key=lambda row: row.get(_HOST_KEYS[by]) or 0)

    def why(self, target: str) -> list[Row]:
        rows = self._look("why", "--", target)
        return [row for row in rows if row.get("state") != "unknown"] or rows[:1]

    def pages(self, limit: int) -> list[Row]:
        rows = self._look("view", "pages", "--limit", str(limit))
        return heapq.nlargest(limit, rows, key=lambda row: row.get("ended") or 0)

    def links(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for row in self._look("view", "links"):
            degrees, known = row.pop("degrees", {}), found.setdefault("degrees", {})
            for name, counts in degrees.items():
                sums = dict(known.get(name, ()))
                for degree, count in counts:
                    sums[degree] = sums.get(degree, 0) + count
                known[name] = sorted(sums.items())
            for name, number in row.items():
                if name != "agent":
                    found[name] = found.get(name, 0) + number
        return found

    def search(self, words: str) -> list[Row]:
        return self._look("view", "search", f"--words={words}")

    def _look(self, verb: str, *words: str) -> list[Row]:
        ask = self._ask
        if ask is None:
            raise JobError("ask one of the agents for that: its job directory has it")

        def look() -> tuple[list[Row], str]:
            found = ask(self._redis.url, self.crawl, verb, words)
            rows = [{"agent": name, **row} for name, rows in found.rows.items() for row in rows]
            missing = _complaint(found.missing)
            if missing and not rows:
                raise JobError(missing)
            return rows, missing

        self.missing = ""
        rows, self.missing = self._kept.get((verb, *words), look)
        return rows


def _complaint(missing: Mapping[str, str]) -> str:
    by_reason: dict[str, list[str]] = {}
    for name, reason in missing.items():
        by_reason.setdefault(reason, []).append(name)
    return "; ".join(f"{listed(names)}: {reason}" for reason, names in by_reason.items())


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(coroutine)
    except ValueError as error:  # of a URL or a name
        raise JobError(str(error)) from error


def make_cluster_overview(
    cluster: ClusterOverview, pulses: Mapping[str, AgentPulse], recent: Rows
) -> Overview:
    """What `View.overview` returns, without totals and alerts; *recent* rows end now."""
    now, rows = cluster.now, {row.name: row for row in cluster.view.rows}
    there = {name: row for name, row in rows.items() if _takes_part(row)}
    silent = [name for name, row in there.items() if row.missing(now)]
    running = len(there) > len(silent)
    gauges = dict(zip(COLUMNS.gauges, _gauges(now, pulses), strict=True))
    last = recent.times > now - _MINUTE - recent.width
    rates = {name: _rate(recent, name, last) if running else 0.0 for name in RATES}
    trend, seconds = _until_end(recent)
    end = {"text": end_in_words(trend, seconds), "seconds": seconds}
    units = np.bincount(cluster.holders.holders, minlength=UNITS)
    found: Overview = {
        "spider": cluster.fixed.get("spider", ""), "ended": None,
        "when": now if running else max((each.when for each in pulses.values()), default=now),
        "state": "ended" if cluster.ended else "running" if running else "killed",
        "alerts": [], "began": min((row.since / 1_000 for row in rows.values()), default=None),
        "started": min((row.since / 1_000 for row in there.values()), default=None),
        "rates": rates,
        "gauges": {name: None if math.isnan(each) else int(each) for name, each in gauges.items()},
        "waits": [
            {"reason": reason.value, "hosts": int(hosts), "next": None}
            for reason in WaitReason if (hosts := gauges[f"waiting.{reason.value}"]) > 0
        ],
        "end": end if running and not cluster.ended else {"text": "", "seconds": None},
        "agents": [
            _agent_row(cluster, row, int(units[row.number]), pulses.get(name))
            for name, row in rows.items()
        ],
        "phases": _phases(cluster, now),
        "processes": len(there) - len(silent) or len(rows),
    }  # fmt: skip
    paused = [name for name in there if cluster.facts.get(name, {}).get("paused")]
    found["paused"] = bool(there) and len(paused) == len(there)
    trouble, words = _state_in_words(cluster, there, silent, paused, found)
    return found | {"healthy": not trouble, "words": trouble or words}


def _takes_part(row: MemberRecord) -> bool:
    return row.state in (MemberState.ACTIVE, MemberState.LEAVING)


def _gauges(now: float, pulses: Mapping[str, AgentPulse]) -> list[float]:
    heard = [each for each in pulses.values() if now - each.when < _MINUTE / 6]
    found: list[float] = all_gauges(heard).tolist()
    return found


def _rate(recent: Rows, name: str, last: Any) -> float:
    covered = float(np.nansum(recent.values[last, 1]))
    return float(np.nansum(recent.total(name)[last])) / covered if covered else 0.0


def _until_end(recent: Rows) -> tuple[str, float | None]:
    pending = recent.mean("pending")
    known = ~np.isnan(pending)
    pace = CrawlPace(float(recent.times[known][0]) if known.any() else 0.0)
    for when, urls in zip(recent.times[known].tolist(), pending[known].tolist(), strict=True):
        pace.note(when, int(urls), np.zeros(len(RATES)))
    return pace.seconds_left()


def _agent_row(
    cluster: ClusterOverview, row: MemberRecord, units: int, pulse: AgentPulse | None
) -> dict[str, Any]:
    facts = cluster.facts.get(row.name, {})
    state = row.state.value
    if _takes_part(row):
        state = "silent" if row.missing(cluster.now) else "running"
        if not row.incarnation:
            state = "stopped"
    memory = None
    if pulse is not None and "memory" in pulse.columns.gauges:
        found = float(pulse.gauges[pulse.columns.gauges.index("memory")])
        memory = None if math.isnan(found) else int(found)
    return {
        "name": row.name, "state": state, "pages": facts.get("pages"),
        "rate": facts.get("rate") if state == "running" else 0.0,
        "share": round(units / UNITS, 4), "pending": facts.get("pending"), "memory": memory,
    }  # fmt: skip


def shorten_agents(rows: list[Row]) -> list[Row]:
    """The rows of the agents that do not run, and of those with most pages; the others as one."""
    if len(rows) <= _AGENTS:
        return rows
    weights = [(row["state"] in ("silent", "stopped"), row["pages"] or 0) for row in rows]
    order = sorted(range(len(rows)), key=lambda place: weights[place], reverse=True)
    others: Row = {"name": OTHERS, "state": "running"}
    for name in ("pages", "rate", "share", "pending", "memory"):
        others[name] = sum(rows[place][name] or 0 for place in order[_AGENTS:])
    return [*(rows[place] for place in sorted(order[:_AGENTS])), others]


def _phases(cluster: ClusterOverview, now: float) -> dict[str, Any] | None:
    """The phase of the first agent, where agents take turns; see `AgentPhase`."""
    try:
        count = int(cluster.fixed["SUITE_PHASES"])
        seconds = float(cluster.fixed["SUITE_PHASE_SECONDS"])
    except (KeyError, ValueError):
        return None
    if count < 1 or seconds <= 0:
        return None
    return {"count": count, "active": int(now // seconds) % count, "left": seconds - now % seconds}


def _state_in_words(
    cluster: ClusterOverview, there: Mapping[str, MemberRecord], silent: Sequence[str],
    paused: Sequence[str], found: Overview,
) -> tuple[str, str]:  # fmt: skip
    """What is wrong, "" if nothing is; and how the crawl goes."""
    if cluster.ended:
        return "", "The crawl ended."
    if not there:
        return "No agent takes part in the crawl.", ""
    if silent:
        lost = listed([name for name in silent if there[name].incarnation])
        stopped = listed([name for name in silent if not there[name].incarnation])
        texts = [f"silent: {lost}"] if lost else []
        texts += [f"stopped, and expected back: {stopped}"] if stopped else []
        return sentence([f"{counted(len(there), 'agent')}, {', '.join(texts)}"]), ""
    if paused:
        which = "" if len(paused) == len(there) else f" on {listed(paused)}"
        reasons = {str(cluster.facts[name].get("pauses") or OPERATOR) for name in paused}
        words = f"The crawl is paused{which} by {', '.join(sorted(reasons))}."
        return "" if reasons == {OPERATOR} else words, words
    rate, pending = found["rates"]["pages"], found["gauges"].get("pending") or 0
    left = f"{counted(pending, 'URL')} to go ({found['end']['text']})"
    agents = counted(len(there), "agent fetches", "agents fetch")
    if rate < RATE_MIN and (failed := found["rates"]["failed"]) >= RATE_MIN:
        return "", f"The crawl fetches no page: {failed:,.1f} a second fail, {left}."
    return "", f"The crawl runs well: {agents} {rate:,.1f} a second, {left}."
