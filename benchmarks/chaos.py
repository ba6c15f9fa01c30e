"""Agents that are added, stopped, drained, killed and frozen at random: is it still one crawl?

    python benchmarks/chaos.py                     # over Redis: 10 minutes of it, and the end
    python benchmarks/chaos.py --small             # for CI: some 40 s
    python benchmarks/chaos.py --transport lan     # over UDP that loses, repeats and reorders 5 %
    python benchmarks/chaos.py --transport none    # agents that do not know each other: it fails
    python benchmarks/chaos.py --fault restart     # Redis restarts and has forgotten everything
    python benchmarks/chaos.py --fault restart-aof # or has not; --fault pause, --fault cut: 30 s

Agents are processes; one that is frozen (SIGSTOP) is so for longer than its lease. At the end those
that were stopped or killed come back, and the crawl has to end by itself. The verdict is that of
the server's log: each page fetched and kept; fetched twice only what was on its way, or not settled
yet, when a process was killed or frozen, and no more than that; no request to a host or an address
sooner than promised. ``--seed`` repeats the choices (when things happen depends on the machine).
Exit code 1 if anything is wrong; ``--keep FOLDER`` keeps logs and job directories.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.chaos import FAULTS, Chaos, Plan, ground
from support.polite_crawls import Size
from support.verdict import table

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
    return replace(plan, **given)


def _grace(text: str) -> float | str:
    return text if text == "forever" else float(text)


def show(chaos: Chaos) -> bool:
    """Run it and print the table; whether everything is as it should be."""
    verdict = chaos.run()
    fleet = chaos.fleet
    acts = Counter(event.what for event in fleet.events)
    broken = list(verdict.broken())
    rows = [
        ("agents", ", ".join(sorted(fleet.agents))),
        ("done to them", ", ".join(f"{what} {count}" for what, count in sorted(acts.items()))),
        ("CPU", ", ".join(f"{each.name} {each.cpu:.1f} s" for each in fleet.agents.values())),
        *verdict.rows(),
        ("verdict", "one polite crawl" if not broken else "BROKEN"),
    ]
    print(table(rows))
    print("\n".join(broken), end="\n" if broken else "")
    return not broken


def main() -> int:
    """Let it happen, and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="three agents, some 40 s")
    parser.add_argument("--transport", choices=["peers", "lan", "none"], help="default: peers")
    parser.add_argument("--fault", choices=FAULTS, help="what happens to Redis")
    parser.add_argument("--assignment", help="SUITE_ASSIGNMENT")
    parser.add_argument("--agents", type=int, help="how many at a time, at most")
    parser.add_argument("--seconds", type=float, help="of chaos")
    parser.add_argument("--grace", type=_grace, help="SUITE_AGENT_GRACE; or forever")
    parser.add_argument("--seed", type=int, help="of the choices; default: 1")
    parser.add_argument("--keep", type=Path, help="an empty folder for logs and jobs")
    options = parser.parse_args()
    plan = planned(options)
    # Who is stopped leaves no agent behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        with ground(plan, folder) as here:
            return 0 if show(Chaos(plan, here)) else 1


if __name__ == "__main__":
    sys.exit(main())
