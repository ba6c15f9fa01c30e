"""Hosts go from one agent's store into another's: all that is kept of them, and nothing else."""

from __future__ import annotations

import ast
import importlib
import math
import struct
from collections.abc import Iterator
from http.cookiejar import Cookie
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.handover_sides import Side, drain, killed, label, units_of
from support.virtual_crawl import WALL, entry

import scrapy_spider_suite
from scrapy_spider_suite.cluster.assignment import Ring
from scrapy_spider_suite.cluster.handover.dump import TRANSFERRED, unfinished_dumps
from scrapy_spider_suite.cluster.handover.handover_file import (
    HandoverReader,
    HandoverWriter,
    UnitSet,
    intact_length,
    pack_units,
    unpack_units,
)
from scrapy_spider_suite.frontier.entries import UNITS, Entry, Flag, state_key
from scrapy_spider_suite.frontier.revisit_rules import History, Validators
from scrapy_spider_suite.frontier.workbench import FOREVER
from scrapy_spider_suite.store.host_queues import NEVER
from scrapy_spider_suite.store.request_codec import pack_cookies, unpack_cookies
from scrapy_spider_suite.store.revisit_plans import RevisitPlan
from scrapy_spider_suite.store.rocks_store import FAMILIES
from scrapy_spider_suite.store.rows import pack_row
from scrapy_spider_suite.store.value_codec import ValueCodec

RANK = {"": -1, "pending": 0, "failed": 1, "done": 2}
NAMES = [f"h{n}.t" for n in range(6)]
COOKIES = b"host\0" + ValueCodec().dumps((None, "h0.t"))
ROBOTS = b"\7http://h0.t"
ROBOTS_ROW = struct.pack(">BBHIdddd", 1, 2, 200, 0, WALL, WALL, WALL, math.nan)


def cookie(domain: str, name: str, value: str = "1") -> Cookie:
    """A cookie of the session."""
    return Cookie(
        0, name, value, None, False, domain, True, False, "/", True, False, None, True, None, None,
        {},
    )  # fmt: skip


# What goes, and what stays


COLUMNS = {
    "hosts": "goes: clocks, back-off, Crawl-delay, counts, why a host was given up",
    "due": "made anew of the records",
    "queue": "goes, in its order; keys are given anew",
    "states": "goes, with what is in the archive",
    "kv": "see `TRANSFERRED` and `STAYS`",
    "meta": "stays: facts about the job itself",
}
"""The families of the database."""

STAYS = {
    "agent": "who this agent is in its crawl",
    "bad_seeds": "seeds that every agent was given",
    "blocks": "an operator tells all agents",
    "control": "what was asked of this agent",
    "counters": "follow what goes",
    "domains": "follow what goes",
    "fresh": "links that wait for the sieve, which is drained first",
    "handover": "what was handed over, and taken",
    "items": "files that this agent has written",
    "links": "counts of pages that this agent has fetched; a report adds them up",
    "near": "signatures of pages that this agent met lately",
    "outbox": "goes to its receivers by itself",
    "payloads": "originals in the packs of this agent",
    "pushed_seeds": "seeds that were pushed to this agent: what it has scheduled of them goes",
    "received": "which messages of others have come: what was in them goes, if it is still here",
    "seed_lists": "lists that every agent was given",
    "sieve": "how often hosts were dropped: goes with fingerprints",
    "spiderstate": "a spider's own, of this process",
    "start": "whether this agent has begun",
    "structures": "originals in the packs of this agent",
    "terms": "settings that every agent has",
    "trusted": "whom to believe a private address is for each agent to say",
    "twins": "evidence by site, which each agent gathers for the links that it finds",
    "unextracted": "pages in the packs of this agent: it reads them, their links go by routing",
}
"""The mappings of a store that do not go, and why."""


def names_of_mappings() -> Iterator[tuple[str, str | None]]:
    """Every mapping that a module asks a store for: the module, and the name if it is plain."""
    root = Path(scrapy_spider_suite.__file__).parent
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "kv(" not in text:
            continue
        module = ".".join(path.relative_to(root.parent).with_suffix("").parts)
        nodes = list(ast.walk(ast.parse(text)))
        homes = {
            alias.asname or alias.name: (node.module or "", alias.name)
            for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
        }  # fmt: skip
        for call in (node for node in nodes if isinstance(node, ast.Call) and node.args):
            if getattr(call.func, "attr", getattr(call.func, "id", "")) not in ("kv", "job_kv"):
                continue
            asked = call.args[-1]
            if isinstance(asked, ast.Constant):
                yield module, str(asked.value)
                continue
            name = asked.attr if isinstance(asked, ast.Attribute) else getattr(asked, "id", "")
            if name.isupper():
                at = homes.get(name)
                if isinstance(asked, ast.Attribute):
                    at = ".".join(homes[asked.value.id]), name
                home, known = at or (module, name)
                yield module, getattr(importlib.import_module(home), known)
            else:
                yield module, None


