"""``scrapy frontier history``: what a crawl counted, second by second, and over kills."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.crawls import crawl, loopback_settings, web_settings
from support.names import Setting
from support.projects import scrapy
from support.webs import FakeWebProcess

from scrapy_spider_suite.testing import FakeWebConfig

HOSTS, PAGES = 5, 12
SETTINGS = {Setting.HOST_DELAY: 0.2, Setting.IP_DELAY: 0, Setting.RETRY_TIMES: 0}


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeWebProcess]:
    """A web whose server logs every request; some pages answer with an error."""
    log = tmp_path_factory.mktemp("web") / "arrivals.tsv"
    with FakeWebProcess(FakeWebConfig(hosts=HOSTS, pages=PAGES, errors=0.2, log=log)) as web:
        yield web


def history(job: Path, *arguments: str) -> list[dict[str, Any]]:
    """The rows of ``--json``."""
    said = scrapy(job.parent, "frontier", "history", *arguments, "--json", "-j", str(job))
    assert said.returncode == 0, said.stderr
    return [json.loads(line) for line in said.stdout.splitlines()]


def test_a_crawl_over_time(web: FakeWebProcess, tmp_path: Path) -> None:
    """Each second has what the server's log has of it, ± a pulse; a kill loses a second at most."""
    job = tmp_path / "job"
    settings = web_settings(web.ready.dns_port, JOBDIR=str(job), **SETTINGS)
    crawl("support.spiders.Bulk", settings, tmp_path, kill_after=1.5, seeds=web.ready.seeds[0])
    before = sum(row["pages"] for row in history(job))
    ended = crawl("support.spiders.Bulk", settings, tmp_path, seeds=web.ready.seeds[0])
    assert ended.reason == "finished"
    web.stop()
    arrivals = [each for each in web.arrivals() if each.path != "/robots.txt"]
    rows = history(job, "--tier", "second", "--since", "10m")
    [day] = history(job, "--tier", "day", "--since", "10m")
    names = ("pages", "failed", "status.2xx", "status.5xx", "errors.*", "pending")
    more = history(job, *names, "--tier", "second", "--since", "10m")
    assert sum(row["pages"] for row in rows) == day["pages"] > before
    assert [row["pages"] for row in more] == [row["pages"] for row in rows]
    # In the same seconds as the server, one off at most.
    served = Counter(int(each.end) for each in arrivals)
    seen = {int(row["when"]): row["pages"] + row["failed"] for row in rows}
    for second in range(min(served), max(served)):
        here = sum(number for when, number in seen.items() if when <= second)
        lost = sum(served.values()) - sum(seen.values())  # cut off by the kill
        assert sum(n for when, n in served.items() if when < second) - lost <= here
        assert here <= sum(n for when, n in served.items() if when <= second + 1)
    assert sum(row["failed"] for row in more) == sum(
        value for row in more for name, value in row.items() if name.startswith("errors.")
    )
    assert any(row["pending.max"] for row in more)


def test_files(tmp_path: Path) -> None:
    """CSV and Parquet have the rows of JSON; an unknown series, or a range, is refused."""
    job = tmp_path / "job"
    settings = loopback_settings(JOBDIR=str(job), ROBOTSTXT_OBEY=False, **SETTINGS)
    crawl("support.spiders.Bulk", settings, tmp_path, seeds="http://127.0.0.1:1/")
    path = tmp_path / "rows"
    said = scrapy(
        tmp_path, "frontier", "history", "errors.refused", "memory", "-j", str(job),
        "--csv", f"{path}.csv", "--parquet", f"{path}.parquet",
    )  # fmt: skip
    assert (said.returncode, said.stdout) == (0, ""), said.stderr
    [row] = history(job, "errors.refused", "memory")
    assert row["errors.refused"] == 1
    assert row["memory"] > 1 << 20
    with (tmp_path / "rows.csv").open() as file:
        assert [{n: float(v) for n, v in each.items()} for each in csv.DictReader(file)] == [row]
    # A name is printed as it is written, and a time may be that of a file.
    since = str(int(row["when"]))
    words = ("history", "errors.connection_lost", "--since", since, "-j", str(job))
    assert "errors.connection_lost" in scrapy(tmp_path, "frontier", *words).stdout
    printed = scrapy(tmp_path, "frontier", *words, "--csv", "-").stdout.splitlines()
    assert printed[0] == "when,seconds,errors.connection_lost"
    past = ["--since", "2020-01-01", "--until", "2020-01-02"]
    nothing = scrapy(tmp_path, "frontier", "history", *past, "-j", str(job))
    assert (nothing.stdout, "no rows" in nothing.stderr) == ("", True)
    [stored] = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert stored.pop("when").timestamp() == row.pop("when")
    assert stored == row
    backwards = ["--since", "2026-11-02", "--until", "2026-11-01"]
    old = ["--tier", "second", "--since", "6h"]
    for arguments, words in (
        (["nothing"], "no series 'nothing'"), (backwards, "before --until"),
        (old, "no rows of a second go back to --since: there are seconds for 2 h, minutes for 7 d"),
    ):  # fmt: skip
        refused = scrapy(tmp_path, "frontier", "history", *arguments, "-j", str(job))
        assert refused.returncode == 2
        assert words in refused.stderr + refused.stdout
    never = scrapy(tmp_path, "frontier", "history", "--since", "99999999999d", "-j", str(job))
    assert "expected a time ago" in never.stderr
    assert "holds no job" in scrapy(tmp_path, "frontier", "history", "-j", "none").stderr
