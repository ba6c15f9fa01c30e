"""The counters of a job, since its first day (B11: read without counting anything)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.storage.store import Store
from scrapy_spider_suite.urls.traps import Trap

_KEY = b"counters"


@dataclass(slots=True)
class Counters:
    """All are numbers of URLs unless they say otherwise."""

    sequence: int = 0
    """The last sequence number given to an entry."""
    pending: int = 0
    done: int = 0
    failed: int = 0
    filtered: int = 0
    """Times that a URL was offered again."""
    retried: int = 0
    dead_hosts: int = 0
    """Hosts given up."""
    seconds: float = 0.0
    """Seconds of crawling, over all runs."""
    events: dict[Event, int] = field(default_factory=dict)
    """Concluded URLs by what concluded them."""
    bytes: int = 0
    """Bytes received, as far as the download handler tells them; else those of bodies."""
    traps: Counter[Trap] = field(default_factory=Counter)
    """URLs that were refused, failed or put last, by the trap that they lie in."""

    @property
    def has_urls(self) -> bool:
        """Whether the job has, or had, any URL."""
        return bool(self.sequence or self.events)

    def save(self, store: Store) -> None:
        """Put the counters into the store's next batch."""
        row = {f.name: getattr(self, f.name) for f in fields(self)}
        row["events"] = {event.value: count for event, count in self.events.items()}
        row["traps"] = {trap.value: count for trap, count in self.traps.items()}
        store.kv("counters").put(_KEY, msgpack.packb(row))

    @classmethod
    def load(cls, store: Store) -> Counters:
        """Read the counters back; all 0 in a new job. Raises `JobDamagedError`."""
        data = store.kv("counters").get(_KEY)
        if data is None:
            return cls()
        try:
            row = msgpack.unpackb(data)
            events = {Event(name): int(count) for name, count in row.pop("events").items()}
            # A job that was made before they were counted has none.
            met = row.pop("traps", {}).items()
            traps = Counter({Trap(name): int(count) for name, count in met})
            seconds = float(row.pop("seconds"))
            return cls(
                **{name: int(count) for name, count in row.items()},
                seconds=seconds, events=events, traps=traps,
            )  # fmt: skip
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise JobDamagedError(f"the job's counters cannot be read ({error})") from error
