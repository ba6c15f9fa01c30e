"""``scrapy cluster``: agents of a crawl in a real Redis, looked at, asked to go, sent away."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scrapy.exceptions import UsageError
from support import command_line as commandline
from support.frontier_command import Frontier, Said
from support.idle_agents import Town
from support.jobs import Made
from support.redis_servers import RedisServer

from scrapy_spider_suite.cluster.assignment import load_assignment
from scrapy_spider_suite.commands.cluster import Command
from scrapy_spider_suite.commands.cluster_arguments import VERBS
from scrapy_spider_suite.commands.frontier import Command as FrontierCommand
from scrapy_spider_suite.operate.actions import AuditLog
from scrapy_spider_suite.operate.executors import cluster_verbs
from scrapy_spider_suite.operate.job_target import job_at_rest
from scrapy_spider_suite.operate.verb import host_argument
from scrapy_spider_suite.store.job_directory import FOLDER

NAMES = ("a", "b", "c")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Job directories with little in them."""
    folder = tmp_path_factory.mktemp("jobs")
    made = {name: Made(folder / name) for name in NAMES}
    for each in made.values():
        each.close()
    return {name: folder / name for name in NAMES}


@pytest.fixture
def town(redis_server: RedisServer, jobs: dict[str, Path]) -> Iterator[Town]:
    """Three agents in an empty Redis."""
    redis_server.flush()
    with Town(redis_server, jobs) as town:
        yield town


@pytest.fixture
def cluster(town: Town, capsys: pytest.CaptureFixture[str]) -> Frontier:
    """Run the command in this process, on that Redis."""

    def run(*arguments: str, **settings: Any) -> Said:
        command, options, left = commandline.parsed(
            Command(), [*arguments, "-j", town.server.url], settings
        )
        capsys.readouterr()
        command.run(left, options)
        printed = capsys.readouterr()
        return Said(command.exitcode, "".join(printed), printed.out)

    return run


def test_ls(town: Town, cluster: Frontier) -> None:
    """Shares, what each says of itself, since when it was not heard, its lease."""
    rows = cluster("ls", "--json").rows
    assert [row["agent"] for row in rows] == [*NAMES]
    assert all(row["share"] == row["holds"] for row in rows)
    assert sum(row["share"] for row in rows) == pytest.approx(100, abs=0.2)
    assert {(row["state"], row["pages"], row["rate"], row["lag"]) for row in rows} == {
        ("active", 11, 1.5, 2)
    }
    assert all(0 <= row["heard"] < 60 and 800 < row["lease"] <= 900 for row in rows)
    text = cluster("ls").out.splitlines()
    assert text[0].split()[:4] == ["agent", "state", "share", "holds"]
    assert text[-1].startswith("3 agents, epoch ")
    town.stop("b")
    row = cluster("ls", "--json").rows[1]
    assert (row["state"], row["pages"], row["rate"]) == ("stopped", 11, None)


def test_owner(town: Town, cluster: Frontier) -> None:
    """Of a host or a URL, as the agents say; the holder may be another."""
    for name in ("one.example", "two.example", "three.example"):
        owner = town.owner(f"https://{name}/")
        for subject in (name, f"http://{name.upper()}:80/page"):
            [row] = cluster("owner", subject, "--json").rows
            assert (row["owner"], row["holder"], row["host"]) == (owner, owner, name)
    assert row["unit"] == load_assignment("ring").unit("three.example", "https://three.example/")
    with pytest.raises(UsageError, match="expected a host, or a URL of the web"):
        cluster("owner", "ftp://x/")


@pytest.mark.parametrize("text", ["not a host!!", "", "*", "a b", "a..b", "a|b", "::1::", "x" * 64])
def test_what_can_be_no_host_is_refused(text: str, cluster: Frontier) -> None:
    """Rather than answered as if it were one."""
    with pytest.raises(UsageError, match="expected a host"):
        cluster("owner", text)


@pytest.mark.parametrize(("text", "name"), [
    ("Example.COM.", "example.com"), ("a_b.example", "a_b.example"), ("127.1", "127.0.0.1"),
    ("B\u00fccher.example", "xn--bcher-kva.example"), ("xn--bcher-kva.example",) * 2,
    ("*.example.com", "*.example.com"), ("[0:0::1]", "[::1]"), ("0:0::1", "::1"),
])  # fmt: skip
def test_a_host_is_spelled_as_in_urls(text: str, name: str) -> None:
    """In normal form, which is what a crawl keeps; an address with brackets or without."""
    assert host_argument(text) == name


@pytest.mark.parametrize("text", [
    "http://a.example", "a.example/x", "a.example:x", "[::1]:", "me@a.example", "a.example?x",
    "a.example#x", "a.example\\x",
])  # fmt: skip
def test_more_than_a_host_is_none(text: str) -> None:
    """What else a URL has is not passed over."""
    with pytest.raises(argparse.ArgumentTypeError, match="without scheme or path"):
        host_argument(text)


