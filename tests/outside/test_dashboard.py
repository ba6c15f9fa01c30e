"""``scrapy dashboard``: what it shows in a browser, and whom it lets look and act."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from support import forks
from support.browser import Browser, missing, open_browser
from support.command_line import process_of, script_of
from support.crawls import crawl, loopback_settings, web_settings
from support.fleet import Fleet
from support.names import STATUS_FILE, Setting
from support.projects import environment
from support.redis_servers import RedisServer
from support.running_crawl import running, until
from support.webs import FakeWebProcess
from support.websites import Answer, Site, Visit, links
from support.websites import running as serving

from scrapy_spider_suite.analysis.time_series import SeriesWriter
from scrapy_spider_suite.crawl.pulse import COLUMNS, SERIES_FOLDER
from scrapy_spider_suite.testing import FakeWebConfig

IN_BROWSER = pytest.mark.skipif(bool(missing()), reason=missing())
PATIENCE = 300.0  # seconds: agents of a slow machine are asked again and again
TOKEN, ACT_TOKEN = "a token to look with", "a token to act with"
HOSTS, HOST = 10, "h000003.fake.test"
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
SETTINGS: dict[str, Any] = {
    Setting.HOST_DELAY: 0.3, Setting.IP_DELAY: 0, Setting.FETCH_LOG: True,
    Setting.LINK_STATS: ["hosts", "links", "out", "external"],
}  # fmt: skip


class HostileSite(Site):
    """Every page has hostile texts for its title and for a link."""

    def answer(self, visit: Visit) -> Answer:
        """The same page, whatever is asked for."""
        link = quote(HOSTILE, safe="<>='")
        body = links(link, title=HOSTILE.replace("<", "&lt;"))
        return Answer(b"User-agent: *" if visit.path == "/robots.txt" else body.encode())


class Dashboard:
    """A process of the command; *address* is host and port."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.url = f"http://{address}/"

    def request(
        self, path: str, method: str = "GET", body: Any = None, **headers: str
    ) -> tuple[int, dict[str, str], str]:
        """Send a request; the status, headers and body of the answer."""
        connection = HTTPConnection(self.address, timeout=40)
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, fields)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()

    def act(self, act: dict[str, str], **headers: str) -> tuple[int, Any]:
        """Ask for an act as the page does; the status and the answer."""
        own = {"Origin": self.url.rstrip("/"), "Content_Type": "application/json"}
        status, _, text = self.request("/act", "POST", json.dumps(act), **{**own, **headers})
        return status, json.loads(text)


@contextmanager
def dashboard(job: Path | str, folder: Path, **variables: str) -> Iterator[Dashboard]:
    """Run ``scrapy dashboard`` on *job* in *folder*, with environment *variables*."""
    command = [*process_of("dashboard"), str(job), "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
        env={**environment(), **variables},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.match(r"http://(\S+)/ shows ", line)
        assert found is not None, line + process.communicate()[0]
        yield Dashboard(found[1])
    finally:
        process.terminate()
        said, _ = process.communicate(timeout=20)
    assert "Traceback" not in said, said
    assert process.returncode == 0


def refused(job: Path, *options: str) -> str:
    """What the command says that does not start."""
    done = forks.run(
        script_of("dashboard"), str(job), "--port", "0", *options, folder=job.parent,
        environment=environment(),
    )  # fmt: skip
    assert done.returncode == 2
    return done.stderr


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeWebProcess]:
    """A web that takes some minutes, and logs every request."""
    log = tmp_path_factory.mktemp("web") / "arrivals.tsv"
    config = FakeWebConfig(hosts=HOSTS, pages=3_000, degree=8, errors=0.05, log=log)
    with FakeWebProcess(config) as web:
        yield web


