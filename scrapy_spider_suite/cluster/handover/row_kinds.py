"""Rows of a job that move with hosts, and the merge of two values."""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.crawl.queue.traps import page_rows, unpack
from scrapy_spider_suite.crawl.robots import is_row, later_row
from scrapy_spider_suite.errors import CodecError
from scrapy_spider_suite.frontier.entries import host_key
from scrapy_spider_suite.frontier.revisit_rules import Validators
from scrapy_spider_suite.store.request_codec import pack_cookies, unpack_cookies
from scrapy_spider_suite.store.revisit_plans import UNPACKED, RevisitPlan
from scrapy_spider_suite.store.value_codec import ValueCodec
from scrapy_spider_suite.urls.hosts import registered_domain
from scrapy_spider_suite.urls.normalize import host_of


class KeyedBy(Enum):
    """What a key is, or begins with, behind the prefix of its kind."""

    IDENTITY = auto()
    HOST = auto()
    HOST_AND_PAGE = auto()
    ORIGIN = auto()
    DOMAIN = auto()


Merge = Callable[[bytes | None, bytes], bytes | None]
"""Returns the new value of the own and the other agent's value; None: no change.

Raises anything for an invalid value.
"""

_MOST: Final = 1e12  # exclusive bound of counts and wall times


class RowKind(NamedTuple):
    """Rows of a mapping that go: keys begin with *prefix*, then *by*."""

    by: KeyedBy
    merge: Merge
    prefix: bytes = b""


def _first(mine: bytes | None, theirs: bytes) -> bytes | None:
    return theirs if mine is None else None


def _longer(mine: bytes | None, theirs: bytes) -> bytes | None:
    theirs.decode()
    return theirs if len(theirs) > len(mine or b"") else None


def _word(mine: bytes | None, theirs: bytes) -> bytes | None:
    theirs.decode()
    return _first(mine, theirs)


def _greater(mine: bytes | None, theirs: bytes) -> bytes | None:
    struct.unpack(">I", theirs)
    return theirs if mine is None or theirs > mine else None


def _plan(mine: bytes | None, theirs: bytes) -> bytes | None:
    plan = RevisitPlan.from_bytes(theirs)
    plan.entry()
    history, tags, packed = plan.history, plan.validators, plan.packed or UNPACKED
    headers = tags.etag.encode("latin-1"), tags.last_modified.encode("latin-1")
    if tags != Validators.from_headers(*headers):
        raise ValueError("a plan of a page that its server cannot be asked by")
    numbers = (plan.misses, plan.due, history.last, history.quiet, history.dated, packed.when)
    if not all(0.0 <= number < _MOST for number in numbers):
        raise ValueError("a plan of a page with numbers beyond all bounds")
    if not all(0.0 < number < _MOST for number in (plan.rate, *history.changed)):
        raise ValueError("a plan of a page that never changes, or always")
    return _first(mine, theirs)


def _traps(mine: bytes | None, theirs: bytes) -> bytes | None:
    ground = unpack("", theirs)
    counts = [count for each in ground.counts.values() for count in each.values()]
    if max((ground.mined, *map(abs, counts))) >= _MOST or ground.mined < 0:
        raise ValueError("what is known of traps with counts beyond all bounds")
    return _first(mine, theirs)


def _session_url(mine: bytes | None, theirs: bytes) -> bytes | None:
    struct.unpack(">Q", theirs)
    return _first(mine, theirs)


def _claims(mine: bytes | None, theirs: bytes) -> bytes | None:
    made, true = map(float, msgpack.unpackb(theirs))
    if not (0.0 <= true < _MOST and 0.0 <= made < _MOST):
        raise ValueError("claims beyond all bounds")
    return theirs if made >= true and mine is None else None


def _robots(mine: bytes | None, theirs: bytes) -> bytes | None:
    if not is_row(theirs):
        raise ValueError("no row of robots.txt")
    return theirs if mine is None or later_row(theirs, mine) else None


def _cookies(mine: bytes | None, theirs: bytes) -> bytes | None:
    """Merge both jars; the other agent's cookie wins, since it met the host last."""
    met = {
        (cookie.domain, cookie.path, cookie.name): cookie
        for packed in (mine, theirs) if packed is not None
        for cookie in unpack_cookies(packed, 0.0)
    }  # fmt: skip
    packed = pack_cookies(met.values())
    return packed if packed != mine else None


COOKIES: Final = b"host\0"  # prefix of the cookie rows that go

TRANSFERRED: Final = {
    "cookies": (RowKind(KeyedBy.DOMAIN, _cookies, COOKIES),),
    "lastmod": (RowKind(KeyedBy.IDENTITY, _greater),),
    "robots": (RowKind(KeyedBy.ORIGIN, _robots),),
    "seeds": (RowKind(KeyedBy.IDENTITY, _longer),),
    "sitemaps": (RowKind(KeyedBy.IDENTITY, _word),),
    "sitemap_counts": (RowKind(KeyedBy.HOST, _greater),),
    "revisits": (RowKind(KeyedBy.IDENTITY, _plan, b"p"), RowKind(KeyedBy.HOST, _claims, b"c")),
    "traps": (RowKind(KeyedBy.HOST, _traps), RowKind(KeyedBy.HOST_AND_PAGE, _session_url)),
}
"""The mappings that go, with their kinds of rows."""

KINDS_BY_HOST: Final = tuple(
    (name, kind)
    for name, kinds in TRANSFERRED.items()
    for kind in kinds
    if kind.by not in (KeyedBy.DOMAIN, KeyedBy.ORIGIN)
)
"""Mappings and kinds found by a host's name alone."""


def kind_of_row(name: str, key: bytes, host: str) -> RowKind | None:
    """Return the kind of a row of *host* under *key* in mapping *name*, or None."""
    for kind in TRANSFERRED.get(name, ()):
        if key.startswith(kind.prefix) and _belongs(kind.by, key[len(kind.prefix) :], host):
            return kind
    return None


def _belongs(by: KeyedBy, rest: bytes, host: str) -> bool:
    match by:
        case KeyedBy.IDENTITY:
            return rest.startswith(host_key(host)) and len(rest) > len(host_key(host))
        case KeyedBy.HOST:
            return rest == host.encode()
        case KeyedBy.HOST_AND_PAGE:
            return rest.startswith(page_rows(host))
        case KeyedBy.ORIGIN:
            return b"://" in rest and host_of(robots_origin(rest)) == host
        case KeyedBy.DOMAIN:
            return cookie_domain(rest) == registered_domain(host)


def robots_origin(key: bytes) -> str:
    """Return the origin of a robots.txt row, behind its bucket byte."""
    return key[1:].decode() + "/"


_values = ValueCodec()


def cookie_domain(key: bytes) -> str:
    """Return the domain of a cookie row without prefix; "" if invalid."""
    try:
        found = _values.loads(key)
    except CodecError:
        return ""
    match found:
        case tuple([_, str(domain)]):
            return domain
    return ""
