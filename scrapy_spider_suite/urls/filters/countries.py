"""The country of an address, by a table that the operator supplies."""

from __future__ import annotations

import ipaddress
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache

from scrapy_spider_suite.errors import SettingsError

_IPV4 = re.compile(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?:/(\d\d?))?", re.ASCII)
_V6_SHIFT = 64
"""Tables do not tell apart what a /64 holds: the upper half of an IPv6 address is enough."""


class Countries:
    """Ranges of addresses with country codes, without overlaps; 18 bytes a range."""

    def __init__(self) -> None:
        self._codes: list[str] = []
        self._tables = {4: _Table(), 6: _Table()}
        self.of = lru_cache(maxsize=65_536)(self._of)
        """The country of a numeric address, "" if no range holds it."""

    @classmethod
    def parse(cls, lines: Iterable[str], source: str) -> Countries:
        """Read ``network,country`` or ``first,last,country`` lines. Raises `SettingsError` with
        the number.
        """
        countries, numbers = cls(), dict[str, int]()
        for number, line in enumerate(lines, 1):
            fields = [field.strip().strip('"') for field in line.partition("#")[0].split(",")]
            if fields == [""]:
                continue
            try:
                version, first, last, code = _row(fields)
            except ValueError as error:
                raise SettingsError(f"SUITE_COUNTRIES: {source}, line {number}: {error}") from None
            index = numbers.setdefault(code, len(numbers))
            countries._tables[version].rows.append((first, last, index, number))
        countries._codes = list(numbers)
        for table in countries._tables.values():
            table.close(source)
        return countries

    def __len__(self) -> int:
        return sum(len(table.firsts) for table in self._tables.values())

    def _of(self, address: str) -> str:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return ""
        inner = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
        number, version = int(inner or found), 4 if inner else found.version
        index = self._tables[version].find(number >> _V6_SHIFT if version == 6 else number)
        return "" if index is None else self._codes[index]


class _Table:
    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int]] = []
        self.firsts, self._lasts, self._codes = array("Q"), array("Q"), array("H")

    def close(self, source: str) -> None:
        """Finish the table. Raises `SettingsError` for an overlap."""
        before = -1
        for first, last, index, number in sorted(self.rows):
            if first <= before:
                raise SettingsError(
                    f"SUITE_COUNTRIES: {source}, line {number}: overlaps another range"
                )
            before = last
            self.firsts.append(first)
            self._lasts.append(last)
            self._codes.append(index)
        self.rows = []

    def find(self, number: int) -> int | None:
        at = bisect_right(self.firsts, number) - 1
        return self._codes[at] if at >= 0 and number <= self._lasts[at] else None


def _row(fields: list[str]) -> tuple[int, int, int, str]:
    *place, code = fields
    if not (len(code) == 2 and code.isascii() and code.isalpha()):
        raise ValueError(f"{code!r} is no country code of two letters")
    if len(place) not in (1, 2):
        raise ValueError("expected network,country or first,last,country")
    version, first, last = _range(place[0])
    if len(place) == 2:
        other, _, last = _range(place[1])
        if other != version or first > last:
            raise ValueError("the first address is beyond the last")
    shift = _V6_SHIFT if version == 6 else 0
    return version, first >> shift, last >> shift, code.upper()


def _range(text: str) -> tuple[int, int, int]:
    easy = _IPV4.fullmatch(text)
    if easy is not None:  # ten times as fast, and most are
        a, b, c, d, length = map(int, easy.groups(default="32"))
        first, rest = a << 24 | b << 16 | c << 8 | d, (1 << 32 >> length) - 1
        if max(a, b, c, d) < 256 and length <= 32 and not first & rest:
            return 4, first, first | rest
    network = ipaddress.ip_network(text)
    return network.version, int(network.network_address), int(network.broadcast_address)