def test_every_mapping_is_classified() -> None:
    """Whoever adds one has to say whether it goes along."""
    from scrapy_spider_suite.analysis.duplicates import PAYLOADS, STRUCTURES

    known = {*TRANSFERRED, *STAYS}
    assert len(known) == len(TRANSFERRED) + len(STAYS)
    found = list(names_of_mappings())
    plain = {name for _, name in found if name is not None}
    assert {"seeds", "revisits", "cookies", "handover", "sieve"} <= plain
    others = {module.rpartition(".")[2] for module, name in found if name is None}
    # Those go over a list of names, or are the tables' own.
    allowed = {
        "job_directory", "duplicate_pages", "drop", "answering", "sweeping", "dump", "load",
        "job_redaction",
    }  # fmt: skip
    assert others <= allowed
    assert (plain | {PAYLOADS, STRUCTURES}) - known == set()
    assert set(COLUMNS) == set(FAMILIES)


# Units


@settings(max_examples=20, deadline=None)
@given(st.sets(st.integers(0, UNITS - 1), max_size=40))
def test_units_are_bits_and_ranges(numbers: set[int]) -> None:
    """Each of them is in exactly one range of keys, and no other is in any."""
    assert set(np.flatnonzero(unpack_units(pack_units(numbers))).tolist()) == numbers
    ranges = list(UnitSet(Ring(), numbers).prefixes())
    for unit in {*numbers, *(n + 1 for n in numbers), *(n - 1 for n in numbers)} & {*range(UNITS)}:
        key = unit.to_bytes(2, "big") + "ü.example\0".encode()
        assert sum(begin <= key < end for begin, end in ranges) == (unit in numbers)


# The file


def written(path: Path, items: list[Any]) -> Path:
    """A hand-over file with *items*."""
    with HandoverWriter(path, label()) as writer:
        for item in items:
            writer.put(item)
    return path


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    """In chunks, of which each is no larger than a chunk and what filled it."""
    items = [[n, b"x" * (n % 3000)] for n in range(600)]
    path = written(tmp_path / "p", items)
    with HandoverReader(path) as reader:
        assert reader.label == label()
        chunks = [chunk for chunk, _ in reader.chunks()]
    assert [item for chunk in chunks for item in chunk] == items
    assert len(chunks) > 2
    assert intact_length(path, label()) == path.stat().st_size


def test_what_is_intact_of_a_cut_file_needs_no_sending(tmp_path: Path) -> None:
    """However much came: what follows it makes it whole."""
    whole = written(tmp_path / "p", [[n, b"%d" % n * 400] for n in range(300)]).read_bytes()
    path = tmp_path / "half"
    known = set()
    for size in (0, 5, 8, 20, *range(100, len(whole), len(whole) // 7)):
        path.write_bytes(whole[:size])
        at = intact_length(path, label())
        assert at <= size
        known.add(at)
        path.write_bytes(whole[:at] + whole[at:])
        assert intact_length(path, label()) == len(whole)
    assert len(known) > 2


# Two agents


STATES = st.sampled_from(["", "pending", "done", "failed", "archived", "asked"])
PAGES = st.dictionaries(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 9)), st.tuples(STATES, STATES), max_size=30
)  # fmt: skip


