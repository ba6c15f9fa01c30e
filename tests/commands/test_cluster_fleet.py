"""The processes of ``scrapy cluster up``: how they end, and what is said of them meanwhile."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.running_crawl import until

from scrapy_spider_suite.operate import fleet
from scrapy_spider_suite.operate import fleet as fleet_module
from scrapy_spider_suite.operate.fleet import Fleet
from scrapy_spider_suite.operate.verb import Invocation
from scrapy_spider_suite.store.job_directory import FOLDER

_CALL = Invocation(None, False, None, argparse.Namespace())


def test_the_highest_exit_code_counts(tmp_path: Path) -> None:
    """Of processes that end by themselves, or are killed; the log's last line says why."""
    fleet = Fleet(tmp_path)
    for name, code in {
        "fine": "pass", "refused": "import sys; sys.exit('NAME = 1: expected 2')",
        "killed": "import os; os.kill(os.getpid(), 9)",
    }.items():  # fmt: skip
        fleet.start(name, [sys.executable, "-c", code])
    ended: dict[str, dict[str, Any]] = {}
    until(lambda: ended.update({each["agent"]: each for each in fleet.ended()}) or len(ended) == 3)
    assert {name: each["exit_code"] for name, each in ended.items()} == {
        "fine": 0, "refused": 1, "killed": 4
    }  # fmt: skip
    assert ended["refused"]["log"].endswith("refused.log ends: NAME = 1: expected 2")
    assert ended["fine"]["log"] == ""
    assert ended["killed"]["finish_reason"] == "killed by SIGKILL"
    assert (fleet.code, fleet.running) == (4, 0)


def test_none_is_left_where_another_cannot_be_started(tmp_path: Path) -> None:
    """And those that were to come do not, once all are to stop."""
    fleet, sleeping = Fleet(tmp_path), [sys.executable, "-c", "import time; time.sleep(100)"]

    def start() -> None:
        with fleet_module.stopped_by_signals(fleet):
            fleet.start("a", sleeping)
            fleet.start("b", ["/nowhere/python"])

    with pytest.raises(FileNotFoundError):
        start()
    fleet.start("c", sleeping)
    ended: list[str] = []
    until(lambda: ended.extend(each["agent"] for each in fleet.ended()) or ended)
    assert (ended, fleet.running) == (["a"], 0)


def test_all_are_stopped(tmp_path: Path) -> None:
    """By SIGTERM, once for each call; what has ended is left alone."""
    said = tmp_path / "said"
    fleet = Fleet(tmp_path)
    code = (
        "import signal, sys, time\n"
        f"def stop(*_): open({str(said)!r}, 'a').write('stop\\n'); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        f"open({str(said)!r}, 'a').write('begun\\n')\n"
        "time.sleep(100)"
    )
    for name in ("a", "b"):
        fleet.start(name, [sys.executable, "-c", code])
    until(lambda: said.exists() and said.read_text() == "begun\nbegun\n")
    fleet.stop()
    until(lambda: list(fleet.ended()) is not None and fleet.running == 0)
    fleet.stop()
    assert said.read_text() == "begun\nbegun\nstop\nstop\n"
    assert fleet.facts()["stopping"] == "; stopping"


