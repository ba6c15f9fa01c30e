"""Plain values that msgpack has no form for: each as one extension type of msgpack, by its text or
bytes.

Every function here takes and returns a value of exactly one class and looks nothing up by name,
except a time zone, which has to be one of the system's.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo, available_timezones

from scrapy_spider_suite.errors import CodecError

BIG_INT = 0x10
"""Extension code of integers beyond 64 bits: two's complement, big-endian."""

_MICROSECOND = timedelta(microseconds=1)
_OFFSET = re.compile(r"([+-]\d{1,12})(?:=(.*))?", re.DOTALL)


class Leaf(NamedTuple):
    """How the values of one class are written: ``decode(encode(value))`` equals *value*."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def big_int_bytes(value: int) -> bytes:
    """Return the bytes of an int of any size."""
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _as_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _by_text(cls: type) -> Leaf:
    """A class whose ``str()`` its constructor reads back exactly."""
    return Leaf(lambda value: _as_bytes(str(value)), lambda data: cls(_as_text(data)))


@cache
def _zones() -> frozenset[str]:
    """The zones that exist here: an unknown key would have ``zoneinfo`` import a package for it."""
    return frozenset(available_timezones())


def _zone_text(zone: tzinfo) -> str:
    if type(zone) is ZoneInfo and zone.key in _zones():
        return zone.key
    if type(zone) is not timezone:
        raise CodecError(f"time zone {zone!r} has no stored form")
    offset = zone.utcoffset(None)
    name = zone.tzname(None)
    named = "" if name == timezone(offset).tzname(None) else f"={name}"
    return f"{offset // _MICROSECOND:+d}{named}"


def _zone(text: str) -> tzinfo:
    match = _OFFSET.fullmatch(text)
    if match is None:
        if text not in _zones():
            raise CodecError(f"there is no time zone {text!r} here")
        return ZoneInfo(text)
    offset = timedelta(microseconds=int(match[1]))
    return timezone(offset) if match[2] is None else timezone(offset, match[2])


def _write_time(value: datetime | time) -> bytes:
    """ISO text, ``~`` if it is the second of two equal clock times, then a space and the zone."""
    text = value.replace(tzinfo=None, fold=0).isoformat() + "~" * value.fold
    return _as_bytes(text if value.tzinfo is None else f"{text} {_zone_text(value.tzinfo)}")


def _read_time(data: bytes, cls: type[datetime] | type[time]) -> datetime | time:
    clock, aware, zone = _as_text(data).partition(" ")
    value = cls.fromisoformat(clock.removesuffix("~"))
    fold = int(clock.endswith("~"))
    return value.replace(fold=fold, tzinfo=_zone(zone) if aware else None)


def _write_span(value: timedelta) -> bytes:
    return f"{value.days},{value.seconds},{value.microseconds}".encode()


def _read_span(data: bytes) -> timedelta:
    days, seconds, microseconds = data.split(b",")
    return timedelta(int(days), int(seconds), int(microseconds))


LEAVES: dict[type, tuple[int, Leaf]] = {
    bytearray: (0x11, Leaf(bytes, bytearray)),
    datetime: (0x12, Leaf(_write_time, lambda data: _read_time(data, datetime))),
    date: (
        0x13,
        Leaf(lambda day: day.isoformat().encode(), lambda data: date.fromisoformat(data.decode())),
    ),
    time: (0x14, Leaf(_write_time, lambda data: _read_time(data, time))),
    timedelta: (0x15, Leaf(_write_span, _read_span)),
    Decimal: (0x16, _by_text(Decimal)),
    UUID: (0x17, Leaf(lambda value: value.bytes, lambda data: UUID(bytes=data))),
    PurePosixPath: (0x18, _by_text(PurePosixPath)),
    PureWindowsPath: (0x19, _by_text(PureWindowsPath)),
    type(Path()): (0x1A, _by_text(Path)),
    ipaddress.IPv4Address: (0x1B, _by_text(ipaddress.IPv4Address)),
    ipaddress.IPv6Address: (0x1C, _by_text(ipaddress.IPv6Address)),
    ipaddress.IPv4Network: (0x1D, _by_text(ipaddress.IPv4Network)),
    ipaddress.IPv6Network: (0x1E, _by_text(ipaddress.IPv6Network)),
    ipaddress.IPv4Interface: (0x1F, _by_text(ipaddress.IPv4Interface)),
    ipaddress.IPv6Interface: (0x20, _by_text(ipaddress.IPv6Interface)),
}
"""Class -> its extension code, fixed for ever, and its form."""

DECODERS: dict[int, Callable[[bytes], Any]] = {
    BIG_INT: lambda data: int.from_bytes(data, "big", signed=True),
    **{code: leaf.decode for code, leaf in LEAVES.values()},
}
"""Extension code -> how its payload is read; raises ValueError and its kin for bad payloads."""
