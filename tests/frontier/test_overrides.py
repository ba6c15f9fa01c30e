"""Exceptions from the general pace."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.policy import Hours, Override, Overrides
from scrapy_spider_suite.urls.host_patterns import HostPattern

RULES = """\
# Our own servers.
intranet.example.com   delay=0 concurrency=8 requests_per_visit=20
.example.com           delay=1

.slow.example.com      delay=30   # asked us to
.Example.ORG.          delay=10 max_pages=500
203.0.113.7            delay=3 requests_per_visit=5
[2001:db8::7]          delay=7 max_pages=9
192.0.2.0/24           delay=2 concurrency=4
192.0.2.128/25         delay=9
192.0.2.200/32         delay=8
10.1.2.3/8             delay=5
2001:db8::/32          delay=6
2001:db8:1::/48        delay=4
"""


def rules(text: str = RULES) -> Overrides:
    """The rules of a text."""
    return Overrides.parse(text.splitlines(), "rules.txt")


@pytest.mark.parametrize(
    ("host", "delay"),
    [
        ("intranet.example.com", 0.0),
        ("www.example.com", 1.0),
        ("example.com", 1.0),
        ("slow.example.com", 30.0),
        ("very.slow.example.com", 30.0),
        ("notslow.example.com", 1.0),
        ("example.org", 10.0),
        ("a.b.example.org", 10.0),
        ("203.0.113.7", 3.0),
        ("[2001:db8::7]", 7.0),
        ("anexample.com", None),
        ("com", None),
        ("", None),
        ("192.0.2.1", None),
    ],
)
def test_the_longest_name_wins(host: str, delay: float | None) -> None:
    """A host's own line, then the longest domain that holds it."""
    rule = rules().for_host(host)
    assert (None if rule is None else rule.delay) == delay


@pytest.mark.parametrize(
    ("address", "delay"),
    [
        ("192.0.2.1", 2.0),
        ("192.0.2.129", 9.0),
        ("192.0.2.200", 8.0),
        ("::ffff:192.0.2.200", 8.0),
        ("10.255.255.255", 5.0),
        ("203.0.113.7", 3.0),
        ("203.0.113.8", None),
        ("2001:db8::1", 6.0),
        ("2001:db8::7", 7.0),
        ("2001:0db8:0001::1", 4.0),
        ("2001:db9::1", None),
        ("2001:db8:1::/64", 4.0),
    ],
)
def test_the_narrowest_range_wins(address: str, delay: float | None) -> None:
    """Of the ranges that hold an address, IPv4 or IPv6; a pacing key counts as its first."""
    rule = rules().for_address(address)
    assert (None if rule is None else rule.delay) == delay


def test_what_is_not_named_stays() -> None:
    """A rule changes what it names."""
    assert rules().for_host("intranet.example.com") == Override(0.0, 8, 20)
    assert rules().for_host("example.org") == Override(10.0, None, None, 500)


def test_rules_within_one_another() -> None:
    """Each field by the closest rule that names it: a longer delay below lifts no block above."""
    nested = rules(
        ".example.com blocked=yes reason=asked user_agent=far delay=9\n"
        "www.example.com delay=3 user_agent=near\n"
        "free.example.com blocked=no\n"
        "10.0.0.0/8 delay=2 concurrency=3\n10.1.0.0/16 delay=5\n"
    )
    www = nested.for_host("www.example.com")
    assert www == Override(delay=3.0, user_agent="near", blocked=True, reason="asked")
    free = nested.for_host("free.example.com")
    assert free is not None
    assert (free.blocked, free.delay) == (False, 9.0)
    assert nested.for_address("10.1.2.3") == Override(delay=5.0, concurrency=3)
    assert [str(line.rule) for line in nested.lines.for_host("www.example.com")] == [
        "www.example.com, rules.txt, line 2", ".example.com, rules.txt, line 1"
    ]  # fmt: skip


