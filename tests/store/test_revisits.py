"""Plans of revisits: due in their order, each once, and the same after any kill."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.mappings import Batches, Counted

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.frontier.revisit_rules import DAY, History, Mode, RevisitPolicy, Validators
from scrapy_spider_suite.store.interface import MemoryKV
from scrapy_spider_suite.store.revisit_plans import UNPACKED, PackedBody, RevisitPlan, RevisitPlans
from scrapy_spider_suite.store.rocks_store import RocksStore

ADAPTIVE = RevisitPolicy(Mode.ADAPTIVE, least=60.0, most=50 * DAY)
HOURLY = RevisitPolicy(Mode.FIXED, seconds=3600.0)
NONE = Validators()


def test_pages_are_due_in_their_order() -> None:
    """No sooner than planned, the most overdue first, and each once until it is visited again."""
    pages = RevisitPlans(MemoryKV(), HOURLY)
    for number in range(20):
        pages.visited(b"%02d" % (number * 7 % 20), 1000.0 * number, b"", NONE)
    assert pages.pop_due(3599.0, 100) == []
    first = [identity for identity, _ in pages.pop_due(3600.0 + 9_500.0, 4)]
    second = [identity for identity, _ in pages.pop_due(3600.0 + 9_500.0, 100)]
    assert first + second == [b"%02d" % (number * 7 % 20) for number in range(10)]
    assert pages.pop_due(3600.0 + 9_500.0, 100) == []
    pages.visited(first[0], 1e5, b"", NONE)
    assert [identity for identity, _ in pages.pop_due(2e5, 100)][-1] == first[0]
    assert len(pages) == 20


def test_what_visits_find() -> None:
    """A changed digest is a change; an equal one, or a 304, is none, and keeps what was known."""
    pages = RevisitPlans(MemoryKV(), ADAPTIVE)
    tags = Validators('"1"', "Sun, 06 Nov 1994 08:49:37 GMT")
    assert pages.visited(b"a", 0.0, b"one", tags) == pages.get(b"a")
    pages.visited(b"a", DAY, b"one", NONE)
    pages.visited(b"a", 2 * DAY, b"", NONE, unchanged=True)
    plan = pages.get(b"a")
    assert plan is not None
    assert plan.history == History(2 * DAY, quiet=2 * DAY)
    assert (plan.digest, plan.validators) == (b"one", tags)
    pages.visited(b"a", 3 * DAY, b"two", NONE)
    plan = pages.get(b"a")
    assert plan is not None
    assert plan.history.changed == (DAY,)
    assert (plan.digest, plan.validators) == (b"two", NONE)


def test_the_price_follows_the_visits_there_are() -> None:
    """Before it is known, intervals are fixed; then such that the visits suffice."""
    pages = RevisitPlans(MemoryKV(), ADAPTIVE)
    plan = pages.visited(b"0", 0.0, b"", NONE)
    assert plan is not None
    assert plan.due == ADAPTIVE.seconds
    for number in range(1, 100):
        pages.visited(b"%d" % number, 0.0, b"", NONE)
    pages.tick(100 / (5 * DAY))
    plan = pages.visited(b"0", DAY, b"new", NONE)
    other = pages.visited(b"1", DAY, b"", NONE)
    assert plan is not None
    assert other is not None
    assert DAY + 60 < plan.due < other.due <= 51 * DAY


def test_hastened_and_forgotten() -> None:
    """What a sitemap says to have changed comes first; what is gone does not come."""
    pages = RevisitPlans(MemoryKV(), HOURLY)
    for name in (b"a", b"b", b"c"):
        pages.visited(name, 10_000.0, b"", NONE)
    assert pages.hasten(b"b", 50.0)
    assert pages.hasten(b"c", 20_000.0)
    pages.forget(b"a")
    assert not pages.hasten(b"a", 50.0)
    assert [identity for identity, _ in pages.pop_due(60.0, 10)] == [b"b"]
    assert not pages.hasten(b"b", 50.0), "it is under way"
    assert [identity for identity, _ in pages.pop_due(1e6, 10)] == [b"c"]
    assert len(pages) == 2


def test_none_is_passed_over_for_ever() -> None:
    """What was not wanted is asked about again, although others become due all the time."""
    pages = RevisitPlans(MemoryKV(), HOURLY)
    for number in range(1_000):
        pages.visited(b"%04d" % number, 10.0 * number, b"", NONE)
    taken: set[bytes] = set()
    for step in range(100):
        now = 3600.0 + 10 * step
        found = pages.pop_due_of(now, lambda name: name >= b"0050", 7, 20)
        assert len(found) <= 7
        taken |= {name for name, _ in found}
    assert taken == {b"%04d" % number for number in range(50, 100)}
    again = [pages.pop_due_of(now, lambda name: True, 7, 20) for _ in range(9)]
    assert {name for found in again for name, _ in found} == {b"%04d" % n for n in range(50)}
    assert len(pages.pop_due_of(now + 100, lambda name: True, 70, 200)) == 10


def test_only_what_is_asked_for_is_read() -> None:
    """With a backlog of 5,000 pages over hours, whoever takes some reads those and one more."""
    rows = Counted(MemoryKV())
    pages = RevisitPlans(rows, HOURLY)
    for number in range(5_000):
        pages.visited(b"%04d" % number, 3.0 * number, b"", NONE)
    rows.read = 0
    assert len(pages.pop_due(1e5, 100)) == 100
    assert rows.read == 101
    rows.read = 0
    assert pages.next_due() == 3600.0 + 300
    assert rows.read == 1
    for _ in range(10):  # each goes on where the one before has stopped
        assert pages.pop_due_of(1e5, lambda name: False, 10, 200) == []
    assert rows.read == 1 + 10 * 201
    rows.read = 0
    assert len(pages.pop_due(1e5, 5_000)) == 4_900
    assert (rows.read, pages.next_due()) == (4_900, None)


def test_off() -> None:
    """Nothing is planned, and no row written."""
    rows = MemoryKV()
    assert RevisitPlans(rows, RevisitPolicy()).visited(b"a", 0.0, b"", NONE) is None
    assert len(rows) == 0


actions = st.lists(
    st.one_of(
        st.tuples(st.just("visit"), st.integers(0, 5), st.booleans()),
        st.tuples(st.just("take"), st.integers(1, 3), st.booleans()),
        st.tuples(st.sampled_from(["commit", "kill", "forget"]), st.integers(0, 5), st.booleans()),
    ),
    max_size=60,
)


@settings(max_examples=30)
@given(actions)
def test_after_any_kill_each_page_waits_once(actions: list[tuple[str, int, bool]]) -> None:
    """Equal to a model of what was committed: dues, and how many pages are counted."""
    rows = Batches()
    pages = RevisitPlans(rows, ADAPTIVE)
    waiting: dict[bytes, float] = {}
    known: set[bytes] = set()
    saved = (dict(waiting), set(known))
    now = 0.0
    for action, number, flag in actions:
        now += 5 * DAY
        name = b"%d" % number
        if action == "visit":
            plan = pages.visited(name, now, b"%d" % flag, NONE)
            assert plan is not None
            waiting[name] = plan.due
            known.add(name)
        elif action == "take":
            due = sorted((when, each) for each, when in waiting.items() if when <= now)[:number]
            assert [identity for identity, _ in pages.pop_due(now, number)] == [e for _, e in due]
            for _, each in due:
                del waiting[each]
            pages.tick(1e-5)
        elif action == "forget":
            pages.forget(name)
            waiting.pop(name, None)
            known.discard(name)
        elif action == "commit":
            pages.save()
            rows.commit()
            saved = (dict(waiting), set(known))
        else:
            rows.kill()
            waiting, known = dict(saved[0]), set(saved[1])
            pages = RevisitPlans(rows, ADAPTIVE)
        assert len(pages) == len(known)
    left = [identity for identity, _ in pages.pop_due(1e10, 100)]
    assert left == [each for _, each in sorted((when, each) for each, when in waiting.items())]


def test_in_the_database_of_a_job(tmp_path: Path) -> None:
    """After it is opened again, pages are due as they were."""
    store = RocksStore(tmp_path / "db")
    pages = RevisitPlans(store.kv("revisits"), HOURLY)
    for number in range(1000):
        pages.visited(b"%04d" % number, float(number), b"digest", NONE)
    pages.save()
    store.flush()
    taken = pages.pop_due(3600.0 + 499, 1000)
    store._release()  # as a kill leaves it
    again = RocksStore(tmp_path / "db")
    pages = RevisitPlans(again.kv("revisits"), HOURLY)
    assert len(pages) == 1000
    assert pages.pop_due(3600.0 + 499, 1000) == taken
    assert len(taken) == 500
    again.close()


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x95\x01\x02\x03\x04\x05", b"\x94\x01\x02\x03\x04"]
)
def test_damaged_rows_are_named(data: bytes) -> None:
    """They are no plan, and no count."""
    rows = MemoryKV()
    rows.put(b"pa", data)
    with pytest.raises(JobDamagedError, match="revisits"):
        RevisitPlans(rows, HOURLY).get(b"a")
    rows.put(b"m", data[:1])
    with pytest.raises(JobDamagedError, match="revisits"):
        RevisitPlans(rows, HOURLY)


def test_a_plan_is_kept() -> None:
    """As it was, with a place in the packs, without one, or to have none."""
    plan = RevisitPlan(1.5, History(1.0, 2.0, 3.0, (4.0,)), 0.25, Validators('"x"'), b"digest")
    for packed in (None, UNPACKED, PackedBody("http://a.test/", 1.5, "sha1:A")):
        kept = replace(plan, packed=packed)
        assert RevisitPlan.from_bytes(kept.to_bytes()) == kept
