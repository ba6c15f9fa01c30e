"""Many agents in trouble, and an operator at work: both judged by the server's log.

    python -m benchmarks chaos                     # over Redis: 10 minutes of it, and the end
    python -m benchmarks chaos --transport shared-queue   # disks and folder in trouble, too
    python -m benchmarks chaos --transport lan     # over UDP that loses, repeats and reorders 5 %
    python -m benchmarks chaos --transport none    # agents that do not know each other: it fails
    python -m benchmarks chaos --fault restart     # Redis restarts and has forgotten everything
    python -m benchmarks chaos --fault restart-aof # or has not; --fault pause, --fault cut: 30 s
    python -m benchmarks drill                     # some six minutes

chaos: agents are processes that are added, stopped, drained, killed and frozen at random; one that
is frozen (SIGSTOP) is so for longer than its lease. At the end those that were stopped or killed
come back, and the crawl has to end by itself. A Redis that restarts with its data has lost the data
of its last second. Each page must be fetched and kept; fetched twice only what was on its
way, or not settled yet, when a process was killed or frozen, or when Redis forgot, and no more than
that; no request to a host or an address sooner than promised. ``--seed`` repeats the choices (when
things happen depends on the machine); ``--keep FOLDER`` keeps logs and job directories.

drill: while 1,000 hosts are crawled one complains: it is blocked, what was fetched there is shown,
later it is unblocked with a longer delay. Meanwhile 5,000 URLs are fetched again before all else,
and another host is blocked and dropped. Then a snapshot is taken and copied to another place, the
crawl is ended, and the copy is crawled to its end. All of it is asked with ``scrapy frontier``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from support.chaos import FAULTS, Chaos, Plan, ground
from support.drill import FULL as DRILL
from support.drill import SMALL as SMALL_DRILL
from support.drill import Drill
from support.drill_checks import Findings
from support.polite_crawls import Size
from support.verdict import table

from benchmarks.report import Report

FULL = Plan(
    size=Size(hosts=120, addresses=40, pages=400, host_delay=1.0, ip_delay=0.1),
    agents=4, seconds=600.0, pace=(3.0, 9.0),
)  # fmt: skip
SMALL = Plan(
    size=Size(hosts=40, addresses=14, pages=40, host_delay=0.4, ip_delay=0.03),
    agents=3, seconds=25.0, pace=(1.0, 4.0),
)  # fmt: skip
FAULT_GRACE = 120.0


def planned(options: argparse.Namespace) -> Plan:
    """What is to happen."""
    plan = SMALL if options.small else FULL
    if options.fault:
        plan = replace(plan, fault=options.fault, grace=FAULT_GRACE, agents=2)
        plan = replace(plan, fault_seconds=8.0 if options.small else 30.0)
    given = {
        name: getattr(options, name)
        for name in ("transport", "assignment", "seed", "agents", "seconds", "grace")
        if getattr(options, name) is not None
    }
    if options.transport == "none":
        given["transport"] = ""
    if options.transport == "shared-queue" and not options.fault:
        given |= {"hard": True, "within": 120.0}
    return replace(plan, **given)


def _grace(text: str) -> float | str:
    return text if text == "forever" else float(text)


def show(chaos: Chaos, report: Report) -> None:
    """Run it, and report what came of it."""
    verdict = chaos.run()
    fleet = chaos.fleet
    acts = Counter(event.what for event in fleet.events)
    report.wrong += verdict.broken()
    rows = [
        ("agents", ", ".join(sorted(fleet.agents))),
        ("done to them", ", ".join(f"{what} {count}" for what, count in sorted(acts.items()))),
        ("CPU", ", ".join(f"{each.name} {each.cpu:.1f} s" for each in fleet.agents.values())),
        *verdict.rows(),
        ("verdict", "BROKEN" if report.wrong else "one polite crawl"),
    ]
    for line in table(rows).splitlines():
        report.say(line)


def drill(report: Report, small: bool) -> None:
    """Drill, and report what was found."""
    with tempfile.TemporaryDirectory() as name:
        drilled = Drill(SMALL_DRILL if small else DRILL, Path(name))
        drilled.run()
        findings = Findings(drilled)
        report.wrong += findings.all()[:50]
        for line in findings.figures():
            report.say(line)


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Those of chaos; drill has none."""
    if name == "drill":
        return
    parser.add_argument("--transport", help="default: peers",
                        choices=["peers", "shared-queue", "lan", "none"])
    parser.add_argument("--fault", choices=FAULTS, help="what happens to Redis")
    parser.add_argument("--assignment", help="SUITE_ASSIGNMENT")
    parser.add_argument("--agents", type=int, help="how many at a time, at most")
    parser.add_argument("--seconds", type=float, help="of chaos")
    parser.add_argument("--grace", type=_grace, help="SUITE_AGENT_GRACE; or forever")
    parser.add_argument("--seed", type=int, help="of the choices; default: 1")
    parser.add_argument("--keep", type=Path, help="an empty folder for logs and jobs")


def run(options: argparse.Namespace, report: Report) -> None:
    """Let it happen, and judge."""
    if options.name == "drill":
        drill(report, options.small)
        return
    plan = planned(options)
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        with ground(plan, folder) as here:
            show(Chaos(plan, here), report)
