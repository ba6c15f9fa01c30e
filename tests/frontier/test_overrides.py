"""Exceptions from the general pace."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.overrides import Override, Overrides

RULES = """\
# Our own servers.
intranet.example.com   delay=0 concurrency=8 burst=20
.example.com           delay=1

.slow.example.com      delay=30   # asked us to
.Example.ORG.          delay=10 max_pages=500
203.0.113.7            delay=3 burst=5
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
    assert rules().for_host("intranet.example.com") == Override(0.0, 8, 20, None)
    assert rules().for_host("example.org") == Override(10.0, None, None, 500)


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
        "example.com delay=1 burst=21",
        "example.com concurrency=0",
        "example.com concurrency=1.5",
        "example.com max_pages=-1",
        "192.0.2.0/24 burst=2",
        "192.0.2.0/24 max_pages=2",
        "192.0.2.0/33 delay=1",
        "2001:db8::/129 delay=1",
        "http://example.com/ delay=1",
        "example.com:8080 delay=1",
        "*.example.com delay=1",
        ". delay=1",
        "..example.com delay=1",
        "delay=1 example.com",
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
