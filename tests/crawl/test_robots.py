"""Tests of the store of robots verdicts: round trips, bounds, expiry, damage."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.crawl import robots as module
from scrapy_spider_suite.crawl.robots import KEEP_AFTER_EXPIRY, RobotsStore
from scrapy_spider_suite.frontier.robots_rules import TTL, RobotsRules, RobotsVerdict, judge_robots
from scrapy_spider_suite.store.interface import MemoryKV

T0 = 1_700_000_000.0
BODY = b"User-agent: *\nDisallow: /private\nCrawl-delay: 7"


def rules(n: int = 0, body: bytes = BODY, now: float = T0) -> RobotsRules:
    """Return the rules of one of many origins."""
    return judge_robots(f"https://h{n}.example", 200, body, now=now)


def rows(kv: MemoryKV) -> dict[bytes, bytes]:
    """Return what is on the disk."""
    return dict(kv.items())


def test_unknown_then_known_then_outdated() -> None:
    """get() answers between put and expiry; last() after it too."""
    store = RobotsStore(MemoryKV())
    assert store.get("https://h0.example", T0) is None
    assert store.last("https://h0.example") is None
    store.put(rules())
    assert store.get("https://h0.example", T0) == rules()
    assert store.get("https://h0.example", T0 + TTL) is None
    assert store.last("https://h0.example") == rules()


def test_origins_are_kept_apart() -> None:
    """Scheme and port make an origin, not the host alone."""
    store = RobotsStore(MemoryKV())
    origins = ["http://h.example", "https://h.example", "http://h.example:8080"]
    for status, origin in zip((200, 404, 503), origins, strict=True):
        store.put(judge_robots(origin, status, BODY, now=T0))
    found = [store.get(origin, T0) for origin in origins]
    assert [rules and rules.verdict for rules in found] == list(RobotsVerdict)


def test_a_reopened_store_knows_what_was_put() -> None:
    """All of it: the body, the status, the failures and when they began."""
    kv = MemoryKV()
    known = rules()
    down = judge_robots("https://h1.example", 503, now=T0 + 5, previous=rules(1))
    never = judge_robots("https://h2.example", None, now=T0)
    for one in (known, down, never):
        RobotsStore(kv).put(one)
    store = RobotsStore(kv)
    for one in (known, down, never):
        again = store.get(one.origin, T0 + 6)
        assert again == one
        assert again is not None
        assert again.body == one.body
    assert down.crawl_delay("mybot") == 7.0


ANSWERS = st.sampled_from((200, 301, 404, 429, 503, None))


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), ANSWERS, st.binary(max_size=40), st.integers(0, 10**5), st.booleans()
        ),
        max_size=30,
    ),
    st.integers(1, 4),
)
def test_it_equals_a_dict_whatever_its_memory(
    steps: list[tuple[int, int | None, bytes, int, bool]], entries: int
) -> None:
    """Any answers over any time, reopened now and then: the same as a dict without bounds."""
    kv, oracle, now = MemoryKV(), dict[str, RobotsRules](), T0
    store = RobotsStore(kv, memory=700 * entries)
    for host, status, body, pause, reopen in steps:
        origin, now = f"http://h{host}.example", now + pause
        rules = judge_robots(origin, status, body, now=now, previous=store.last(origin))
        store.put(rules)
        oracle[origin] = rules
        store = RobotsStore(kv, memory=700 * entries) if reopen else store
        for known in oracle.values():
            assert store.last(known.origin) == known
            assert store.get(known.origin, now) == (None if known.expired(now) else known)
        assert len(store) <= entries


def test_memory_is_bounded_by_size() -> None:
    """Thirty hosts with huge files hold no more than the bound and the one used last."""
    random.seed(1)
    body = b"User-agent: *\n" + b"".join(b"Disallow: /%d\n" % n for n in range(2_000))
    store = RobotsStore(MemoryKV(), memory=4 << 20)
    for n in range(30):
        store.put(rules(n, body))
        known = store.get(f"https://h{random.randrange(n + 1)}.example", T0)
        assert known is not None
        assert not known.allowed(f"{known.origin}/77", "mybot")
    assert 1 <= len(store) <= 4


def test_one_entry_above_the_bound_is_kept_while_it_is_used() -> None:
    """Else each question about it would parse it anew."""
    store = RobotsStore(MemoryKV(), memory=1)
    store.put(rules())
    assert store.get("https://h0.example", T0) is store.get("https://h0.example", T0)


def test_without_a_disk_the_bound_holds_and_forgets() -> None:
    """What falls out of memory is unknown."""
    store = RobotsStore(None, memory=1)
    for n in range(3):
        store.put(rules(n))
    assert store.get("https://h0.example", T0) is None
    assert store.get("https://h2.example", T0) == rules(2)


@pytest.mark.parametrize(
    "damage",
    [
        lambda row: b"",
        lambda row: row[:20],
        lambda row: b"\xff" + row[1:],
        lambda row: row[:1] + b"\x09" + row[2:],
        lambda row: row[:8] + b"\x7f\xf0" + b"\x00" * 6 + row[16:],
        lambda row: row[:40] + b"not zlib",
        lambda row: row[:-10],
    ],
)
def test_a_damaged_row_is_unknown(damage: object) -> None:
    """Robots are asked for again; nothing is raised."""
    kv = MemoryKV()
    RobotsStore(kv).put(rules())
    assert callable(damage)
    for key, row in kv.items():
        kv.put(key, damage(row))
    assert RobotsStore(kv).last("https://h0.example") is None


def test_a_row_never_unpacks_to_more_than_a_robots_txt() -> None:
    """A bomb on the disk is cut like one on the wire."""
    kv = MemoryKV()
    store = RobotsStore(kv)
    store.put(rules(body=b"#" * 50_000_000))
    found = RobotsStore(kv).last("https://h0.example")
    assert found is not None
    assert len(found.body) == 500 * 1024


def test_long_outdated_rows_leave_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """After their expiry rows stay for as long as they may count, then they go, bit by bit."""
    monkeypatch.setattr(module, "_PUTS_PER_PURGE", 1)
    kv = MemoryKV()
    store = RobotsStore(kv)
    for n in range(300):
        store.put(rules(n))
    assert len(kv) == 300
    for n in range(1000, 1300):
        store.put(rules(n, now=T0 + TTL + KEEP_AFTER_EXPIRY - 1))
    assert len(kv) == 600
    for n in range(2000, 2300):
        store.put(rules(n, now=T0 + TTL + KEEP_AFTER_EXPIRY + 1))
    assert len(kv) == 600
    assert all(b"//h0." not in key for key in rows(kv))


def test_torn_rows_leave_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose expiry cannot be read has none to wait for."""
    monkeypatch.setattr(module, "_PUTS_PER_PURGE", 1)
    kv = MemoryKV()
    torn = b"\5https://torn.example"
    kv.put(torn, b"\1")
    store = RobotsStore(kv)
    for n in range(256):
        store.put(rules(n))
    assert kv.get(torn) is None
    assert len(kv) == 256
