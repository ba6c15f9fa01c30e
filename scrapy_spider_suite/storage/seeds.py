"""Which URLs a job began with: one small row each, for the report that says what became of them.

A row holds the URL, its tag, and whether its scheme was guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.storage.records import UrlState
from scrapy_spider_suite.storage.store import Store

_FAMILY = "seeds"
_GUESSED = "?"


@dataclass(frozen=True, slots=True)
class SeedRow:
    """One seed; *state* is None if the job has none of it any more."""

    url: str
    tag: str
    state: UrlState | None


class Mark(NamedTuple):
    """What is known of a seed besides its URL; *identity* is its state key."""

    host: str
    url: str
    identity: bytes
    tag: str = ""
    guessed: bool = False
    """Whether its scheme was."""


def note(store: Store, entry: Entry) -> None:
    """Put into the store's next batch that *entry* is a seed."""
    store.kv(_FAMILY).put(entry.identity, entry.url.encode())


def mark(store: Store, seed: Mark) -> None:
    """Keep with a *seed* what is known of it; what has a tag keeps it."""
    kv = store.kv(_FAMILY)
    _, tag, mark = _read(kv.get(seed.identity) or b"")
    marks = _GUESSED if seed.guessed else mark
    kv.put(seed.identity, f"{seed.url}\n{tag or seed.tag}\n{marks}".rstrip("\n").encode())


def take_guess(store: Store, identity: bytes) -> str:
    """Let nothing of a seed be guessed any more; return its tag."""
    kv = store.kv(_FAMILY)
    url, tag, _ = _read(kv.get(identity) or b"")
    kv.put(identity, f"{url}\n{tag}".rstrip("\n").encode())
    return tag


def guessed(store: Store, identity: bytes) -> bool:
    """Whether the scheme of a URL was guessed."""
    return bool(_read(store.kv(_FAMILY).get(identity) or b"")[2])


def tag_of(store: Store, identity: bytes) -> str | None:
    """The tag of a seed, "" for one without; None for what is no seed."""
    value = store.kv(_FAMILY).get(identity)
    return None if value is None else _read(value)[1]


def seeds(store: Store) -> Iterator[SeedRow]:
    """Every seed, host by host. Raises `JobDamagedError` if a state cannot be read."""
    for identity, value in store.kv(_FAMILY).items():
        url, tag, _ = _read(value)
        state = store.state(identity)
        yield SeedRow(url, tag, None if state is None else UrlState.from_bytes(state))


def _read(value: bytes) -> tuple[str, str, str]:
    url, tag, mark = [*value.decode("utf-8", "replace").split("\n"), "", ""][:3]
    return url, tag, mark
