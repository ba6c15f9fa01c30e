"""What the in-vitro web's name server says about each name.

Besides its hosts there are names that test a resolver. All have the configured time to live
unless said otherwise, and those that lead to an address of ours serve three plain pages.

=========================  ===================================================================
``alias.test``             CNAME of plain.test
``cname-loop.test``        CNAME of cname-loop-b.test, which is a CNAME of cname-loop.test
``garbage.test``           a datagram that is not a DNS message
``hang.test``              an address where connections are neither accepted nor refused
``mapped.test``            AAAA ::ffff:10.0.0.1, no A
``metadata.test``          A 169.254.169.254
``moving.test``            an address of ours and another one of ours in turn, TTL 1
``nodata.test``            exists, has no address
``plain.test``             an address of ours, nothing special
``private.test``           A 10.0.0.1
``rebind.test``            an address of ours at first, from the second query on 10.0.0.1, TTL 0
``refused.test``           an address where nobody listens
``servfail.test``          SERVFAIL
``slow-dns.test``          an address of ours, after 2 seconds
``timeout.test``           no answer
``ttl0.test``              an address of ours, TTL 0
=========================  ===================================================================

Every other name is an NXDOMAIN, with the SOA record that RFC 2308 asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

NOERROR, SERVFAIL, NXDOMAIN = 0, 2, 3
PRIVATE = "10.0.0.1"
METADATA = "169.254.169.254"
MAPPED = "::ffff:10.0.0.1"
SLOW_DNS = 2.0
"""Seconds before the answer for ``slow-dns.test``."""

SERVED = ("alias.test", "moving.test", "plain.test", "rebind.test", "slow-dns.test", "ttl0.test")
"""The special names that lead to an address of ours, where plain pages are served."""


@dataclass(frozen=True)
class DnsAnswer:
    """What to say about a name.

    ``aliases`` is a chain of (name, target) pairs; ``v4`` and ``v6`` belong to its last target.
    Nothing is sent if ``silent``; ``garbage`` stands for bytes that are no message.
    """

    rcode: int = NOERROR
    v4: tuple[str, ...] = ()
    v6: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    ttl: int | None = None
    delay: float = 0.0
    silent: bool = False
    garbage: bool = False


@dataclass(frozen=True)
class SpecialAddresses:
    """Addresses for the special names: two that serve, one that refuses, one that hangs."""

    serving: tuple[str, str]
    refusing: str
    hanging: str


class Zone:
    """The whole name space. State: how often each of the two changing names was asked for.

    ``fixed`` are the special names whose answer is always the same.
    """

    def __init__(self, address_of: Callable[[str], str], special: SpecialAddresses) -> None:
        """*address_of* gives the address of an ordinary host or raises ``LookupError``."""
        self._address_of = address_of
        self._serving = special.serving
        self._asked: dict[str, int] = {}
        here = (special.serving[0],)
        loop = (("cname-loop.test", "cname-loop-b.test"), ("cname-loop-b.test", "cname-loop.test"))
        self.fixed = {
            "alias.test": DnsAnswer(v4=here, aliases=(("alias.test", "plain.test"),)),
            "cname-loop.test": DnsAnswer(aliases=loop),
            "cname-loop-b.test": DnsAnswer(aliases=loop[::-1]),
            "garbage.test": DnsAnswer(garbage=True),
            "hang.test": DnsAnswer(v4=(special.hanging,)),
            "mapped.test": DnsAnswer(v6=(MAPPED,)),
            "metadata.test": DnsAnswer(v4=(METADATA,)),
            "nodata.test": DnsAnswer(),
            "plain.test": DnsAnswer(v4=here),
            "private.test": DnsAnswer(v4=(PRIVATE,)),
            "refused.test": DnsAnswer(v4=(special.refusing,)),
            "servfail.test": DnsAnswer(SERVFAIL),
            "slow-dns.test": DnsAnswer(v4=here, delay=SLOW_DNS),
            "timeout.test": DnsAnswer(silent=True),
            "ttl0.test": DnsAnswer(v4=here, ttl=0),
        }

    def look_up(self, name: str) -> DnsAnswer:
        """What the name server says about *name* (lower case, no trailing dot)."""
        if name in self.fixed:
            return self.fixed[name]
        if name in ("moving.test", "rebind.test"):
            return self._changing(name)
        try:
            return DnsAnswer(v4=(self._address_of(name),))
        except LookupError:
            return DnsAnswer(NXDOMAIN)

    def _changing(self, name: str) -> DnsAnswer:
        asked = self._asked.get(name, 0)
        self._asked[name] = asked + 1
        if name == "moving.test":
            return DnsAnswer(v4=(self._serving[asked % 2],), ttl=1)
        return DnsAnswer(v4=(PRIVATE if asked else self._serving[0],), ttl=0)
