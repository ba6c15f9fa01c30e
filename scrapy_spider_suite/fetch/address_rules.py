"""Kinds of addresses: which may be connected to, and which are paced together. Pure.

Sources of the tables: the IANA special-purpose address registries (RFC 6890) and the RFC at each
row. `ipaddress`'s ``is_private`` lacks multicast, carrier-grade NAT, site-local addresses and most
IPv6 forms that carry an IPv4 address, and its answers changed between Python releases.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from scrapy_spider_suite.urls.host_patterns import embedded_ipv4

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_V4_KINDS = {
    "0.0.0.0/8": "unspecified",  # RFC 1122: "this" network; Linux connects 0.0.0.0 to itself
    "10.0.0.0/8": "private",  # RFC 1918
    "100.64.0.0/10": "carrier-grade NAT",  # RFC 6598
    "127.0.0.0/8": "loopback",  # RFC 1122
    "169.254.0.0/16": "link-local",  # RFC 3927; clouds keep their secrets at 169.254.169.254
    "172.16.0.0/12": "private",  # RFC 1918
    "192.0.0.0/24": "reserved",  # RFC 6890: protocol assignments
    "192.0.2.0/24": "documentation",  # RFC 5737
    "192.88.99.0/24": "reserved",  # RFC 7526: the former 6to4 relays
    "192.168.0.0/16": "private",  # RFC 1918
    "198.18.0.0/15": "benchmarking",  # RFC 2544
    "198.51.100.0/24": "documentation",  # RFC 5737
    "203.0.113.0/24": "documentation",  # RFC 5737
    "224.0.0.0/4": "multicast",  # RFC 5771
    "240.0.0.0/4": "reserved",  # RFC 1112, and 255.255.255.255
}

_V6_KINDS = {
    "::/128": "unspecified",  # RFC 4291
    "::1/128": "loopback",  # RFC 4291
    "::/96": "IPv4-compatible",  # RFC 4291, deprecated
    "64:ff9b:1::/48": "local NAT64",  # RFC 8215: the operator chooses where the IPv4 address sits
    "100::/64": "discard-only",  # RFC 6666
    "2001:2::/48": "benchmarking",  # RFC 5180
    "2001:db8::/32": "documentation",  # RFC 3849
    "2001::/23": "reserved",  # RFC 2928: protocol assignments (Teredo is looked into before)
    "3fff::/20": "documentation",  # RFC 9637
    "fc00::/7": "private",  # RFC 4193
    "fe80::/10": "link-local",  # RFC 4291
    "fec0::/10": "site-local",  # RFC 3879
    "ff00::/8": "multicast",  # RFC 4291
}

# IPv6 that leads to the IPv4 address inside: (network, bits to the right of that, all inverted?).
_EMBEDDINGS = (
    ("::ffff:0:0/96", 0, False),  # RFC 4291: IPv4-mapped
    ("::ffff:0:0:0/96", 0, False),  # RFC 2765: IPv4-translated
    ("64:ff9b::/96", 0, False),  # RFC 6052: NAT64, through which IPv6-only networks see all of IPv4
    ("2002::/16", 80, False),  # RFC 3056: 6to4
    ("2001::/32", 0, True),  # RFC 4380: Teredo, client
    ("2001::/32", 64, False),  # RFC 4380: Teredo, server
)

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")

_Row = tuple[int, int, str]  # network, mask, kind


def _rows(kinds: dict[str, str]) -> tuple[_Row, ...]:
    # Integers: a look-up is a few ANDs.
    networks = [(ipaddress.ip_network(text), kind) for text, kind in kinds.items()]
    return tuple((int(net.network_address), int(net.netmask), kind) for net, kind in networks)


_V4_ROWS = _rows(_V4_KINDS)
_V6_ROWS = _rows(_V6_KINDS)
_EMBEDDING_ROWS = tuple(
    (int(net.network_address), int(net.netmask), shift, inverted)
    for net, shift, inverted in ((ipaddress.IPv6Network(text), s, i) for text, s, i in _EMBEDDINGS)
)


def _kind_in(rows: tuple[_Row, ...], address: int) -> str | None:
    for network, mask, kind in rows:
        if address & mask == network:
            return kind
    return None


def embedded_addresses(address: ipaddress.IPv6Address) -> tuple[ipaddress.IPv4Address, ...]:
    """Return the IPv4 addresses that traffic to *address* is carried to; for Teredo, both ends."""
    number = int(address)
    found = []
    for network, mask, shift, inverted in _EMBEDDING_ROWS:
        if number & mask == network:
            inner = number >> shift & 0xFFFFFFFF
            found.append(ipaddress.IPv4Address(inner ^ 0xFFFFFFFF if inverted else inner))
    return tuple(found)


def special_kind(address: Address) -> str | None:
    """The kind of *address* (of the IPv4 address in it), or None for the public Internet."""
    if isinstance(address, ipaddress.IPv4Address):
        return _kind_in(_V4_ROWS, int(address))
    if address.scope_id is not None:
        return "zoned"  # RFC 4007: a zone names an interface of this machine
    inner = embedded_addresses(address)
    if inner:
        return next(filter(None, map(special_kind, inner)), None)
    kind = _kind_in(_V6_ROWS, int(address))
    return kind or (None if address in _GLOBAL_UNICAST else "reserved")


class AddressPolicy:
    """Allows public addresses, and those in *allow* (all: True). Raises `ValueError`."""

    def __init__(self, allow: bool | Iterable[str] = False) -> None:
        self._all = allow is True
        listed = () if isinstance(allow, bool) else (allow,) if isinstance(allow, str) else allow
        entries = [_parse_entry(text) for text in listed]
        self._networks = tuple(entry for entry in entries if not isinstance(entry, str))
        names = [entry for entry in entries if isinstance(entry, str)]
        self._hosts = {name for name in names if not name.startswith(".")}
        self._domains = frozenset(name for name in names if name.startswith("."))
        self._trusted: set[str] = set()
        self._withdrawn: set[str] = set()

    def trust(self, host: str) -> bool:
        """Allow *host*, which the operator named, until it has a public address; True if new."""
        if host in self._hosts or host in self._trusted or host in self._withdrawn:
            return False
        self._trusted.add(host)
        return True

    def withdraw(self, host: str) -> None:
        """Trust *host* no more, even if it is named again."""
        self._trusted.discard(host)
        self._withdrawn.add(host)

    def note_addresses(self, host: str, addresses: Iterable[str]) -> bool:
        """Withdraw trust in *host* if it has a public address (DNS rebinding); True if so now."""
        public = any(not special_kind(ipaddress.ip_address(a)) for a in addresses)
        if public and host in self._trusted:
            self.withdraw(host)
            return True
        return False

    def why_refused(self, address: str, host: str) -> str | None:
        """Why *host*, as ada writes it, may not be fetched from the numeric *address*, or None."""
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return f"{address!r} is not an address"
        if self._all:
            return None
        kind = special_kind(parsed)
        if kind is None or self._allows_host(host) or self._allows_address(parsed):
            return None
        return f"{address} is a {kind} address"

    def _allows_host(self, host: str) -> bool:
        if host in self._hosts or host in self._trusted:
            return True
        if not self._domains:
            return False
        labels = f".{host}"
        starts = (i for i, char in enumerate(labels) if char == ".")
        return any(labels[i:] in self._domains for i in starts)

    def _allows_address(self, address: Address) -> bool:
        if any(address in network for network in self._networks):
            return True
        if isinstance(address, ipaddress.IPv4Address) or address.scope_id is not None:
            return False
        inner = embedded_addresses(address)
        return bool(inner) and all(
            special_kind(each) is None or self._allows_address(each) for each in inner
        )


_HOST_ENTRY = re.compile(r"\.?[a-z0-9_-]+(\.[a-z0-9_-]+)*")


def _parse_entry(text: str) -> Network | str:
    entry = text.strip().lower()
    bare = entry[1:-1] if entry.startswith("[") and entry.endswith("]") else entry
    try:
        return ipaddress.ip_network(bare, strict=False)
    except ValueError:
        pass
    if _HOST_ENTRY.fullmatch(entry) and not _NUMERIC_END.search(entry):
        return entry
    raise ValueError(f"{text!r} is not an address, a network, a host or a .domain")


# WHATWG URL, "ends in a number": such a host is an IPv4 address or it is nothing.
_NUMERIC_END = re.compile(r"(?:^|\.)(?:[0-9]+|0x[0-9a-f]*)$")
_NAME = re.compile(r"(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}")
_LITERAL_ENDS = frozenset("0123456789]")


def literal_address(host: str) -> str | None:
    """Return the address that *host*, as ada writes it, itself is, or None for a name."""
    if host[-1:] not in _LITERAL_ENDS:
        return None
    try:
        if host.startswith("[") and host.endswith("]"):
            return str(ipaddress.IPv6Address(host[1:-1]))
        return str(ipaddress.IPv4Address(host))
    except ValueError:
        return None


def invalid_name_reason(host: str) -> str | None:
    """Why *host* cannot be a host name (RFC 1035 §2.3.4), or None; "_" is allowed."""
    if not host or len(host) > 253:
        return "a host name has 1 to 253 characters"
    if not host.isascii():
        return "a host name is ASCII; other scripts are written as xn--..."
    if max(map(len, host.split("."))) > 63:
        return "a label of a host name has at most 63 characters"
    if not _NAME.fullmatch(host):
        return "a host name has letters, digits and hyphens only, and no empty label"
    if _NUMERIC_END.search(host):
        return "a host that ends in a number is an IPv4 address, and this is none"
    return None


def pacing_key(address: str, v6_prefix: int = 64) -> str:
    """The pacing key: an IPv4 address, also inside IPv6, or a network. Raises `ValueError`."""
    if ":" not in address:
        return address
    parsed = ipaddress.IPv6Address(address.partition("%")[0])
    inner = embedded_ipv4(int(parsed))
    if inner is not None:
        return str(ipaddress.IPv4Address(inner))
    return str(ipaddress.IPv6Network((parsed, v6_prefix), strict=False))
