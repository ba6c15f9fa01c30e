"""A crawl's overview as metrics of Prometheus, of few labels: no host, URL or time is one.

docs/watching.md has the table of metrics.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.operate.alerts import RULES
from scrapy_spider_suite.operate.crawl_view import OTHERS
from scrapy_spider_suite.runtime.text import printable

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "scrapy_suite_"

_COUNTERS: Final = {
    "pages": ("pages", "Fetches that ended done. A page that is fetched again counts again."),
    "failed": ("failed_urls", "Times that a URL failed for good, or was refused."),
    "bytes": ("received_bytes", "Bytes received."),
    "new_urls": ("new_urls", "URLs discovered."),
    "filtered": ("filtered_urls", "URLs that were offered again."),
    "retried": ("retries", "Fetches that are tried again."),
    "cache_hits": ("seen_cache_hits", "Look-ups of URLs that the cache answered."),
    "cache_misses": ("seen_cache_misses", "Look-ups of URLs that the cache did not answer."),
    "dns_lookups": ("dns_lookups", "Questions to name servers."),
}  # fmt: skip
_GAUGES: Final = {
    "pending": ("pending_urls", "URLs in the queue."),
    "under_way": ("under_way_urls", "URLs that are being fetched."),
    "hosts": ("hosts_in_memory", "Hosts in memory."),
    "memory": ("memory_bytes", "Resident memory."),
    "disk_free": ("disk_free_bytes", "Room on the disk of the job."),
    "phase": ("phase", "The phase whose hosts are visited."),
}
_COUNTER_FAMILIES: Final = {
    "errors": ("errors", "event", "Failed attempts, and refusals, by event."),
    "status": ("responses", "status", "Answers by class of status."),
}
_GAUGE_FAMILIES: Final = {"waiting": ("waiting_hosts", "reason", "Hosts that wait, by reason.")}
_NONE: Final[Mapping[str, str]] = {}
_STATUS_CLASS: Final = re.compile(r"[1-5]xx")  # the columns for one status are part of a class


def require() -> ModuleType:
    """The Prometheus client library. Raises `SettingsError` if it is not installed."""
    try:
        from prometheus_client import core
    except ImportError:
        raise SettingsError(
            "metrics need the package prometheus-client: "
            "pip install 'scrapy-spider-suite[dashboard]'"
        ) from None
    return core


def metrics_text(overview: Mapping[str, Any], labels: Mapping[str, str] = _NONE) -> bytes:
    """*overview*, of `operate.crawl_view`, in Prometheus's text format.

    *labels* are labels of all metrics. Raises `SettingsError`.
    """
    require()
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Overview(overview, labels))
    return generate_latest(registry)


def write_metrics(
    path: Path, overview: Mapping[str, Any], labels: Mapping[str, str] = _NONE
) -> None:
    """Replace the file *path*, at once, with the metrics. Raises `OSError`."""
    # Node exporters read *.prom alone. Without a sync: after a power failure it is written anew.
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        new.write_bytes(metrics_text(overview, labels))
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


class _Overview:
    """A collector of the values of one overview."""

    def __init__(self, overview: Mapping[str, Any], labels: Mapping[str, str]) -> None:
        self._overview = overview
        self._core = require()
        name = str(overview.get("crawl") or overview.get("spider") or "")
        self._labels = {key: printable(label) for key, label in {"crawl": name, **labels}.items()}

    def collect(self) -> Iterator[Any]:
        overview = self._overview
        yield self._gauge("running", "1 while the crawl runs.", overview["state"] == "running")
        yield self._gauge("paused", "1 while the crawl is paused.", overview["paused"])
        yield self._gauge("healthy", "1 unless something is wrong.", overview["healthy"])
        yield self._gauge(
            "last_pulse_timestamp_seconds", "When the values were taken.", overview["when"] or 0
        )
        active = {alert["name"] for alert in overview["alerts"]}
        yield self._family(
            "gauge", "alert", "1 while there is this alert.", "alert",
            [(name, name in active) for name in RULES],
        )  # fmt: skip
        counters, gauges = overview["counters"], overview["gauges"]
        yield from self._values("counter", counters, _COUNTERS, _COUNTER_FAMILIES)
        yield from self._values("gauge", gauges, _GAUGES, _GAUGE_FAMILIES)
        if overview["agents"]:
            yield from self._agents(overview["agents"])
        for state in ("queued", "running", "later", "aside") if overview["queues"] else ():
            rows = [(row["queue"], row[f"urls_{state}"]) for row in overview["queues"]]
            text = f"URLs of a shared queue in runs that are {state}."
            yield self._family("gauge", f"queue_{state}_urls", text, "queue", rows)

    def _values(
        self, kind: str, values: Mapping[str, Any], single: Mapping[str, tuple[str, str]],
        families: Mapping[str, tuple[str, str, str]],
    ) -> Iterator[Any]:  # fmt: skip
        for name, (metric, text) in single.items():
            if _is_known(values.get(name)):
                yield self._family(kind, metric, text, "", [("", values[name])])
        for family, (metric, label, text) in families.items():
            found = [
                (name.partition(".")[2], value) for name, value in values.items()
                if name.startswith(f"{family}.") and _is_known(value)
            ]  # fmt: skip
            if family == "status":
                found = [(name, value) for name, value in found if _STATUS_CLASS.fullmatch(name)]
            if found:
                yield self._family(kind, metric, text, label, found)

    def _agents(self, agents: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
        """The values of the agents of a cluster, without those that are not known."""
        for kind, key, metric, text in (
            ("counter", "pages", "agent_pages", "Fetches of an agent that ended done."),
            ("gauge", "pending", "agent_pending_urls", "URLs in the queue of an agent."),
            ("gauge", "memory", "agent_memory_bytes", "Resident memory of an agent."),
            ("gauge", "share", "agent_share", "The part of the crawl that an agent has."),
        ):
            found = [
                (row["name"], row[key]) for row in agents
                if _is_known(row.get(key)) and not (row["name"] == OTHERS and kind == "counter")
            ]  # its members change: it would fall
            yield self._family(kind, metric, text, "agent", found)
        running = [(row["name"], row["state"] == "running") for row in agents]
        yield self._family("gauge", "agent_running", "1 while an agent runs.", "agent", running)

    def _gauge(self, name: str, text: str, value: float) -> Any:
        return self._family("gauge", name, text, "", [("", value)])

    def _family(
        self, kind: str, name: str, text: str, label: str, values: Iterable[tuple[str, Any]]
    ) -> Any:
        """*values* by the value of *label*, or one value without a label."""
        core = self._core
        make = core.CounterMetricFamily if kind == "counter" else core.GaugeMetricFamily
        own = (label,) if label else ()
        family = make(PREFIX + name, text, labels=(*self._labels, *own))
        for key, value in values:
            more = (printable(key),) if label else ()
            family.add_metric((*self._labels.values(), *more), float(value))
        return family


def _is_known(value: Any) -> bool:
    return isinstance(value, int | float) and value == value