@pytest.mark.parametrize("address", ["::1", "[0:0::1]"])
def test_the_owner_of_an_ipv6_address(address: str, town: Town, cluster: Frontier) -> None:
    """With brackets or without."""
    [row] = cluster("owner", address, "--json").rows
    assert (row["host"], row["owner"]) == ("[::1]", town.owner("https://[::1]/"))


def test_agents_of_a_crawl_that_is_over_have_ended(town: Town, cluster: Frontier) -> None:
    """Also when their leases are over; not who runs still, or who was dead before."""

    def states() -> dict[str, str]:
        return {row["agent"]: row["state"] for row in cluster("ls", "--json").rows}

    town.stop("b")
    town.stop("c")
    assert states() == {"a": "active", "b": "stopped", "c": "stopped"}
    _change_crawl(town, ended=True)
    assert states() == {"a": "active", "b": "ended", "c": "ended"}
    owned = next(f"{n}.example" for n in range(99) if town.owner(f"https://{n}.example/") == "c")
    assert cluster("owner", owned, "--json").rows[0]["state"] == "ended"
    _end_lease(town, "b")
    _end_lease(town, "c")
    assert states() == {"a": "active", "b": "ended", "c": "ended"}
    numbers = {row["agent"]: row["number"] for row in cluster("ls", "--json").rows}
    with town.server.client() as client:  # as if others had taken what c had, before the end
        holders = np.frombuffer(client.get("suite:{web}:holders"), ">u2").copy()
        holders[holders == numbers["c"]] = numbers["a"]
        client.set("suite:{web}:holders", holders.tobytes())
    rows = {row["agent"]: row["state"] for row in cluster("ls", "--json", "--all").rows}
    assert rows == {"a": "active", "b": "ended", "c": "dead"}


def _change_crawl(town: Town, **given: Any) -> None:
    """Have Redis keep this of the crawl."""
    with town.server.client() as client:
        crawl = json.loads(client.get("suite:{web}:crawl"))
        client.set("suite:{web}:crawl", json.dumps({**crawl, **given}))


def _end_lease(town: Town, name: str) -> None:
    """Have the lease of the agent end long ago; whoever looks next finds that."""
    with town.server.client() as client:
        row = json.loads(client.hget("suite:{web}:members", name))
        client.hset("suite:{web}:members", name, json.dumps({**row, "ends": 1}))
    _change_crawl(town, sweep=1)


def test_an_agent_that_is_removed(town: Town, cluster: Frontier) -> None:
    """Refused as dead while it is heard; others take what it had, at once or after its lease."""
    assert cluster("remove", "nobody", "--yes").out.endswith("those there are: a, b, c\n")
    with pytest.raises(UsageError, match="give --yes"):
        cluster("remove", "b")
    [row] = cluster("remove", "b", "--dry-run", "--json").rows
    assert row["dry_run"] is True
    assert row["units"] > 10_000
    assert row["others_take_them"].startswith("in ")
    said = cluster("remove", "b", "--dead", "--yes")
    assert (said.code, "its process is not gone" in said.out) == (2, True)
    town.stop("b")
    [row] = cluster("remove", "b", "--dead", "--yes", "--json").rows
    assert (row["removed"], row["was"], row["others_take_them"]) == (True, "stopped", "at once")
    rows = {row["agent"]: row for row in cluster("ls", "--json", "--all").rows}
    assert (rows["b"]["state"], rows["b"]["share"], rows["b"]["lease"]) == ("removed", 0.0, 0)


def test_an_agent_is_asked_to_drain(town: Town, jobs: dict[str, Path], cluster: Frontier) -> None:
    """By a call like others: who asked is in the audit log. One that cannot says so."""
    said = cluster("drain", "b", "--who", "me", "--why", "its machine")
    assert (said.code, "no crawl is running" in said.out) == (1, True)
    *_, row = AuditLog(jobs["b"] / FOLDER).rows()
    assert (row["verb"], row["who"], row["why"]) == ("drain", "me (Redis)", "its machine")
    town.stop("b")
    said = cluster("drain", "b")
    assert (said.code, "b does not run (stopped)" in said.out) == (1, True)
    cluster("remove", "b", "--dead", "--yes")
    assert "b is gone already: removed" in cluster("drain", "b").out
    for name in ("a", "c"):
        town.stop(name)
    town.start("a")
    said = cluster("drain", "a")
    assert "no agent runs that could take what a has (c: stopped)" in said.out
    assert said.code == 1
    cluster("remove", "c", "--dead", "--yes")
    assert "no other agent that could take what a has" in cluster("drain", "a").out