@pytest.fixture(scope="module")
def job(web: FakeWebProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The job of a crawl that runs."""
    folder = tmp_path_factory.mktemp("crawl")
    packs = {Setting.PACKS_DIR: str(folder / "packs")}
    with running(web, folder, **SETTINGS, **packs):
        yield folder / "job"


@pytest.fixture(scope="module")
def page(job: Path) -> Iterator[Dashboard]:
    """The dashboard of that job, which lets act with a token."""
    with dashboard(job, job.parent, DASHBOARD_ACT_TOKEN=ACT_TOKEN) as page:
        yield page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for all tests."""
    with open_browser() as browser:
        yield browser


def show(browser: Browser, page: Dashboard) -> None:
    """Open *page*; the errors of the one before, whose server may have ended, are forgotten."""
    browser.get("about:blank")
    browser.console()
    browser.foreign_requests("")
    browser.get(page.url)


def opened(browser: Browser, page: Dashboard) -> Browser:
    """*browser*, with the page, as soon as it has numbers, charts and tables."""
    browser.darken(False)
    browser.resize(1440)
    show(browser, page)
    browser.wait_for("#tiles dd", r"\d")
    browser.wait_for("#hosts", "Fetches")
    until(lambda: browser.execute_script("return document.querySelectorAll('canvas').length") > 5)
    return browser


def number(browser: Browser) -> int:
    """The pages that the page shows."""
    return int(browser.text("#tiles dd").replace(",", ""))


# In a browser


@IN_BROWSER
@pytest.mark.slow
def test_numbers_move(browser: Browser, page: Dashboard) -> None:
    """By themselves, without an error and without a request to elsewhere."""
    opened(browser, page)
    assert browser.text("#words").startswith("The crawl runs well")
    before = number(browser)
    until(lambda: number(browser) > before)
    browser.wait_for("#recent table", "(http://h0000.*){20}", PATIENCE)
    assert re.search(r"Links of a page.*Hosts that link to a host", browser.text("#links"), re.S)
    assert browser.console() == []
    assert browser.foreign_requests(page.address) == []


def shown_numbers(browser: Browser) -> tuple[float, int]:
    """When the numbers of the page were taken, in whole seconds; the fetches that they count."""
    live, *tiles = browser.execute_script(
        "return ['#live', '#tiles dd'].flatMap("
        "place => [...document.querySelectorAll(place)].map(each => each.textContent))"
    )
    hours, minutes, seconds = map(int, re.findall(r"\d+", live))
    now = time.localtime()
    age = (now.tm_hour - hours) * 3_600 + (now.tm_min - minutes) * 60 + now.tm_sec - seconds
    pages, failed, retried = (int(re.sub(r"\D", "", tiles[at])) for at in (0, 6, 13))
    return time.mktime(now) - age % 86_400, pages + failed + retried


def metrics_numbers(page: Dashboard) -> tuple[float, int]:
    """The same of ``/metrics``."""
    text = page.request("/metrics")[2]
    when, *counts = (
        float(re.findall(rf"^scrapy_suite_{name}\{{.*\}} (.+)$", text, re.MULTILINE)[0])
        for name in ("last_pulse_timestamp_seconds", "pages_total", "failed_urls_total",
                     "retries_total")
    )  # fmt: skip
    return when, int(sum(counts))


@IN_BROWSER
@pytest.mark.slow
@pytest.mark.long
def test_its_numbers_are_the_servers(
    browser: Browser, page: Dashboard, web: FakeWebProcess
) -> None:
    """What page and metrics count in a minute is in the server's log, ± one pulse."""
    opened(browser, page)
    before = shown_numbers(browser), metrics_numbers(page)
    time.sleep(60)
    after = shown_numbers(browser), metrics_numbers(page)
    time.sleep(1.0)  # the log is written twice a second
    served = [each.end for each in web.arrivals() if each.path != "/robots.txt"]
    for (began, first), (ended, last) in zip(before, after, strict=True):
        during = sum(began < each <= ended for each in served)
        assert during > 100
        a_pulse = during / (ended - began)
        # And each host may have a fetch that was served and not counted yet.
        assert abs((last - first) - during) <= a_pulse + HOSTS


@IN_BROWSER
@pytest.mark.slow
def test_ranges(browser: Browser, page: Dashboard) -> None:
    """Each is asked for; a chart says as a table what it shows."""
    opened(browser, page)
    browser.click("#chart-pages summary")
    browser.wait_for("#chart-pages table", "/s")
    for at in range(4):
        browser.execute_script("performance.clearResourceTimings()")
        browser.click(f"#ranges label:nth-of-type({at + 1}) span")
        asked = "return performance.getEntriesByType('resource').some(e => e.name.match(/series/))"
        until(lambda: browser.execute_script(asked))  # noqa: B023
        browser.wait_for("#chart-pages .key", r"latest\s+[\d.]+/s")
    assert browser.console() == []


@IN_BROWSER
@pytest.mark.slow
def test_why(browser: Browser, page: Dashboard) -> None:
    """A search for a host or URL says what ``scrapy frontier why`` says; so does a host's name."""
    opened(browser, page)
    browser.write("#target", HOST)
    browser.click("#ask-form button")
    browser.wait_for("#answer", HOST)
    assert re.search(r"Pending\s+\d+", browser.text("#answer"))
    browser.click("#host-order label:nth-of-type(3) span")
    browser.wait_for("#hosts", "Failed|None")
    browser.click("#host-order label:nth-of-type(2) span")
    browser.wait_for("#hosts", "Pending")
    browser.execute_script("document.querySelector('#answer').textContent = ''")
    browser.click("#hosts button")
    browser.wait_for("#answer", browser.text("#hosts button"))
    browser.write("#target", HOSTILE)
    browser.click("#ask-form button")
    browser.wait_for("#answer .error", ".")
    assert browser.title != "owned"
    [refusal] = browser.console()
    assert "409" in refusal


@IN_BROWSER
@pytest.mark.slow
def test_everybody_can_read_it(browser: Browser, page: Dashboard) -> None:
    """In the dark, on a phone, and with a screen reader as far as axe-core knows."""
    opened(browser, page)
    for width in (1440, 375):
        browser.resize(width)
        for dark in (False, True):
            browser.darken(dark)
            found = "return getComputedStyle(document.body).backgroundColor"
            red = int(browser.execute_script(found).split("(")[1].split(",")[0])
            assert (red < 80) == dark
            until(lambda: browser.execute_script("return document.querySelector('canvas').width"))
            assert browser.serious_findings() == []
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.console() == []


@IN_BROWSER
@pytest.mark.slow
def test_acts(browser: Browser, page: Dashboard, job: Path) -> None:
    """With the token; by the same way, and into the same audit log, as ``scrapy frontier``."""
    opened(browser, page)
    assert browser.text("#acts") == ""
    browser.write("#act-token", "another token, which is none")
    browser.click("#unlock button")
    browser.wait_for("body", "This is not the token")
    browser.get(page.url)
    browser.wait_for("#unlock", ".")
    browser.write("#act-token", ACT_TOKEN)
    browser.click("#unlock button")
    browser.wait_for("#acts", ".")

    def press(verb: str, said: str) -> None:
        browser.click(f"#acts button[value={verb}]")
        browser.wait_for("#said", said)

    browser.write("#why", "a test of the page")
    press("pause", "paused")
    browser.wait_for("#state", "paused")
    press("resume", "goes on")
    browser.write("#subject", HOST)
    press("block", f"{HOST} is blocked")
    press("unblock", f"{HOST} is no longer blocked")
    browser.write("#delay", "0.2")
    press("set", "SUITE_HOST_DELAY was 0.3 and is 0.2")
    browser.write("#urls", f"http://{HOST}/added\n\nnot a URL at all")
    press("add", "1 URL taken, 1 new, 1 line is no seed")
    rows = [json.loads(line) for line in (job / "suite" / "audit.jsonl").read_text().splitlines()]
    assert [row["verb"] for row in rows] == ["pause", "resume", "block", "unblock", "set", "add"]
    assert all(row["who"].endswith(" (dashboard)") for row in rows)
    assert {row["why"] for row in rows} == {"a test of the page"}
    browser.delete_all_cookies()


@IN_BROWSER
@pytest.mark.slow
@pytest.mark.long
def test_two_agents(
    browser: Browser, web: FakeWebProcess, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Both are there with their parts of the ring; what only they know is asked of them."""
    given = web_settings(
        web.ready.dns_port, **SETTINGS, SUITE_CLUSTER="peers", SUITE_CRAWL_NAME="two",
        SUITE_REDIS_URL=redis_server.url, SUITE_SEEDS=[web.ready.seeds[0]],
    )  # fmt: skip
    with Fleet(tmp_path, lambda name: given, {}, "support.spiders.Bulk") as fleet:
        fleet.start("a")
        fleet.start("b")
        with dashboard(redis_server.url, tmp_path, DASHBOARD_ACT_TOKEN=ACT_TOKEN) as page:
            show(browser, page)
            browser.wait_for("#agent-rows", r"a\s+running.*b\s+running", 60)
            browser.wait_for("#words", "2 agents fetch")
            before = number(browser)
            until(lambda: number(browser) > before)
            browser.wait_for("#recent", "http://h0000", PATIENCE)
            browser.write("#target", HOST)
            browser.click("#ask-form button")
            browser.wait_for("#answer", HOST, PATIENCE)
            bearer = {"Authorization": f"Bearer {ACT_TOKEN}"}
            added = {"verb": "add", "urls": f"http://{HOST}/added", "why": "two"}
            for act, said in (
                (added, "1 new"), ({"verb": "block", "subject": HOST}, f"a, b: {HOST} is blocked"),
                ({"verb": "pause"}, "a, b: paused"),
            ):  # fmt: skip
                status, answer = page.act(act, **bearer)
                assert (status, answer["ok"]) == (200, True), answer
                assert said in answer["said"]
            browser.wait_for("#state", "paused")
            assert browser.console() == []


@IN_BROWSER
@pytest.mark.slow
@pytest.mark.long
def test_queues(
    browser: Browser, web: FakeWebProcess, redis_server: RedisServer, tmp_path: Path
) -> None:
    """A shared queue has its queues there, by state, and all URLs that are to go."""
    with redis_server.client() as client:
        client.set("suite:durable", 1)
    given = web_settings(
        web.ready.dns_port, **SETTINGS, SUITE_CLUSTER="shared-queue", SUITE_CRAWL_NAME="runs",
        SUITE_REDIS_URL=redis_server.url, SUITE_SEEDS=[web.ready.seeds[0]],
        SUITE_RUNS_DIR=str(tmp_path / "runs"), SUITE_RUN_QUEUES="bulk=1,fresh=3",
    )  # fmt: skip
    with Fleet(tmp_path, lambda name: given, {}, "support.spiders.Bulk") as fleet:
        fleet.start("a")
        with dashboard(redis_server.url, tmp_path) as page:
            browser.darken(False)
            browser.resize(1440)
            show(browser, page)
            browser.wait_for("#queue-rows", r"bulk\s+1\s.*fresh\s+3\s", 60)
            browser.wait_for("#tiles", r"(?i)Queue\s+[\d,]{2,}", 60)
            assert browser.serious_findings() == []
            browser.resize(375)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= 375
            assert browser.console() == []


@IN_BROWSER
@pytest.mark.slow
def test_hostile_texts(browser: Browser, tmp_path: Path) -> None:
    """URLs, titles and reasons of a crawl are text, and never markup."""
    pytest.importorskip("tantivy")
    with serving(HostileSite()) as site:
        settings = loopback_settings(
            JOBDIR=str(tmp_path / "job"), **{**SETTINGS, Setting.HOST_DELAY: 0.01},
            SUITE_INDEX=True, SUITE_PACKS_DIR=str(tmp_path / "packs"),
        )  # fmt: skip
        ended = crawl("support.spiders.Bulk", settings, tmp_path, seeds=f"{site.url}/")
    assert ended.reason == "finished", ended.log[-2000:]
    status = json.loads((tmp_path / "job" / STATUS_FILE).read_text())
    status["finish_reason"] = HOSTILE
    (tmp_path / "job" / STATUS_FILE).write_text(json.dumps(status))
    with dashboard("job", tmp_path) as page:
        show(browser, page)
        browser.wait_for("#words", "onerror")
        browser.wait_for("#recent", "%20src=x")
        browser.write("#q", "owned")
        browser.click("#search-form button")
        browser.wait_for("#found", "onerror")
        browser.get_screenshot_as_png()
        assert browser.title == "bulk"
        assert browser.execute_script("return document.querySelectorAll('img').length") == 0
        assert browser.console() == []


@IN_BROWSER
@pytest.mark.slow
@pytest.mark.long
def test_a_job_that_goes(browser: Browser, job: Path, tmp_path: Path) -> None:
    """The page says that it is gone; what was seen last stays."""
    copy = tmp_path / "job"
    until(lambda: json.loads((job / STATUS_FILE).read_text())["pulse"]["counters"]["pages"])
    shutil.copytree(job / "suite", copy / "suite", ignore=shutil.ignore_patterns("store", "lock"))
    with dashboard(copy, tmp_path) as page:
        show(browser, page)
        browser.wait_for("#tiles dd", ".")
        (copy / STATUS_FILE).write_text('{"torn":')
        (copy / "suite" / "series" / "second").write_bytes(b"foreign")
        time.sleep(2.0)
        assert number(browser) > 0
        shutil.rmtree(copy)
        browser.wait_for("#words", "is gone")
        assert number(browser) > 0


@IN_BROWSER
@pytest.mark.slow
@pytest.mark.long
def test_a_crawl_that_was_killed_long_ago(browser: Browser, job: Path, tmp_path: Path) -> None:
    """Its charts show the last minutes that it ran; errors are told from what was not fetched."""
    copy = tmp_path / "job"
    shutil.copytree(
        job / "suite", copy / "suite", ignore=shutil.ignore_patterns("store", "lock", "series")
    )
    when = float(int(time.time()) - 2 * 86_400)
    status = json.loads((copy / STATUS_FILE).read_text()) | {"when": when}
    status["pulse"]["when"] = when
    status["pulse"]["counters"] |= {"errors.robots": 7, "errors.timeout": 5}
    (copy / STATUS_FILE).write_text(json.dumps(status))
    file = copy / "suite" / "job.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"created": when - 7_200}))
    writer = SeriesWriter(copy / "suite" / SERIES_FOLDER, COLUMNS)
    for second in range(300):
        increase = np.zeros(len(COLUMNS.counters))
        increase[COLUMNS.counters.index("pages")] = 123.0
        writer.add(when - second, 1.0, increase, np.zeros(len(COLUMNS.gauges)))
    writer.close()
    with dashboard(copy, tmp_path) as page:
        show(browser, page)
        browser.wait_for("#words", "was killed 2 d ago")
        browser.wait_for("#chart-pages .key", r"mean\s+123")
        assert re.search(r"timeout\s+5", browser.text("#errors"))
        assert re.search(r"robots\s+7", browser.text("#refused"))
        assert "robots" not in browser.text("#errors")


# Who may look and act


def test_names_of_other_sites_are_refused(page: Dashboard) -> None:
    """On loopback a name that was rebound to it shows in Host, a page of another site in Origin."""
    port = page.address.rpartition(":")[2]
    for host in ("evil.test", f"evil.test:{port}", "127.0.0.1.evil.test", "", "[", "0.0.0.0"):
        assert page.request("/", Host=host)[0] == 403
        assert page.request("/events", Host=host)[0] == 403
    for host in (f"localhost:{port}", "localhost:9000", "[::1]:8470", "127.0.0.2"):
        assert page.request("/", Host=host)[0] == 200
    for origin in ("http://evil.test", "null", f"http://localhost:{port}", "http://127.0.0.1"):
        assert page.request("/pages", Origin=origin)[0] == 403
    assert page.request("/pages", Origin=f"http://{page.address}")[0] == 200
    # A picture or a script of another site sends no Origin; a link leads to the page.
    assert page.request("/why?target=a", Sec_Fetch_Site="cross-site")[0] == 403
    assert page.request("/", Sec_Fetch_Site="cross-site")[0] == 200


def test_headers(page: Dashboard) -> None:
    """No script but the page's own files, and nothing from elsewhere."""
    _, headers, text = page.request("/")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"(?i)https?:|style=|\son\w+=|<script>", text)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert page.request("/../server.py")[0] == page.request("/%2e%2e/server.py")[0] == 404
    assert page.request("/", "DELETE")[0] == 405


def test_forged_tokens(page: Dashboard, job: Path) -> None:
    """Without the right token nobody acts; where looking needs one, nobody looks."""
    cookie = f"dashboard-{page.address.rpartition(':')[2]}"
    pause = {"verb": "pause"}
    for headers in (
        {}, {"Cookie": f"{cookie}={ACT_TOKEN}"}, {"Cookie": f"{cookie}="},
        {"Authorization": "Bearer "}, {"Authorization": f"Bearer {ACT_TOKEN}x"},
        {"Authorization": "Bearer \u00fc"},
    ):  # fmt: skip
        assert page.act(pause, **headers)[0] == 403
    bearer = {"Authorization": f"Bearer {ACT_TOKEN}"}
    assert page.act(pause, **bearer, Origin="http://evil.test")[0] == 403
    assert page.act(pause, **bearer, Content_Type="text/plain")[0] == 415
    assert page.act({"verb": "drop"}, **bearer)[0] == 400
    assert page.act({"verb": "pause", "jobdir": "/"}, **bearer)[0] == 400
    status, answer = page.act({"verb": "set", "name": "SUITE_PACKS_DIR", "value": "/"}, **bearer)
    assert (status, answer["ok"]) == (200, False)
    status, answer = page.act({"verb": "block", "subject": "a b"}, **bearer)
    assert (status, answer["ok"]) == (200, False)
    tokens = {"DASHBOARD_TOKEN": TOKEN, "DASHBOARD_ACT_TOKEN": ACT_TOKEN}
    with dashboard(job, job.parent, **tokens) as closed:
        for path in ("/", "/events", "/pages", "/page.js", "/metrics", "/why?target=a"):
            assert closed.request(path)[0] == 401
            assert closed.request(path, Authorization=f"Bearer {TOKEN}x")[0] == 401
        assert closed.request("/pages", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert closed.act(pause, Authorization=f"Bearer {TOKEN}")[0] == 403
        kind = "application/x-www-form-urlencoded"
        form = {"Origin": closed.url.rstrip("/"), "Content_Type": kind}
        began = time.monotonic()
        _, headers, _ = closed.request("/login", "POST", "token=wrong", **form)
        assert headers["Location"] == "/login#wrong"
        assert "Set-Cookie" not in headers
        assert time.monotonic() - began > 0.9
        _, headers, _ = closed.request("/login", "POST", f"token={quote(TOKEN)}", **form)
        cookie, _, attributes = headers["Set-Cookie"].partition("; ")
        assert TOKEN not in cookie
        assert {"httponly", "samesite=strict"} <= set(attributes.lower().split("; "))
        assert closed.request("/pages", Cookie=cookie)[0] == 200
        assert closed.act(pause, Cookie=cookie)[0] == 403


def test_viewers_are_bounded(page: Dashboard) -> None:
    """Of a thousand, some look, the others are told so or closed; then there is room again."""
    host, _, port = page.address.rpartition(":")
    asks = f"GET /events HTTP/1.1\r\nHost: {page.address}\r\n\r\n".encode()
    with ExitStack() as stack:
        answers = []
        for _ in range(1_000):
            viewer = stack.enter_context(socket.create_connection((host, int(port)), PATIENCE))
            answers.append(viewer)
            viewer.sendall(asks)
        statuses = [first_line(viewer) for viewer in answers]
        assert 50 <= sum(b" 200 " in line for line in statuses) <= 100
        assert sum(b" 503 " in line for line in statuses) >= 100
        assert sum(line == b"" for line in statuses) >= 500
    until(lambda: page.request("/pages")[0] == 200)
    status = first_line_of(page, asks)
    assert b" 200 " in status


def first_line(viewer: socket.socket) -> bytes:
    """The first line of an answer; empty if the connection was closed."""
    try:
        return viewer.recv(4096).partition(b"\r\n")[0]
    except ConnectionError:
        return b""


def first_line_of(page: Dashboard, asks: bytes) -> bytes:
    host, _, port = page.address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as viewer:
        viewer.sendall(asks)
        return first_line(viewer)


@pytest.mark.parametrize(
    "path",
    [
        "/series?points=100000", "/series?start=nan", "/series?start=5&end=1", "/hosts?by=name",
        "/why", f"/why?target={'a' * 3000}", "/search?q=",
    ],
)
def test_bad_questions(page: Dashboard, path: str) -> None:
    """They are refused with a reason."""
    status, _, text = page.request(path)
    assert status == 400
    assert json.loads(text)["error"]


def test_long_bodies(page: Dashboard) -> None:
    """Nobody fills memory or disk with them."""
    with pytest.raises((HTTPException, ConnectionError)):
        page.act({"verb": "add", "urls": "a" * (3 << 20)})
    assert page.request("/pages")[0] == 200


def test_refusals(tmp_path: Path, job: Path) -> None:
    """One line says what is wrong: with the job, the address, the token, the port."""
    (tmp_path / "foreign").mkdir()
    assert "holds no job" in refused(tmp_path / "foreign")
    assert "needs --token" in refused(job, "--host", "0.0.0.0")
    short = tmp_path / "token"
    short.write_text("short\n")
    assert "at least 16" in refused(job, "--token", str(short))
    short.write_bytes(b"\xff" * 20)
    assert "ASCII" in refused(job, "--token", str(short))
    assert "expected 0 to 65535" in refused(job, "--port", "70000")
    assert "No such file" in refused(job, "--token", str(tmp_path / "none"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port}" in refused(job, "--port", port)
