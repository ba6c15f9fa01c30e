"""Random hostile hand-over files: refused, or merged, and the store is as good as before."""

from __future__ import annotations

import math
import struct
from contextlib import suppress
from copy import deepcopy
from http.cookiejar import Cookie
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.handover_sides import Side, drain, label, units_of
from support.virtual_crawl import WALL, entry

from scrapy_spider_suite.cluster.handover.dump import ROWS
from scrapy_spider_suite.cluster.handover.handover_file import (
    HandoverLabel,
    HandoverReader,
    HandoverWriter,
    Item,
)
from scrapy_spider_suite.errors import HandoverFileError
from scrapy_spider_suite.frontier.entries import slot_of, state_key
from scrapy_spider_suite.frontier.revisit_rules import History, Validators
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.request_codec import pack_cookies
from scrapy_spider_suite.store.revisit_plans import PackedBody, RevisitPlan
from scrapy_spider_suite.store.rows import pack_row
from scrapy_spider_suite.store.value_codec import ValueCodec

HOST = "h0.t"
UNITS = units_of("ring", [slot_of(HOST)])
STATES = ["pending", "done", "failed", "asked"]
EXTREMES: list[Any] = [
    None, True, 0, -1, 1, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63), 0.0, -0.5,
    1e300, math.nan, math.inf, -math.inf, "", "\0", "\n", "é", "h1.t", HOST, "x" * 3000, b"", b"\0",
    b"\n", b"\xff" * 8, b"http://h0.t/1", b"x" * 3000, [], [1], {}, {"a": 1},
]  # fmt: skip


def honest(folder: Path, *, sieve: bool) -> list[Item]:
    """What an agent gives that has some of everything."""
    a = Side(folder, sieve=sieve)
    for page in range(12):
        a.put(HOST, page, STATES[page % 4])
    drain(a.context().drain_sieve())
    key, url = state_key(HOST, "http://h0.t/1"), b"http://h0.t/1"
    cookie = Cookie(
        0, "a", "1", None, False, HOST, True, False, "/", True, False, None, True, None, None, {}
    )  # fmt: skip
    rows = {
        ("seeds", key): url + b"\ntag", ("lastmod", key): b"\0\0\0\7", ("sitemaps", key): b"h1.t",
        ("sitemap_counts", HOST.encode()): b"\0\0\0\2", ("robots", b"\7http://h0.t"):
        struct.pack(">BBHIdddd", 1, 2, 200, 0, WALL, WALL, WALL, math.nan),
        ("traps", HOST.encode() + b"\0" + bytes(8)): bytes(8),
        ("traps", HOST.encode()): msgpack.packb([{"query": {1: 2}}, {5: "same"}, 3]),
        ("cookies", b"host\0" + ValueCodec().dumps((None, HOST))): pack_cookies([cookie]),
        ("revisits", b"c" + HOST.encode()): msgpack.packb((3.0, 2.0)),
    }  # fmt: skip
    for (name, at), value in rows.items():
        a.store.kv(name).put(at, value)
    plan = RevisitPlan(
        WALL + 60.0, History(WALL, 9.0, 1.0, (5.0,)), 1e-4, Validators('"tag"'), b"d", 1, host=HOST,
        packed=PackedBody("http://h0.t/1", WALL, "sha1:x"), row=pack_row(entry("http://h0.t/1")),
    )  # fmt: skip
    hands = a.context()
    hands.plans.import_plan(key, plan, waits=True)
    a.frontier.set_address(hands.workbench.hosts[HOST], "10.0.0.1", "10.0.0.1", 1e18, a.now)
    hands.workbench.addresses["10.0.0.1"].next_fetch = a.now + 40.0
    path = folder / "file"
    drain(a.dump(UNITS).pack(path, label(UNITS.numbers)))
    with HandoverReader(path) as reader:
        items = [item for chunk, _ in reader.chunks() for item in chunk]
    a.close()
    return items


