"""``scrapy frontier`` on a real small job: every verb, beside a running crawl, and its refusals."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scrapy.exceptions import UsageError
from support.crawls import start, web_settings
from support.frontier_command import COMMAND, FAST, HOST, Frontier, Said, parsed, scrapy
from support.loaded_modules import loaded_by
from support.webs import FakeWebProcess

from scrapy_spider_suite.commands.frontier import Command
from scrapy_spider_suite.frontier.entries import state_key
from scrapy_spider_suite.frontier.outcomes import State
from scrapy_spider_suite.operate.actions import ActionFolder
from scrapy_spider_suite.operate.verbs import MODULES
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import UrlState

# The verbs

VERBS = [*MODULES]


def test_status(web: FakeWebProcess, finished: Path, frontier: Frontier) -> None:
    """The counters of the job; they add up to what can be reached."""
    said = frontier("status", "-j", str(finished), "--json")
    [row] = said.rows
    assert said.code == 0
    assert (row["running"], row["pending"]) == (False, 0)
    assert row["done"] + row["failed"] == len(list(web.web.reachable()))
    assert sum(row["outcomes"].values()) == row["done"] + row["failed"]
    text = frontier("status", "-j", str(finished)).out
    assert f"done         {row['done']}\n" in text
    assert "  success  " in text
    assert re.match(r"running +no: ended \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(finished\b", text)


def test_hosts(finished: Path, frontier: Frontier) -> None:
    """All ten, or as many as --limit says, with the reason why each waits."""
    rows = frontier("hosts", "-j", str(finished), "--json").rows
    assert len(rows) == 10
    assert {row["why"] for row in rows} == {"nothing pending"}
    assert len(frontier("hosts", "-j", str(finished), "--limit", "3").out.splitlines()) == 1 + 3


def test_urls(finished: Path, frontier: Frontier) -> None:
    """Each with state, reason, status and attempts; --state chooses."""
    rows = frontier("urls", HOST, "-j", str(finished), "--json", "--limit", "0").rows
    done = frontier("urls", HOST, "-j", str(finished), "--state", "done", "--json").rows
    assert {row["state"] for row in rows} <= {"done", "failed"}
    assert done == [row for row in rows if row["state"] == "done"]
    assert {row["reason"] for row in done} == {"success"}
    assert all(row["attempts"] == 1 and HOST in row["url"] for row in done)
    assert frontier("urls", HOST, "--state", "pending", "-j", str(finished), "--json").rows == []


def test_why(finished: Path, frontier: Frontier) -> None:
    """A host in one case or another, with a dot at its end or not."""
    [row] = frontier("why", HOST.upper() + ".", "-j", str(finished), "--json").rows
    assert (row["host"], row["pending"], row["why"]) == (HOST, 0, "nothing pending")
    assert row["next_urls"] == []
    assert "next urls          -\n" in frontier("why", HOST, "-j", str(finished)).out


def test_check_of_a_sound_job(finished: Path, frontier: Frontier) -> None:
    """Exit code 0, and in JSON nothing at all."""
    assert frontier("check", "-j", str(finished)) == Said(0, "everything agrees\n")
    assert frontier("check", "-j", str(finished), "--json") == Said(0, "")


def test_check_finds_what_is_wrong(job: Path, frontier: Frontier) -> None:
    """Exit code 1, and a line for each thing."""
    store = RocksStore(job / FOLDER / "store")
    record = store.record(HOST)
    assert record is not None
    record.pending += 2
    store.put_record(HOST, record)
    store.put_state(state_key(HOST, f"http://{HOST}/x"), UrlState(State.PENDING).to_bytes())
    store.close()
    said = frontier("check", "-j", str(job))
    assert said.code == 1
    assert f"{HOST} counts 2 pending URLs, but its queue has 0\n" in said.out
    assert said.out.endswith("things are wrong\n")
    assert all(isinstance(line, str) for line in frontier("check", "-j", str(job), "--json").rows)


def test_settings(finished: Path, frontier: Frontier) -> None:
    """Those that hold, beside those of the job; a job in the broad profile is shown as such."""
    rows = frontier("settings", "-j", str(finished), "--json", SUITE_HOST_DELAY=7).rows
    by_name = {row["name"]: row for row in rows}
    delay, profile = by_name["SUITE_HOST_DELAY"], by_name["SUITE_PROFILE"]
    assert (delay["value"], delay["job"]) == ("7", 0.01)
    assert (profile["value"], profile["job"]) == ("'broad'", "broad")
    lines = frontier("settings").out.splitlines()
    assert not any("(job:" in line for line in lines)
    assert lines[1].split()[0] == "SUITE_HOST_DELAY"
    assert max(map(len, lines)) <= 100


def test_some_settings(finished: Path, frontier: Frontier) -> None:
    def names(*arguments: str, **settings: Any) -> list[str]:
        return [row["name"] for row in frontier("settings", *arguments, "--json", **settings).rows]

    assert names("ip", "delay") == ["SUITE_IP_DELAY"]
    assert "SUITE_DEAD_HOST_FAILURES" in names("failures")
    assert names("--changed") == []
    assert names("--changed", SUITE_MAX_PAGES=7, SUITE_MEMORY="64M") == ["SUITE_MAX_PAGES"]
    changed = names("--changed", "-j", str(finished), "retry")
    assert changed == ["SUITE_RETRY_TIMES"]
    whole = frontier("settings", "MAX_PAGES", SUITE_MAX_PAGES=7).out
    assert "SUITE_MAX_PAGES = 7\n" in whole
    assert "See docs/broad-crawls.md." in " ".join(whole.split())
    assert max(map(len, whole.splitlines())) <= 100


def test_a_project_names_its_job(finished: Path, frontier: Frontier) -> None:
    """JOBDIR is the default of -j."""
    assert frontier("check", JOBDIR=str(finished)).code == 0


# Beside a running crawl


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_beside_a_running_crawl(web: FakeWebProcess, frontier: Frontier, tmp_path: Path) -> None:
    """It is looked at and given URLs without being disturbed, and takes them within seconds."""
    job = tmp_path / "job"
    given = web_settings(
        web.ready.dns_port, JOBDIR=str(job), SUITE_WHEN_DONE="wait", **FAST, CLOSESPIDER_PAGECOUNT=0
    )
    url = f"http://{HOST}:{web.ready.http_port}/added"
    process = start("support.spiders.Bulk", given, tmp_path, seeds="nobody.fake.test")

    def status() -> Any:
        return frontier("status", "-j", str(job), "--json").rows[0]

    try:
        _until((job / FOLDER / "status.json").exists)
        _until(lambda: bool(status()["failed"]))
        assert status()["running"]
        assert status()["process"] == process.pid
        assert frontier("add", url, "-j", str(job), "--json").rows[0]["new"] == 1
        _until(lambda: not status()["pending"])
        [row] = frontier("urls", HOST, "-j", str(job), "--json").rows
        assert (row["url"], row["reason"], row["status"]) == (url, "client_error", 404)
        [gone] = frontier("urls", "nobody.fake.test", "-j", str(job), "--json").rows
        assert gone["reason"] == "no_such_host"
        why = frontier("why", "nobody.fake.test", "-j", str(job), "--json").rows[0]["why"]
        assert why == "given up: no such host"
        assert frontier("check", "-j", str(job)).code == 0
    finally:
        process.terminate()
    assert process.wait(30) == 0
    assert not status()["running"]


# Refusals


def test_no_job_there(tmp_path: Path, frontier: Frontier) -> None:
    """One line, exit code 2, and no directory is made."""
    said = frontier("status", "-j", str(tmp_path / "none"))
    assert said.code == 2
    assert said.out.count("\n") == 1
    assert "holds no job of scrapy-spider-suite" in said.out
    assert not (tmp_path / "none").exists()


def test_a_store_that_is_missing_or_damaged(job: Path, frontier: Frontier) -> None:
    """One line, exit code 2."""
    for file in (job / FOLDER / "store").glob("MANIFEST*"):
        file.write_bytes(b"no manifest")
    for _ in range(2):
        said = frontier("check", "-j", str(job))
        assert (said.code, said.out.count("\n")) == (2, 1)
        shutil.rmtree(job / FOLDER / "store", ignore_errors=True)


@pytest.mark.parametrize("verb", ["status", "pause"])
def test_a_machine_in_trouble(
    verb: str, job: Path, tmp_path: Path, frontier: Frontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No place for temporary files, a lock that is not ours: one line, and no traceback."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    lock = job / FOLDER / "lock"
    lock.unlink()
    lock.mkdir()
    said = frontier(verb, "-j", str(job))
    assert (said.code, said.out.count("\n")) == (2, 1)
    assert str(tmp_path) in said.out
    assert ActionFolder(job / FOLDER).waiting() == []  # not to be done some day


def test_a_host_that_was_never_met(finished: Path, frontier: Frontier) -> None:
    """Is said so, for both verbs that ask for one."""
    for verb in ("why", "urls"):
        said = frontier(verb, "nobody.test", "-j", str(finished))
        assert (said.code, said.out.count("\n")) == (2, 1)
        assert "never met the host 'nobody.test'" in said.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected one of blocks, check"),
        (["hsots"], "'hsots' is no verb; did you mean hosts?"),
        (["xxxx"], "expected one of blocks, check"),
        (["status"], "which job"),
        (["status", "extra", "-j", "JOB"], "unrecognized arguments: extra"),
        (["urls", "-j", "JOB"], "the following arguments are required: HOST"),
        (["urls", "a", "b", "-j", "JOB"], "unrecognized arguments: b"),
        (["urls", "a", "--state", "gone", "-j", "JOB"], "invalid choice: 'gone'"),
        (["add", "-j", "JOB"], "the following arguments are required"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str, finished: Path, frontier: Frontier) -> None:
    """Scrapy prints it in one line and ends with exit code 2."""
    with pytest.raises(UsageError, match=said):
        frontier(*[str(finished) if each == "JOB" else each for each in arguments])


# The command line


def test_help_has_the_verbs() -> None:
    """A line each, with the exit codes."""
    done = scrapy("--help")
    assert done.returncode == 0, done.stderr
    assert all(f"\n  {verb} " in done.stdout for verb in VERBS)
    assert "Exit codes: 0" in done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_examples(verb: str, frontier: Frontier) -> None:
    """Its own options and examples that are parsed, and exit codes."""
    said = frontier(verb, "--help").out
    assert said.startswith(f"usage: scrapy frontier {verb}")
    assert f"\n  scrapy frontier {verb}" in said
    assert "Exit codes: 0 done" in said
    assert "-j DIR" in said
    declared = Command().find(verb)
    assert declared is not None
    for example in declared.examples:
        command, _, left = parsed(shlex.split(example), {})
        command.parser_of(declared).parse_args(left[1:])


def test_options_of_all_verbs_stand_anywhere(finished: Path, frontier: Frontier) -> None:
    """Before the verb, too."""
    assert frontier("-j", str(finished), "--json", "hosts", "--limit", "1").rows[0]["host"]


def test_exit_codes_of_the_process(finished: Path) -> None:
    """0 and 2, and nothing but the answer on stdout."""
    done = scrapy("check", "-j", str(finished))
    assert (done.returncode, done.stdout, done.stderr) == (0, "everything agrees\n", "")
    done = scrapy("hosts", "--limit", "-1", "-j", str(finished))
    assert (done.returncode, done.stdout) == (2, "")
    assert "'-1': expected a number of rows" in done.stderr


def test_a_reader_that_goes_away_is_no_error(finished: Path) -> None:
    """``scrapy frontier settings | head -1`` ends without a traceback."""
    with subprocess.Popen(
        [*COMMAND, "settings", "-j", str(finished)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_it_is_light() -> None:
    """Scrapy loads all commands at each start; ours must not load the store for that."""
    loaded = loaded_by("import scrapy_spider_suite.commands.frontier")
    assert not {"rocksdict", "scrapy_spider_suite.store.job_directory"} & loaded
