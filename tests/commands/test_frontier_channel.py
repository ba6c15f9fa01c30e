"""The control channel as a whole: bad input, two people at once, a kill in the middle."""

from __future__ import annotations

import fcntl
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
from support.forks import Fork
from support.frontier_command import FAST, HOST, SCRIPT, Frontier, Said
from support.projects import environment
from support.running_crawl import running, until
from support.webs import FakeWebProcess

from scrapy_spider_suite.operate.actions import MAX_BYTES, Action, ActionFolder, new_id
from scrapy_spider_suite.store.job_directory import FOLDER, JobFile
from scrapy_spider_suite.testing import FakeWebConfig

OLDER = Path(__file__).parents[1] / "data" / "jobs" / "job-format-1.tar.xz"
URLS = 40_000


def rows(frontier: Frontier, *arguments: str) -> list[Any]:
    """What a verb says in JSON."""
    return frontier(*arguments, "--json").rows


def action(folder: Path, verb: str, **fields: Any) -> Action:
    """An action for the job of *folder*, or with other *fields* as a command would not make it."""
    job = JobFile.read(folder)
    assert job is not None
    return Action(**{
        "id": new_id(), "verb": verb, "arguments": {}, "job": job.id, "who": "t@h",
        "when": time.time(), **fields,
    })  # fmt: skip


def test_audit(job: Path, frontier: Frontier) -> None:
    """The last lines, those of one verb, as a table and in full."""
    on = ("-j", str(job))
    assert rows(frontier, "audit", *on) == []
    frontier("pause", "--why", "why not", "--who", "ops@h", *on)
    frontier("resume", *on)
    assert [row["verb"] for row in rows(frontier, "audit", *on)] == ["pause", "resume"]
    assert [row["verb"] for row in rows(frontier, "audit", "--limit", "1", *on)] == ["resume"]
    [row] = rows(frontier, "audit", "pause", *on)
    assert (row["who"], row["why"], row["facts"]["paused"]) == ("ops@h", "why not", True)
    table = frontier("audit", "pause", *on).out.splitlines()
    assert table[0].split() == ["done", "who", "verb", "ok", "said", "why"]
    done = f"{datetime.fromtimestamp(row['done'], UTC):%Y-%m-%d %H:%M:%S} UTC"
    assert table[1].startswith(f"{done}  ops@h  pause  yes")


def test_whoever_comes_next_carries_out_what_was_left(job: Path, frontier: Frontier) -> None:
    """A command that was killed before it could, or a crawl that ended too soon."""
    folder = ActionFolder(job / FOLDER)
    left = action(job / FOLDER, "pause", who="gone@h", id=new_id(urgent=True))
    folder.submit(left)
    assert "paused already: gone@h" in frontier("pause", "-j", str(job)).out
    assert folder.is_answered(left.id)


def test_no_answer_in_time(job: Path, frontier: Frontier) -> None:
    """A job that a process holds which never answers: exit code 3, and it stays asked."""
    with (job / FOLDER / "lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = frontier("pause", "--wait", "0.5", "-j", str(job))
    assert said.code == 3
    assert "no answer within 0.5 s; it stays asked" in said.out
    assert len(ActionFolder(job / FOLDER).waiting()) == 1
    assert "paused already" in frontier("pause", "-j", str(job)).out


@pytest.mark.slow
def test_a_running_crawl_is_not_troubled(frontier: Frontier, tmp_path: Path) -> None:
    """What is no action is left alone and named in the log; several commands at once are done."""
    job = tmp_path / "job"
    on = ("-j", str(job))
    with (
        FakeWebProcess(FakeWebConfig(hosts=3, pages=500, log=tmp_path / "arrivals")) as web,
        running(web, tmp_path, **{**FAST, "SUITE_HOST_DELAY": 0.2}) as process,
    ):
        folder = ActionFolder(job / FOLDER)
        folder.path.mkdir(exist_ok=True)
        bad = {
            "torn": b'{"verb": "pa', "huge": b"[" * (MAX_BYTES * 4), "other": b"\x00\xff" * 50,
            "list": b"[1, 2]",
        }  # fmt: skip
        for name, data in bad.items():
            path = folder.path / f"{name}.action"
            path.write_bytes(data)
            os.utime(path, (1, 1))
        (folder.path / "half.new").write_bytes(b"{")
        foreign = action(job / FOLDER, "drop", job="f" * 32, arguments={"subject": "fake.test"})
        unknown = action(job / FOLDER, "explode")
        wrong = action(job / FOLDER, "block", arguments={"subject": 5, "rm": "-rf"})
        for each in (foreign, unknown, wrong):
            folder.submit(each)
        ids = [foreign.id, unknown.id, wrong.id]
        until(lambda: all(folder.is_answered(id) for id in ids))
        answers = {id: folder.pop_answer(id) for id in ids}
        assert not any(answer and answer.ok for answer in answers.values())
        assert "another job" in answers[foreign.id].said  # type: ignore[union-attr]
        assert "no verb 'explode'" in answers[unknown.id].said  # type: ignore[union-attr]
        assert len(rows(frontier, "audit", *on)) == len(ids)
        log = tmp_path / "log"
        until(lambda: all(f"action {name} is not" in log.read_text() for name in bad))
        assert all((folder.path / f"{name}.action").exists() for name in bad)
        with TemporaryFile() as said:
            commands = [
                Fork(SCRIPT, ["block", f"h{n}.test", "--why", "r", *on], tmp_path, environment(),
                     said, said)
                for n in range(4)
            ]  # fmt: skip
        assert [command.wait(60) for command in commands] == [0] * 4
        assert len(rows(frontier, "blocks", *on)) == 4
        seen = len(web.arrivals())
        until(lambda: len(web.arrivals()) > seen)
        assert process.poll() is None
    assert frontier("check", *on) == Said(0, "everything agrees\n")


@pytest.mark.slow
def test_a_kill_in_the_middle_of_a_long_action(frontier: Frontier, tmp_path: Path) -> None:
    """It is carried on where the last portion ended: all of it, and nothing twice."""
    job = tmp_path / "job"
    on = ("-j", str(job))
    config = FakeWebConfig(hosts=1, pages=1)

    def pending() -> int:
        return int(json.loads((job / FOLDER / "status.json").read_text())["pending"])

    with (
        FakeWebProcess(config) as web,
        running(web, tmp_path, **FAST, SUITE_WHEN_DONE="wait") as process,
    ):
        assert frontier("pause", *on).code == 0
        long = action(job / FOLDER, "add")
        ActionFolder(job / FOLDER).submit(long, (f"http://{HOST}/{n}" for n in range(URLS)))
        until(lambda: pending() > URLS // 20)
        process.kill()
        process.wait()
    done = rows(frontier, "status", *on)[0]["pending"]
    assert URLS // 20 < done < URLS
    assert frontier("resume", *on).code == 0
    assert rows(frontier, "status", *on)[0]["pending"] == URLS
    [row] = rows(frontier, "audit", "add", *on)
    assert (row["facts"]["urls"], row["facts"]["new"]) == (URLS, URLS)
    assert frontier("check", *on) == Said(0, "everything agrees\n")
