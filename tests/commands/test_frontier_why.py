"""``why`` and ``test``: of every outcome the reason, who decided, where that is laid down."""

from __future__ import annotations

import fcntl
import io
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.settings import Settings
from scrapy.utils.request import fingerprint
from support.frontier_command import FAST, HOST, Frontier, small_crawl
from support.jobs import VIA, Made
from support.running_crawl import running, until
from support.webs import FakeWebProcess

from scrapy_spider_suite.crawl.robots import RobotsStore
from scrapy_spider_suite.frontier.entries import Entry, Flag, host_key
from scrapy_spider_suite.frontier.outcomes import BackOff, Event, Pace, Retry, State
from scrapy_spider_suite.frontier.robots_rules import judge_robots
from scrapy_spider_suite.operate.job_target import BLOCKS, StoredBlock
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.store.job_directory import FOLDER, Job
from scrapy_spider_suite.testing import FakeWebConfig

ROBOTS = b"""# kept short
User-agent: *
Disallow: /private  # not for you
Allow: /private/open
"""


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    """A job to be filled."""
    made = Made(tmp_path / "job")
    yield made
    made.job._lock.close()


Why = Callable[..., dict[str, Any]]


@pytest.fixture
def why(made: Made, frontier: Frontier) -> Why:
    """Ask why about something of the job, which is closed for that."""

    def ask(subject: str) -> dict[str, Any]:
        said = frontier("why", subject, "-j", str(made.path), "--json")
        assert said.code == 0, said.out
        row: dict[str, Any] = said.rows[0]
        assert frontier("why", subject, "-j", str(made.path)).out
        return row

    return ask


# Every reason of the outcome table


def test_every_outcome(made: Made, why: Why) -> None:
    """Its state, what that means, how often it was tried, where it came from, what comes next."""
    urls = {event: f"http://{event.value.replace('_', '-')}.test/" for event in Event}
    for number, (event, url) in enumerate(urls.items()):
        made.end(url, event, 400 + number if number % 2 else 0)
    made.close()
    for number, (event, url) in enumerate(urls.items()):
        row, outcome = why(url), event.outcome
        assert (row["reason"], row["because"]) == (event.value, outcome.meaning)
        assert row["state"] == outcome.after(1, 3, ours=True).value
        assert row["status"] == (400 + number if number % 2 else None)
        assert row["attempts"] == f"{int(outcome.retry is not Retry.HOST)} of at most 4"
        kept = row["state"] != "done" and (row["state"] == "pending" or not row["status"])
        assert row["came_from"] == (VIA if kept else "")
        if row["state"] == "pending":
            assert row["ahead_of_it"] == 0
            assert row["next_try"] == "when the crawl goes on"
        else:
            assert row["next_try"] == "never"
            retried = f"retry --reason {event.value}" in row["why_then"]
            assert retried is (row["state"] == "failed")
    # Both halves of the table are there, or this shows little.
    assert {each.outcome.state for each in Event} == set(State)


# Who decides, and where


def test_robots(made: Made, why: Why) -> None:
    """The line and its age; the origin that cannot be asked; a rule that ignores it."""
    rules = RobotsStore(made.store.kv("robots"))
    for host, status in (("a.test", 200), ("away.test", 503), ("free.test", 200)):
        rules.put(judge_robots(f"http://{host}", status, ROBOTS, now=made.wall - 7_200))
    made.end("http://a.test/private/x", Event.ROBOTS)
    made.close()
    [said] = [each for each in why("http://a.test/private/x")["rules_now"] if "robots" in each]
    assert said.startswith("robots: forbidden to 'bot/1.0' by line 3: Disallow: /private")
    assert "robots.txt of http://a.test, status 200, read 2 h ago, asked again in 22 h" in said
    row = why("http://a.test/private/open")
    assert (row["state"], row["decided_by"]) == ("unknown", "clock")
    assert row["rules_now"][0].startswith("robots: allowed to 'bot/1.0'")
    row = why("http://a.test/private/other")
    assert (row["if_it_were_found"], row["decided_by"]) == ("refuse", "robots")
    row = why("http://away.test/")
    assert (row["if_it_were_found"], row["decided_by"]) == ("wait", "robots")
    assert "cannot be had" in row["why"]
    row = why("http://free.test/private/x")
    assert row["if_it_were_found"] == "fetch"
    assert "robots.txt is not obeyed [free.test, " in row["rules_now"][0]
    assert "overrides.txt, line 4" in row["rules_now"][0]
    assert why("a.test")["robots"][0].startswith("http://a.test: rules: status 200, read 2 h ago")