class Processes:
    """Agents that are processes in name only, and what their job directories say; a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 1_000.0
        self.begun: list[SimpleNamespace] = []
        self.terminated: list[int] = []

    def Popen(self, command: list[str], **_: Any) -> SimpleNamespace:
        """Begin one, with the number that *command* is."""
        process = SimpleNamespace(pid=int(command[0]), stdin=None, returncode=None)
        process.poll = lambda: process.returncode
        process.terminate = lambda: self.terminated.append(process.pid)
        self.begun.append(process)
        return process

    def fleet(self, redis: Any = None, **pids: int) -> Fleet:
        """Agents with these numbers of processes."""
        fleet = Fleet(self.folder, redis)
        for name, pid in pids.items():
            (self.folder / name / FOLDER).mkdir(parents=True, exist_ok=True)
            fleet.start(name, [str(pid)])
        return fleet

    def say(self, name: str, process: int, started: float, **facts: Any) -> None:
        """Have the directory of the agent say what such a process says."""
        (self.folder / name / FOLDER).mkdir(parents=True, exist_ok=True)
        said = {"process": process, "started": started, "ended": None, **facts}
        (self.folder / name / FOLDER / "status.json").write_text(json.dumps(said))


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    """In the place of real ones."""
    processes = Processes(tmp_path)
    monkeypatch.setattr(fleet, "subprocess", SimpleNamespace(Popen=processes.Popen, PIPE=-1))
    clock = SimpleNamespace(monotonic=lambda: processes.now, strftime=time.strftime)
    monkeypatch.setattr(fleet, "time", clock)
    return processes


def test_pages_that_were_fetched_stay_counted(processes: Processes) -> None:
    """Whoever has their hosts by now."""
    there = processes.fleet(a=7, b=8)
    processes.say("a", 7, 1.0, fetched=70, done=100)
    processes.say("b", 8, 1.0, fetched=500, done=50)
    facts = there.facts()
    assert (facts["fetched"], facts["done"]) == (570, 150)
    processes.say("a", 7, 1.0, fetched=80, done=10)
    processes.now += 2
    facts = there.facts()
    assert (facts["fetched"], facts["done"], facts["rate"]) == (580, 60, 5)


def test_the_first_rate_is_from_the_beginning(processes: Processes) -> None:
    """Not that of the second before, of which nothing is known."""
    there = processes.fleet(a=7)
    processes.say("a", 7, 1.0, fetched=70)
    processes.now += 10
    assert there.facts()["rate"] == 7


def test_what_a_process_before_fetched_is_not_counted(processes: Processes) -> None:
    """Though it began a moment ago, or had the same number, as in a container each time."""
    now = time.time()
    for name in ("a", "b"):
        processes.say(name, 7, now, fetched=500, pending=3)
    there = processes.fleet(a=7, b=8)
    facts = there.facts()
    assert (facts["fetched"], facts["rate"], facts["pending"]) == (0, 0, 6)
    processes.say("a", 7, now + 1, fetched=20, pending=1)
    processes.now += 10
    facts = there.facts()
    assert (facts["fetched"], facts["rate"], facts["pending"]) == (20, 2, 4)


def test_an_agent_that_another_command_has_started_again(processes: Processes) -> None:
    """What it does is not this one's, and takes nothing from what was fetched here."""
    there = processes.fleet(a=7, b=8)
    processes.say("a", 7, 1.0, fetched=300)
    processes.say("b", 8, 1.0, fetched=200, ended=2.0, finish_reason="drained")
    processes.begun[1].returncode = 0
    assert [each["finish_reason"] for each in there.ended()] == ["drained"]
    processes.say("b", 9, 3.0, fetched=1, pending=4)
    facts = there.facts()
    assert (facts["fetched"], facts["pending"]) == (500, 4)
    processes.say("b", 9, 3.0, fetched=250, pending=2)
    processes.now += 10
    facts = there.facts()
    assert (facts["fetched"], facts["pending"], facts["rate"]) == (500, 2, 0)


def test_who_ended_before_it_could_count_lost_nothing(processes: Processes) -> None:
    """It says only how it ended; what was pending is so still."""
    processes.say("a", 5, 1.0, fetched=10, pending=30)
    there = processes.fleet(a=7)
    processes.say("a", 7, 2.0, ended=3.0, finish_reason="refused")
    processes.begun[0].returncode = 2
    facts = there.facts()
    assert (facts["fetched"], facts["pending"]) == (0, 30)


def test_who_is_killed_is_started_again_where_all_are_one_crawl(processes: Processes) -> None:
    """With what its processes have fetched so far, of which the last is not known."""
    redis = SimpleNamespace(start_process=processes.Popen, revive=lambda: "")
    there = processes.fleet(redis, a=7)
    processes.say("a", 7, 1.0, fetched=30, done=30)
    processes.begun[0].returncode = -9
    [ended] = there.ended()
    assert (ended["finish_reason"], there.running) == ("killed by SIGKILL; it is started again", 1)
    assert list(there.ended()) == []
    processes.now += 2
    assert list(there.ended()) == []
    assert len(processes.begun) == 2
    assert there.facts()["fetched"] == 30
    processes.say("a", 7, 9.0, fetched=12, done=42, ended=10.0, finish_reason="finished")
    processes.begun[1].returncode = 0
    assert [each["finish_reason"] for each in there.ended()] == ["finished"]
    facts = there.facts()
    assert (facts["fetched"], facts["done"], facts["cut_short"], there.code) == (42, 42, 1, 0)