def test_what_is_left_of_a_drain_is_said() -> None:
    """Also when no unit is; at last only its end is awaited."""
    row: Any = SimpleNamespace(name="b", number=2)

    def left(units: int, **facts: int) -> str:
        holders = SimpleNamespace(holders=np.array([2] * units + [1]))
        overview: Any = SimpleNamespace(facts={"b": facts}, holders=holders)
        return cluster_verbs._work_left(overview, row)

    assert left(0, hosts=3, pending=1_200, lag=7) == (
        "0 units, 3 hosts in memory, 1,200 URLs that are pending, 7 rows of URLs for other agents "
        "are left"
    )
    assert left(2) == "2 units are left"
    assert "has to end" in left(0, hosts=0, pending=0, lag=0)


def test_a_crawl_is_forgotten(town: Town, cluster: Frontier) -> None:
    """Not while an agent runs."""
    said = cluster("forget", "--yes")
    assert (said.code, "is at work on the crawl" in said.out) == (2, True)
    for name in NAMES:
        town.stop(name)
    [row] = cluster("forget", "--dry-run", "--json").rows
    assert (row["agents"], row["finished"]) == ([*NAMES], False)
    text = cluster("forget", "--dry-run").out
    assert "\nfinished           False\n" in text
    assert f"\nlast heard         {time.gmtime().tm_year}-" in text
    assert cluster("forget", "--yes", "--json").rows[0]["forgotten"] is True
    assert "holds no crawl of several agents" in cluster("ls").out
    with town.server.client() as client:
        assert client.keys("suite:*") == []


def test_what_nobody_claims_is_released(town: Town, cluster: Frontier) -> None:
    """All is held: there is nothing to release."""
    assert cluster("release", "--dry-run", "--json").rows[0]["units"] == 0
    assert cluster("release", "--yes", "--json").rows[0]["released"] is True


def test_another_assignment(redis_server: RedisServer, cluster: Frontier) -> None:
    """A function that is not here, or is another one here, tells nothing."""
    with redis_server.client() as client:
        crawl = client.get("suite:{web}:crawl")
        client.set("suite:{web}:crawl", crawl.replace(b"'ring' (", b"'my.Own' ("))
        said = cluster("owner", "one.example")
        assert (said.code, "run this in the project of the crawl" in said.out) == (2, True)
        assert cluster("ls", "--json").rows[0]["share"] is None
        client.set("suite:{web}:crawl", crawl.replace(b"'ring' (", b"'host-parity' ("))
        said = cluster("owner", "one.example")
        assert "is another function here than in the crawl" in said.out


def test_no_redis_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """There is no default."""
    command, options, left = commandline.parsed(Command(), ["ls"])
    with pytest.raises(UsageError, match="which Redis"):
        command.run(left, options)
    command, options, left = commandline.parsed(Command(), ["ls", "-j", "http://x/"])
    with pytest.raises(UsageError, match="begins with redis://"):
        command.run(left, options)


def test_what_cannot_be_adopted(
    town: Town, jobs: dict[str, Path], tmp_path: Path, cluster: Frontier
) -> None:
    """No job, one in use, one of another crawl, one of an agent that is a member still."""
    assert "holds no job" in cluster("adopt", str(tmp_path)).out
    assert "is in use by a crawl" in cluster("adopt", str(jobs["b"])).out
    numbers = {row["agent"]: row["number"] for row in cluster("ls", "--json").rows}
    for name in ("b", "c"):
        town.stop(name)
    assert "was not that of an agent of the crawl web" in cluster("adopt", str(jobs["b"])).out
    crawl = town.id
    for number, name in ((numbers["b"], "b"), (numbers["c"], "c")):
        with job_at_rest(jobs[name] / FOLDER) as site:
            assert site is not None
            site.store.kv("agent").put(b"crawl", crawl.encode())
            site.store.kv("agent").put(b"number", str(number).encode())
            site.commit()
    assert "b is a member still" in cluster("adopt", str(jobs["b"])).out
    cluster("remove", "b", "--dead", "--yes")
    [row] = cluster("adopt", str(jobs["b"]), "--dry-run", "--json").rows
    assert (row["dry_run"], row["agent"]) == (True, "b")


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_every_verb_has_help_with_examples(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own options and examples that are parsed, and exit codes."""
    command, options, left = commandline.parsed(Command(), [verb, "--help"])
    command.run(left, options)
    said = capsys.readouterr().out
    assert said.startswith(f"usage: scrapy cluster {verb}")
    assert "Exit codes: 0 done" in said
    declared = command.find(verb)
    assert declared is not None
    assert declared.examples
    for example in declared.examples:
        _, _, left = commandline.parsed(Command(), shlex.split(example))
        command.parser_of(declared).parse_args(left[1:])


def test_a_client_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, and what to install."""
    monkeypatch.setitem(sys.modules, "redis", None)
    for command, words in (Command(), ["ls"]), (FrontierCommand(), ["status", "-j", "redis://x/0"]):
        ready, options, left = commandline.parsed(command, words)
        with pytest.raises(UsageError, match=r"need the package redis.* pip install .*cluster"):
            ready.run(left, options)
