"""A leased URL: handed out, and not yet done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_spider_suite.frontier.entries import Entry, Flag
from scrapy_spider_suite.frontier.outcomes import OUTCOMES, Event, Retry, State
from scrapy_spider_suite.frontier.workbench import Visit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy_spider_suite.analysis.duplicates import Likeness
    from scrapy_spider_suite.analysis.link_stats import PageFacts
    from scrapy_spider_suite.packs import Fetch
    from scrapy_spider_suite.packs.item_file import Pile
    from scrapy_spider_suite.packs.stored_pages import Stored
    from scrapy_spider_suite.storage.planning import Found
    from scrapy_spider_suite.store.revisit_plans import Packed, Plan
    from scrapy_spider_suite.urls.extract import Edge

# Plain integers: operators of flags are Python code.
_USER, _SPECULATIVE = int(Flag.USER), int(Flag.SPECULATIVE)


_OF_PAGES = (
    Event.PIPELINE_ERROR, Event.CALLBACK_ERROR, Event.NOT_PARSED, Event.NOT_STORED,
)  # fmt: skip
"""What may become of a page that came as it should; the first that holds counts."""


def _is_link(entry: Entry) -> bool:
    return not entry.flags & _USER


class Lease:
    """One URL on its way through fetching, callbacks and pipelines.

    It becomes done in one commit with everything that came of it: *children* (entries that a
    spider yielded) and *links* (normal forms of bulk links, whose depth is one more than the
    page's, and whose *referrer_policy* is what it sent). *states* are those of the volatile entries
    that it led to, by state key, to be written with its own. While *holds* is above 0, something
    that must be durable first is not yet.
    """

    __slots__ = (
        "asked", "booked", "children", "entry", "event", "facts", "faults", "fetches", "found",
        "heard", "held_since", "holds", "items", "last", "likeness", "links", "outlinks", "packed",
        "plan", "received", "referrer_policy", "retry_after", "settled", "states", "status",
        "stored", "unread", "visit", "wanted",
    )  # fmt: skip

    def __init__(self, entry: Entry, visit: Visit | None) -> None:
        self.entry = entry
        self.visit = visit
        self.children: list[Entry] = []
        self.links: list[str] = []
        self.referrer_policy = 0
        self.fetches: list[Fetch] = []  # answers that are to be packed
        self.outlinks: Sequence[Edge] = ()  # of the last of them
        self.wanted = False  # whether there was an item of the page itself
        self.items: Pile | None = None  # that are to be written
        self.last: Callable[[Lease, Pile], None] | None = None  # writes them, last of all
        self.unread: object = None  # its page, if the links of that are read later
        self.stored: Stored | None = None  # and where it is packed
        self.facts: PageFacts | None = None  # what is to be counted of it
        self.plan: Plan | None = None  # of a page that is visited again
        self.asked = False  # only for the page if it has changed
        self.found: Found | None = None  # what the visit found, where pages have plans
        self.likeness: Likeness | None = None  # to pages that were there before
        self.packed: Packed | None = None  # where its body is packed
        self.event = Event.IGNORED
        self.faults: set[Event] = set()
        self.heard: Event | None = None  # what came of the wire, if it was used
        self.retry_after: float | None = None  # seconds that the host asked for
        self.status = 0
        self.booked = 0.0  # bytes that the bandwidth expects of it
        self.received = 0  # bytes that came
        self.holds = 0
        self.held_since: float | None = None
        self.settled = False
        self.states: list[tuple[bytes, bytes]] = []

    def verdict(self) -> Event:
        """How it ended: what stopped it goes before what its callbacks and pipelines did."""
        for event in (Event.INTERRUPTED, Event.DISK_FULL):
            if event in self.faults:
                return event
        if self.event is Event.SUCCESS:
            for event in _OF_PAGES:
                if event in self.faults:
                    return event
        if self.event is Event.CLIENT_ERROR and self.entry.flags & _SPECULATIVE:
            return Event.NOT_THERE
        return self.event

    def fate(self, retry_times: int) -> tuple[State, Event, bool]:
        """What becomes of its URL, for which reason, and whether this counts as an attempt."""
        event = self.verdict()
        outcome = OUTCOMES[event]
        tried = outcome.retry is not Retry.HOST
        ours = not self.entry.flags & _USER
        return outcome.after(self.entry.attempts + tried, retry_times, ours=ours), event, tried

    def near_the_end(self) -> None:
        """Let its items be written if only they hold it."""
        last, items = self.last, self.items
        if self.holds == 1 and last is not None and items is not None:
            self.last = self.items = None
            last(self, items)

    def take_children(self) -> list[Entry]:
        """Take the entries that it has brought so far: a spider's own requests first."""
        children, self.children = self.children, []
        return sorted(children, key=_is_link)

    def take_links(self) -> list[str]:
        """Take the bulk links."""
        links, self.links = self.links, []
        return links
