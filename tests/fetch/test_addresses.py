"""Tests of the kinds of addresses, the policy, literals and pacing keys."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.fetch.address_rules import (
    AddressPolicy,
    embedded_addresses,
    invalid_name_reason,
    literal_address,
    pacing_key,
    special_kind,
)

PUBLIC_ONLY = AddressPolicy(False)

SPECIAL = [
    ("0.0.0.0", "unspecified"),
    ("0.1.2.3", "unspecified"),
    ("10.0.0.1", "private"),
    ("100.64.0.1", "carrier-grade NAT"),
    ("100.127.255.255", "carrier-grade NAT"),
    ("127.0.0.1", "loopback"),
    ("127.255.255.254", "loopback"),
    ("169.254.169.254", "link-local"),
    ("172.16.0.1", "private"),
    ("172.31.255.255", "private"),
    ("192.0.0.8", "reserved"),
    ("192.0.2.1", "documentation"),
    ("192.88.99.1", "reserved"),
    ("192.168.1.1", "private"),
    ("198.18.0.1", "benchmarking"),
    ("198.19.255.255", "benchmarking"),
    ("198.51.100.7", "documentation"),
    ("203.0.113.7", "documentation"),
    ("224.0.0.251", "multicast"),
    ("239.255.255.250", "multicast"),
    ("240.0.0.1", "reserved"),
    ("255.255.255.255", "reserved"),
    ("::", "unspecified"),
    ("::1", "loopback"),
    ("::127.0.0.1", "IPv4-compatible"),
    ("::8.8.8.8", "IPv4-compatible"),
    ("::ffff:127.0.0.1", "loopback"),
    ("::ffff:10.0.0.1", "private"),
    ("::ffff:169.254.169.254", "link-local"),
    ("::ffff:0:192.168.0.1", "private"),
    ("64:ff9b::127.0.0.1", "loopback"),
    ("64:ff9b::10.1.2.3", "private"),
    ("64:ff9b:1::8.8.8.8", "local NAT64"),
    ("100::1", "discard-only"),
    ("2001::1", "reserved"),  # Teredo through the server 0.0.0.0, from the client 255.255.255.254
    ("2001:0:808:808:0:0:f5ff:fffe", "private"),  # Teredo client 10.0.0.1, inverted
    ("2001:0:a00:1:0:0:f7f7:f7f7", "private"),  # Teredo server 10.0.0.1, client 8.8.8.8
    ("2001:2::1", "benchmarking"),
    ("2001:20::1", "reserved"),
    ("2001:db8::1", "documentation"),
    ("2002:7f00:1::1", "loopback"),  # 6to4 of 127.0.0.1
    ("2002:a9fe:a9fe::", "link-local"),  # 6to4 of 169.254.169.254
    ("3fff::1", "documentation"),
    ("4000::1", "reserved"),
    ("5f00::1", "reserved"),
    ("fc00::1", "private"),
    ("fd12:3456:789a::1", "private"),
    ("fe80::1", "link-local"),
    ("fe80::1%eth0", "zoned"),
    ("2606:4700::1%1", "zoned"),
    ("::ffff:8.8.8.8%1", "zoned"),
    ("fec0::1", "site-local"),
    ("ff02::1", "multicast"),
]

PUBLIC = [
    "1.1.1.1",
    "9.255.255.255",
    "11.0.0.0",
    "93.184.216.34",
    "100.63.255.255",
    "100.128.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.167.255.255",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "2606:4700::1111",
    "2a00:1450::1",
    "64:ff9b::8.8.8.8",
    "2002:808:808::1",
    "2001:0:808:808:0:0:f7f7:f7f7",
]


@pytest.mark.parametrize(("address", "kind"), SPECIAL)
def test_special_addresses_are_refused(address: str, kind: str) -> None:
    """Each kind of address that is not of the public Internet is refused, and by its name."""
    why = PUBLIC_ONLY.why_refused(address, "example.org")
    assert why is not None
    assert kind in why
    assert AddressPolicy(True).why_refused(address, "example.org") is None


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_not_refused(address: str) -> None:
    """The neighbours of the special networks, and public IPv4 inside IPv6, may be fetched."""
    assert PUBLIC_ONLY.why_refused(address, "example.org") is None


@given(st.ip_addresses(v=4))
def test_no_wider_than_the_standard_library_v4(address: IPv4Address) -> None:
    """What is allowed is global to ipaddress too."""
    if special_kind(address) is None:
        assert address.is_global
        assert not address.is_multicast


@given(st.ip_addresses(v=6, network="2000::/4") | st.ip_addresses(v=6))
def test_no_wider_than_the_standard_library_v6(address: IPv6Address) -> None:
    """What is allowed is global unicast to ipaddress too, unless it leads to IPv4."""
    if special_kind(address) is None and not embedded_addresses(address):
        assert address.is_global
        assert not any((address.is_multicast, address.is_reserved, address.is_site_local))


@pytest.mark.parametrize(
    "form", ["::ffff:{}", "::ffff:0:{}", "64:ff9b::{}", "2002:{hex}::1"], ids=str
)
@given(address=st.ip_addresses(v=4))
def test_carried_addresses_are_judged(form: str, address: IPv4Address) -> None:
    """IPv6 that carries an IPv4 address is refused exactly when that one is."""
    number = f"{int(address):08x}"
    carrier = form.format(address, hex=f"{number[:4]}:{number[4:]}")
    refused = PUBLIC_ONLY.why_refused(carrier, "h") is not None
    assert refused == (PUBLIC_ONLY.why_refused(str(address), "h") is not None)


@pytest.mark.parametrize("text", ["", "example.org", "1.2.3", "[::1]", "127.0.0.01", "1.2.3.4\n"])
def test_what_is_no_address_is_refused(text: str) -> None:
    """A text that is not an address is refused even where all addresses are allowed."""
    assert AddressPolicy(True).why_refused(text, "example.org") == f"{text!r} is not an address"


@pytest.mark.parametrize(
    ("allow", "address", "host", "refused"),
    [
        ("127.0.0.0/8", "127.3.2.1", "h", False),
        ("127.0.0.1/8", "127.3.2.1", "h", False),
        ("127.0.0.0/8", "10.0.0.1", "h", True),
        ("127.0.0.0/8", "::ffff:127.0.0.1", "h", False),
        ("127.0.0.0/8", "2002:7f00:1::1", "h", False),
        ("127.0.0.0/8", "::1", "h", True),
        ("10.1.2.3", "10.1.2.3", "h", False),
        ("10.1.2.3", "10.1.2.4", "h", True),
        ("[::1]", "::1", "h", False),
        ("fd00::/8", "fd12::1", "h", False),
        ("intranet", "10.0.0.1", "intranet", False),
        ("Intranet", "10.0.0.1", "intranet", False),
        ("intranet", "10.0.0.1", "www.intranet", True),
        ("intranet", "10.0.0.1", "notintranet", True),
        (".corp.example", "10.0.0.1", "a.b.corp.example", False),
        (".corp.example", "10.0.0.1", "corp.example", False),
        (".corp.example", "10.0.0.1", "xcorp.example", True),
        (".corp.example", "10.0.0.1", "corp.example.org", True),
        # Half of a Teredo address is not enough: its server is 8.8.8.8, its client 10.0.0.1.
        ("8.8.8.8", "2001:0:808:808:0:0:f5ff:fffe", "h", True),
        ("10.0.0.0/8", "2001:0:808:808:0:0:f5ff:fffe", "h", False),
    ],
)
def test_exceptions(allow: str, address: str, host: str, refused: bool) -> None:
    """An address, a network, a host or a domain in the list lets private addresses through."""
    assert (AddressPolicy([allow]).why_refused(address, host) is not None) == refused


def test_a_single_exception_may_be_a_text() -> None:
    """One text is one exception, not a list of characters."""
    assert AddressPolicy("10.0.0.0/8").why_refused("10.1.1.1", "h") is None


@pytest.mark.parametrize(
    "entry", ["", "10.0.0.0/33", "1.2.3", "0x7f.1", "a b", "*.example.org", "..a", "http://a/"]
)
def test_bad_exceptions(entry: str) -> None:
    """An entry that is none of these is named in the error."""
    with pytest.raises(ValueError, match=r"a network, a host or a \.domain") as caught:
        AddressPolicy([entry])
    assert str(caught.value).startswith(f"{entry!r} is not an address")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("[::1]", "::1"),
        ("[2001:db8:0:0::1]", "2001:db8::1"),
        ("[::ffff:7f00:1]", "::ffff:7f00:1"),
        ("example.org", None),
        ("host9", None),
        ("1.2.3", None),
        ("256.1.1.1", None),
        ("010.0.0.1", None),
        ("[::1", None),
        ("[not]", None),
        ("::1", None),
        ("", None),
    ],
)
def test_literal_address(host: str, address: str | None) -> None:
    """Hosts that are addresses are recognised in the forms that ada writes, and no others."""
    assert literal_address(host) == address


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ("example.org", None),
        ("localhost", None),
        ("a_b.example", None),
        ("-a.example", None),
        ("xn--bcher-kva.example", None),
        ("3com.com", None),
        (f"{'a' * 63}.example", None),
        (".".join(["a" * 63] * 3 + ["b" * 61]), None),
        (f"{'a' * 64}.example", "at most 63"),
        (".".join(["a" * 63] * 4), "1 to 253"),
        ("", "1 to 253"),
        ("bücher.example", "xn--"),
        ("a..b", "empty label"),
        (".a", "empty label"),
        ("a b.example", "letters, digits"),
        ("a\0b", "letters, digits"),
        ("[::1", "letters, digits"),
        ("a.example\n", "letters, digits"),
        ("1.2.3", "ends in a number"),
        ("2130706433", "ends in a number"),
        ("0x7f.0x1", "ends in a number"),
        ("0x", "ends in a number"),
    ],
)
def test_why_not_a_name(host: str, problem: str | None) -> None:
    """Hosts that no name server can know are told apart from those that one might."""
    why = invalid_name_reason(host)
    assert why is None if problem is None else problem in str(why)


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::", "2001:db8:1:3::/64"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("::ffff:102:304", "1.2.3.4"),
        ("64:ff9b::1.2.3.4", "1.2.3.4"),
        ("fe80::1%eth0", "fe80::/64"),
        ("2002:808:808:1::1", "8.8.8.8"),
    ],
)
def test_pacing_key(address: str, key: str) -> None:
    """IPv6 is paced by its /64, and what leads to an IPv4 address by that."""
    assert pacing_key(address) == key


def test_pacing_key_prefix() -> None:
    """The length of the prefix can be chosen; 128 paces each address by itself."""
    assert pacing_key("2001:db8:1:2::3", 48) == "2001:db8:1::/48"
    assert pacing_key("2001:db8:1:2::3", 128) == "2001:db8:1:2::3/128"


@given(st.ip_addresses(v=6), st.integers(0, 128))
def test_pacing_key_is_stable(address: IPv6Address, prefix: int) -> None:
    """A key names a network that holds the address, whichever way the address is written."""
    key = pacing_key(str(address), prefix)
    assert pacing_key(address.exploded, prefix) == key
    network = ip_network(key)
    if isinstance(network, IPv4Network):
        assert network.network_address in embedded_addresses(address)
    else:
        assert address in network
