"""What watches a crawl without a browser: `top`, the report as a page, alerts, Prometheus."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from lxml import html
from support.command_line import process_of, script_of
from support.crawls import crawl, loopback_settings, start, web_settings
from support.endless_site import EndlessSite
from support.forks import Fork
from support.names import STATUS_FILE, Constant, Setting
from support.projects import Project, environment, scrapy
from support.running_crawl import until
from support.webs import FakeWebProcess
from support.websites import Answer, Site, links, running

from scrapy_spider_suite.testing import FakeWebConfig

FAST = {Setting.HOST_DELAY: 0.02, Setting.IP_DELAY: 0, Setting.RETRY_TIMES: 0}
RULES = Path(__file__).parents[2] / "docs" / "watching"
NEEDS_PROMETHEUS = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason="needs prometheus"
)


@pytest.fixture
def site() -> Iterator[Site]:
    """One that a crawl does not come to the end of."""
    with running(EndlessSite()) as site:
        yield site


@contextmanager
def crawling(site: Site, folder: Path, **settings: Any) -> Iterator[Path]:
    """Crawl *site*; gives its job as soon as a few pages are done."""
    job = folder / "job"
    given = loopback_settings(JOBDIR=str(job), **FAST, **settings)
    process = start("support.spiders.Bulk", given, folder, seeds=f"{site.url}/")
    try:
        until(lambda: (job / STATUS_FILE).exists() and len(site.visits) > 5)
        yield job
    finally:
        process.terminate()
        process.wait(30)


# In a terminal


def test_top_prints_a_crawl_in_80_columns(site: Site, tmp_path: Path) -> None:
    """Its numbers are those of the server's log, but for a pulse."""
    with crawling(site, tmp_path) as job:
        time.sleep(2.5)
        before = len(site.visits)
        text = scrapy(tmp_path, "frontier", "top", "-j", str(job)).stdout
        row = json.loads(scrapy(tmp_path, "frontier", "top", "-j", str(job), "--json").stdout)
        after = len(site.visits)
    assert max(map(len, text.splitlines())) <= 80
    [pages] = re.findall(r"^pages +([\d,]+)", text, re.MULTILINE)
    a_pulse = 2 / FAST[Setting.HOST_DELAY]  # pages of two seconds at most
    assert before - a_pulse <= int(pages.replace(",", "")) <= after
    assert before - a_pulse <= row["counters"]["pages"] <= after
    assert row["state"] == "running"


def test_top_is_live_until_q(site: Site, tmp_path: Path) -> None:
    """On a terminal it counts on, and leaves it as it was."""
    with crawling(site, tmp_path) as job:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "scrapy", "frontier", "top", "-j", str(job)]
        process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(), cwd=tmp_path,
        )  # fmt: skip
        os.close(theirs)
        try:
            shown = _read_until(ours, lambda text: len(set(_pages_shown(text))) >= 3)
            os.write(ours, b"q")
            shown += _read_until(ours, lambda text: process.poll() is not None)
            assert process.wait(10) == 0, shown
        finally:
            process.kill()
            process.wait()
            os.close(ours)
    counts = _pages_shown(shown)
    assert counts == sorted(counts)
    assert "q quits" in shown


def _pages_shown(text: str) -> list[int]:
    return [int(each.replace(",", "")) for each in re.findall(r"pages +([\d,]+)  ", text)]


def _read_until(terminal: int, done: Callable[[str], bool], within: float = 30.0) -> str:
    text, deadline = "", time.monotonic() + within
    while not done(text):
        assert time.monotonic() < deadline, text
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                text += os.read(terminal, 65_536).decode(errors="replace")
            except OSError:  # the other end is closed
                break
    return text


def test_top_of_no_job_is_refused_in_a_line(tmp_path: Path) -> None:
    done = scrapy(tmp_path, "frontier", "top", "-j", str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"scrapy frontier: .* holds no job of scrapy-spider-suite\n", done.stderr)
    for words, why in (
        (["--foo"], "unrecognized arguments: --foo"), (["a", "b"], "one job at a time"),
        (["none", "--token", "away"], "away cannot be read"),
    ):  # fmt: skip
        assert why in scrapy(tmp_path, "dashboard", *words).stderr


# The report


