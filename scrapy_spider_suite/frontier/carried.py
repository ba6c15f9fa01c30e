"""IPv4 inside IPv6: what leads to one machine is one machine, for its clock and for its rules."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network

# The networks whose addresses stand for an IPv4 address, which follows the network's own bits.
_CARRIERS = tuple(
    (int(network.network_address) >> 128 - network.prefixlen, network.prefixlen)
    for network in (
        IPv6Network("::ffff:0:0/96"),  # RFC 4291: IPv4-mapped
        IPv6Network("64:ff9b::/96"),  # RFC 6052: NAT64, behind which all of IPv4 is one /96
        IPv6Network("2002::/16"),  # RFC 3056: 6to4, the whole of one site
    )
)


def carried(address: int) -> int | None:
    """The IPv4 address that traffic to the IPv6 *address* goes to; None if it stays in IPv6.

    Both as numbers. Teredo addresses, which name two, are taken as they are.
    """
    for prefix, length in _CARRIERS:
        if address >> 128 - length == prefix:
            return address >> 96 - length & 0xFFFFFFFF
    return None


def carried_network(network: IPv6Network) -> IPv4Network | None:
    """The IPv4 addresses that traffic to *network* goes to; None if it is not for IPv4 alone."""
    for prefix, length in _CARRIERS:
        number = int(network.network_address)
        if network.prefixlen >= length and number >> 128 - length == prefix:
            inner = number >> 96 - length & 0xFFFFFFFF
            return IPv4Network((inner, min(32, network.prefixlen - length)))
    return None
