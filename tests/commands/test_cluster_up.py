"""``scrapy cluster up``: agents as processes of one command, and a real crawl of two of them."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scrapy.exceptions import UsageError
from support import command_line as commandline
from support import forks
from support.crawls import web_settings
from support.frontier_command import Frontier, Said
from support.projects import Project, environment
from support.redis_servers import RedisServer
from support.running_crawl import until
from support.webs import FakeWebProcess

from scrapy_spider_suite.commands import cluster_arguments
from scrapy_spider_suite.commands.cluster import Command
from scrapy_spider_suite.operate import fleet as fleet_module
from scrapy_spider_suite.operate.actions import AuditLog
from scrapy_spider_suite.operate.verb import Invocation
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.testing import FakeWebConfig

LATE = 100.0
"""Seconds that anything may take on a busy machine."""


def call(*arguments: str, **settings: Any) -> Invocation:
    """A call of ``up``."""
    command, _, left = commandline.parsed(Command(), ["up", *arguments])
    verb = command.find("up")
    assert verb is not None
    for name, value in settings.items():
        command.settings.set(name, value, priority="cmdline")
    options = command.parser_of(verb).parse_args(left[1:])
    return Invocation("redis://10.0.0.1/0", False, command.settings, options)


def test_each_has_its_own(tmp_path: Path) -> None:
    """Names, directories, logs, ports; what -s and -a say goes to all."""
    feeds = '{"items/%(name)s.jsonl": {"format": "jsonlines", "fields": null}}'
    asked = call("2", "news", "-a", "x=1", "--name", "w", SUITE_HOST_DELAY="7", FEEDS=feeds,
                 SUITE_AGENT_ADDRESS="[::1]:7000", JOBDIR="theirs")  # fmt: skip
    names = fleet_module.agent_names(asked, "peers")
    assert names == ["w_1", "w_2"]
    own = fleet_module.own_settings(asked, "peers", None, 1, names[1], tmp_path)
    assert own["SUITE_AGENT_ADDRESS"] == "[::1]:7001"
    assert (own["JOBDIR"], own["LOG_FILE"]) == (f"{tmp_path}/w_2", f"{tmp_path}/w_2.log")
    assert own["SUITE_CLUSTER"] == "peers"
    assert "SUITE_CRAWL_NAME" not in own
    words = list(fleet_module.shared_words(asked, "peers"))
    assert words[:2] == ["-a", "x=1"]
    given = dict(word.split("=", 1) for word in words[3::2])
    assert given["SUITE_REDIS_URL"] == "redis://10.0.0.1/0"
    assert (given["SUITE_HOST_DELAY"], given["FEEDS"]) == ("7", feeds)
    assert not own.keys() & given.keys()
    listed = call("2", "news", SUITE_AGENTS="a=10.0.0.1:1,b=10.0.0.1:2")
    assert fleet_module.agent_names(listed, "lan") == ["a", "b"]
    with pytest.raises(UsageError, match="SUITE_AGENTS lists 0 agents, and 2 are to start"):
        fleet_module.agent_names(asked, "lan")
    for count in ("0", "x", "65"):
        with pytest.raises(UsageError, match="expected a number of agents"):
            call(count, "news")


def test_a_spider_that_is_not_there(tmp_path: Path) -> None:
    """Is named before anything is started, with those there are, as wrong usage.

    Settings that only agents have, of the project's add-on too, are not missed.
    """
    project = Project(
        tmp_path / "project", SPIDER_MODULES=["project.some"], SUITE_CLUSTER="peers"
    )
    (project.folder / "project" / "some.py").write_text(
        "import scrapy\n"
        "class One(scrapy.Spider):\n    name = 'one'\n"
        "class Two(scrapy.Spider):\n    name = 'two'\n"
    )
    for folder, said in (
        (project.folder, "there is no spider 'tow' in this project; those there are: one, two"),
        (tmp_path, "has ended: it did not begin (exit code 2)"),  # where no project is
    ):
        done = forks.run(
            commandline.script_of("cluster"), "up", "1", "tow", "--name", "w", "-j",
            "redis://127.0.0.1:1/0", folder=folder, environment=environment(),
        )  # fmt: skip
        assert (done.returncode, said in done.stdout + done.stderr) == (2, True)
    assert not (project.folder / "crawls").exists()


_TOLD = """
import json
from pathlib import Path
from scrapy import Spider