def test_the_report_is_one_page_of_the_crawl(tmp_path: Path) -> None:
    """Its counts are those of the server; the pauses that it found are those that were kept."""
    pages = {f"/{number}": f"page {number}" for number in range(30)}
    with running(Site({"/": links(*pages, "/gone"), **pages})) as site:
        done = crawl(
            "support.spiders.Bulk", loopback_settings(JOBDIR=str(tmp_path / "job"), **FAST),
            tmp_path, seeds=f"{site.url}/",
        )  # fmt: skip
        visits = list(site.visits)
    assert done.reason == "finished"
    file = tmp_path / "report.html"
    line = ["frontier", "report", "--html", str(file), "-j", str(tmp_path / "job")]
    assert scrapy(tmp_path, *line).returncode == 0
    page = html.fromstring(file.read_text())
    facts = dict(row.xpath("td/text()") for row in page.xpath("(//table)[1]//tr[td]"))
    assert facts["Pages"] == "31"
    assert facts["URLs that failed"] == "1"
    assert facts["Fetches"] == str(len(visits))
    titles = page.xpath("//svg/@aria-label")
    assert {"Pages a second", "Mean pages a second", "URLs discovered", "Bandwidth, Mbit/s"} <= (
        set(titles)
    )
    [kept] = page.xpath("//tr[td[1] = 'hosts']")
    delay, least, compared, shorter = kept.xpath("td/text()")[1:]
    assert (delay, compared, shorter) == ("0.02 s", str(len(visits) - 1), "0")
    assert float(least.removesuffix(" s")) >= 0.02
    assert not page.xpath("//script | //link | //img | //@href | //@src | //@onload")


def test_reports_of_several_crawls_stand_side_by_side(tmp_path: Path) -> None:
    """A column and a line for each, and how fast they were."""
    jobs = [tmp_path / name for name in ("one", "two")]
    for number, job in enumerate(jobs):
        with running(Site({"/": links(*"abc"[: number + 1]), "/a": "", "/b": ""})) as site:
            settings = loopback_settings(JOBDIR=str(job), **FAST)
            crawl("support.spiders.Bulk", settings, tmp_path, seeds=f"{site.url}/")
    file = tmp_path / "report.html"
    line = ["frontier", "report", "--html", str(file), "-j", str(jobs[0]), "--beside", str(jobs[1])]
    done = scrapy(tmp_path, *line)
    assert done.returncode == 0, done.stderr
    page = html.fromstring(file.read_text())
    assert page.xpath("//h1/text()") == ["Crawls one, two"]
    [pages] = page.xpath("//tr[td[1] = 'Pages']")
    assert pages.xpath("td/text()") == ["Pages", "2", "3"]
    assert "Gathering speed, pages a second" in page.xpath("//svg/@aria-label")


