"""A leased URL: handed out, and not yet done."""

from __future__ import annotations

from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.workbench import Visit


class Lease:
    """One URL on its way through fetching, callbacks and pipelines.

    It becomes done in one commit with everything that came of it: *children* (entries that a
    spider yielded) and *links* (normal forms of bulk links, whose depth is one more than the
    page's). *states* are those of the volatile entries that it led to, by state key, to be
    written with its own. While *holds* is above 0, something that must be durable first is not yet.
    """

    __slots__ = (
        "children", "entry", "event", "faults", "heard", "held_since", "holds", "links",
        "retry_after", "settled", "states", "status", "visit", "wired",
    )  # fmt: skip

    def __init__(self, entry: Entry, visit: Visit | None) -> None:
        self.entry = entry
        self.visit = visit
        self.children: list[Entry] = []
        self.links: list[str] = []
        self.event = Event.IGNORED
        self.faults: set[Event] = set()
        self.heard: Event | None = None  # what came of the wire, if it was used
        self.retry_after: float | None = None  # seconds that the host asked for
        self.status = 0
        self.holds = 0
        self.held_since: float | None = None
        self.wired = False
        self.settled = False
        self.states: list[tuple[bytes, bytes]] = []

    def verdict(self) -> Event:
        """How it ended: what stopped it goes before what its callbacks and pipelines did."""
        for event in (Event.INTERRUPTED, Event.DISK_FULL):
            if event in self.faults:
                return event
        if self.event is Event.SUCCESS:
            for event in (Event.PIPELINE_ERROR, Event.CALLBACK_ERROR, Event.NOT_STORED):
                if event in self.faults:
                    return event
        return self.event
