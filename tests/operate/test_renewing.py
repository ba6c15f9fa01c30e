"""URLs that come with an action, and patterns of them."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scrapy_spider_suite.crawl.queue.frontier import Frontier
from scrapy_spider_suite.crawl.queue.traps import unpack
from scrapy_spider_suite.errors import ActionError
from scrapy_spider_suite.frontier.entries import Entry, state_key
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.operate.actions import Action, ActionFolder
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.operate.url_selection import parse_pattern
from scrapy_spider_suite.operate.verbs import actions
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import HostRecord
from scrapy_spider_suite.store.seen_index import Archive
from scrapy_spider_suite.urls.traps import TrapLimits
from scrapy_spider_suite.urls.url_lists import LONGEST


@pytest.fixture
def site(tmp_path: Path) -> Iterator[JobTarget]:
    """A job that knows no URL yet."""
    store = RocksStore(tmp_path / "store")
    yield JobTarget(tmp_path, store, Frontier(store, Policy(), now=0.0, wall=0.0, capacity=10))
    store.close()


def carried_out(site: JobTarget, verb: str, **arguments: Any) -> dict[str, Any]:
    """The facts of the answer."""
    work = actions()[verb](site, Action("1", verb, arguments, "job", "me", 0.0))
    assert isinstance(work, Generator)
    while True:
        try:
            next(work)
            site.commit()
        except StopIteration as end:
            _, facts = end.value
            return dict(facts)


@pytest.mark.parametrize("verb", ["add", "refetch"])
def test_urls_out_of_the_job_are_not_read(site: JobTarget, verb: str, tmp_path: Path) -> None:
    """Neither what a link leads to nor what a pipe would bring some day."""
    path = ActionFolder(site.folder).urls_path("1")
    path.parent.mkdir()
    (tmp_path / "secret").write_text("http://a.test/\n")
    path.symlink_to(tmp_path / "secret")
    with pytest.raises(ActionError, match="cannot be read"):
        carried_out(site, verb)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ActionError, match="cannot be read: it is no file"):
        carried_out(site, verb)


def test_a_line_without_end_is_read_in_pieces(site: JobTarget) -> None:
    """What follows it is found all the same."""
    path = ActionFolder(site.folder).urls_path("1")
    path.parent.mkdir()
    path.write_text("http://a.test/b\n")
    assert carried_out(site, "add")["new"] == 1
    path.write_bytes(b"x" * (LONGEST * 3 - 1) + b"\nhttp://a.test/b\n")
    bad = f"URLs:1 {'x' * 100!r}: longer than {LONGEST} bytes"
    assert carried_out(site, "refetch") == {
        "urls": 0, "pending_already": 1, "no_web_addresses": 1, "first_bad": [bad],
    }  # fmt: skip


def queue(site: JobTarget) -> list[tuple[str, int]]:
    """The URLs of a.test that are pending, in their order, and their depths."""
    return [(each.url[-1], each.depth) for each in site.rework.pending("a.test", b"", 2_000)]


def listed(site: JobTarget, *urls: str) -> None:
    """Let these be the URLs of the action."""
    path = ActionFolder(site.folder).urls_path("1")
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{url}\n" for url in urls))


@pytest.mark.parametrize("pattern", [True, False])
def test_a_url_keeps_its_depth(site: JobTarget, pattern: bool) -> None:
    """As far as it is known: of a job of an earlier release it is not."""
    url = "http://a.test/1"
    site.frontier.admission.schedule([Entry("a.test", url, depth=3)], 0.0)
    site.commit()
    [entry] = site.rework.pending("a.test", b"", 5)
    assert site.rework.fail(entry, Event.TIMEOUT, 0.0)
    listed(site, url)
    facts = carried_out(site, "refetch", **({"pattern": url} if pattern else {}))
    assert facts == {"urls": 1}
    assert queue(site) == [("1", 3)]


@pytest.mark.parametrize("verb", ["refetch", "retry"])
def test_what_is_asked_for_is_in_no_trap(site: JobTarget, verb: str) -> None:
    """It waits where one was found, and is fetched all the same."""
    url = "http://a.test/cal/9"
    site.frontier.admission.schedule([Entry("a.test", url)], 0.0)
    site.commit()
    [entry] = site.rework.pending("a.test", b"", 5)
    site.frontier.policy.update(traps=TrapLimits(same=3))
    for number in range(9):
        page = f"http://a.test/cal/{number}"
        site.frontier.traps.learn_page(page, "a.test", b"<p>Nothing." * 9, (), pages=9)
    assert site.frontier.traps.contains(entry)
    assert site.rework.fail(entry, Event.TRAP, 0.0)
    carried_out(site, verb, **({"reason": "trap"} if verb == "retry" else {"pattern": url}))
    [entry] = site.rework.pending("a.test", b"", 5)
    assert not site.frontier.traps.contains(entry)


def test_what_is_retried_is_open_again(site: JobTarget) -> None:
    """Traps of the hosts that are asked for, and no others; of URLs, those that were meant."""
    site.frontier.policy.update(traps=TrapLimits(same=3, hosts=3))
    traps = site.frontier.traps
    for host in ("a.test", "b.test", *(f"h{n}.farm.test" for n in range(6))):
        for number in range(6):
            page = f"http://{host}/calendar/{number}"
            traps.learn_page(page, host, b"<p>Nothing." * 9, (), pages=number)
    for host in ("a.test", "b.test"):
        for number in (7, 8):
            entry = Entry(host, f"http://{host}/calendar/{number}")
            site.frontier.admission.schedule([entry], 0.0)
            assert site.rework.fail(entry, Event.TRAP, 0.0)
    site.frontier.admission.schedule([Entry("h1.farm.test", "http://h1.farm.test/")], 0.0)
    site.frontier.traps.stats.save()
    seven = "http://a.test/calendar/7"
    assert carried_out(site, "retry", reason="trap", subject=seven)["urls"] == 1
    assert traps.closed(seven, "a.test") is None
    assert traps.closed("http://b.test/calendar/7", "b.test") is not None
    assert traps.closed("http://x.farm.test/", "x.farm.test") is not None
    facts = carried_out(site, "retry", reason="trap", subject="a.test")
    assert facts == {"urls": 1}, "the other one; and nothing is closed there any more"
    assert carried_out(site, "retry", reason="trap", subject=".farm.test")["traps_opened"] == 1
    assert traps.closed("http://x.farm.test/", "x.farm.test") is None
    row = site.store.kv("traps").get(b"a.test")
    assert row is None or not unpack("a.test", row).closed


@pytest.mark.parametrize("pattern", [True, False])
@pytest.mark.parametrize("fronted", [0, 1])
def test_what_is_pending_comes_to_the_front(site: JobTarget, pattern: bool, fronted: int) -> None:
    """In the order in which it stood, wherever it is; done once more, nothing changes."""
    urls = [f"http://a.test/{n}" for n in range(200)] + ["http://a.test/x", "http://a.test/y"]
    site.frontier.admission.schedule((Entry("a.test", url) for url in urls), 0.0)
    site.commit()
    host = site.frontier.workbench.hosts["a.test"]
    wanted = [urls[0], urls[150], urls[-1]] if fronted else urls[-2:]
    listed(site, *reversed(wanted))
    before = queue(site)
    for pass_ in range(2):
        facts = {"moved_to_the_front": 0, "pending_already": 0}
        asked = wanted if pattern else [""]
        for each in asked:
            found = carried_out(site, "refetch", first=True, **({"pattern": each} if each else {}))
            facts = {name: n + found.get(name, 0) for name, n in facts.items()}
        moved = 0 if pass_ else len(wanted)
        assert facts == {"moved_to_the_front": moved, "pending_already": len(wanted)}
    assert queue(site)[: len(wanted)] == [(url[-1], 0) for url in wanted]
    assert sorted(queue(site)) == sorted(before)
    assert min(host.front)[1].url == wanted[0]
    assert len({key for key, _ in host.front}) == len(host.front)


def test_a_host_without_a_scheme_is_known_with_either(site: JobTarget) -> None:
    """It fell back to http when it was first fetched."""
    site.frontier.admission.schedule([Entry("a.test", "http://a.test/")], 0.0)
    site.commit()
    listed(site, "a.test", "b.test")
    assert carried_out(site, "refetch") == {"urls": 0, "pending_already": 1, "unknown": 1}


def test_two_at_once_walk_apart(site: JobTarget) -> None:
    """Each has its place among what was archived, on one host or two."""
    site.store.archive = Archive(site.folder / "seen")
    for host in ("a.test", "b.test"):
        site.store.archive.add(state_key(host, f"http://{host}/{n}") for n in range(120))
        record = HostRecord()
        record.done = 120
        site.store.put_record(host, record)
        site.frontier.counters.done += 120
    patterns = ("http://a.test/*7", "http://b.test/*7", "http://a.test/*8")
    asked = [Action(text, "refetch", {"pattern": text}, "job", "me", 0.0) for text in patterns]
    works = {action.id: actions()["refetch"](site, action) for action in asked}
    found: dict[str, dict[str, Any]] = {}
    for _ in range(20):
        for pattern, work in works.items():
            if pattern not in found:
                assert isinstance(work, Generator)
                try:
                    next(work)
                except StopIteration as end:
                    found[pattern] = end.value[1]
                site.commit()
    assert found == {pattern: {"urls": 12} for pattern in patterns}


def naive(text: str, pattern: str) -> bool:
    """Try everything that a star may stand for."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(naive(text[n:], pattern[1:]) for n in range(len(text) + 1))
    return text[:1] == pattern[0] and naive(text[1:], pattern[1:])


@given(st.text("ab", max_size=8), st.text("ab*", max_size=6))
@example("aba", "ab*ba")
@example("ab", "*a*b*")
def test_patterns_match_as_if_everything_was_tried(text: str, pattern: str) -> None:
    """With any number of stars."""
    _, wanted = parse_pattern(f"http://a.test/{pattern}")
    assert wanted(f"http://a.test/{text}") is naive(text, pattern)


def test_many_stars_are_no_trap() -> None:
    """A regular expression would not be done with this one in the life of the crawl."""
    _, wanted = parse_pattern("http://a.test/" + "*a" * 30 + "*b")
    assert not wanted("http://a.test/" + "a" * 2000)
    assert wanted("http://a.test/" + "a" * 2000 + "b")
    assert parse_pattern("http://A.test/x?*=1")[1]("http://a.test/x?y=1")