def test_a_parser_of_the_projects_own(made: Made, why: Why) -> None:
    """What it would say is not known here, and that is said; what holds without rules does."""
    made.keep(ROBOTSTXT_PARSER="scrapy.robotstxt.PythonRobotParser")
    rules = RobotsStore(made.store.kv("robots"))
    for host, status in (("a.test", 200), ("away.test", 503)):
        rules.put(judge_robots(f"http://{host}", status, ROBOTS, now=made.wall))
    made.close()
    [said] = why("http://a.test/private/x")["rules_now"]
    assert said.startswith("robots: scrapy.robotstxt.PythonRobotParser decides, not asked here [")
    assert "cannot be had" in why("http://away.test/")["why"]


def test_a_slot_of_the_project(made: Made, why: Why) -> None:
    """It is what makes the host wait."""
    made.keep(DOWNLOAD_SLOTS={"a.test": {"delay": 50}})
    made.end("http://a.test/1", Event.SUCCESS, 200)
    made.end("http://b.test/1", Event.SUCCESS, 200)
    for host in ("a", "b"):
        made.find(f"http://{host}.test/2")
    made.close()
    [said] = [each for each in why("http://a.test/2")["rules_now"] if "clock" in each]
    assert '[DOWNLOAD_SLOTS = \'{"a.test": {"delay": 50}}\' (project)]' in said
    [said] = [each for each in why("http://b.test/2")["rules_now"] if "clock" in each]
    assert "[SUITE_HOST_DELAY = " in said