@settings(max_examples=8, deadline=None)
@given(
    pages=PAGES, kind=st.sampled_from(["ring", "host-parity", "url-sum"]), modulo=st.integers(1, 3),
    kill=st.integers(0, 6), side=st.sampled_from(["", "a", "b", "forget"]),
)  # fmt: skip
def test_what_goes_is_there_and_no_longer_here(
    pages: dict[tuple[str, int], tuple[str, str]], kind: str, modulo: int, kill: int, side: str
) -> None:
    """Against two plain dictionaries; with a kill on either side at any step, and a clean end."""
    units = units_of(kind, range(0, UNITS, modulo))
    goes = {f"http://{h}/{n}": units.has(h, f"http://{h}/{n}") for h, n in pages}
    with TemporaryDirectory() as name:
        folder = Path(name)
        a, b = Side(folder / "a"), Side(folder / "b")
        for (host, page), (here, there) in pages.items():
            a.put(host, page, here)
            b.put(host, page, there)
        before = {each: {url: one.known().get(url, "") for url in goes} for each, one in
                  (("a", a), ("b", b))}  # fmt: skip
        asked = {f"http://{h}/{n}": [state == "asked" for state in states]
                 for (h, n), states in pages.items()}  # fmt: skip
        order = {host: [url for url in urls if goes[url]] for host, urls in a.queues().items()}
        path, of = folder / "file", label(units.numbers)
        a = killed(a, side == "a", kill, lambda s: s.dump(units).pack(path, of), folder / "k1")
        assert list(unfinished_dumps(a.context())) == ["p1"]
        b = killed(b, side == "b", kill, lambda s: s.load(units, path, of).merge(), folder / "k2")
        assert b.load(units, path, of).done
        assert drain(b.load(units, path, of).merge()) == 0
        a = killed(
            a, side == "forget", kill, lambda s: s.dump(units).forget("p1"), folder / "k3"
        )
        a, b = a.reopened(), b.reopened()
        assert unfinished_dumps(a.context()) == {}
        expected = {
            url: "pending" if asked[url][1] or (asked[url][0] and goes[url]) else
            max(before["a"][url] if goes[url] else "", before["b"][url], key=RANK.__getitem__)
            for url in goes
        }  # fmt: skip
        assert b.known() == {url: state for url, state in expected.items() if state}
        assert a.known() == {u: s for u, s in before["a"].items() if s and not goes[u]}
        for host, urls in order.items():
            # What only the receiver was asked for has its own place there.
            own = {url for url in urls if asked[url] == [False, True]}
            kept = [url for url in urls if expected[url] == "pending" and url not in own]
            found = b.queues().get(host, [])
            assert [url for url in found if url in kept] == kept
        a.check()
        b.check()
        a.close()
        b.close()


def test_more_than_urls_goes(tmp_path: Path) -> None:
    """Clocks, back-off and all that is kept beside; what is there already stays."""
    a, b = Side(tmp_path / "a", now=50.0), Side(tmp_path / "b", now=5.0)
    host, url = "h0.t", "http://h0.t/1"
    key = state_key(host, url)
    a.put(host, 1, "done")
    a.put(host, 2, "pending")
    record = a.store.record(host)
    assert record is not None
    hands = a.context()
    resident = hands.workbench.hosts[host]
    a.frontier.residents.set_crawl_delay(resident, 9.0)
    resident.record.failures, resident.record.attempts, resident.record.entered = 2, 4, 3
    hands.workbench.postpone(resident, a.now + 300.0, "connection refused")
    a.frontier.set_address(resident, "10.0.0.1", "10.0.0.1", 1e18, a.now)
    hands.workbench.addresses["10.0.0.1"].next_fetch = a.now + 40.0
    rows = {
        ("seeds", key): f"{url}\ntag".encode(), ("lastmod", key): b"\0\0\0\7",
        ("sitemaps", key): b"h1.t", ("sitemap_counts", b"h0.t"): b"\0\0\0\2",
        ("traps", host.encode() + b"\0" + bytes(8)): bytes(8),
        ("traps", host.encode()): msgpack.packb([{"query": {1: 2}}, {}, 3]),
        ("cookies", COOKIES): pack_cookies([cookie("h0.t", "mine"), cookie("h0.t", "both")]),
        ("robots", ROBOTS): ROBOTS_ROW,
    }  # fmt: skip
    for (name, at), value in rows.items():
        a.store.kv(name).put(at, value)
    plan = RevisitPlan(
        a.clock()[1] + 60.0, History(WALL), 1e-4, Validators(), b"d", host=host,
        row=pack_row(entry(url)),
    )  # fmt: skip
    hands.plans.import_plan(key, plan, waits=True)
    b.store.kv("lastmod").put(key, b"\0\0\0\x09")
    b.store.kv("cookies").put(COOKIES, pack_cookies([cookie("h0.t", "both", "old")]))
    b.frontier.admission.schedule([entry("http://h0.t/3")], b.now)
    b.frontier.residents.records.touch(host).entered = 5
    units, path = units_of("ring"), tmp_path / "file"
    of = label(units.numbers)
    drain(a.dump(units).pack(path, of))
    drain(b.load(units, path, of).merge())
    drain(a.dump(units).forget("p1"))
    for (name, at), value in rows.items():
        if name not in ("cookies", "lastmod"):
            assert b.store.kv(name).get(at) == value, name
        assert name in ("robots", "cookies") or a.store.kv(name).get(at) is None
    assert b.store.kv("lastmod").get(key) == b"\0\0\0\x09"
    kept = b.store.kv("cookies").get(COOKIES)
    assert kept is not None
    assert {c.name: c.value for c in unpack_cookies(kept, 0.0)} == {"mine": "1", "both": "1"}
    receiver = b.context()
    assert receiver.plans.get(key) == plan
    assert receiver.plans.next_due() == pytest.approx(plan.due, abs=1e-3)
    assert not len(hands.plans)
    here = receiver.workbench.hosts[host]
    assert (here.record.failures, here.record.attempts, here.crawl_delay) == (2, 4, 9.0)
    assert here.record.entered == 3
    assert here.next_fetch + b.frontier.wall_offset == pytest.approx(a.clock()[1] + 300.0, abs=0.01)
    state = receiver.residents.clocks.state("10.0.0.1", "10.0.0.1", b.now)
    assert state.next_fetch + b.frontier.wall_offset == pytest.approx(a.clock()[1] + 40.0, abs=0.01)
    assert not a.known()
    a.check()
    b.check()
    a.close()
    b.close()