def test_a_report_needs_a_name_or_a_file(tmp_path: Path) -> None:
    """Not both; a file that cannot be written is a line."""
    with running(Site({"/": ""})) as site:
        settings = loopback_settings(JOBDIR=str(tmp_path / "job"), **FAST)
        crawl("support.spiders.Bulk", settings, tmp_path, seeds=f"{site.url}/")
    report = ["frontier", "report", "-j", str(tmp_path / "job")]
    for words in [], ["hosts", "--html", "x.html"]:
        done = scrapy(tmp_path, *report, *words)
        assert done.returncode == 2
        assert "give the NAME of a table, or --html FILE" in done.stdout + done.stderr
    done = scrapy(tmp_path, *report, "--html", str(tmp_path / "no" / "x.html"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    done = scrapy(tmp_path, *report, "--html", "x.html", "--beside", str(tmp_path / "none"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.slow
@pytest.mark.long
def test_agents_are_watched_as_one_crawl(tmp_path: Path) -> None:
    """`top` and the report of two agents with a Redis of their own; afterwards side by side."""
    jobs, file = tmp_path / "jobs", tmp_path / "report.html"

    def frontier(*words: str) -> subprocess.CompletedProcess[str]:
        return scrapy(tmp_path, "frontier", *words, "-j", str(jobs))

    def overview() -> dict[str, Any]:
        done = frontier("top", "--json")
        return json.loads(done.stdout) if done.returncode == 0 else {"agents": []}

    with (
        FakeWebProcess(FakeWebConfig(hosts=20, pages=20, seed=3)) as web,
        (tmp_path / "out").open("w+b") as out,
    ):  # fmt: skip
        given = web_settings(
            web.ready.dns_port, **{**FAST, Setting.HOST_DELAY: 3.0, Setting.IP_CONCURRENCY: 0},
            **{Setting.SEEDS: [web.ready.seeds[0]]},
            **{Setting.METRICS_FILE: str(tmp_path / "w.prom")},
        )  # fmt: skip
        given.pop("ADDONS")
        project = Project(tmp_path / "project", **given)
        line = ["up", "2", "bulk", "--name", "w", "--dir", str(jobs)]
        up = Fork(script_of("cluster"), line, project.folder, environment(), out, out)
        try:
            until(lambda: sum(bool(row["pages"]) for row in overview()["agents"]) == 2, 100.0)
            text = frontier("top").stdout
            assert max(map(len, text.splitlines())) <= 80
            assert re.findall(r"^(w_\d) +running", text, re.MULTILINE) in (
                ["w_1", "w_2"], ["w_2", "w_1"]
            )  # fmt: skip
            assert frontier("report", "--html", str(file)).returncode == 0
            one = html.fromstring(file.read_text())
            until(lambda: all((tmp_path / f"w.{name}.prom").exists() for name in ("w_1", "w_2")))
        finally:
            up.send_signal(signal.SIGINT)
            up.wait(120)
    facts = dict(row.xpath("td/text()") for row in one.xpath("(//table)[1]//tr[td]"))
    assert int(facts["Pages"]) > 1
    assert one.xpath("//tr[td[1] = 'hosts']/td[5]/text()") == ["0"]
    done = frontier("report", "--html", str(file))
    assert done.returncode == 0, done.stderr
    page = html.fromstring(file.read_text())
    assert page.xpath("//h1/text()") == ["Crawls w_1, w_2"]
    assert page.xpath("//table[1]/thead/tr/th/text()")[-2:] == ["w_1", "w_2"]
    at_rest = frontier("top")
    assert (at_rest.returncode, "report` and `history" in at_rest.stderr) == (2, True)
    assert "w_1" not in frontier("history", "--agent", "w_1").stderr
    assert frontier("history", "--agent", "w_1").stdout.count("\n") > 1


# Alerts


def test_an_alert_is_a_line_of_the_log_and_a_post(tmp_path: Path) -> None:
    """Most pages of this site are errors of its server."""
    errors = {f"/{number}": Answer(status=500) for number in range(80)}
    with running(Site({"/": links(*errors), **errors})) as site, running(Site()) as hook:
        hook.pages["/hook"] = "thanks"
        done = crawl(
            "support.spiders.Bulk",
            loopback_settings(
                JOBDIR=str(tmp_path / "job"), TEST_CONSTANTS={Constant.WATCH_PERIOD: 0.2},
                # Long enough for some pulses.
                **{**FAST, Setting.HOST_DELAY: 0.05, Setting.ALERT_URL: f"{hook.url}/hook"},
            ), tmp_path, seeds=f"{site.url}/",
        )  # fmt: skip
        until(lambda: hook.visits)
        assert [json.loads(each.body)["state"] for each in hook.visits] == ["begins", "ends"]
    assert done.reason == "finished"
    assert re.search(r"WARNING: Alert errors: \d+% of the fetches of the last minutes", done.log)
    message = json.loads(hook.visits[0].body)
    assert (message["alert"], message["state"], message["spider"]) == ("errors", "begins", "bulk")
    assert hook.url not in (tmp_path / "job" / "suite" / "job.json").read_text()


# Prometheus


@NEEDS_PROMETHEUS
def test_metrics_are_written_for_a_node_exporter(site: Site, tmp_path: Path) -> None:
    """They are whole at any time; the last ones say that the crawl has ended."""
    file = tmp_path / "crawl.prom"
    periods = {Constant.WATCH_PERIOD: 0.1}
    with crawling(
        site, tmp_path, TEST_CONSTANTS=periods, **{Setting.METRICS_FILE: str(file)}
    ):  # fmt: skip
        until(file.exists)
        for _ in range(20):
            assert file.read_text().endswith("\n")
            time.sleep(0.02)
        labels = f'crawl="bulk",jobdir="{(tmp_path / "job").resolve()}"'
        assert f"scrapy_suite_running{{{labels}}} 1.0\n" in file.read_text()
        promtool = ["promtool", "check", "metrics"]
        checked = subprocess.run(promtool, input=file.read_bytes(), capture_output=True, check=True)
        assert checked.stdout + checked.stderr == b""
    text = file.read_text()
    assert f"scrapy_suite_running{{{labels}}} 0.0\n" in text
    [pages] = re.findall(r"^scrapy_suite_pages_total\{.*\} ([\d.]+)$", text, re.MULTILINE)
    assert abs(float(pages) - len(site.visits)) <= 3  # robots.txt, and what was under way
    assert [path.name for path in tmp_path.glob("crawl.prom*")] == ["crawl.prom"]


@pytest.mark.parametrize("asked", [True, False])
def test_another_scheduler_has_no_pulse(tmp_path: Path, asked: bool) -> None:
    """One line says so to whoever wants metrics; no file says that all is well."""
    file = tmp_path / "crawl.prom"
    own = {"SCHEDULER": "scrapy.core.scheduler.Scheduler",
           "DOWNLOADER": "scrapy.core.downloader.Downloader"}  # fmt: skip
    own |= {Setting.METRICS_FILE: str(file)} if asked else {}
    with running(Site({"/": "a page"})) as site:
        settings = loopback_settings(TEST_CONSTANTS={Constant.WATCH_PERIOD: 0.1}, **own)
        done = crawl("support.spiders.Ordinary", settings, tmp_path, start=f"{site.url}/")
    assert done.reason == "finished"
    said = "SUITE_METRICS_FILE and SUITE_ALERT_URL need the suite's SCHEDULER"
    assert (said in done.log) == asked
    assert not file.exists()


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(folder: Path, *command: str, ready: str) -> Iterator[None]:
    """Run a server until the end; entered once *ready*, a URL, answers."""
    with (folder / f"{ready.rpartition('/')[2]}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment(), stdout=log, stderr=log)
    try:
        until(lambda: process.poll() is not None or _answers(ready))
        assert process.poll() is None, Path(log.name).read_text()
        yield
    finally:
        process.terminate()
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5):
            return True
    except OSError:
        return False


@NEEDS_PROMETHEUS
@pytest.mark.slow
def test_a_prometheus_scrapes_the_dashboard(site: Site, tmp_path: Path) -> None:
    """Its rules load, all panels of the Grafana dashboard have values; counts are the server's."""
    ours, theirs = free_port(), free_port()
    base = f"http://127.0.0.1:{theirs}"
    (tmp_path / "prometheus.yml").write_text(json.dumps({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES / "alerts.yml")],
        "scrape_configs": [
            {"job_name": "crawl", "static_configs": [{"targets": [f"127.0.0.1:{ours}"]}]}
        ],
    }))  # fmt: skip

    def ask(path: str, **words: str) -> Any:
        with urlopen(f"{base}/api/v1/{path}?{urlencode(words)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def value(expression: str) -> float:
        found = ask("query", query=expression)["result"]
        return float(found[0]["value"][1]) if found else -1.0

    with (
        crawling(site, tmp_path) as job,
        serving(
            tmp_path, *process_of("dashboard"), str(job), "--port", str(ours),
            ready=f"http://127.0.0.1:{ours}/metrics",
        ),
        serving(
            tmp_path, "prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{theirs}", ready=f"{base}/-/ready",
        ),
    ):  # fmt: skip
        until(lambda: value("scrapy_suite_running") == 1.0)
        before = len(site.visits)
        until(lambda: value("scrapy_suite_pages_total") >= before)
        assert value("scrapy_suite_pages_total") <= len(site.visits)
        until(lambda: value("rate(scrapy_suite_pages_total[10s])") > 1.0)
        rules = ask("rules")["groups"][0]["rules"]
        assert len(rules) == 9
        until(lambda: all(each["health"] == "ok" for each in ask("rules")["groups"][0]["rules"]))
        dashboard = json.loads((RULES / "grafana.json").read_text())
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                expression = target["expr"].replace("$crawl", ".*").removesuffix(" > 0")
                expression = expression.replace("$__rate_interval", "10s").replace("[5m]", "[10s]")
                found = ask("query", query=expression)["result"]
                assert bool(found) != ("_agent_" in expression), expression  # it is alone
        assert value("scrapy_suite_healthy") == 1.0


def agent(name: str, rate: int, share: float, pending: int = 9) -> list[dict[str, str]]:
    """The series of one agent of a crawl, for `promtool test rules`."""
    labels = f'{{crawl="news", agent="{name}"}}'
    return [
        {"series": f"scrapy_suite_agent_pages_total{labels}", "values": f"0+{rate}x60"},
        {"series": f"scrapy_suite_agent_share{labels}", "values": f"{share}+0x60"},
        {"series": f"scrapy_suite_agent_pending_urls{labels}", "values": f"{pending}+0x60"},
    ]


def series(pages: int, errors: int, event: str = "timeout", **gauges: str) -> list[dict[str, str]]:
    """The series of a crawl: what counters rise by in a minute, and values of gauges."""
    usual = {"running": "1+0x60", "healthy": "1+0x60", "paused": "0+0x60",
             "disk_free_bytes": "1e12+0x60",
             "last_pulse_timestamp_seconds": "0+60x60"} | gauges  # fmt: skip
    crawl = 'crawl="news"'
    ready = f'scrapy_suite_waiting_hosts{{{crawl}, reason="ready"}}'
    failures = f"scrapy_suite_errors_total{{{crawl}, event="
    return [
        {"series": f"scrapy_suite_pages_total{{{crawl}}}", "values": f"0+{pages}x60"},
        {"series": f'{failures}"{event}"}}', "values": f"0+{errors}x60"},
        {"series": f'{failures}"too_large"}}', "values": "0+0x60"},
        {"series": ready, "values": "3+0x60"},
        *({"series": f"scrapy_suite_{name}{{{crawl}}}", "values": values}
          for name, values in usual.items()),
    ]  # fmt: skip


@NEEDS_PROMETHEUS
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (series(600, 20), set()),
        (series(600, 5_000, "client_error"), set()),
        (series(0, 0), {"CrawlStalled"}),
        (series(0, 5, "client_error"), set()),
        (series(0, 5, "robots"), {"CrawlStalled"}),  # which is no fetch
        (series(0, 0, paused="1+0x60"), set()),
        (series(0, 0, running="0+0x60"), set()),
        (series(600, 0, last_pulse_timestamp_seconds="0+60x55 3300+0x5"), {"CrawlSilent"}),
        (series(600, 0, running="0+0x60", last_pulse_timestamp_seconds="0+0x60"), set()),
        (series(20, 900, "robots"), set()),
        (series(100, 300), {"CrawlErrors"}),
        (series(800, 200, "too_many_requests"), {"CrawlTooManyRequests"}),
        (series(600, 0, disk_free_bytes="5e8+0x60"), {"CrawlDisk"}),
        (series(600, 0, disk_free_bytes="4e11-5e9x60"), {"CrawlDisk"}),  # full in 20 minutes
        (series(600, 0, healthy="0+0x60"), {"CrawlUnhealthy"}),
        ([{"series": 'up{job="crawls"}', "values": "0+0x60"}], {"CrawlUnwatched"}),
        ([*agent("a", 600, 0.5), *agent("b", 60, 0.5)], {"CrawlSkew"}),
        ([*agent("a", 600, 0.5), *agent("b", 0, 0.5, pending=0)], set()),
        ([*agent("a", 600, 0.5), *agent("b", 500, 0.5)], set()),
    ],
)
def test_rules_fire(given: list[dict[str, str]], expected: set[str], tmp_path: Path) -> None:
    """Each alert of docs/watching/alerts.yml, after an hour of such a crawl."""
    (tmp_path / "test.yml").write_text(json.dumps({
        "rule_files": [str(RULES / "alerts.yml")], "evaluation_interval": "1m",
        "tests": [{
            "interval": "1m", "input_series": given,
            "promql_expr_test": [{
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": "59m",
                "exp_samples": [
                    {"labels": f'{{alertname="{name}"}}', "value": 1} for name in expected
                ],
            }],
        }],
    }))  # fmt: skip
    line = ["promtool", "test", "rules", "test.yml"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
