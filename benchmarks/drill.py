"""The drill of an operator: complaints and wishes while 1,000 hosts are crawled.

    python benchmarks/drill.py            # full size: some six minutes
    python benchmarks/drill.py --small    # for CI: 40 hosts, delays of half a second

A host complains: it is blocked, what was fetched there is shown, later it is unblocked with a
longer delay. Meanwhile 5,000 URLs are fetched again before all else, and another host is blocked
and dropped. Then a snapshot is taken and copied to another place, the crawl is ended, and the
copy is crawled to its end. All of it is asked with ``scrapy frontier``; printed are the times of
each command, the times for which the crawl's loop was blocked, and everything that is wrong by the
server's log, the answers and the audit log. The exit code is 1 if anything is.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.drill import FULL, SMALL, Drill
from support.drill_checks import Findings


def main() -> int:
    """Drill and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="40 hosts, short delays")
    plan = SMALL if parser.parse_args().small else FULL
    with tempfile.TemporaryDirectory() as name:
        drill = Drill(plan, Path(name))
        drill.run()
        findings = Findings(drill)
        wrong = findings.all()
        print("\n".join(findings.figures()))
    print("\n".join(wrong[:50]) or "everything is as it should be")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