def test_what_may_be_under_way(made: Made, why: Why) -> None:
    """The job on disk does not say which URLs are, nor where the queue of another slot is."""
    url = "http://a.test/1"
    made.find(url)
    identity = host_key("a.test") + b"http://a.test/2"
    made.behind.admission.schedule([Entry("slot", "http://a.test/2", identity)], made.now)
    made.close()
    assert why(url)["under_way"] == "no"
    status = {"when": time.time() + 60, "leased": 3, "process": 7}
    (made.path / FOLDER / "status.json").write_text(json.dumps(status))
    with (made.path / FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("process 7")
        lock.flush()
        assert why(url)["under_way"] == "perhaps: 3 URLs are, and only the crawl knows which"
    row = why("http://a.test/2")
    assert (row["state"], row["ahead_of_it"]) == ("pending", None)
    assert row["why_then"].startswith("it is queued in another download_slot")


def test_blocks(made: Made, why: Why) -> None:
    """The operator, when, why and for how long; the line of the overrides; below a URL."""
    kv = made.store.kv(BLOCKS)
    StoredBlock("b.test", "ops@desk", made.wall, "complaint", made.wall + 9_000).put(kv)
    StoredBlock("http://c.test/a/", "ops@desk", made.wall, "endless").put(kv)
    for url in ("http://b.test/", "http://c.test/a/1", "http://blocked.test/"):
        made.find(url)
    made.close()
    row = why("http://b.test/")
    assert row["next_try"] == "not before that ends"
    assert row["why_then"].startswith("blocked: blocked, for 2 h more: complaint [b.test, block by")
    assert "block by ops@desk on 2" in row["why_then"]
    assert "http://c.test/a/, block by ops@desk" in why("http://c.test/a/1")["why_then"]
    assert why("http://c.test/b")["if_it_were_found"] == "fetch"
    row = why("http://blocked.test/")
    assert "asked by mail [blocked.test, " in row["why_then"]
    assert "overrides.txt, line 2]" in row["why_then"]
    row = why("blocked.test")
    assert "blocked = True (blocked.test, " in row["rules"][0]
    assert "line 2" in row["rules"][0]


def test_budgets(made: Made, why: Why) -> None:
    """How much is used, of how much, by which line."""
    made.end("http://few.test/1", Event.SUCCESS, 200)
    made.end("http://many.test/1", Event.SUCCESS, 200)
    made.keep(SUITE_DOMAIN_MAX_PAGES=1, SUITE_DOMAIN_MAX_HOSTS=1, SUITE_MAX_PAGES=2)
    made.close()
    row = why("http://few.test/2")
    assert (row["if_it_were_found"], row["decided_by"]) == ("refuse", "budget")
    assert row["why"] == "1 page of few.test is done, of at most 1"
    assert "overrides.txt, line 3" in row["where"]
    row = why("http://a.many.test/")
    assert (row["decided_by"], row["why"]) == ("budget", "1 page of many.test is done")
    assert row["where"] == "SUITE_DOMAIN_MAX_PAGES = 1 (project)"
    assert "SUITE_DOMAIN_MAX_HOSTS = 1" in row["rules_now"][1]
    row = why("http://other.test/")
    assert (row["if_it_were_found"], row["where"]) == ("wait", "SUITE_MAX_PAGES = 2 (project)")


@pytest.mark.parametrize(
    ("url", "rule", "where"),
    [
        ("http://elsewhere.org/", "scope", "allowed_domains of scrapy.spiders.Spider"),
        (f"http://a.test/{'x' * 2100}", "scope", "URLLENGTH_LIMIT = 2083 (default)"),
        ("http://10.1.2.3/", "address", "SUITE_ALLOW_PRIVATE_ADDRESSES = False (default)"),
    ],
)
def test_limits(made: Made, why: Why, url: str, rule: str, where: str) -> None:
    """The setting, its value, and who gave it."""
    made.close()
    row = why(url)
    assert (row["if_it_were_found"], row["decided_by"]) == ("refuse", rule)
    assert row["where"] == where


@pytest.mark.parametrize("url", ["ftp://a.test/", "http://", "http://a.test:99999/", "http://a b/"])
def test_what_is_no_web_address(made: Made, why: Why, url: str) -> None:
    """It is said so."""
    made.close()
    assert why(url)["because"].startswith("no web address")


def test_the_normal_form(made: Made, why: Why) -> None:
    """The URL is known however it is written."""
    made.find("http://a.test/~me/?x=1")
    made.close()
    row = why("HTTP://A.test:80/a/../~me/?x=1#top")
    assert row["normal_form"] == "http://a.test/~me/?x=1"
    assert why("http://a.test/%7Eme/?x=1")["state"] == row["state"]


def test_the_queue_and_the_clock(made: Made, why: Why) -> None:
    """How many come before it, when its host's turn is, and by which rule."""
    made.behind.policy.update(host=Pace(0.0), back_off=BackOff(900.0, 3_600.0, dead_after=9))
    made.end("http://a.test/0", Event.UNAVAILABLE, 503)
    for number in range(1, 4):
        made.find(f"http://a.test/{number}")
    made.find("http://a.test/first", priority=9)
    made.close()
    assert [why(f"http://a.test/{n}")["ahead_of_it"] for n in ("first", 1, 3, 0)] == [0, 2, 4, 1]
    row = why("http://a.test/1")
    assert row["because"] == "it has not been tried yet"
    assert why("a.test")["why"].startswith("back-off after unavailable: next visit in ")
    assert row["rules_now"][-1].startswith("clock: back-off after unavailable, the next visit is")
    assert why("http://a.test/0")["attempts"] == "1 of at most 4"


def test_what_is_not_asked_again(made: Made, why: Why) -> None:
    """What is pending is in scope, and a request may be excused from robots.txt."""
    rules = RobotsStore(made.store.kv("robots"))
    text = b"User-agent: *\nDisallow: /"
    rules.put(judge_robots("http://elsewhere.org", 200, text, now=made.wall))
    url = "http://elsewhere.org/"
    made.find(url + "1")
    made.find(url + "2", flags=Flag.NO_ROBOTS)
    made.close()
    row = why(url + "1")
    assert row["next_try"] == "it will fail at its turn"
    assert row["why_then"].startswith("robots: forbidden to 'bot/1.0' by line 2: Disallow: /")
    assert why(url + "2")["next_try"] == "when the crawl goes on"
    assert why(url + "3")["decided_by"] == "scope"


def test_requests_of_a_spider(made: Made, why: Why, frontier: Frontier) -> None:
    """They are known by a fingerprint: Scrapy's, or one of the project's own."""
    urls = ("http://a.test/1?b=2&a=1", "http://a.test/2", "http://a.test/3")
    names = (fingerprint(Request(urls[0])), b"own", b"other")
    for url, name in zip(urls[:2], names, strict=False):
        made.find(url, stored_key=host_key("a.test") + b"\xff" + name, payload=b"x")
    made.end(urls[0], Event.ROBOTS)
    made.close()
    asked = (urls[0], "http://a.test/1?a=1&b=2", *urls[1:])
    first, same, second, third = [why(url) for url in asked]
    assert first["state"] == same["state"] == "failed"
    assert "RetryMiddleware" in first["attempts"]
    assert "`add`" in first["why_then"]
    [dry] = frontier("drop", "a.test", "--dry-run", "-j", str(made.path), "--json").rows
    assert set(dry["first"]) == set(urls[:2])
    [dry] = frontier("drop", urls[1], "--dry-run", "-j", str(made.path), "--json").rows
    assert dry["first"] == [urls[1]]
    for verb in (("retry", "--reason", "robots"), ("refetch", "a.test")):
        answer = frontier(*verb, "-j", str(made.path)).out
        assert answer.startswith("0 URLs")
        assert "`add` has its URL fetched" in answer
    known = frontier("urls", "a.test", "-j", str(made.path), "--json").rows
    assert {row["url"]: row["state"] for row in known} == {urls[0]: "failed", urls[1]: "pending"}
    assert (second["state"], third["state"]) == ("pending", "unknown")


def test_an_ended_request_of_another_fingerprint(made: Made, why: Why) -> None:
    """By the URL that is kept with how it ended: a POST, or a project's own fingerprinter."""
    url = "http://a.test/form"
    made.find(url, stored_key=host_key("a.test") + b"\xffown", payload=b"x")
    made.end(url, Event.NOT_THERE, 404)
    made.close()
    assert why(url)["state"] == "failed"


def test_a_paused_crawl(made: Made, why: Why, frontier: Frontier) -> None:
    """It is said who paused it."""
    made.find("http://a.test/")
    made.close()
    frontier("pause", "--why", "night", "--who", "ops", "-j", str(made.path))
    assert why("http://a.test/")["why_then"] == "paused: the crawl is paused [ops: night]"


def test_a_host_that_was_given_up(made: Made, why: Why) -> None:
    """For which reason."""
    made.behind.policy.update(back_off=BackOff(5.0, 3_600.0, dead_after=1))
    made.end("http://gone.test/", Event.TIMEOUT)
    made.close()
    assert why("http://gone.test/")["reason"] == "host_dead"
    row = why("http://gone.test/other")
    assert (row["if_it_were_found"], row["decided_by"]) == ("refuse", "given up")
    assert row["where"] == "SUITE_DEAD_HOST_FAILURES = 10 (default)"


def test_what_failed_unsent_in_the_spider_profile(made: Made, why: Why) -> None:
    """There RETRY_TIMES counts; SUITE_DEAD_HOST_FAILURES does nothing."""
    made.keep(SUITE_PROFILE="spider")
    made.end("http://gone.test/", Event.HOST_DEAD)
    made.close()
    row = why("http://gone.test/")
    assert "RETRY_TIMES" in row["because"]
    assert "SUITE_DEAD_HOST_FAILURES" not in str(row)


# Jobs of real crawls


def test_of_every_url_of_a_crawl(finished: Path, frontier: Frontier) -> None:
    """`why` agrees with `urls`, and tells of each where it came from."""
    on = ("-j", str(finished), "--json")
    hosts = [row["host"] for row in frontier("hosts", "--limit", "0", *on).rows]
    known = [row for host in hosts for row in frontier("urls", host, "--limit", "0", *on).rows]
    assert {row["state"] for row in known} == {"done", "failed"}
    for each in known:
        [row] = frontier("why", each["url"], *on).rows
        assert [row[n] for n in ("state", "reason", "status")] == [
            each[n] for n in ("state", "reason", "status")
        ]
        assert row["came_from"].startswith(("http://h0", "a seed")), row
        assert row["address"].startswith("127.")
    [row] = frontier("why", "http://nowhere.test/", *on).rows
    assert row["if_it_were_found"] == "fetch"


def test_urls_are_tested_by_the_terms_of_the_job(
    finished: Path, frontier: Frontier, tmp_path: Path
) -> None:
    """A row for each, with the line of the file for what is no URL; nothing of the job changes."""
    seeds = tmp_path / "seeds.txt"
    seeds.write_text(f"http://{HOST}:1/\nno url at all\n\nnew.test  # a comment\n")
    on = ("-j", str(finished))
    said = frontier("test", str(seeds), "--json", *on)
    assert said.code == 1
    assert [(row["judgement"], row["decided_by"]) for row in said.rows] == [
        ("fetch", "nothing"), ("refuse", "normal form"), ("fetch", "nothing"),
    ]  # fmt: skip
    assert said.rows[1]["where"] == f"{seeds}:2"
    first = frontier("urls", HOST, *on, "--json").rows[0]
    said = frontier("test", first["url"], *on)
    assert said.code == 0
    assert f"known      seen        it is {first['state']}" in said.out


def test_urls_are_tested_before_a_crawl(
    frontier: Frontier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the settings of the project and its spider, without a job."""
    settings = {"SPIDER_MODULES": ["judged_spiders"], "USER_AGENT": "bot"}
    (tmp_path / "judged_spiders.py").write_text(
        "import scrapy\n"
        "class News(scrapy.Spider):\n"
        "    name = 'news'\n"
        "    allowed_domains = ['a.test']\n"
        "    custom_settings = {'DEPTH_LIMIT': 2}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    urls = ("http://a.test/", "http://b.test/")
    said = frontier("test", *urls, "--spider", "news", "--json", **settings).rows
    assert [row["judgement"] for row in said] == ["fetch", "refuse"]
    assert said[1]["where"] == "allowed_domains of judged_spiders.News"
    asked = ("test", urls[0], "--spider", "news", "--depth", "3", "--json")
    [deep] = frontier(*asked, **settings).rows
    assert deep["where"] == "DEPTH_LIMIT = 2 (spider)"
    assert frontier("test", *urls, "--json", **settings).rows[1]["judgement"] == "fetch"
    assert "there is no spider 'old'" in frontier("test", *urls, "--spider", "old", **settings).out
    piped = io.BytesIO(b"http://a.test/\n\xff \x1b[2J is no URL\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(piped, encoding="utf-8"))
    table = frontier("test", **settings).out.splitlines()
    assert [line.split()[0] for line in table[1:]] == ["fetch", "refuse"]
    assert "standard input:2" in table[2]
    assert table[2].endswith(r"\x1b[2J is no URL")  # and not what a terminal would do with it


@pytest.mark.slow
def test_beside_a_running_crawl(frontier: Frontier, tmp_path: Path) -> None:
    """What is pending there, by the values that hold now."""
    on = ("-j", str(tmp_path / "job"), "--json")
    config = FakeWebConfig(hosts=3, pages=500, degree=10, log=tmp_path / "arrivals")
    settings = {**FAST, "SUITE_HOST_DELAY": 0.1}
    with FakeWebProcess(config) as web, running(web, tmp_path, **settings):
        until(lambda: len(web.arrivals()) > 50)
        pending = frontier("urls", HOST, "--state", "pending", "--limit", "0", *on).rows[-1]
        [row] = frontier("why", pending["url"], *on).rows
        assert row["state"] in ("pending", "done")
        assert row["came_from"].startswith("http://h0")
        assert row["state"] == "done" or "next" in row["next_try"]
        assert frontier("pause", *on).code == 0  # it would end with the budgets of its hosts
        assert frontier("set", "SUITE_HOST_MAX_PAGES", "1", *on).code == 0
        [row] = frontier("test", f"http://{HOST}:{web.ready.http_port}/new", *on).rows
        assert (row["judgement"], row["decided_by"]) == ("refuse", "budget")
        assert row["where"] == "SUITE_HOST_MAX_PAGES = 1 (scrapy frontier set)"


def test_a_job_that_kept_no_terms(web: FakeWebProcess, frontier: Frontier, tmp_path: Path) -> None:
    """Its last crawl was killed at once: it is judged by the settings of the project."""
    small_crawl(web, tmp_path, CLOSESPIDER_PAGECOUNT=1)
    job = Job(tmp_path / "job", _settings_of(tmp_path / "job"), "bulk")
    job.store.kv("terms").delete(b"terms")
    job.close()
    [row] = frontier("why", f"http://{HOST}/x", "-j", str(tmp_path / "job"), "--json").rows
    assert row["if_it_were_found"] in ("fetch", "wait")


def _settings_of(path: Path) -> SuiteSettings:
    return SuiteSettings.from_settings(Settings({"SUITE_PROFILE": "broad"}))
