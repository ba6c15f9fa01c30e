"""Which URLs a job began with: one small row each, for the report that says what became of them.

A row holds the URL, its tag, and whether its scheme was guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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


def note(store: Store, entry: Entry) -> None:
    """Put into the store's next batch that *entry* is a seed; of one that is, all is kept."""
    kv = store.kv(_FAMILY)
    if kv.get(entry.identity) is None:
        kv.put(entry.identity, _row(entry.url, ""))


def mark_of(tag: str, *, guessed: bool) -> str:
    """The mark of an entry whose seed has a *tag*, or whose scheme was *guessed*."""
    return f"{tag}\n{_GUESSED if guessed else ''}".rstrip("\n")


def is_mark(text: str) -> bool:
    """Whether *text* is what `mark_of` makes."""
    tag, guessed = _parts(text)
    return text == mark_of(tag, guessed=guessed)


def mark(store: Store, entry: Entry) -> None:
    """Put the mark of *entry* into the store's next batch; a seed that has a tag keeps it."""
    kv = store.kv(_FAMILY)
    _, tag, guessed = _read(kv.get(entry.identity) or b"")
    new, guessed_now = _parts(entry.mark)
    mark = mark_of(tag or new, guessed=guessed or guessed_now)
    kv.put(entry.identity, _row(entry.url, mark))


def take_guess(store: Store, identity: bytes) -> None:
    """Let nothing of a seed be guessed any more."""
    kv = store.kv(_FAMILY)
    url, tag, _ = _read(kv.get(identity) or b"")
    kv.put(identity, _row(url, mark_of(tag, guessed=False)))


def guessed(store: Store, identity: bytes) -> bool:
    """Whether the scheme of a URL was guessed."""
    return _read(store.kv(_FAMILY).get(identity) or b"")[2]


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


def _row(url: str, mark: str) -> bytes:
    return (f"{url}\n{mark}" if mark else url).encode()


def _read(value: bytes) -> tuple[str, str, bool]:
    url, _, mark = value.decode("utf-8", "replace").partition("\n")
    return url, *_parts(mark)


def _parts(mark: str) -> tuple[str, bool]:
    tag, _, guess = mark.partition("\n")
    return tag, guess == _GUESSED
