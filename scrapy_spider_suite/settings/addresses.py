"""The types of settings that name hosts, addresses and networks."""

from __future__ import annotations

import ipaddress
import re

from scrapy_spider_suite.settings.values import TRUTH, ValueType, texts_of, within

_HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*", re.IGNORECASE)


def name_servers() -> ValueType:
    """Return the type of a list of name servers, read as (numeric address, port) pairs."""

    def parse(raw: object) -> tuple[tuple[str, int], ...]:
        return tuple(_address_and_port(item) for item in texts_of(raw))

    allowed = "a list of IP addresses with or without a port, such as '127.0.0.1:5353'"
    return ValueType(parse, allowed)


def hosts_or_networks() -> ValueType:
    """Return the type of True, False, or a list of host names, IP addresses and CIDRs.

    Names come out in lower case without a trailing dot, addresses and CIDRs as ``ipaddress`` writes
    networks: ``10.0.0.1`` becomes ``10.0.0.1/32``.
    """

    def parse(raw: object) -> bool | tuple[str, ...]:
        if (truth := TRUTH.get(str(raw).lower())) is not None:
            return truth
        return tuple(_host_or_network(item) for item in texts_of(raw))

    return ValueType(parse, "True, False, or a list of host names and CIDRs such as '10.0.0.0/8'")


def _address_and_port(item: str) -> tuple[str, int]:
    """Read ``1.2.3.4``, ``1.2.3.4:53``, ``::1`` or ``[::1]:53``; the port is 53 unless given."""
    host, port = item, "53"
    if item.startswith("["):
        host, _, rest = item[1:].partition("]")
        port = rest.removeprefix(":") or port
    elif item.count(":") == 1:
        host, _, port = item.partition(":")
    return str(ipaddress.ip_address(host)), within(int(port), 1, 65_535)


def _host_or_network(item: str) -> str:
    try:
        return str(ipaddress.ip_network(item.strip("[]"), strict=False))
    except ValueError:
        name = item.removesuffix(".").lower()
    # What begins like a number or holds a slash was meant as an address, and is a misspelt one.
    if not _HOST.fullmatch(name) or name.rpartition(".")[2].isdigit():
        raise ValueError(item)
    return name
