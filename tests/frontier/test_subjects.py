"""Whom a rule is about, and the table that finds it."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.urls.host_patterns import HostPattern, PatternKind, PatternTable


@pytest.mark.parametrize(
    ("text", "kind", "spelling"),
    [
        ("Example.COM.", PatternKind.HOST, "example.com"),
        ("localhost", PatternKind.HOST, "localhost"),
        ("under_score.test", PatternKind.HOST, "under_score.test"),
        ("b\u00fccher.de", PatternKind.HOST, "xn--bcher-kva.de"),
        (".Example.ORG", PatternKind.DOMAIN, ".example.org"),
        ("192.0.2.7", PatternKind.ADDRESS, "192.0.2.7"),
        ("10.1", PatternKind.ADDRESS, "10.0.0.1"),
        ("[2001:DB8::7]", PatternKind.ADDRESS, "[2001:db8::7]"),
        ("2001:db8:0::7", PatternKind.ADDRESS, "[2001:db8::7]"),
        ("::ffff:192.0.2.7", PatternKind.ADDRESS, "192.0.2.7"),
        ("10.1.2.3/8", PatternKind.RANGE, "10.0.0.0/8"),
        ("192.0.2.7/32", PatternKind.ADDRESS, "192.0.2.7"),
        ("::ffff:192.0.2.0/120", PatternKind.RANGE, "192.0.2.0/24"),
        ("64:ff9b::192.0.2.0/120", PatternKind.RANGE, "192.0.2.0/24"),
        ("2002:c000:200::/40", PatternKind.RANGE, "192.0.2.0/24"),
        ("2002:c000:207:1::/64", PatternKind.ADDRESS, "192.0.2.7"),
        ("2001:db8::/32", PatternKind.RANGE, "2001:db8::/32"),
        ("HTTP://x", PatternKind.PREFIX, "http://x/"),
        ("http://Example.com", PatternKind.PREFIX, "http://example.com/"),
        ("https://example.com:443/a b", PatternKind.PREFIX, "https://example.com/a%20b"),
    ],
)
def test_a_subject_has_one_spelling(text: str, kind: PatternKind, spelling: str) -> None:
    """However it is written, and reading the spelling again changes nothing."""
    subject = HostPattern.parse(text)
    assert (subject.kind, str(subject)) == (kind, spelling)
    assert HostPattern.parse(spelling) == subject


@pytest.mark.parametrize(
    "text",
    ["", ".", "..a", "*.a", "a:80", "a/b", "192.0.2.0/33", "2001:db8::/129", "a b", "999.1.1.1",
     ".10.0.0.1", "http://", "delay=1:2", "ftp://a.t/", "2002::/16", "64:ff9b::/96"],
)  # fmt: skip
def test_what_is_no_subject(text: str) -> None:
    """It would never match anything."""
    with pytest.raises(ValueError, match=r"\S"):
        HostPattern.parse(text)


NAMES = st.lists(st.sampled_from(["a", "b", "com", "xa"]), min_size=1, max_size=4).map(".".join)
RANGES = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 31)).map(
    lambda pair: ipaddress.ip_network(pair, strict=False)
)
SUBJECTS = st.one_of(NAMES, NAMES.map(lambda name: f".{name}"), RANGES.map(str))
STEPS = st.lists(st.tuples(st.booleans(), SUBJECTS, st.integers()), max_size=40)


def naive_host(model: dict[str, int], host: str) -> list[int]:
    """What holds for a host, the longest name first, by looking at everything."""
    found = [(len(s) + 1, v) for s, v in model.items() if s == host]
    found += [
        (len(s), v) for s, v in model.items()
        if s.startswith(".") and (host == s[1:] or host.endswith(s))
    ]  # fmt: skip
    return [value for _, value in sorted(found, key=lambda pair: -pair[0])]


def naive_address(model: dict[str, int], address: ipaddress.IPv4Address) -> list[int]:
    """What holds for an address, the narrowest range first, by looking at everything."""
    ranges = [(ipaddress.ip_network(s), v) for s, v in model.items() if "/" in s]
    found = [(net.prefixlen, v) for net, v in ranges if address in net]
    return [value for _, value in sorted(found, key=lambda pair: -pair[0])]


@given(STEPS, NAMES, st.integers(0, 2**32 - 1))
def test_the_table_answers_as_a_naive_model(
    steps: list[tuple[bool, str, int]], host: str, number: int
) -> None:
    """After any puts and removals."""
    table: PatternTable[int] = PatternTable()
    model: dict[str, int] = {}
    for remove, text, value in steps:
        subject = HostPattern.parse(text)
        if remove:
            assert table.remove(subject) == model.pop(text, None)
        else:
            table.put(subject, value)
            model[text] = value
    assert {str(subject): table.get(subject) for subject in table} == model
    assert len(table) == len(model)
    address = ipaddress.IPv4Address(number)
    networks = [ipaddress.ip_network(text) for text in model if "/" in text]
    for each in [address, *(net.network_address for net in networks)]:
        assert list(table.for_address(str(each))) == naive_address(model, each)
    for name in [host, *(text.lstrip(".") for text in model if "/" not in text)]:
        assert list(table.for_host(name)) == naive_host(model, name)


def test_prefixes() -> None:
    """By the characters of the normal URL, the longest first, on their own host only."""
    table: PatternTable[str] = PatternTable()
    for text in ("http://a.t/", "http://a.t/x/", "https://a.t/x", "http://b.t/x/"):
        table.put(HostPattern.parse(text), text)
    assert list(table.for_url("http://a.t/x/1", "a.t")) == ["http://a.t/x/", "http://a.t/"]
    assert list(table.for_url("https://a.t/xy", "a.t")) == ["https://a.t/x"]
    assert list(table.for_url("http://c.t/x/", "c.t")) == []
    assert list(table.for_host("a.t")) == []
    table.remove(HostPattern.parse("http://a.t/"))
    assert list(table.for_url("http://a.t/y", "a.t")) == []


def test_a_bare_address_is_a_host_and_a_range() -> None:
    """It holds for URLs with that number in them, and for every host that lives there."""
    table: PatternTable[int] = PatternTable()
    for number, text in enumerate(["192.0.2.7", "2001:db8::7"]):
        table.put(HostPattern.parse(text), number)
    assert list(table.for_host("192.0.2.7")) == list(table.for_address("192.0.2.7")) == [0]
    assert list(table.for_host("[2001:db8::7]")) == list(table.for_address("2001:db8::7")) == [1]
    for carrier in ("::ffff:192.0.2.7", "64:ff9b::192.0.2.7", "2002:c000:207::1"):
        assert list(table.for_address(carrier)) == [0]
    table.remove(HostPattern.parse("192.0.2.7"))
    assert list(table.for_host("192.0.2.7")) == list(table.for_address("192.0.2.7")) == []
    assert list(table.for_address("")) == []
