"""A name server for loopback: RFC 1035 over UDP, one question a message, types A, AAAA and CNAME.

Beside the hosts of the web it has the names of docs/hostile.md, which test a resolver. Other names
are NXDOMAIN, with the SOA record of RFC 2308.
"""

from __future__ import annotations

import asyncio
import ipaddress
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from scrapy_spider_suite.testing.arrivals import QueryLog

NOERROR, SERVFAIL, NXDOMAIN = 0, 2, 3
PRIVATE = "10.0.0.1"
METADATA = "169.254.169.254"
MAPPED = "::ffff:10.0.0.1"
SLOW_DNS = 2.0  # seconds

SERVED = ("alias.test", "moving.test", "plain.test", "rebind.test", "slow-dns.test", "ttl0.test")
"""The names at an address with three plain pages."""


@dataclass(frozen=True)
class ZoneAnswer:
    """*v4* and *v6* belong to the last of the *aliases* (name, target)."""

    rcode: int = NOERROR
    v4: tuple[str, ...] = ()
    v6: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    ttl: int | None = None
    delay: float = 0.0
    silent: bool = False
    garbage: bool = False


class Zone:
    """The name space. *serving*: two addresses; *refusing*: one where nobody listens; *hanging*:
    one that neither accepts nor refuses. *fixed*: special names with one answer.
    """

    def __init__(
        self, address_of: Callable[[str], str], serving: Sequence[str], refusing: str, hanging: str
    ) -> None:
        self._address_of = address_of
        self._serving = serving
        self._asked: Counter[str] = Counter()
        here = (serving[0],)
        loop = (("cname-loop.test", "cname-loop-b.test"), ("cname-loop-b.test", "cname-loop.test"))
        self.fixed = {
            "alias.test": ZoneAnswer(v4=here, aliases=(("alias.test", "plain.test"),)),
            "cname-loop.test": ZoneAnswer(aliases=loop),
            "cname-loop-b.test": ZoneAnswer(aliases=loop[::-1]),
            "garbage.test": ZoneAnswer(garbage=True),
            "hang.test": ZoneAnswer(v4=(hanging,)),
            "mapped.test": ZoneAnswer(v6=(MAPPED,)),
            "metadata.test": ZoneAnswer(v4=(METADATA,)),
            "nodata.test": ZoneAnswer(),
            "plain.test": ZoneAnswer(v4=here),
            "private.test": ZoneAnswer(v4=(PRIVATE,)),
            "refused.test": ZoneAnswer(v4=(refusing,)),
            "servfail.test": ZoneAnswer(SERVFAIL),
            "slow-dns.test": ZoneAnswer(v4=here, delay=SLOW_DNS),
            "timeout.test": ZoneAnswer(silent=True),
            "ttl0.test": ZoneAnswer(v4=here, ttl=0),
        }

    def look_up(self, name: str) -> ZoneAnswer:
        if name in self.fixed:
            return self.fixed[name]
        if name in ("moving.test", "rebind.test"):
            return self._changing(name)
        try:
            return ZoneAnswer(v4=(self._address_of(name),))
        except LookupError:
            return ZoneAnswer(NXDOMAIN)

    def _changing(self, name: str) -> ZoneAnswer:
        asked = self._asked[name]
        self._asked[name] += 1
        if name == "moving.test":  # two addresses in turn
            return ZoneAnswer(v4=(self._serving[asked % 2],), ttl=1)
        return ZoneAnswer(v4=(PRIVATE if asked else self._serving[0],), ttl=0)


A, CNAME, SOA, AAAA, ANY = 1, 5, 6, 28, 255

_HEADER = struct.Struct(">6H")
_RECORD = struct.Struct(">HHIH")
_INTERNET = 1
_RESPONSE = 0x8400  # an answer, and from the authority
_DESIRED, _AVAILABLE = 0x0100, 0x0080  # recursion
_TYPES = {A: "A", CNAME: "CNAME", AAAA: "AAAA"}
_RCODES = {0: "NOERROR", 2: "SERVFAIL", 3: "NXDOMAIN"}
_FORMAT_ERROR = 0x8001
_GARBAGE = b"\0\xff garbage"