class Told(Spider):
    name = "told"

    async def start(self):
        text = Path("/proc/self/cmdline").read_text() + Path("/proc/self/environ").read_text()
        names = ("SUITE_REDIS_URL", "SUITE_CLUSTER_KEY", "SUITE_RATE_LEDGER")
        Path("said").write_text(json.dumps(
            [text, self.login, *(self.settings[name] for name in names)]
        ))
        return
        yield
"""


def test_no_password_stands_where_others_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what ``up`` is given, under whatever name; and the agent has it all the same."""
    project = Project(tmp_path / "project", ADDONS={}, SPIDER_MODULES=["told"])
    (project.folder / "told.py").write_text(_TOLD)
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    monkeypatch.chdir(project.folder)
    monkeypatch.syspath_prepend(project.folder)
    asked = call("1", "told", "-a", "login=me:hidden", "--name", "w", "--dir", "agents",
                 SUITE_CLUSTER_KEY="hidden, as the rest",
                 SUITE_RATE_LEDGER="redis://:hidden@10.0.0.2")
    asked.settings.set("SPIDER_MODULES", ["told"], "project")
    redis = "redis://:hidden@10.0.0.1/0"
    assert cluster_arguments._up(replace(asked, jobdir=redis)) == 0
    text, *told = json.loads(Path("said").read_text())
    assert told == ["me:hidden", redis, "hidden, as the rest", "redis://:hidden@10.0.0.2"]
    assert "SUITE_AGENT_NAME=w_1" in text
    assert "hidden" not in text
    left = [path for path in Path("agents").rglob("*") if path.is_file()]
    assert left
    assert not any(b"hidden" in path.read_bytes() for path in left)


@pytest.mark.slow
@pytest.mark.long
def test_two_agents_crawl_are_asked_drained_and_stopped(
    tmp_path: Path, frontier: Frontier, capsys: pytest.CaptureFixture[str]
) -> None:
    """What an operator does with a crawl of two agents on one machine."""
    web = FakeWebConfig(hosts=20, pages=20, seed=3)
    with (
        RedisServer(tmp_path / "redis", tcp=True) as redis, FakeWebProcess(web) as served,
        (tmp_path / "out").open("w+b") as out,
    ):  # fmt: skip
        given = web_settings(
            served.ready.dns_port, SUITE_REDIS_URL=redis.url, SUITE_HOST_DELAY=5.0,
            SUITE_IP_DELAY=0, SUITE_IP_CONCURRENCY=0, SUITE_SEEDS=[served.ready.seeds[0]],
        )  # fmt: skip
        given.pop("ADDONS")
        project = Project(tmp_path / "project", **given)
        line = ["up", "2", "bulk", "--name", "w", "--dir", str(tmp_path / "c"), "--every", "1",
                "--json"]  # fmt: skip
        script = commandline.script_of("cluster")
        up = forks.Fork(script, line, project.folder, environment(), out, out)

        def cluster(*words: str) -> Said:
            command, options, left = commandline.parsed(Command(), [*words, "-j", redis.url])
            command.run(left, options)
            return Said(command.exitcode, capsys.readouterr().out)

        try:
            until(lambda: _busy(cluster("ls", "--json")), LATE, 1.0)
            said = frontier("block", "bad.example", "--why", "x", "-j", redis.url)
            assert said == Said(0, "w_1, w_2: bad.example is blocked\n")
            *rows, _ = frontier("status", "-j", redis.url, "--json").rows
            assert [row["running"] for row in rows] == [True, True]
            assert cluster("drain", "w_2").code == 0
            until(lambda: b'"agent": "w_2"' in (tmp_path / "out").read_bytes(), LATE)
            up.send_signal(signal.SIGINT)
            assert up.wait(600) == 4
        finally:
            up.kill()
            up.wait()
    said_by = (tmp_path / "out").read_text().splitlines()
    lines = [json.loads(line) for line in said_by if line.startswith("{")]
    ended = {line["agent"]: line for line in lines if "agent" in line}
    assert (ended["w_2"]["finish_reason"], ended["w_2"]["exit_code"]) == ("drained", 0)
    assert (ended["w_1"]["finish_reason"], ended["w_1"]["exit_code"]) == ("shutdown", 4)
    for name in ("w_1", "w_2"):
        verbs = [row["verb"] for row in AuditLog(tmp_path / "c" / name / FOLDER).rows()]
        assert verbs == ["block"] + ["drain"] * (name == "w_2")


def _busy(said: Said) -> bool:
    """Whether two agents have pages, each with its part of the ring."""
    if said.code:
        return False
    rows = said.rows
    return len(rows) == 2 and all(row["pages"] and row["share"] == row["holds"] for row in rows)
