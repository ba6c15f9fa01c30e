"""How long the loops of two agents are blocked while hosts go from one to the other.

    python benchmarks/handovers.py            # 40,000 URLs of 2,000 hosts: a minute
    python benchmarks/handovers.py --small    # 3,000 of 200

One agent has read a list and crawls it; another one joins, and gets half of the hosts with all that
is kept of them. A stall is how much later than asked the loop calls back whoever asks every 10 ms,
without the time in which its thread was ready to run and had no processor; beside it stands how
much CPU time one took at most.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.crawls import web_settings
from support.fleet import Agent, Fleet
from support.redis_servers import RedisServer
from support.running_crawl import until

from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess

LONG: Final = 0.05
_QUIET: Final = 4.0
"""Seconds without another file after which all have gone."""
_PATIENCE: Final = 600.0
_TOOK: Final = re.compile(r"received hand-over file .* ([\d,]+) hosts?, ([\d,]+) URLs?")


def write_list(path: Path, urls: int, hosts: int, port: int) -> None:
    """Seeds, of as many hosts."""
    lines = (f"http://h{n % hosts:06}.fake.test:{port}/{n // hosts}.html" for n in range(urls))
    path.write_text("\n".join(lines))


def stalls(agent: Agent, since: float) -> list[tuple[float, float]]:
    """For how long the loop of *agent* was blocked, each time from *since* on, and CPU time."""
    path = agent.folder / "stalls"
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [tuple(map(float, line.split())) for line in lines]
    return [(seconds, worked) for when, seconds, worked in rows if when >= since]


def hand_over(urls: int, hosts: int, folder: Path) -> bool:
    """Measure once, and print; False if nothing was handed over."""
    (folder / "none").write_text("")
    web = FakeWebProcess(FakeWebConfig(hosts=hosts, addresses=hosts, pages=2, latency=0.05))
    with web, RedisServer(folder / "redis", tcp=True) as redis:
        write_list(folder / "seeds", urls, hosts, web.ready.http_port)

        def settings(name: str) -> dict[str, Any]:
            own = {
                "SUITE_CLUSTER": "peers", "SUITE_REDIS_URL": redis.url, "SUITE_CRAWL_NAME": "moved",
                "SUITE_AGENT_ADDRESS": "127.0.0.1", "SUITE_HOST_DELAY": 60, "SUITE_IP_DELAY": 1,
                "CONCURRENT_REQUESTS": 4,
                "EXTENSIONS": {"support.loop_watch.Stalls": 0}, "TEST_LONG": 0.001,
                "TEST_STALLS": str(folder / name / "stalls"),
            }  # fmt: skip
            return web_settings(web.ready.dns_port, **own)

        with Fleet(folder, settings, {"seeds": str(folder / "seeds")}) as fleet:
            sender = fleet.start("sender")
            until(lambda: "of them new" in sender.log, _PATIENCE)
            time.sleep(_QUIET)
            fleet.arguments = {"seeds": str(folder / "none")}
            began = time.time()
            receiver = fleet.start("receiver")
            until(lambda: _TOOK.search(receiver.log), _PATIENCE)
            known, since = "", time.monotonic()
            while time.monotonic() < since + _QUIET:
                if (said := sender.log + receiver.log).count("hand-over file") != known.count(
                    "hand-over file"
                ):
                    known, since = said, time.monotonic()
                time.sleep(0.1)
            for name in ("sender", "receiver"):
                fleet.stop(name)
    found = [each.groups() for each in _TOOK.finditer(receiver.log)]
    moved = [[int(number.replace(",", "")) for number in each] for each in found]
    print(
        f"{sum(each[1] for each in moved):,} URLs of {sum(each[0] for each in moved):,} hosts in "
        f"{len(moved)} files"
    )
    for agent in (sender, receiver):
        found = stalls(agent, began) or [(0.0, 0.0)]
        print(
            f"{agent.name}: longest stall {max(each[0] for each in found) * 1_000:.0f} ms, "
            f"{sum(each[0] > LONG for each in found)} over {LONG * 1_000:.0f} ms; "
            f"{max(each[1] for each in found) * 1_000:.0f} ms of CPU at most"
        )
    print("\n".join(fleet.wrong), end="\n" if fleet.wrong else "")
    return bool(moved) and not fleet.wrong


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="3,000 URLs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return not hand_over(*((3_000, 200) if options.small else (40_000, 2_000)), Path(folder))


if __name__ == "__main__":
    sys.exit(main())
