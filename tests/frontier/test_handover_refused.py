"""Damaged and hostile hand-over files are refused, and nothing is changed."""

from __future__ import annotations

import math
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import pytest
from msgspec.structs import replace
from support.handover_sides import DONE, Side, drain, label, units_of
from support.virtual_crawl import entry

from scrapy_spider_suite.cluster.handover.dump import kind_of_row
from scrapy_spider_suite.cluster.handover.handover_file import (
    HandoverLabel,
    HandoverWriter,
    ItemKind,
    pack_units,
)
from scrapy_spider_suite.errors import HandoverFileError
from scrapy_spider_suite.frontier.entries import host_key, state_key
from scrapy_spider_suite.frontier.outcomes import State
from scrapy_spider_suite.frontier.revisit_rules import History, Validators
from scrapy_spider_suite.store.revisit_plans import PackedBody, RevisitPlan
from scrapy_spider_suite.store.rows import COUNT_MAX, HostRecord, UrlState, pack_row

HOST, ROW, STATE = ItemKind.HOST, ItemKind.ROW, ItemKind.STATE
KEPT, CLOCK = ItemKind.KEPT, ItemKind.CLOCK


def test_no_damaged_file_is_taken(tmp_path: Path) -> None:
    """Cut anywhere, a bit flipped anywhere: one clear line, and nothing changed."""
    a, b = Side(tmp_path / "a"), Side(tmp_path / "b")
    for page in range(40):
        a.put("h0.t", page, "pending" if page % 3 else "done")
    b.put("h0.t", 3, "pending")
    units, path = units_of("ring"), tmp_path / "file"
    drain(a.dump(units).pack(path, label()))
    b.frontier.flush()
    whole, before = path.read_bytes(), list(b.store.every_row())
    bad = [whole[:size] for size in range(0, len(whole), len(whole) // 9)]
    bad += [whole + b"x", whole[:-1]]
    for at in range(0, len(whole), len(whole) // 23):
        bad.append(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
    for data in bad:
        path.write_bytes(data)
        with pytest.raises(HandoverFileError) as caught:
            drain(b.load(units, path, label()).merge())
        assert "\n" not in str(caught.value)
        b.frontier.flush()
        assert list(b.store.every_row()) == before
    path.write_bytes(whole)
    drain(b.load(units, path, label()).merge())
    assert len(b.known()) == 40
    a.close()
    b.close()


def plan(**changed: object) -> bytes:
    """A plan of the first page of the host."""
    row = pack_row(entry("http://h0.t/1"))
    good = RevisitPlan(2e9, History(1e9), 1e-4, Validators(), b"d", host="h0.t", row=row)
    return replace(good, **changed).to_bytes()  # type: ignore[arg-type]


KEY = state_key("h0.t", "http://h0.t/1")
COUNTED = HostRecord(attempts=COUNT_MAX + 1).to_bytes()
GOOD = UrlState(State.PENDING).to_bytes()
ROW_ = pack_row(entry("http://h0.t/1"))
HOSTILE = [
    [99, "h0.t"], [HOST], [HOST, "h0.t"], [HOST, "h0.t", b""], [HOST, 7, HostRecord().to_bytes()],
    [HOST, "h\0.t", HostRecord().to_bytes()], [HOST, "h1.t", HostRecord().to_bytes()],
    [HOST, "h0.t", HostRecord(next_fetch=float("nan")).to_bytes()], ["x", "h0.t"],
    [HOST, "h0.t", HostRecord(next_fetch=1e300).to_bytes()],
    [HOST, "h0.t", HostRecord(crawl_delay=1e300).to_bytes()],
    [HOST, "h0.t", COUNTED], [HOST, "h0.t", HostRecord(done=-1).to_bytes()],
    [ROW, "h0.t", b"", GOOD, False], [ROW, "h0.t", ROW_, DONE.to_bytes(), False],
    [ROW, "h0.t", ROW_, GOOD, 3], [ROW, "h0.t", ROW_, b"\xff" * 9, False],
    [ROW, "h0.t", pack_row(entry("http://h0.t/1", flags=8)), GOOD, False],
    [ROW, "h0.t", pack_row(entry("http://h1.t/1")), GOOD, False],
    [STATE, "h0.t", b"", DONE.to_bytes()], [STATE, "h0.t", b"http://h0.t/1", GOOD],
    [STATE, "h0.t", "text", DONE.to_bytes()], [STATE, "h0.t", b"x", b"short"],
    [STATE, "h0.t", b"http://h0.t/\x80", DONE.to_bytes()],
    [KEPT, "h0.t", "counters", b"counters", b""], [KEPT, "h0.t", "nothing", b"k", b"v"],
    [KEPT, "h0.t", "seeds", host_key("h1.t") + b"x", b"v"], [KEPT, "h0.t", "seeds", "k", b"v"],
    [KEPT, "h0.t", "traps", b"h0.t", b"no"], [KEPT, "h0.t", "traps", b"h1.t", b"\x94"],
    [KEPT, "h0.t", "revisits", b"d" + bytes(30), b""], [KEPT, "h0.t", ["seeds"], b"k", b"v"],
    [KEPT, "h0.t", "robots", b"h0.t", b"x"], [KEPT, "h0.t", "robots", b"?h0.t/", b"x"],
    [KEPT, "h0.t", "traps", b"h0.t", msgpack.packb([{}, {}, {}, math.inf])],
    [KEPT, "h0.t", "traps", b"h0.t", msgpack.packb([{}, {}, {}, -1])],
    [KEPT, "h0.t", "traps", b"h0.t", msgpack.packb([{"query": {1: 1 << 63}}, {}, {}, 0])],
    [KEPT, "h0.t", "revisits", b"ch0.t", msgpack.packb([math.inf, math.inf])],
    [KEPT, "h0.t", "revisits", b"p" + KEY, b"no"],
    *([KEPT, "h0.t", "revisits", b"p" + KEY, plan(**{name: value})] for name, value in (
        ("due", math.nan), ("due", math.inf), ("due", -1.0), ("rate", 0.0), ("rate", math.inf),
        ("history", History(math.nan)), ("history", History(1.0, changed=(0.0,))), ("misses", -1),
        ("misses", math.inf), ("digest", 1 << 40), ("row", 1 << 40), ("host", "h1.t"),
        ("validators", Validators('"\u20ac"')), ("validators", Validators("", "now\r")),
        ("row", pack_row(entry("http://h0.t/2"))), ("packed", PackedBody("u", math.nan, "d")),
        ("packed", PackedBody("u", 1.0, b"d")),  # type: ignore[arg-type]
    )),
    [KEPT, "h0.t", "cookies", b"host\0no", b"no"], [KEPT, "h0.t", "robots", b"?http://h0.t", b"no"],
    [KEPT, "h0.t", "lastmod", KEY, b"long enough"],
    [CLOCK, "10.0.0.1", "now"], [CLOCK, "10.0.0.1", float("nan")], [CLOCK, 1, 2.0],
]  # fmt: skip


def test_what_names_no_origin_is_no_row_of_robots() -> None:
    """Behind the byte of its bucket; whoever looks for rows of a host need not mind."""
    assert kind_of_row("robots", b"\7http://h0.t", "h0.t") is not None
    assert [kind_of_row("robots", key, "h0.t") for key in (b"", b"h0.t", b"\7h0.t")] == [None] * 3


def test_counts_of_a_host_have_an_end(tmp_path: Path) -> None:
    """As large as they may be, and several times: what is stored can be stored again, and given."""
    b, c, path = Side(tmp_path / "b"), Side(tmp_path / "c"), tmp_path / "file"
    units = units_of("ring", [int.from_bytes(host_key("h0.t")[:2], "big")])
    with HandoverWriter(path, label(units.numbers)) as writer:
        for _ in range(3):
            writer.put([HOST, "h0.t", HostRecord(attempts=COUNT_MAX).to_bytes()])
    drain(b.load(units, path, label(units.numbers)).merge())
    b.put("h1.t", 1, "pending")
    b.frontier.flush()
    record = b.store.record("h0.t")
    assert record is not None
    assert record.attempts == COUNT_MAX
    drain(b.dump(units).pack(path, label(units.numbers)))
    drain(c.load(units, path, label(units.numbers)).merge())
    b.close()
    c.close()


def test_no_hostile_file_is_taken(tmp_path: Path) -> None:
    """Whole files of an agent that lies: what stands before the lie is not taken either."""
    b = Side(tmp_path / "b")
    slot = int.from_bytes(host_key("h0.t")[:2], "big")
    units, path = units_of("ring", [slot]), tmp_path / "file"
    of = label(units.numbers)
    b.frontier.flush()
    before = list(b.store.every_row())
    first = [HOST, "h0.t", HostRecord(attempts=7).to_bytes()]
    for item in HOSTILE:
        with HandoverWriter(path, of) as writer:
            writer.put(first)
            writer.put(item)
        with pytest.raises(HandoverFileError) as caught:
            drain(b.load(units, path, of).merge())
        assert "\n" not in str(caught.value), item
        b.frontier.flush()
        assert list(b.store.every_row()) == before, item
    others = [
        label(units.numbers, "p2"),
        label(),
        HandoverLabel("p1", "crawl", "x", "b", pack_units({slot})),
    ]
    with HandoverWriter(path, of) as writer:
        writer.put(first)
    for other in others:
        with pytest.raises(HandoverFileError, match="another file"):
            drain(b.load(units, path, other).merge())
    with pytest.raises(HandoverFileError, match="No such file"):
        drain(b.load(units, tmp_path / "none", of).merge())
    assert list(b.store.every_row()) == before
    b.close()