def test_what_waits_for_a_rule_waits_by_the_rules_of_the_receiver(tmp_path: Path) -> None:
    """A block of the sender, which has no end, is not a clock: also of a host in memory here."""
    a, b = Side(tmp_path / "a"), Side(tmp_path / "b")
    a.put("h0.t", 1, "pending")
    b.put("h0.t", 2, "pending")
    hands = a.context()
    hands.residents.leave(hands.workbench.hosts["h0.t"], a.now)
    record = hands.residents.records.touch("h0.t")
    record.next_fetch, record.why = NEVER, "blocked (h0.t, an operator)"
    units, path = units_of("ring"), tmp_path / "file"
    drain(a.dump(units).pack(path, label()))
    drain(b.load(units, path, label()).merge())
    here = b.frontier.workbench.hosts["h0.t"]
    assert b.now < here.next_fetch <= b.now + here.gap() + 0.01
    a.close()
    b.close()


def test_a_slot_that_a_spider_chose_goes_along(tmp_path: Path) -> None:
    """Its URLs are known by their own host."""
    a, b = Side(tmp_path / "a"), Side(tmp_path / "b")
    url = "http://h0.t/1"
    flags = int(Flag.USER)
    request = Entry("slow", url, state_key("h0.t", url), flags=flags, payload=b"stored")
    a.frontier.admission.schedule([request], a.now)
    units, path = units_of("ring"), tmp_path / "file"
    drain(a.dump(units).pack(path, label()))
    drain(b.load(units, path, label()).merge())
    assert b.queues() == {"slow": [url]}
    a.close()
    b.close()


def test_what_is_called_off_goes_on(tmp_path: Path) -> None:
    """Hosts that were packed are admitted again, also after a kill."""
    a = Side(tmp_path / "a")
    for page in range(5):
        a.put("h0.t", page, "pending")
    units = units_of("ring")
    a.frontier.leases.foreign.set_rule(lambda host, url: True)
    drain(a.dump(units).pack(tmp_path / "file", label()))
    a.frontier.flush()
    again = a.reopened(tmp_path / "k")
    a.close()
    assert again.frontier.leases.next_visit_in(0.0) == FOREVER
    drain(again.dump(units).keep("p1"))
    assert unfinished_dumps(again.context()) == {}
    again.frontier.rotation.admit(0.0)
    (host,) = again.frontier.unresolved_hosts(0.0, 9)
    again.frontier.set_address(host, "10.0.0.1", "10.0.0.1", 1e18, 0.0)
    assert [fetch.entry.url for fetch in again.frontier.leases.acquire(1.0)] == ["http://h0.t/0"]
    again.close()


def test_what_comes_for_a_host_that_was_packed_is_not_lost(tmp_path: Path) -> None:
    """It stays on disk with the host's other rows, which are all there if that is called off."""
    a = Side(tmp_path / "a")
    for page in range(5):
        a.put("h0.t", page, "pending")
    units = units_of("ring")
    a.frontier.leases.foreign.set_rule(lambda host, url: True)
    drain(a.dump(units).pack(tmp_path / "file", label()))
    a.put("h0.t", 7, "pending")
    assert "h0.t" not in a.frontier.workbench.hosts
    drain(a.dump(units).keep("p1"))
    a.frontier.leases.foreign.set_rule(None)
    a.frontier.rotation.admit(a.now)
    (resident,) = a.frontier.workbench.hosts.values()
    a.frontier.residents.leave(resident, a.now)
    a.frontier.flush()
    assert a.queues() == {"h0.t": [f"http://h0.t/{page}" for page in (0, 1, 2, 3, 4, 7)]}
    a.check()
    a.close()
