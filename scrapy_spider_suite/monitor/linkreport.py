"""What the link statistics say, in a few numbers and lists that do not grow with the crawl."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nlargest
from math import sqrt

from scrapy_spider_suite.monitor.linkstats import HostLinks, LinkStats


@dataclass(frozen=True, slots=True)
class Spread:
    """How a number is spread: what BUbiNG calls SummaryStats. All 0 of nothing."""

    count: int = 0
    least: int = 0
    most: int = 0
    mean: float = 0.0
    deviation: float = 0.0
    """The standard deviation, of all and not of a sample."""

    @classmethod
    def of(cls, numbers: Iterable[tuple[int, int]]) -> Spread:
        """Of pairs of a number and how often it occurs, in one pass."""
        count = total = squares = most = 0
        least: int | None = None
        for number, times in numbers:
            count += times
            total += number * times
            squares += number * number * times
            most = max(most, number)
            least = number if least is None else min(least, number)
        if not count:
            return cls()
        # Whole numbers until here, so nothing is lost by the difference of two large ones.
        variance = (squares * count - total * total) / (count * count)
        return cls(count, least or 0, most, total / count, sqrt(variance))


@dataclass(frozen=True, slots=True)
class LinkReport:
    """``tables``: of names, the most frequent first. ``degrees``: how often each degree occurs,
    of pages (``out``, ``external``) and of hosts (``out_hosts``, ``in_hosts``). ``most_linked``:
    hosts by how many others link to them. ``hosts``: how many are known, fetched from or not.
    """

    totals: HostLinks
    hosts: int
    degrees: dict[str, dict[int, int]]
    tables: dict[str, list[tuple[str, int]]]
    most_linked: list[tuple[str, HostLinks]]

    def spread(self, name: str) -> Spread:
        """Of the degrees *name*."""
        return Spread.of(self.degrees[name].items())


def report(stats: LinkStats, top: int = 20) -> LinkReport:
    """Read all of *stats* as it was saved last; *top*: rows of each list.

    Walks over the rows of all hosts, 5 to 10 µs each. Memory grows with the number of different
    degrees only, of which n edges between hosts have no more than the square root of 2 n.
    """
    degrees = {
        name: {int(key): count for key, count in stats.table(name)} for name in ("out", "external")
    }
    out: Counter[int] = Counter()
    into: Counter[int] = Counter()
    hosts = 0

    def counted() -> Iterable[tuple[str, HostLinks]]:
        nonlocal hosts
        for host, links in stats.hosts():
            hosts += 1
            out[links.out_hosts] += 1
            into[links.in_hosts] += 1
            yield host, links

    most = nlargest(top, counted(), key=lambda row: (row[1].in_hosts, row[1].in_links))
    degrees |= {"out_hosts": dict(out), "in_hosts": dict(into)}
    tables = {
        name: nlargest(top, stats.table(name), key=lambda row: row[1])
        for name in ("statuses", "types", "languages", "anchors")
    }
    tables["sizes"] = list(stats.table("sizes"))
    return LinkReport(stats.totals(), hosts, degrees, tables, most)
