"""The ring: shares by weight, and how little moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assignments import digest_of, moved

from scrapy_spider_suite.cluster.assignment import (
    ASSIGNMENTS,
    POINTS,
    Member,
    OwnerTable,
    Ring,
    leveled_owners,
    load_assignment,
    ring_points,
)
from scrapy_spider_suite.frontier.entries import UNITS, host_key

RING = Ring()
WEIGHTS = (0.5, 1.0, 2.0)
CREWS = st.lists(st.sampled_from(WEIGHTS), min_size=1, max_size=8)


def crew(weights: Sequence[float]) -> list[Member]:
    """Agents with *weights*."""
    return [Member(f"agent-{number}", weight) for number, weight in enumerate(weights)]


def check_shares(table: OwnerTable) -> None:
    """Of each agent within 5 % of its weight, and a unit."""
    whole = sum(member.weight for member in table.members)
    for name, weight in table.members:
        share = UNITS * weight / whole
        assert abs(table.counts()[name] - share) <= 0.05 * share + 1, name


def moving(old: OwnerTable, new: OwnerTable) -> int:
    """How many units move."""
    return sum(map(len, moved(old, new).values()))


def test_known_owners() -> None:
    """Agents of two releases, of the suite and of its libraries, must agree."""
    table = OwnerTable.of(RING, [Member("a"), Member("b", 2), Member("c", 0.5)])
    assert RING.unit("www.sun.com", "") == 13_541
    assert table.counts() == {"a": 18_583, "b": 37_742, "c": 9_211}
    assert digest_of(table) == "3e2117d617f6f4f4"


def test_a_unit_is_a_slot() -> None:
    """So what moves lies together in the store."""
    for host in ("www.sun.com", "b.example", "xn--mnchen-3ya.example"):
        unit = RING.unit(host, f"https://{host}/")
        assert unit.to_bytes(2, "big") == host_key(host)[:2]


def test_points() -> None:
    """As many as the weight says, and those of a lighter agent are among them."""
    few, many = ring_points("a", POINTS), ring_points("a", 2 * POINTS)
    assert len(few) == POINTS >= 4_000
    assert len(many) == 2 * POINTS
    assert set(few.tolist()) < set(many.tolist())


def test_the_shares_of_64_agents() -> None:
    """By points alone they are off by a tenth; one that joins takes no more than its share."""
    old, new = OwnerTable.of(RING, crew([1.0] * 63)), OwnerTable.of(RING, crew([1.0] * 64))
    check_shares(old)
    check_shares(new)
    assert moving(old, new) <= (1 / 64 + 0.02) * UNITS


@settings(max_examples=15, deadline=None)
@given(weights=CREWS, joins=st.sampled_from(WEIGHTS), data=st.data())
def test_what_moves(weights: list[float], joins: float, data: st.DataObject) -> None:
    """With a joiner, the same way back, and with another weight: what has to, and 2 %."""
    whole = sum(weights)
    old, new = OwnerTable.of(RING, crew(weights)), OwnerTable.of(RING, crew([*weights, joins]))
    check_shares(new)
    joiner = new.members[[member.name for member in new.members].index(f"agent-{len(weights)}")]
    assert moving(old, new) == moving(new, old)
    assert moving(old, new) <= (joiner.weight / (whole + joiner.weight) + 0.02) * UNITS
    at = data.draw(st.integers(0, len(weights) - 1))
    other = [*weights[:at], joins, *weights[at + 1 :]]
    changed = OwnerTable.of(RING, crew(other))
    check_shares(changed)
    needed = abs(joins / sum(other) - weights[at] / whole)
    assert moving(old, changed) <= (needed + 0.02) * UNITS


@settings(max_examples=25, deadline=None)
@given(
    weights=st.lists(st.sampled_from((0.1, 0.5, 1.0, 3.0, 10.0)), min_size=1, max_size=300),
    seed=st.integers(0, 2**32 - 1),
    skew=st.integers(1, 4),
)
def test_any_owners_are_levelled(weights: list[float], seed: int, skew: int) -> None:
    """However uneven they were: nothing is lost, nobody has less or more than may be."""
    drawn = np.random.default_rng(seed).random(UNITS) ** skew * len(weights)
    owners = drawn.astype(np.uint16)
    level = leveled_owners(owners, weights)
    counts = np.bincount(level, minlength=len(weights))
    shares = np.array(weights) * UNITS / sum(weights)
    assert len(counts) == len(weights)
    assert (np.abs(counts - shares) <= 0.04 * shares + 1).all()
    assert np.array_equal(leveled_owners(level, weights), level)


def test_level_owners_stay() -> None:
    """Nothing is handed on without need."""
    owners = (np.arange(UNITS) % 7).astype(np.uint16)
    assert np.array_equal(leveled_owners(owners, [1.0] * 7), owners)


@pytest.mark.parametrize("count", [1, 2, 300])
def test_any_number_of_agents(count: int) -> None:
    """More than anybody starts, with as few points as there are."""
    check_shares(OwnerTable.of(RING, crew([0.1] * count)))


def test_the_ring_moves_less_than_the_papers() -> None:
    """From 8 agents to 9, as parts of the units: KSpider's and BUbiNG's ways move most of them."""
    tables = {
        kind: [OwnerTable.of(load_assignment(kind), crew([1.0] * count)) for count in (8, 9)]
        for kind in ASSIGNMENTS
    }
    parts = {kind: moving(old, new) / UNITS for kind, (old, new) in tables.items()}
    assert parts["ring"] < 0.2 < 0.75 < min(parts["url-sum"], parts["host-parity"])
