"""Metrics: every figure of the pulse has one, few labels, hostile names are text."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_spider_suite.crawl.pulse import COLUMNS
from scrapy_spider_suite.dashboard.metrics import metrics_text, write_metrics
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.operate.alerts import RULES
from scrapy_spider_suite.operate.crawl_view import OTHERS
from scrapy_spider_suite.operate.verb import Invocation
from scrapy_spider_suite.operate.verbs import find_verb

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def overview(**changes: Any) -> dict[str, Any]:
    """A crawl whose figures are all 7."""
    return {
        "crawl": "", "spider": "news", "state": "running", "paused": False, "healthy": True,
        "when": 1.0, "alerts": [], "agents": [], "queues": [],
        "counters": dict.fromkeys(COLUMNS.counters, 7),
        "gauges": dict.fromkeys(COLUMNS.gauges, 7), **changes,
    }  # fmt: skip


def samples(found: dict[str, Any], **labels: str) -> Samples:
    """The values, by name and labels."""
    text = metrics_text(found, labels).decode()
    return {
        (sample.name.removeprefix("scrapy_suite_"), tuple(sorted(sample.labels.items()))):
        sample.value
        for family in text_string_to_metric_families(text) for sample in family.samples
    }  # fmt: skip


def test_every_figure_has_a_metric() -> None:
    """Counters and gauges of a pulse, but for those that are part of another one."""
    found = samples(overview())
    ours = len(RULES) + 4
    assert sum(value == 7.0 for value in found.values()) == len(found) - ours
    assert len(found) - ours == len(COLUMNS.counters) + len(COLUMNS.gauges) - 1  # status.429
    crawl = ("crawl", "news")
    assert found["pages_total", (crawl,)] == 7.0
    assert found["errors_total", (crawl, ("event", "timeout"))] == 7.0
    assert found["waiting_hosts", (crawl, ("reason", "host delay"))] == 7.0
    assert {labels for _, labels in found if dict(labels).get("status") == "429"} == set()


def test_what_is_not_known_is_left_out() -> None:
    """A crawl without a job has no disk; one that was killed may have no figures at all."""
    found = samples(overview(counters={}, gauges={"phase": None, "memory": math.nan}))
    assert len(found) == len(RULES) + 4


def test_alerts_and_agents_have_labels() -> None:
    """Of agents that are lost, only that they do not run."""
    agents = [
        {"name": "a", "state": "running", "pages": 3, "pending": 1, "memory": 9, "share": 0.5},
        {"name": "b", "state": "lost", "pages": None, "pending": None, "memory": None,
         "share": 0.5},
        {"name": OTHERS, "state": "running", "pages": 8, "pending": 6, "memory": 9, "share": 0.5},
    ]  # fmt: skip
    alerts = [{"name": "disk", "text": "no room"}]
    found = samples(overview(crawl="web", agents=agents, alerts=alerts))
    crawl, a, b = ("crawl", "web"), ("agent", "a"), ("agent", "b")
    assert found["alert", (("alert", "disk"), crawl)] == 1.0
    assert found["alert", (("alert", "skew"), crawl)] == 0.0
    assert found["agent_pages_total", (a, crawl)] == 3.0
    assert ("agent_pages_total", (b, crawl)) not in found
    assert found["agent_running", (b, crawl)] == 0.0
    queue = {"queue": "bulk"} | {f"urls_{each}": 5 for each in ("queued", "running", "later")}
    found |= samples(overview(crawl="web", queues=[queue | {"urls_aside": 2}]))
    assert found["queue_queued_urls", (crawl, ("queue", "bulk"))] == 5.0
    assert found["queue_aside_urls", (crawl, ("queue", "bulk"))] == 2.0
    others = (("agent", OTHERS), crawl)  # its members change: no counter may fall
    assert found["agent_pending_urls", others] == 6.0
    assert ("agent_pages_total", others) not in found


@pytest.mark.parametrize("label", ["agent", "jobdir"])
def test_the_file_of_a_process_names_it(tmp_path: Path, label: str) -> None:
    """Files of several agents or jobs on one machine have no series in common."""
    one, other = (set(samples(overview(), **{label: name})) for name in ("a", "b"))
    assert not one & other
    path = tmp_path / "crawl.prom"
    write_metrics(path, overview(), {label: "a"})
    assert f'{label}="a"' in path.read_text()
    with pytest.raises(OSError, match="crawl"):
        write_metrics(tmp_path / "no" / "crawl.prom", overview())


def test_hostile_names_are_text() -> None:
    """They end no line and begin none."""
    hostile = 'x"} 1\nscrapy_suite_pages_total{crawl="\\'
    assert samples(overview(crawl=hostile)).keys() == {
        (name, tuple((key, "x\"} 1\\nscrapy_suite_pages_total{crawl=\"\\"
                      if key == "crawl" else value) for key, value in labels))
        for name, labels in samples(overview())
    }  # fmt: skip


def test_without_the_libraries_a_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("prometheus_client", "rich.console"):
        monkeypatch.setitem(sys.modules, name, None)
    install = r"pip install 'scrapy-spider-suite\[dashboard\]'"
    with pytest.raises(SettingsError, match=install):
        metrics_text(overview())
    top = find_verb("top")
    assert top is not None
    assert top.run is not None
    with pytest.raises(UsageError, match=install):
        top.run(Invocation("job", False, Settings(), argparse.Namespace()))