def test_who_is_killed_while_all_stop_is_not_started_again(processes: Processes) -> None:
    """Whoever waits for its next start, neither."""
    redis = SimpleNamespace(start_process=processes.Popen, revive=lambda: "")
    there = processes.fleet(redis, a=7)
    processes.begun[0].returncode = -9
    assert len(list(there.ended())) == 1
    there.stopping = True
    [ended] = there.ended()
    assert (ended["finish_reason"], ended["exit_code"]) == ("killed by SIGKILL", 4)
    assert (there.running, there.code) == (0, 4)


def test_who_is_killed_when_its_crawl_has_ended_has_ended(processes: Processes) -> None:
    """A signal may come before its process has ended, too."""
    redis = SimpleNamespace(start_process=processes.Popen, revive=lambda: "")
    there = processes.fleet(redis, a=7)
    processes.say("a", 7, 1.0, ended=2.0, finish_reason="max_pages", exit_code=3)
    processes.begun[0].returncode = -15
    [ended] = there.ended()
    assert (ended["finish_reason"], ended["exit_code"]) == ("max_pages", 3)
    assert (there.running, there.code, there.facts()["cut_short"]) == (0, 3, 0)


@pytest.mark.parametrize(("reason", "code", "stopped"), [
    ("closespider_pagecount", 3, [8]), ("refused", 2, [8]), ("waiting", 3, []), ("finished", 0, []),
    ("drained", 0, []),
])  # fmt: skip
def test_none_waits_for_an_agent_that_is_not_started_again(
    reason: str, code: int, stopped: list[int], processes: Processes
) -> None:
    """Of one crawl: the others stop where it ended with work left."""
    redis = SimpleNamespace(start_process=processes.Popen, revive=lambda: "")
    there = processes.fleet(redis, a=7, b=8)
    processes.say("a", 7, 1.0, ended=2.0, finish_reason=reason)
    processes.begun[0].returncode = code
    assert len(list(there.ended())) == 1
    assert [each for each in processes.terminated if each != 7] == stopped


@pytest.mark.parametrize(("reason", "code", "exact", "cut_short"), [
    ("finished", 0, True, 0), ("waiting", 3, True, 0), ("drained", 0, True, 0),
    ("shutdown", 4, False, 0), (None, 4, False, 1), (None, -9, False, 1),
])  # fmt: skip
def test_what_is_not_known_is_not_said(
    reason: str | None, code: int, exact: bool, cut_short: int, processes: Processes,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Both sides of a hand-over count what goes over; who is killed does not say the last of it."""
    there = processes.fleet(a=7, b=8)
    processes.say("a", 7, 1.0, fetched=3, done=3, ended=2.0, finish_reason="finished")
    processes.say("b", 8, 1.0, fetched=4, done=4)
    processes.begun[0].returncode = 0
    assert len(list(there.ended())) == 1
    facts = there.facts()
    assert (facts["exact"], facts["cut_short"]) == (False, 0)
    ended = 2.0 if reason else None
    processes.say("b", 8, 1.0, fetched=4, done=4, failed=1, ended=ended, finish_reason=reason)
    processes.begun[1].returncode = code
    assert len(list(there.ended())) == 1
    facts = there.facts()
    assert (facts["exact"], facts["cut_short"]) == (exact, cut_short)
    (processes.folder / "b.log").write_text("")
    fleet_module.watch(_CALL, there, 10)
    said = capsys.readouterr().out
    least, about = "at least " * cut_short, "" if exact else "about "
    assert said == (
        f"2 agents have ended: {least}7 pages fetched; in their jobs {about}7 done, 1 failed, "
        "0 pending\n"
    )


def test_a_line_on_how_it_goes(
    processes: Processes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While agents run nobody knows exactly what is pending."""
    there = processes.fleet(a=7)
    processes.say("a", 7, 1.0, fetched=30, pending=5, failed=2)

    def sleep(seconds: float) -> None:
        processes.now += seconds
        if processes.now > 1_003:
            processes.begun[0].returncode = -40

    clock = SimpleNamespace(
        monotonic=lambda: processes.now, sleep=sleep, strftime=time.strftime
    )  # fmt: skip
    monkeypatch.setattr(fleet_module, "time", clock)
    assert fleet_module.watch(_CALL, there, 2) == 4
    first, ended, _ = capsys.readouterr().out.splitlines()
    rate = "1 of 1 agent runs: 30 pages fetched (15.0/s); in their jobs about 5 pending, 2 failed"
    assert first.split("  ")[1] == rate
    assert ended.startswith("a has ended: killed by signal 40 (exit code 4); ")
