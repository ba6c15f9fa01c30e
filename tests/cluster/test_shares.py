"""What is this agent's, by the members and by the holders."""

from __future__ import annotations

import numpy as np

from scrapy_spider_suite.cluster.assignment import Member, Units, load_assignment
from scrapy_spider_suite.cluster.membership import (
    Holders,
    MemberRecord,
    Membership,
    MemberState,
    Ownership,
)
from scrapy_spider_suite.frontier.entries import UNITS


def row(name: str, number: int, state: MemberState = MemberState.ACTIVE) -> MemberRecord:
    """A member with a lease."""
    return MemberRecord(
        name=name, number=number, incarnation="1" * 16, weight=1.0, address="", state=state,
        ends=10, heard=1, idle=False, sent=0, received=0,
    )  # fmt: skip


def tokens(holders: Units) -> Holders:
    """Who holds what."""
    return Holders(holders, 0.0, 1, 1, 1, 0.0)


def of_a(*rows: MemberRecord, number: int = 1) -> Ownership:
    """Those of agent a, with the others in *rows*."""
    shares = Ownership(load_assignment("ring"), "a")
    shares.number = number
    shares.set_membership(Membership(5, tuple(sorted(rows, key=lambda each: each.name))))
    return shares


def test_before_it_knows_of_others_an_agent_owns_all_and_fetches_nothing() -> None:
    """What it is given is stored."""
    shares = Ownership(load_assignment("ring"), "a")
    assert shares.owner("h.example", "https://h.example/") == "a"
    assert shares.is_held_elsewhere("h.example", "https://h.example/")
    assert shares.own.all()
    assert not shares.mine.any()


def test_an_owner_that_does_not_hold_does_not_fetch() -> None:
    """Only what is its own and has been handed over is free; nothing while it is given away."""
    shares = of_a(row("a", 1), row("b", 2))
    host = next(f"h{n}.example" for n in range(99) if shares.owner(f"h{n}.example", "") == "a")
    shares.set_holders(tokens(np.full(UNITS, 2, np.uint16)))
    assert shares.is_held_elsewhere(host, "")
    assert not shares.settled
    shares.set_holders(tokens(np.where(shares.own, 1, 2).astype(np.uint16)))
    assert not shares.is_held_elsewhere(host, "")
    assert shares.settled
    shares.in_transfer[shares.assignment.unit(host, "")] = True
    shares.refresh()
    assert shares.is_held_elsewhere(host, "")


def test_others_are_heirs_of_what_they_own() -> None:
    """All of it, held here or not; an agent that leaves is the heir of nothing."""
    shares = of_a(row("a", 1), row("b", 2), row("c", 7, MemberState.LEAVING))
    heirs = shares.units_of_others()
    assert list(heirs) == [2]
    assert heirs[2].sum() + shares.own.sum() == UNITS


def test_free_is_what_is_owned_here_and_held_by_nobody_who_may_fetch() -> None:
    """Units of the dead and of nobody; those of a member that is only missing are its own."""
    shares = of_a(row("a", 1), row("b", 2), row("c", 3, MemberState.DEAD))
    own = np.flatnonzero(shares.own)
    holders = np.full(UNITS, 2, np.uint16)
    holders[own[:10]] = 3
    holders[own[10:30]] = 0
    holders[own[30:35]] = 1
    holders[own[35:36]] = 9  # of whom there is no trace
    shares.set_holders(tokens(holders))
    assert set(shares.free().tolist()) == set(own[:30].tolist()) | {int(own[35])}


def test_the_same_members_change_nothing() -> None:
    """So that nothing is sent again that was sent before."""
    shares = of_a(row("a", 1), row("b", 2))
    again = Membership(6, (row("a", 1), row("b", 2)))
    assert not shares.set_membership(again)
    assert shares.epoch == 6
    assert shares.set_membership(Membership(7, (row("a", 1),)))
    assert shares.own.all()


def test_on_a_list_everybody_holds_what_he_owns() -> None:
    """There is nothing to be handed over."""
    shares = Ownership(load_assignment("ring"), "b")
    shares.set_members(1, [Member(name) for name in "abc"])
    shares.hold_own()
    assert shares.settled
    assert 0 < shares.mine.sum() < UNITS
