"""A crawl of several agents as page, terminal and metrics see it."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import pytest
from scrapy.settings import Settings

from scrapy_spider_suite.analysis.time_series import Columns, Rows, merge_rows
from scrapy_spider_suite.cluster.membership import Holders, MemberRecord, Membership, MemberState
from scrapy_spider_suite.cluster.pulses import AgentPulse
from scrapy_spider_suite.cluster.registry import ClusterOverview
from scrapy_spider_suite.crawl.pulse import COLUMNS
from scrapy_spider_suite.errors import JobError, SuiteError
from scrapy_spider_suite.frontier.entries import UNITS
from scrapy_spider_suite.operate.cluster_view import (
    AgentRows,
    ClusterView,
    make_cluster_overview,
    shorten_agents,
)
from scrapy_spider_suite.operate.crawl_view import open_view
from scrapy_spider_suite.operate.verbs import find_verb

NOW = 1_750_000_000.0


def member(name: str, number: int, *, ago: float = 1.0, **given: Any) -> MemberRecord:
    """One that was heard so many seconds *ago*."""
    known = {
        "incarnation": "1", "weight": 1.0, "address": "", "state": MemberState.ACTIVE, "ends": 0,
        "heard": round((NOW - ago) * 1_000), "idle": False, "sent": 0, "received": 0,
        "since": round((NOW - 600) * 1_000),
    }  # fmt: skip
    return MemberRecord(name=name, number=number, **(known | given))


def cluster(*members: MemberRecord, facts: Any = None, **given: Any) -> ClusterOverview:
    """A crawl in which the first member holds three quarters of the units."""
    units = np.ones(UNITS, np.uint16)
    units[: UNITS // 4] = 2
    holders = Holders(units, NOW, 1, 1, 1, 0.0)
    known = {"id": "x", "now": NOW, "ended": False, "fixed": {}}
    return ClusterOverview(
        view=Membership(1, members), facts=facts or {}, holders=holders, **(known | given)
    )


def rows(pages: float = 2.0) -> Rows:
    """Five minutes in which the queue shrank by ten a second."""
    each = []
    for second in range(300):
        row = COLUMNS.blank_row(NOW - 300 + second)
        row[1] = 1.0
        row[COLUMNS.places("pages")[0]] = pages
        total, count, most = COLUMNS.places("pending")
        row[total], row[count], row[most] = 5_000.0 - 10 * second, 1, 5_000.0
        each.append(row)
    return merge_rows(np.array(each), COLUMNS, 5, NOW - 300, NOW)


def pulse(columns: Columns = COLUMNS, **gauges: float) -> AgentPulse:
    """The last pulse of an agent."""
    found = np.array([gauges.get(name, np.nan) for name in columns.gauges])
    return AgentPulse(NOW - 1, columns, np.zeros(len(columns.counters)), found)


def test_a_crawl_that_runs() -> None:
    """Rates, the end, sums of gauges, and each agent with its share."""
    found = make_cluster_overview(
        cluster(
            member("a", 1), member("b", 2), facts={"a": {"pages": 9, "rate": 1.5, "pending": 4}},
            fixed={"SUITE_PHASES": "4", "SUITE_PHASE_SECONDS": "60"},
        ),
        {"a": pulse(pending=1_500, memory=3e8), "b": pulse(pending=500, memory=1e8)}, rows(),
    )  # fmt: skip
    json.dumps(found, allow_nan=False)
    assert found["rates"]["pages"] == 2.0
    assert found["gauges"]["pending"] == 2_000
    assert found["end"]["text"] == "about 3 min"
    assert found["agents"][0] == {
        "name": "a", "state": "running", "pages": 9, "rate": 1.5, "share": 0.75, "pending": 4,
        "memory": 300_000_000,
    }  # fmt: skip
    assert found["phases"] == {"count": 4, "active": int(NOW // 60) % 4, "left": 60 - NOW % 60}
    assert found["healthy"]
    assert found["words"] == (
        "The crawl runs well: 2 agents fetch 2.0 a second, 2,000 URLs to go (about 3 min)."
    )


@pytest.mark.parametrize(("members", "given", "healthy", "words"), [
    ([member("a", 1), member("b", 2, ago=60)], {}, False, "2 agents, silent: b."),
    ([member("a", 1), member("b", 2, incarnation="")], {}, False,
     "2 agents, stopped, and expected back: b."),
    ([member("a", 1)], {"facts": {"a": {"paused": True, "pauses": "the operator"}}}, True,
     "The crawl is paused by the operator."),
    ([member("a", 1), member("b", 2)], {"facts": {"b": {"paused": True, "pauses": "the disk"}}},
     False, "The crawl is paused on b by the disk."),
    ([member("a", 1)], {"ended": True}, True, "The crawl ended."),
    ([member("a", 1, state=MemberState.LEFT)], {}, False, "No agent takes part in the crawl."),
    ([], {}, False, "No agent takes part in the crawl."),
])  # fmt: skip
def test_one_sentence_says_how_it_is(
    members: list[MemberRecord], given: dict[str, Any], healthy: bool, words: str
) -> None:
    """Whether it is healthy, and if not, why."""
    found = make_cluster_overview(cluster(*members, **given), {}, rows())
    assert (found["healthy"], found["words"]) == (healthy, words)
    json.dumps(found, allow_nan=False)


def test_most_agents_are_one_row() -> None:
    """An overview of 10,000 agents has a hundred rows: those in trouble, then those with most."""
    members = [member(f"a{n}", n + 1, ago=60 if n == 7_000 else 1) for n in range(10_000)]
    facts = {row.name: {"pages": row.number, "rate": 0.5, "pending": 2} for row in members}
    agents = make_cluster_overview(cluster(*members, facts=facts), {}, rows())["agents"]
    shown = shorten_agents(agents)
    assert len(shown) == 101
    assert [row["name"] for row in shown[:2]] == ["a7000", "a9901"]
    assert shown[-1]["name"] == "(others)"
    for name in ("pages", "pending", "rate"):
        assert sum(row[name] for row in shown) == sum(row[name] for row in agents)
    assert shorten_agents(agents[:100]) == agents[:100]


def view(answers: list[AgentRows]) -> tuple[ClusterView, list[tuple[str, ...]]]:
    """A view whose agents give these *answers*, and what they were asked."""
    asked: list[tuple[str, ...]] = []

    def ask(url: str, crawl: str, verb: str, words: Any) -> AgentRows:
        asked.append((verb, *words))
        return answers.pop(0)

    return ClusterView("redis://h/0", Settings({"SUITE_CRAWL_NAME": "web"}), ask), asked


def test_agents_that_do_not_answer() -> None:
    """A partial answer says what it lacks; without any row the reasons are the answer."""
    host = {"host": "h.test", "pending": 3}
    shown, asked = view([
        AgentRows({"a": [host]}, {"b": "no answer within 10 s"}),
        AgentRows({"a": [], "b": [host]}, {}),
        AgentRows({}, {"a": "there is no index", "b": "there is no index"}),
    ])  # fmt: skip
    for _ in range(2):
        assert shown.hosts("pending", 5) == [{"agent": "a", **host}]
        assert shown.missing == "b: no answer within 10 s"
    assert shown.hosts("failed", 5) == [{"agent": "b", **host}]
    assert shown.missing == ""
    with pytest.raises(JobError, match=r"a, b: there is no index"):
        shown.search("--words")
    assert len(asked) == 3


@pytest.mark.parametrize("text", ["-x", "--by"])
def test_words_that_look_like_options(text: str) -> None:
    """They are words for the agents, too."""
    shown, asked = view([AgentRows({"a": [{"state": "unknown"}]}, {}), AgentRows({"a": []}, {})])
    shown.why(text)
    shown.search(text)
    for verb, *words in asked:
        found = find_verb(verb)
        assert found is not None
        parser = argparse.ArgumentParser()
        found.declare(parser)
        assert text in vars(parser.parse_args(words)).values()


def test_no_redis() -> None:
    """A URL that is none, or of a Redis that is away, is refused in a line."""
    urls = {"redis://127.0.0.1:1/0": "is away", "redis://h:port/0": "cannot be read"}
    for url, words in urls.items():
        with pytest.raises(SuiteError, match=words):
            open_view(url, Settings()).overview()
