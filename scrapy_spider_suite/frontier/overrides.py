"""Exceptions from the general pace: by host, by ``.domain``, by address range (U3).

One rule a line; blank lines and what follows ``#`` are ignored::

    intranet.example.com   delay=0 concurrency=8 burst=20
    .example.org           delay=10 max_pages=500
    192.0.2.0/24           delay=2 concurrency=4
    2001:db8::/32          delay=1
    203.0.113.7            delay=1 burst=5

A host's own line wins over its domain's, a longer domain over a shorter one, a narrower
range over a wider one. ``burst`` and ``max_pages`` belong to hosts and domains only. A bare
address is both: the host of that name, and a range of one.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scrapy_spider_suite.errors import SettingsError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# What a host of a URL may be made of; a port, a star or a scheme would never match one.
_NAME = re.compile(r"\.?[^\s.:*\[\]@?]+(\.[^\s.:*\[\]@?]+)*")


@dataclass(frozen=True, slots=True)
class Override:
    """What one line changes; None leaves the general setting alone."""

    delay: float | None = None
    concurrency: int | None = None
    burst: int | None = None
    max_pages: int | None = None


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return value

    return parse


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError("a number of seconds, 0 or more")
    return value


_FIELDS: dict[str, tuple[Callable[[str], float], str]] = {
    "delay": (_seconds, "a number of seconds, 0 or more"),
    "concurrency": (_whole(1, 1000), "a whole number from 1 to 1000"),
    "burst": (_whole(1, 20), "a whole number from 1 to 20"),
    "max_pages": (_whole(0, 2**31 - 1), "a whole number, 0 for no limit"),
}


class Overrides:
    """The rules of one file, looked up by host or by address."""

    def __init__(self) -> None:
        self._hosts: dict[str, Override] = {}
        self._domains: dict[str, Override] = {}
        self._networks: dict[int, dict[int, dict[int, Override]]] = {4: {}, 6: {}}

    @classmethod
    def parse(cls, lines: Iterable[str], source: str) -> Overrides:
        """Read rules; *source* names the file in errors.

        Raises `SettingsError`, with the line's number, for anything that is not a rule.
        """
        rules = cls()
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            try:
                rules._add(words[0].lower().rstrip("."), _parse_fields(words[1:]))
            except ValueError as error:
                raise SettingsError(f"SUITE_OVERRIDES: {source}, line {number}: {error}") from None
        return rules

    def _add(self, subject: str, override: Override) -> None:
        network = _network(subject)
        if network is not None:
            if "/" not in subject:
                self._hosts[_literal(network)] = override
            elif override.burst is not None or override.max_pages is not None:
                raise ValueError("burst and max_pages belong to hosts, not to address ranges")
            by_length = self._networks[network.version].setdefault(network.prefixlen, {})
            by_length[int(network.network_address)] = override
        elif "/" in subject:
            raise ValueError(f"{subject!r} is no address range")
        elif _NAME.fullmatch(subject) is None:
            raise ValueError(f"{subject!r} is no host, .domain or address range")
        elif subject.startswith("."):
            self._domains[subject[1:]] = override
        else:
            self._hosts[subject] = override

    def for_host(self, host: str) -> Override | None:
        """The rule for *host*: its own, or that of the longest domain it belongs to."""
        found = self._hosts.get(host)
        if found is not None or not self._domains:
            return found
        domain = host
        while domain:
            found = self._domains.get(domain)
            if found is not None:
                return found
            domain = domain.partition(".")[2]
        return None

    def for_address(self, address: str) -> Override | None:
        """The rule for a numeric *address*: that of the narrowest range that holds it."""
        ip = ipaddress.ip_address(address.partition("/")[0])
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        number, width = int(ip), ip.max_prefixlen
        by_length = self._networks[ip.version]
        for length in sorted(by_length, reverse=True):
            shift = width - length
            found = by_length[length].get(number >> shift << shift)
            if found is not None:
                return found
        return None


def _network(subject: str) -> Network | None:
    try:
        return ipaddress.ip_network(subject.strip("[]"), strict=False)
    except ValueError:
        return None


def _literal(network: Network) -> str:
    """The host that a URL with this one address in it has."""
    address = network.network_address
    return f"[{address.compressed}]" if address.version == 6 else str(address)


def _parse_fields(words: list[str]) -> Override:
    if not words:
        raise ValueError("nothing to change: expected e.g. delay=10")
    values: dict[str, float] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in _FIELDS:
            raise ValueError(f"{word!r}: expected one of {', '.join(_FIELDS)} and a value")
        parse, allowed = _FIELDS[name]
        try:
            values[name] = parse(text)
        except ValueError:
            raise ValueError(f"{word!r}: expected {allowed}") from None
    return Override(**values)  # type: ignore[arg-type]
