"""How a look-up ends, in the form in which the resolver remembers it. Pure."""

from __future__ import annotations

from msgspec import Struct
from pycares import errno

from scrapy_spider_suite.dns.addresses import AddressPolicy, literal_address
from scrapy_spider_suite.errors import (
    NoSuchHostError,
    PrivateAddressError,
    ResolveError,
    ResolveTimeoutError,
    SuiteError,
)

TRANSIENT = 30.0
"""Seconds that a failure or silence of the name servers is remembered at most.

RFC 2308 §7 allows five minutes.
"""

UNREACHABLE = 1.0
"""Seconds that it is remembered at most that no name server can be reached.

The network is down, or this process has no file left for a socket: to find out anew costs nothing.
"""

_NO_SUCH_HOST = {
    errno.ARES_ENOTFOUND: "no such host",
    errno.ARES_ENONAME: "no such host",
    errno.ARES_ENODATA: "the host has no address",
    errno.ARES_EBADNAME: "not a host name",
}

_TRANSIENT = {
    errno.ARES_ESERVFAIL: "the name server failed",
    errno.ARES_EREFUSED: "the name server refuses to answer",
    errno.ARES_EBADRESP: "the name server's answer makes no sense",
    errno.ARES_EFORMERR: "the name server does not understand the question",
    errno.ARES_ENOTIMP: "the name server does not understand the question",
}


class Outcome(Struct, frozen=True, gc=False):
    """Either addresses or an error, and how long either holds.

    Errors are kept as type and text: an exception that is raised again and again holds on to every
    frame that it passed. The garbage collector does not know outcomes, of which there are many.
    """

    addresses: tuple[str, ...]
    keep: float
    """Seconds; 0 for what must not be remembered."""
    error: type[SuiteError] | None = None
    message: str = ""


def failed(name: str, code: int, negative_ttl: float) -> Outcome:
    """Return the outcome for the c-ares failure *code* (``ARES_...``).

    A name that does not exist is remembered for *negative_ttl* seconds, a failure or a silence of
    the name servers for `TRANSIENT` at most, our own troubles (memory, files, being closed) not at
    all.
    """
    if code in _NO_SUCH_HOST:
        return Outcome((), negative_ttl, NoSuchHostError, f"{name}: {_NO_SUCH_HOST[code]}")
    short = min(TRANSIENT, negative_ttl)
    if code == errno.ARES_ETIMEOUT:
        return Outcome((), short, ResolveTimeoutError, f"{name}: no name server answered in time")
    if code in _TRANSIENT:
        return Outcome((), short, ResolveError, f"{name}: {_TRANSIENT[code]}")
    if code == errno.ARES_ECONNREFUSED:
        short = min(UNREACHABLE, negative_ttl)
        return Outcome((), short, ResolveError, f"{name}: no name server can be reached")
    if code in (errno.ARES_ECANCELLED, errno.ARES_EDESTRUCTION):
        return Outcome((), 0.0, ResolveError, f"{name}: the resolver was closed")
    # c-ares has more codes than pycares has names for.
    symbol = errno.errorcode.get(code, f"c-ares error {code}")
    return Outcome((), 0.0, ResolveError, f"{name}: {symbol}")


def judged(name: str, addresses: tuple[str, ...], keep: float, policy: AddressPolicy) -> Outcome:
    """Return the outcome for *addresses*, at least one.

    Those that *policy* allows, or the reason for which it refuses the first.
    """
    reasons = [policy.refuses(address, name) for address in addresses]
    kept = tuple(a for a, why in zip(addresses, reasons, strict=True) if why is None)
    if kept:
        return Outcome(kept, keep)
    # An address that is the host itself stands in the reason.
    host = "" if literal_address(name) else f"{name}: "
    return Outcome((), keep, PrivateAddressError, f"{host}{reasons[0]}")
