"""Whether what several processes did is one polite crawl, by the log of the server they fetched."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.testing import Arrival, SyntheticWeb
from support.fleet import ITEMS, Event, Fleet
from support.polite_crawls import Size, pages_of

SETTLE = 1.0
"""Seconds between the end of an answer and the commit of its page, on a busy machine."""
LATE = 0.5
"""Seconds until a busy server reads a request that was sent, maybe by a process killed since."""
REFUSED = (429, 503)
_KILLS = ("kill", "pause", "cut", "forget")
_FAULTS = (" ERROR: ", " CRITICAL: ", "Traceback (most")
_SHOWN = 8


def url_of(web: SyntheticWeb, arrival: Arrival) -> str:
    """The URL that was asked for."""
    return web.base(web.host_index(arrival.host)) + arrival.path


Moment = tuple[float, float]
"""Something happened between two times of the wall clock."""


def in_flight(
    arrivals: Iterable[Arrival], moment: Moment, settle: float = SETTLE
) -> list[Arrival]:
    """The fetches that were on their way, or not settled yet, then."""
    begin, end = moment
    return [each for each in arrivals if each.start <= end + LATE and begin <= each.end + settle]


@dataclass
class Verdict:
    """What became of a crawl; `broken` says what should not be.

    Args:
        arrivals: the whole log of the server.
        kills: when processes were killed, or stopped in their tracks.
        kept: which agents have kept each URL, in order.
        lapses: what agents did last before they were away for longer than their lease. Who takes
            over does not know what they had fetched, and fetches again what it finds links to.
        said: what else should not have been, as whoever ran them found.
        settle: seconds from the end of an answer until its page is done for good.
    """

    web: SyntheticWeb
    size: Size
    arrivals: Sequence[Arrival]
    kills: Sequence[Moment] = ()
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)
    lapses: Sequence[Event] = ()
    said: Sequence[str] = ()
    settle: float = SETTLE
    reachable: int = 0
    fetched: int = 0
    in_flight: int = 0
    excused: int = 0
    taken_over: int = 0
    missing: list[str] = field(default_factory=list)
    unstored: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        pages = [each for each in sorted(pages_of(self.arrivals)) if each.status not in REFUSED]
        wanted = set(self.web.reachable(obey_robots=True))
        known: dict[str, list[Arrival]] = {}
        for page in pages:
            known.setdefault(url_of(self.web, page), []).append(page)
        self.reachable, self.fetched = len(wanted), len(known)
        self.missing = sorted(wanted - known.keys())
        found = (url for url in wanted if self.web.status(url) == 200)
        self.unstored = sorted(url for url in found if url not in self.kept)
        self.in_flight = sum(len(in_flight(pages, kill, self.settle)) for kill in self.kills)
        self.early = self.size.too_early(self.arrivals)
        for url, fetches in known.items():
            self._repeats(url, fetches)

    def _repeats(self, url: str, fetches: list[Arrival]) -> None:
        for one, other in pairwise(fetches):
            if any(
                in_flight([one], kill, self.settle) and other.start > kill[0] for kill in self.kills
            ):
                self.excused += 1
            elif self._taken_over(one, other):
                self.taken_over += 1
            else:
                began = self.arrivals[0].start
                times = ", ".join(f"{each.start - began:.2f}" for each in fetches)
                by = ", ".join(self.kept.get(url, ())) or "nobody"
                self.again.append(f"{url} at {times} s, kept by {by}")
                return

    def _taken_over(self, one: Arrival, other: Arrival) -> bool:
        """Whether the lease of an agent ended between, so that others may have taken the host."""
        return any(one.end <= lapse.when < other.start for lapse in self.lapses)

    def broken(self) -> Iterator[str]:
        """Each kind of fault, with some of them."""
        for name, found in (
            ("not fetched", self.missing), ("not kept", self.unstored),
            ("fetched twice, and not in flight at a kill", self.again),
            ("too early", self.early), ("processes", list(self.said)),
        ):  # fmt: skip
            if found:
                more = "; …" if len(found) > _SHOWN else ""
                yield f"{name}: {len(found):,}: {'; '.join(found[:_SHOWN])}{more}"
        if self.excused > self.in_flight:
            yield f"fetched twice: {self.excused} of {self.in_flight} in flight at the kills"

    def rows(self) -> Iterator[tuple[str, str]]:
        """What there is to say, as name and value."""
        ends = [each.end for each in self.arrivals] or [0.0]
        yield "pages", f"{self.fetched:,} of {self.reachable:,} fetched, {len(self.missing)} not"
        yield "kept", f"all but {len(self.unstored)} of those that were there"
        yield "fetched twice", (
            f"{self.excused} of {self.in_flight} in flight at {len(self.kills)} kills; "
            f"{len(self.again)} besides"
        )
        yield "taken over", (
            f"{self.taken_over} fetched again by others, after {len(self.lapses)} leases had ended"
        )
        yield "requests", (
            f"{len(self.arrivals):,}, {len(self.early)} sooner than promised after the one before, "
            "of their host or address"
        )
        seconds = max(ends) - min((each.start for each in self.arrivals), default=0.0)
        yield "seconds", f"{seconds:.1f} from the first request to the end of the last"
        yield "processes", f"{len(self.said)} did what they should not"


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Rows of name and value, one below the other."""
    found = list(rows)
    width = max(len(name) for name, _ in found)
    return "\n".join(f"{name:{width}}  {value}" for name, value in found)


def kept_by(folder: Path) -> dict[str, list[str]]:
    """The pages that the agents of a fleet in *folder* have kept: by URL, who had it, in order."""
    path, found = folder / ITEMS, dict[str, list[str]]()
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        found.setdefault(row["url"], []).append(row["agent"])
    return found


def verdict_of(
    fleet: Fleet, web: SyntheticWeb, size: Size, arrivals: Sequence[Arrival],
    grace: float = math.inf, allowed: Sequence[str] = (), settle: float = SETTLE,
) -> Verdict:  # fmt: skip
    """Judge what *fleet* has done; the lease of an agent is *grace* seconds.

    *allowed* are parts of lines that may stand in a log although they are errors.
    """
    kills = sorted((event.when, event.until) for event in fleet.happened(*_KILLS))
    said = [*fleet.wrong]
    for agent in fleet.agents.values():
        faults = [
            line for line in agent.log.splitlines()
            if any(sign in line for sign in _FAULTS) and not any(each in line for each in allowed)
        ]  # fmt: skip
        said += [f"{agent.name} said: {line[:300]}" for line in faults[:_SHOWN]]
        store = agent.job / FOLDER
        if (store / "store").is_dir():
            with StoreReader(store) as reader:
                said += [f"{agent.name}: {wrong}" for wrong in list(reader.check())[:_SHOWN]]
    kept, lapses = kept_by(fleet.folder), fleet.lapses(grace)
    return Verdict(web, size, arrivals, kills, kept, lapses, said, settle)
