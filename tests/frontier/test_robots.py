"""Tests of what an answer to a robots.txt request means, and for how long."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.frontier.robots_rules import (
    BODY_MAX,
    CRAWL_DELAY_MAX,
    RETRY_AFTER,
    TTL,
    TTL_MIN,
    UNREACHABLE_MAX,
    RobotsRules,
    RobotsVerdict,
    judge_robots,
    max_age,
    origin_of,
)

HERE = "https://h.example"
CLOSED = b"User-agent: *\nDisallow: /private\nCrawl-delay: 7\nSitemap: https://h.example/s.xml"
T0 = 1_700_000_000.0


def rules(body: bytes = CLOSED, now: float = T0) -> RobotsRules:
    """Return the rules of an origin that answered with *body*."""
    return judge_robots(HERE, 200, body, now=now)


def test_a_body_is_obeyed() -> None:
    """A 2xx is parsed: rules, delay and sitemaps."""
    found = rules()
    assert found.verdict is RobotsVerdict.RULES
    assert not found.allowed(f"{HERE}/private/x", "mybot")
    assert found.allowed(f"{HERE}/public", "mybot")
    assert found.crawl_delay("mybot") == 7.0
    assert found.sitemaps == ("https://h.example/s.xml",)
    assert found.body == CLOSED
    assert found.expires_at == T0 + TTL
    assert repr(found) == "<RobotsRules https://h.example RULES status=200>"


@pytest.mark.parametrize("status", [301, 304, 399, 400, 401, 403, 404, 410, 499])
def test_a_missing_robots_txt_allows_everything(status: int) -> None:
    """RFC 9309 §2.3.1.3: unavailable is no restriction, whatever the body says."""
    found = judge_robots(HERE, status, b"User-agent: *\nDisallow: /", now=T0)
    assert found.verdict is RobotsVerdict.ALLOW_ALL
    assert found.allowed(f"{HERE}/", "mybot")
    assert found.crawl_delay("mybot") is None
    assert (found.body, found.sitemaps) == (b"", ())
    assert found.expires_at == T0 + TTL


@pytest.mark.parametrize("status", [None, 0, 100, 429, 500, 503, 599, 999])
def test_an_unreachable_robots_txt_allows_nothing_for_now(status: int | None) -> None:
    """RFC 9309 §2.3.1.4: complete disallow, but for the robots.txt itself."""
    found = judge_robots(HERE, status, b"User-agent: *\nAllow: /", now=T0)
    assert found.verdict is RobotsVerdict.DISALLOW_FOR_NOW
    assert not found.allowed(f"{HERE}/", "mybot")
    assert found.allowed(f"{HERE}/robots.txt", "mybot")
    assert found.unreachable_since == T0


def test_it_is_asked_again_after_growing_pauses() -> None:
    """Five minutes, an hour, then daily."""
    found, now, pauses = None, T0, []
    for _ in range(4):
        found = judge_robots(HERE, 503, now=now, previous=found)
        pauses.append(found.expires_at - now)
        now = found.expires_at
    assert pauses == [*RETRY_AFTER, RETRY_AFTER[-1]]
    assert found is not None
    assert (found.failures, found.unreachable_since) == (4, T0)


def test_a_retry_before_the_pause_is_over_makes_it_no_longer() -> None:
    """A server that was away for seconds is not left alone for a day."""
    found = judge_robots(HERE, None, now=T0)
    for early in (1, 3, 7):
        found = judge_robots(HERE, None, now=T0 + early, previous=found)
        assert (found.failures, found.expires_at) == (1, T0 + early + RETRY_AFTER[0])
    late = judge_robots(HERE, None, now=found.expires_at, previous=found)
    assert (late.failures, late.expires_at) == (2, found.expires_at + RETRY_AFTER[1])


def test_known_rules_hold_while_the_origin_is_unreachable() -> None:
    """A cached copy is used, and asked for again as often as without one."""
    later = judge_robots(HERE, None, now=T0 + TTL, previous=rules())
    assert later.verdict is RobotsVerdict.RULES
    assert (later.fetched_at, later.checked_at) == (T0, T0 + TTL)
    assert not later.allowed(f"{HERE}/private", "mybot")
    assert later.allowed(f"{HERE}/public", "mybot")
    assert later.expires_at == T0 + TTL + RETRY_AFTER[0]


def test_what_was_missing_stays_allowed_while_the_origin_is_unreachable() -> None:
    """A 404 before the failures is an answer like any other."""
    missing = judge_robots(HERE, 404, now=T0)
    later = judge_robots(HERE, 500, now=T0 + TTL, previous=missing)
    assert later.verdict is RobotsVerdict.ALLOW_ALL


def test_a_copy_older_than_a_whole_outage_is_not_used() -> None:
    """A crawl resumed after months does not trust what it knew then."""
    later = judge_robots(HERE, None, now=T0 + 3 * UNREACHABLE_MAX, previous=rules())
    assert later.verdict is RobotsVerdict.DISALLOW_FOR_NOW
    assert later.packed == b""


@pytest.mark.parametrize("first", [None, rules()])
def test_after_thirty_days_everything_is_allowed(first: RobotsRules | None) -> None:
    """RFC 9309 §2.3.1.4 leaves the choice; it is asked daily until an answer comes."""
    found = judge_robots(HERE, 503, now=T0 + TTL, previous=first)
    while found.verdict is not RobotsVerdict.ALLOW_ALL:
        assert found.checked_at < T0 + TTL + UNREACHABLE_MAX
        found = judge_robots(HERE, 503, now=found.expires_at, previous=found)
    assert found.checked_at >= T0 + TTL + UNREACHABLE_MAX
    again = judge_robots(HERE, None, now=found.expires_at, previous=found)
    assert again.verdict is RobotsVerdict.ALLOW_ALL
    assert again.expires_at - again.checked_at == RETRY_AFTER[-1]


def test_an_answer_ends_the_failures() -> None:
    """The next failure begins anew."""
    down = judge_robots(HERE, 503, now=T0)
    up = judge_robots(HERE, 200, CLOSED, now=T0 + 300, previous=down)
    assert (up.failures, up.unreachable_since) == (0, None)
    assert judge_robots(HERE, 503, now=T0 + 400, previous=up).failures == 1


@pytest.mark.parametrize(
    ("granted", "ttl", "held"),
    [
        (None, TTL, TTL),
        (0.0, TTL, TTL_MIN),
        (7200.0, TTL, 7200.0),
        (9e8, TTL, TTL),
        (0.0, 60.0, 60.0),
        (None, 60.0, 60.0),
    ],
)
def test_how_long_an_answer_holds(granted: float | None, ttl: float, held: float) -> None:
    """max-age shortens the time within bounds, and never lengthens it."""
    for status in (200, 404):
        found = judge_robots(HERE, status, now=T0, max_age=granted, ttl=ttl)
        assert found.expires_at - T0 == held


def test_expiry() -> None:
    """Rules hold from when they were asked for, a set-back clock apart, until they expire."""
    found = rules()
    assert not found.expired(T0 - 1)
    assert not found.expired(T0 + TTL - 1)
    assert found.expired(T0 + TTL)
    assert found.expired(T0 - 3600)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"0", 0.0), (b"1.5", 1.5), (b"86400", 86_400.0), (b"1e300", CRAWL_DELAY_MAX),
        (b"-1", None), (b"nan", None), (b"inf", None), (b"soon", None), (b"", None),
    ],
)  # fmt: skip
def test_crawl_delay_values(value: bytes, seconds: float | None) -> None:
    """Long ones wait, at most a day; senseless ones are as if absent."""
    found = rules(b"User-agent: *\nCrawl-delay: " + value)
    assert found.crawl_delay("mybot") == seconds


def test_agents_with_one_group_share_what_was_parsed() -> None:
    """A project that rotates its User-Agent does not multiply the memory."""
    found = rules(b"User-agent: special\nDisallow: /\nUser-agent: *\nDisallow: /private")
    found.allowed(f"{HERE}/", "agent 0")
    weight = found.weight
    for n in range(100):
        assert found.allowed(f"{HERE}/", f"agent {n}")
    assert found.weight == weight
    assert not found.allowed(f"{HERE}/", "special")
    assert found.weight > weight


def test_a_body_counts_to_500_kib() -> None:
    """RFC 9309 §2.5: what comes after is not read; 50 MB cost no more than their beginning."""
    body = b"User-agent: *\nDisallow: /early\n" + b"#" * BODY_MAX + b"\nDisallow: /late\n"
    found = rules(body + b"Disallow: /x\n" * 4_000_000)
    assert len(found.body) == BODY_MAX
    assert not found.allowed(f"{HERE}/early", "mybot")
    assert found.allowed(f"{HERE}/late", "mybot")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<!DOCTYPE html><html><body><p>Disallow: /</p></body></html>",
        b"\x00\x01\xff\xfe" * 5000,
        b"\xff" * 100_000,
        "Benutzer: *\nVerbiete: /\n".encode("utf-16"),
        b"user" + b" " * 400_000 + b"agent",
        b"User-agent: *\nDisallow: \xe9\xe9\n",
    ],
)
def test_what_is_no_robots_txt_allows_everything(body: bytes) -> None:
    """HTML, binary and empty bodies hold no rule."""
    assert rules(body).allowed(f"{HERE}/", "mybot")


def test_a_byte_order_mark_is_not_part_of_the_first_line() -> None:
    """RFC 9309 §2.2 has the file be UTF-8; editors put a mark before it."""
    assert not rules(b"\xef\xbb\xbfUser-agent: *\nDisallow: /").allowed(f"{HERE}/x", "mybot")


def test_a_hundred_thousand_lines_are_read_in_bounded_time() -> None:
    """The slowest kind of file that was found, rules that end in a dollar sign."""
    body = b"User-agent: *\n" + b"".join(b"Disallow: /%d$\n" % n for n in range(100_000))
    begin = time.process_time()
    found = rules(body)
    assert found.allowed(f"{HERE}/zzz", "mybot")
    assert time.process_time() - begin < 5


@given(
    st.lists(
        st.tuples(
            st.sampled_from((200, 204, 301, 404, 429, 500, 503, None)),
            st.floats(0.0, 40 * 24 * 3600.0),
        ),
        max_size=40,
    )
)
def test_no_sequence_of_answers_leaves_the_rules_astray(
    steps: list[tuple[int | None, float]],
) -> None:
    """Whatever comes: an expiry within a day, failures counted, nothing refused for ever."""
    now, found, down_since = T0, None, None
    for status, pause in steps:
        now += pause
        found = judge_robots(HERE, status, CLOSED, now=now, previous=found)
        reached = status is not None and status < 429
        down_since = None if reached else (now if down_since is None else down_since)
        assert now < found.expires_at <= now + TTL
        assert found.unreachable_since == down_since
        assert (found.failures == 0) == reached
        assert bool(found.packed) <= (found.verdict is RobotsVerdict.RULES)
        if down_since is not None and now - down_since >= UNREACHABLE_MAX:
            assert found.verdict is RobotsVerdict.ALLOW_ALL


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://H.Example/a?b#c", "http://h.example"),
        ("https://h.example:443/", "https://h.example"),
        ("https://user:pass@h.example:8443/", "https://h.example:8443"),
        ("http://h.example./", "http://h.example"),
        ("http://[::1]:80/", "http://[::1]"),
        ("http://127.1:8080/", "http://127.0.0.1:8080"),
        ("ftp://h.example/", ""),
        ("data:,x", ""),
        ("file:///etc/motd", ""),
        ("http://", ""),
        ("no url", ""),
    ],
)
def test_origin_of(url: str, origin: str) -> None:
    """One spelling for each origin, none for what has no robots.txt."""
    assert origin_of(url) == origin


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("max-age=60", 60.0),
        ("public, Max-Age = 3600 , x", 3600.0),
        ('max-age="5"', 5.0),
        ("no-cache, max-age=60", 0.0),
        ("no-store", 0.0),
        ("s-maxage=9", None),
        ("max-age=-5", None),
        ("max-age=" + "9" * 400, 999_999_999.0),
        ("", None),
    ],
)
def test_max_age(header: str, seconds: float | None) -> None:
    """RFC 9111 §5.2.2, as far as it says how long a robots.txt may be kept."""
    assert max_age(header) == seconds
