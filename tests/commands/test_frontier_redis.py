"""``scrapy frontier VERB -j redis://...``: all agents of a crawl, over a real Redis."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scrapy.exceptions import UsageError
from support.frontier_command import HOST, Frontier, Said
from support.idle_agents import Town
from support.redis_servers import RedisServer

from scrapy_spider_suite.operate.actions import AuditLog
from scrapy_spider_suite.operate.executors.agent_calls import CallKeys
from scrapy_spider_suite.operate.job_target import BLOCKS, stored_blocks
from scrapy_spider_suite.store.job_directory import FOLDER, JobFile
from scrapy_spider_suite.store.job_reader import StoreReader

NAMES = ("a", "b")


@pytest.fixture(scope="module")
def town(
    redis_server: RedisServer, finished: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Town]:
    """Two agents, each with a copy of the job, so that both know everything in it.

    One town for all tests, each of which leaves both at work, and nothing blocked or paused.
    """
    agents = tmp_path_factory.mktemp("agents")
    jobs = {name: shutil.copytree(finished, agents / name) for name in NAMES}
    with Town(redis_server, jobs) as town:
        yield town


Ask = Callable[..., Said]


@pytest.fixture
def ask(town: Town, frontier: Frontier) -> Ask:
    """Run a verb on all of them."""
    return lambda *words: frontier(*words, "-j", town.server.url)


def stored(town: Town, name: str) -> list[str]:
    """What is blocked at an agent."""
    with StoreReader(town.jobs[name] / FOLDER) as reader:
        kept = reader.store.kv(BLOCKS)
        return [each.subject for each in stored_blocks(kept)]


# Acting


def test_a_block_is_in_force_at_all_agents(town: Town, ask: Ask) -> None:
    """With who and why in the audit log of each; `blocks` and `audit` show it."""
    said = ask("block", "bad.example", "--why", "mail", "--who", "me")
    assert said == Said(0, "a, b: bad.example is blocked\n")
    for name in NAMES:
        assert stored(town, name) == ["bad.example"]
        *_, row = AuditLog(town.jobs[name] / FOLDER).rows()
        assert (row["who"], row["why"], row["verb"]) == ("me (Redis)", "mail", "block")
    [row] = ask("blocks", "--json").rows
    assert (row["subject"], row["who"], row["agents"]) == ("bad.example", "me (Redis)", ["a", "b"])
    rows = ask("audit", "block", "--json").rows
    assert sorted((row["agent"], row["ok"]) for row in rows) == [("a", True), ("b", True)]
    *_, line = ask("audit").out.splitlines()
    assert " all " in line
    assert ask("unblock", "bad.example").code == 0
    again = ask("unblock", "bad.example", "--json")
    assert (again.code, again.rows[0]["ok"]) == (1, False)
    assert sorted(again.rows[0]["agents"]) == [*NAMES]


def test_pause_and_resume(ask: Ask) -> None:
    """What all say alike is said once."""
    assert ask("pause").out.startswith("a, b: paused; ")
    assert ask("resume").out == "a, b: the crawl goes on\n"


def test_what_is_added_goes_to_its_owner(town: Town, ask: Ask, tmp_path: Path) -> None:
    """Each URL to one agent, the one that owns it; bad lines are counted once, with their place."""
    urls = [f"https://added-{number}.example/" for number in range(40)]
    source = tmp_path / "seeds.txt"
    source.write_text("\n".join([*urls[:20], "no:seed:x", "#tag=spring", *urls[20:]]) + "\n")
    [counted] = ask("add", str(source), "--dry-run", "--json").rows
    assert (counted["urls"], counted["new"], counted["no_web_addresses"]) == (40, 40, 1)
    assert counted["first_bad"][0].startswith(f"{source}:21 ")
    [row] = ask("add", str(source), "--json").rows
    assert (row["ok"], row["urls"], row["new"], row["no_web_addresses"]) == (True, 41, 40, 1)
    assert row["agents"]["a"]["new"] + row["agents"]["b"]["new"] == 40
    for name in NAMES:
        with StoreReader(town.jobs[name] / FOLDER) as reader:
            for url in urls:
                known = reader.store.record(url.split("/")[2])
                assert (known is not None) is (town.owner(url) == name), url
    rows = ask("report", "seeds", "--json").rows
    assert {row["seed"]: row["tag"] for row in rows if row["seed"] == urls[-1]} == {
        urls[-1]: "spring"
    }


def test_a_list_of_what_is_fetched_again(ask: Ask, tmp_path: Path) -> None:
    """It goes to who holds it; the pattern to all."""
    url = ask("urls", HOST, "--json", "--limit", "1").rows[0]["url"]
    (tmp_path / "again.txt").write_text(f"{url}\nhttps://nowhere.example/\n")
    [row] = ask("refetch", str(tmp_path / "again.txt"), "--dry-run", "--json").rows
    assert row["urls"] == 1
    assert sum(row["by_reason"].values()) == 1
    [row] = ask("refetch", str(tmp_path / "again.txt"), "--json").rows
    assert (row["ok"], row["urls"], row["unknown"]) == (True, 1, 1)
    missing = ask("refetch", "nothing.txt", "--dry-run")
    assert (missing.code, "no such file" in missing.out) == (2, True)


def test_drop_has_a_receipt_of_all(town: Town, ask: Ask) -> None:
    """What was dropped is added up; what each says is in it."""
    host = "h000003.fake.test"
    [counted] = ask("drop", host, "--dry-run", "--json").rows
    [row] = ask("drop", host, "--yes", "--json").rows
    assert row["done"] + row["failed"] + row["pending"] == counted["urls"] > 0
    assert sorted(row["agents"]) == [*NAMES]
    said = ask("urls", host)
    assert (said.code, "never met the host" in said.out) == (2, True)
    said = ask("drop", host, "--yes")
    assert said.out.splitlines()[-1].startswith("receipt: ")
    assert "{" not in said.out
    for words in (("--yes",), ("--dry-run",)):
        said = ask("drop", "none.example", *words)
        assert (said.code, "never met the host" in said.out) == (2, True)


# Looking


def test_status_is_a_table_with_a_sum(town: Town, ask: Ask) -> None:
    """A line for each agent."""
    *rows, added = ask("status", "--json").rows
    assert [row["agent"] for row in rows] == [*NAMES]
    assert added["agent"] is None
    assert added["done"] == sum(row["done"] for row in rows) > 0
    assert added["outcomes"]["success"] == sum(row["outcomes"]["success"] for row in rows)
    assert [row["agent"] for row in ask("why", "--json").rows] == [*NAMES]
    assert re.search(r"^waiting +\d+ hosts? waits?", ask("why").out, re.M)
    lines = ask("status").out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["agent", "a", "b", "-"]
    assert ask("status", "--alive", "60").code == 1  # none of them crawls


def test_other_looks(town: Town, ask: Ask) -> None:
    """Rows of all agents, with the agent; those of a host from whoever knows it."""
    hosts = ask("hosts", "--json", "--limit", "0").rows
    assert {row["agent"] for row in hosts if row["host"] == HOST} == {*NAMES}
    assert hosts[:3] == ask("hosts", "--json", "--limit", "3").rows
    assert {row["agent"] for row in ask("urls", HOST, "--json").rows} == {*NAMES}
    rows = ask("why", HOST, "--json").rows
    assert [(row["agent"], row["host"]) for row in rows] == [("a", HOST), ("b", HOST)]
    [row] = ask("why", "https://unknown.example/", "--json").rows
    assert row["state"] == "unknown"
    lines = ask("log", HOST).out.splitlines()
    assert len(lines) > 1
    assert lines == sorted(lines)
    found = ask("log", HOST, "--json").rows
    assert (len(found), {row["agent"] for row in found}) == (len(lines), {*NAMES})
    assert ask("log", "unknown.example").code == 1
    manifests = ask("manifest", "--json").rows
    jobs = [JobFile.read(town.jobs[name] / FOLDER) for name in NAMES]
    assert [row["job"] for row in manifests] == [job.id for job in jobs if job is not None]
    assert ask("manifest").out.count("agent   ") == 2


def test_reports_are_added_up(town: Town, ask: Ask, frontier: Frontier) -> None:
    """Counts of both, means between them, as tables, CSV and JSON."""
    one = frontier("report", "statuses", "-j", str(town.jobs["a"]), "--json").rows
    both = ask("report", "statuses", "--json").rows
    assert [(row["status"], row["fetches"]) for row in both] == [
        (row["status"], 2 * row["fetches"]) for row in one
    ]
    assert [row["mean_ms"] for row in both] == [row["mean_ms"] for row in one]
    first, *_ = ask("report", "types", "--csv", "--limit", "1").out.splitlines()
    assert first == "type,fetches,bytes,mean_ms"
    [crawl] = ask("report", "crawl", "--json").rows
    assert (crawl["agents"], crawl["fetches"]) == (2, 2 * sum(row["fetches"] for row in one))
    hosts = ask("report", "hosts", "--limit", "3", "--json").rows
    assert len(hosts) == 3


def test_urls_are_judged_by_who_has_them(ask: Ask) -> None:
    """Each by one agent; a line that is no seed by nobody."""
    rows = ask("test", f"http://{HOST}/", "https://new.example/", "ftp://x/", "--json").rows
    assert sorted((row["judgement"], row["agent"] is None) for row in rows)[-1] == ("refuse", True)
    assert len(rows) == 3


# What is refused


def test_every_verb_says_what_it_does_over_redis(ask: Ask) -> None:
    """None of them is mistaken about what -j names: a Redis without a crawl is one."""
    for verb, words in {
        "snapshot": ["x"], "settings": [],
    }.items():  # fmt: skip
        with pytest.raises(UsageError, match=f"{verb} works on the job of one agent"):
            ask(verb, *words)
    with pytest.raises(UsageError, match="goes by this project"):
        ask("test", "https://x.example/", "--spider", "news")


def test_no_such_crawl(town: Town, frontier: Frontier, tmp_path: Path) -> None:
    """One line each: no Redis, no crawl, several of them, a name that is none."""
    url = town.server.url
    said = frontier("status", "-j", url, "--crawl", "other")
    assert said == Said(2, f"scrapy frontier: Redis at {url} holds no crawl 'other'; those there "
                           "are: web\n")  # fmt: skip
    assert "no name for a crawl" in frontier("status", "-j", url, "--crawl", "a b").out
    away = frontier("status", "-j", f"unix://{tmp_path}/nobody", "--crawl", "web")
    assert (away.code, "is away" in away.out) == (2, True)
    with town.server.client() as client:
        client.set("suite:{two}:crawl", "{}")
        several = frontier("status", "-j", url)
        client.delete("suite:{two}:crawl")
    assert (several.code, "holds 2 crawls: give --crawl, of two, web" in several.out) == (2, True)
    assert frontier("pause", "-j", url, SUITE_CRAWL_NAME="other").code == 2


# Agents that are away


def test_who_is_away_is_named(town: Town, ask: Ask) -> None:
    """And not waited for; the others answer."""
    standing = CallKeys(town.crawl).standing
    with town.server.client() as client:
        before = client.hlen(standing)
    town.stop("b")
    try:
        said = ask("status")
        assert said.code == 3
        assert "no answer from b (stopped)" in said.out
        assert said.out.splitlines()[1].startswith("a ")
        said = ask("block", "later.example", "--why", "x")
        assert (said.code, "they stay asked, for a day" in said.out) == (3, True)
    finally:
        town.start("b")
    _until(lambda: "later.example" in stored(town, "b"))
    with town.server.client() as client:
        # Long after: the call has expired, and stands.
        town.stop("b")
        ask("block", "long.example", "--why", "x")
        client.delete(CallKeys(town.crawl).calls("b"))
        town.start("b")
        _until(lambda: "long.example" in stored(town, "b"))
        assert client.hlen(standing) == before + 2
        for subject in ("later.example", "long.example"):
            assert ask("unblock", subject).code == 0
        assert client.hlen(standing) == before


def test_each_call_is_done_once(town: Town, ask: Ask) -> None:
    """Also if it comes again, as after an answer that was lost."""
    with town.server.client() as client:
        calls: list[bytes] = []
        for name in NAMES:
            town.stop(name)
        asked = ask("pause", "--wait", "0.1")
        assert asked.code == 3
        calls = client.lrange(CallKeys(town.crawl).calls("a"), 0, -1)
        assert len(calls) == 1
        for name in NAMES:
            town.start(name)
        _until(lambda: not client.llen(CallKeys(town.crawl).calls("a")))
        client.rpush(CallKeys(town.crawl).calls("a"), *calls)
        _until(lambda: not client.llen(CallKeys(town.crawl).calls("a")))
        town.stop("a")
        client.rpush(CallKeys(town.crawl).calls("a"), *calls)
        town.start("a")
        _until(lambda: not client.llen(CallKeys(town.crawl).calls("a")))
    id = json.loads(calls[0])["id"]
    done = [row for row in AuditLog(town.jobs["a"] / FOLDER).rows() if id in row["id"]]
    assert [row["said"].split(";")[0] for row in done] == ["paused"]
    ask("resume")


def _until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.02)