def changed(draw: Random, value: Any) -> Any:
    """A *value* that is another one, somewhere within."""
    if draw.random() < 0.15:
        return draw.choice(EXTREMES)
    if isinstance(value, list | tuple) and value:
        return within(draw, list(value))
    if isinstance(value, dict) and value:
        key = draw.choice(list(value))
        return {**value, draw.choice([key, 1, "x"]): changed(draw, value[key])}
    if isinstance(value, bytes) and value:
        if draw.random() < 0.5:
            with suppress(ValueError, TypeError, msgpack.UnpackException):
                found = msgpack.unpackb(value, strict_map_key=False)
                return msgpack.packb(changed(draw, found))
        at, size = draw.randrange(len(value)), draw.choice([1, 1, 2, 4, 8])
        new = draw.choice([b"\0", b"\xff", b"\x7f", b"\x80", bytes([draw.randrange(256)])]) * size
        return value[:at] + draw.choice([new, new, b"", value[at:] + new]) + value[at + size :]
    return draw.choice(EXTREMES)


def within(draw: Random, items: list[Any]) -> list[Any]:
    """Those *items* with another one in a place, or one less, or in another order."""
    at = draw.randrange(len(items))
    how = draw.random()
    if how < 0.1:
        del items[at]
    elif how < 0.2:
        items.insert(draw.randrange(len(items)), deepcopy(items[at]))
    else:
        items[at] = changed(draw, items[at])
    return items


def written(path: Path, of: HandoverLabel, items: list[Item]) -> None:
    """A hand-over file that holds those; of what cannot be packed nothing."""
    with HandoverWriter(path, of) as writer:
        for item in items:
            with suppress(OverflowError, TypeError, ValueError):
                writer.put(item)


def refusal(side: Side, path: Path, of: HandoverLabel) -> str:
    """Why a hand-over file is not taken; "" if it is."""
    try:
        drain(side.load(UNITS, path, of).merge())
    except HandoverFileError as error:
        return str(error)
    return ""


def goes_on(side: Side, folder: Path, *, sieve: bool) -> None:
    """The crawl goes on, and what is here can go elsewhere."""
    side.frontier.flush()
    for page in range(6, 14):
        side.put(HOST, page + 10, "pending")
    side.put("h1.t", 1, "done")
    for _ in range(3):
        side.now += 10.0
        side.frontier.commit.planner.renew_due(9, side.now)
        side.frontier.commit.planner.revisits.tick(1.0)
        side.frontier.tick(side.now)
    heir = Side(folder / "heir", side.now, sieve=sieve)
    path = folder / "passed on"
    drain(side.dump(UNITS).pack(path, label(UNITS.numbers)))
    drain(heir.load(UNITS, path, label(UNITS.numbers)).merge())
    drain(side.dump(UNITS).forget("p1"))
    for each in (side, heir):
        each.frontier.flush()
        each.close()
        with StoreReader(each.folder) as reader:
            assert list(reader.check()) == []


@pytest.mark.parametrize("sieve", [False, True])
def test_a_mutated_file_is_refused_or_does_no_harm(
    tmp_path_factory: pytest.TempPathFactory, sieve: bool
) -> None:
    """Refused with one line, and nothing is changed; or taken, and all goes on."""
    items = honest(tmp_path_factory.mktemp("honest") / "a", sieve=sieve)
    assert len({item[0] for item in items}) == (7 if sieve else 5)
    assert len(items) < ROWS
    taken = set[bool]()

    @settings(max_examples=8, deadline=None)
    @given(seed=st.integers(0, 1 << 40))
    def mutated(seed: int) -> None:
        draw = Random(seed)
        with TemporaryDirectory() as name:
            folder = Path(name)
            b = Side(folder / "b", sieve=sieve)
            for page in range(0, 12, 2):
                b.put(HOST, page, draw.choice(STATES))
            b.frontier.flush()
            for number in range(12):
                before = list(b.store.every_row())
                lies = deepcopy(items)
                for _ in range(draw.choice([1, 1, 1, 2])):
                    within(draw, lies)
                of = label(UNITS.numbers, f"p{number}")
                written(folder / "file", of, lies)
                refused = refusal(b, folder / "file", of)
                b.frontier.flush()
                assert not refused or list(b.store.every_row()) == before
                assert "\n" not in refused
                taken.add(not refused)
            goes_on(b, folder, sieve=sieve)

    mutated()
    assert taken == {False, True}
