"""Which URLs a job began with: one small row each, for the report that says what became of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.storage.records import UrlState
from scrapy_spider_suite.storage.store import Store

_FAMILY = "seeds"


@dataclass(frozen=True, slots=True)
class SeedRow:
    """One seed; *state* is None if the job has none of it any more."""

    url: str
    tag: str
    state: UrlState | None


def note(store: Store, entry: Entry, tag: str = "") -> None:
    """Put into the store's next batch that *entry* is a seed; *tag* says where it came from."""
    value = f"{entry.url}\n{tag}" if tag else entry.url
    store.kv(_FAMILY).put(entry.identity, value.encode())


def seeds(store: Store) -> Iterator[SeedRow]:
    """Every seed, host by host. Raises `JobDamagedError` if a state cannot be read."""
    for identity, value in store.kv(_FAMILY).items():
        url, _, tag = value.decode("utf-8", "replace").partition("\n")
        state = store.state(identity)
        yield SeedRow(url, tag, None if state is None else UrlState.from_bytes(state))