class DnsQuery(NamedTuple):
    number: int
    flags: int
    name: str
    kind: int
    question: bytes


def parse_query(data: bytes) -> DnsQuery:
    if len(data) < _HEADER.size:
        raise ValueError("too short")
    number, flags, questions, *_ = _HEADER.unpack_from(data)
    if flags & 0x8000 or questions != 1:
        raise ValueError("not one question")
    labels, at = [], _HEADER.size
    while at < len(data) and data[at]:
        length = data[at]
        if length > 63:
            raise ValueError("a pointer in a question")
        labels.append(data[at + 1 : at + 1 + length])
        at += 1 + length
    if at + 5 > len(data):
        raise ValueError("cut off")
    kind = int.from_bytes(data[at + 1 : at + 3], "big")
    name = b".".join(labels).decode("latin-1").lower()
    return DnsQuery(number, flags, name, kind, data[_HEADER.size : at + 5])


def pack_answer(query: DnsQuery, answer: ZoneAnswer, ttl: int) -> bytes:
    ttl = ttl if answer.ttl is None else answer.ttl
    owner = query.name
    records = []
    for name, target in answer.aliases:
        records.append(_record(name, CNAME, ttl, _name(target)))
        owner = target
    for kind, addresses in ((A, answer.v4), (AAAA, answer.v6)):
        if query.kind in (kind, ANY):
            packed = (ipaddress.ip_address(each).packed for each in addresses)
            records += [_record(owner, kind, ttl, each) for each in packed]
    authority = []
    if not records and answer.rcode in (NOERROR, NXDOMAIN):
        # The last number is how long a resolver may remember that there is nothing.
        numbers = struct.pack(">5I", 1, 3600, 600, 86400, ttl)
        authority = [_record("test", SOA, ttl, _name("ns.test") + _name("root.test") + numbers)]
    flags = _RESPONSE | (query.flags & _DESIRED) | _AVAILABLE | answer.rcode
    header = _HEADER.pack(query.number, flags, 1, len(records), len(authority), 0)
    return header + query.question + b"".join(records) + b"".join(authority)


def _record(owner: str, kind: int, ttl: int, data: bytes) -> bytes:
    return _name(owner) + _RECORD.pack(kind, _INTERNET, ttl, len(data)) + data


def _name(name: str) -> bytes:
    labels = name.encode("latin-1").split(b".")
    return b"".join(bytes((len(label),)) + label for label in labels if label) + b"\0"


class NameServer(asyncio.DatagramProtocol):
    def __init__(self, zone: Zone, log: QueryLog, ttl: int) -> None:
        self._zone = zone
        self._log = log
        self._ttl = ttl
        self._transport = cast(asyncio.DatagramTransport, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        try:
            query = parse_query(data)
        except ValueError:
            if len(data) >= _HEADER.size and not data[2] & 0x80:
                self._transport.sendto(
                    data[:2] + _HEADER.pack(0, _FORMAT_ERROR, 0, 0, 0, 0)[2:], addr
                )
            return
        answer = self._zone.look_up(query.name)
        said = "garbage" if answer.garbage else _RCODES[answer.rcode]
        if answer.silent:
            said = "nothing"
        self._log.add(query.name, _TYPES.get(query.kind, str(query.kind)), said)
        if answer.silent:
            return
        packed = data[:2] + _GARBAGE if answer.garbage else pack_answer(query, answer, self._ttl)
        if answer.delay:
            asyncio.get_running_loop().call_later(answer.delay, self._send_late, packed, addr)
        else:
            self._transport.sendto(packed, addr)

    def _send_late(self, packed: bytes, addr: Any) -> None:
        if not self._transport.is_closing():
            self._transport.sendto(packed, addr)