def test_all_fields() -> None:
    """Values with spaces, and with the sign of a comment, are quoted."""
    text = "a.t robots=ignore user_agent='my bot/1.0 (+http://a.t/#us)' blocked=yes "
    text += 'reason="by mail, 3 May" hours=22-6 max_pages=0 # why not'
    assert rules(text).for_host("a.t") == Override(
        robots=False, user_agent="my bot/1.0 (+http://a.t/#us)", blocked=True,
        reason="by mail, 3 May", hours=Hours.parse("22-6"), max_pages=0,
    )  # fmt: skip
    assert rules("10.0.0.0/8 robots=obey max_pages=3").for_address("10.1.2.3") == Override(
        robots=True, max_pages=3
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("example.com", "EXAMPLE.com."),
        ("b\u00fccher.de", "xn--bcher-kva.de"),
        ("10.0.0.0/8", "10.1.2.3/8"),
        ("192.0.2.7", "192.0.2.7/32"),
        ("[2001:db8::7]", "2001:db8:0::7"),
        ("192.0.2.7", "::ffff:192.0.2.7"),
    ],
)
def test_the_same_subject_twice_is_an_error(first: str, second: str) -> None:
    """However it is written; both lines are named."""
    with pytest.raises(SettingsError, match=r"line 3: \S+ has a rule already, on line 1$"):
        rules(f"{first} delay=1\n\n{second} blocked=yes\n")


def test_whether_any_rule_bars() -> None:
    """So that a file of delays costs nothing where bars are asked for."""
    assert not rules("a.t delay=1\nb.t blocked=no").excludes
    assert rules("a.t blocked=yes").excludes
    assert rules("10.0.0.0/8 hours=1-2").excludes
    line = rules("a.t delay=1").lines.get(HostPattern.parse("a.t"))
    assert line is not None
    assert line.override == Override(delay=1.0)


def test_nothing_is_a_rule() -> None:
    """An empty file, or comments alone, change nothing."""
    empty = rules("\n  # nothing\n\n")
    assert empty.for_host("example.com") is None
    assert empty.for_address("192.0.2.1") is None


@pytest.mark.parametrize(
    "line",
    [
        "example.com",
        "example.com delay",
        "example.com delay=",
        "example.com delay=-1",
        "example.com delay=nan",
        "example.com delay=inf",
        "example.com delay=4s",
        "example.com speed=9",
        "example.com delay=1 requests_per_visit=21",
        "example.com concurrency=0",
        "example.com concurrency=1.5",
        "example.com max_pages=-1",
        "192.0.2.0/24 requests_per_visit=2",
        "192.0.2.0/24 pipelining=yes",
        "example.com pipelining=20",
        "192.0.2.0/24 reason=none",
        "192.0.2.0/33 delay=1",
        "2001:db8::/129 delay=1",
        "http://example.com/ delay=1",
        "example.com:8080 delay=1",
        "*.example.com delay=1",
        ". delay=1",
        "..example.com delay=1",
        "delay=1 example.com",
        "example.com delay=1 delay=2",
        "example.com robots=maybe",
        "example.com user_agent=",
        "example.com user_agent=b\u00f6t",
        'example.com user_agent="a bot',
        "example.com user_agent=a bot",
        "example.com blocked",
        "example.com blocked=maybe",
        "example.com reason=why",
        "example.com blocked=no reason=why",
        "example.com hours=night",
        "example.com hours=22-22",
        "example.com hours=22-25",
        "example.com hours=22:60-23",
        "example.com hours=22-6,",
        ".example.net delay=2",
        ".EXAMPLE.net. blocked=yes",
    ],
)
def test_every_error_names_its_line(line: str) -> None:
    """A line that would silently do nothing is refused as well."""
    with pytest.raises(SettingsError, match=r"^SUITE_OVERRIDES: rules\.txt, line 3: \S") as caught:
        rules(f"# one\n.example.net delay=1\n{line}\n")
    assert "\n" not in str(caught.value)


@given(
    st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 32)), max_size=12),
    st.integers(0, 2**32 - 1),
)
def test_ranges_are_looked_up_as_they_are_written(
    ranges: list[tuple[int, int]], address: int
) -> None:
    """The narrowest of the ranges that hold the address, which the standard library decides."""
    networks = {ipaddress.ip_network((number, length), strict=False) for number, length in ranges}
    text = "".join(f"{network} delay={network.prefixlen}\n" for network in networks)
    ip = ipaddress.IPv4Address(address)
    expected = max((net.prefixlen for net in networks if ip in net), default=None)
    found = rules(text).for_address(str(ip))
    assert (None if found is None else found.delay) == expected
