"""Which trap a URL lies in, by what a job has stored: the answers that the crawl gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from scrapy_spider_suite.crawl.queue.traps import (
    ASKED_FOR,
    BEHIND,
    LAST,
    Traps,
    TrapStats,
    UrlMiner,
)
from scrapy_spider_suite.explaining.terms import Terms
from scrapy_spider_suite.frontier.entries import Entry, host_key
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.urls.normalize import host_of
from scrapy_spider_suite.urls.traps import Trap, TrapRefusal
from scrapy_spider_suite.urls.url_spaces import folders, path_and_query, sorted_query

MINING = "mining"
"""The rule by which what nobody linked to is forgotten."""


class Ruling(NamedTuple):
    """Why a URL is refused, by which rule, and where that is laid down."""

    rule: str
    why: str
    where: str


def in_words(terms: Terms, refusal: TrapRefusal) -> Ruling:
    """*refusal* in words."""
    why = str(refusal) if refusal.trap is Trap.PREFIX else f"a trap: {refusal}"
    return Ruling("trap", why, terms.where(f"SUITE_TRAP_{refusal.trap.name}"))


class TrapJudge:
    """Asks of URLs of one job. What a crawl remembers in memory is read from its *store* here."""

    def __init__(self, terms: Terms, policy: Policy, store: RocksStore) -> None:
        self._terms = terms
        self._policy = policy
        self._store = store
        self._grounds = grounds = TrapStats(store)
        self._traps = Traps(store, policy, grounds, _nothing, self._has_values)
        self._miner = UrlMiner(grounds, _nothing)

    def of_link(self, url: str, host: str) -> Ruling | None:
        """What becomes of a link to the normal *url* on *host*, whatever that betrays by itself."""
        refusal = self._permuted(url, host) or self._traps.closed(url, host)
        return None if refusal is None else in_words(self._terms, refusal)

    def at_its_turn(self, entry: Entry) -> Ruling | None:
        """What becomes of *entry*, which is pending."""
        if entry.flags & ASKED_FOR:
            return None
        if self._miner.gave_up(entry):
            why = "mined, and too many like it are not there"
            return Ruling(MINING, why, self._terms.where("SUITE_GUESS_URLS"))
        refusal = self._traps.waited_in(entry.url, entry.host)
        return None if refusal is None else in_words(self._terms, refusal)

    def put_last(self, entry: Entry) -> Ruling | None:
        """Why *entry*, which is pending, comes after the others of its host, if it is for a trap.

        Its priority fell with each of its folders that had had its share, the first one first.
        """
        fell = 0 if entry.flags & ASKED_FOR else round(-entry.priority / BEHIND)
        if fell >= LAST // BEHIND:
            space = self._traps.numbered(entry.url, self._grounds.get(entry.host))
            found = space or path_and_query(entry.url)
            return in_words(self._terms, TrapRefusal(Trap.NUMBERS, found))
        path = path_and_query(entry.url).partition("?")[0]
        if fell <= 0 or not (crowded := [*folders(path)][-fell:]):
            return None
        return in_words(self._terms, TrapRefusal(Trap.PREFIX, crowded[0]))

    def _permuted(self, url: str, host: str) -> TrapRefusal | None:
        """What the job knows that differs from *url* in the order of its query only."""
        store, query = self._store, sorted_query(url)
        if not self._policy.traps.permuted or "&" not in url:
            return None
        if store.state(host_key(host) + url.encode()) is not None:
            return None
        for each in self._queries(f"{url.partition('?')[0]}?", host):
            if sorted_query(each) == query:
                return TrapRefusal(Trap.PERMUTED, each)
        return None

    def _has_values(self, space: str, parameters: list[str]) -> bool:
        """Whether the job knows URLs that begin with *space* with each of *parameters*."""
        missing = set(parameters)
        for each in self._queries(space, host_of(space)):
            missing.difference_update(each[len(space) :].split("&"))
            if not missing:
                return True
        return False

    def _queries(self, space: str, host: str) -> Iterator[str]:
        """The URLs of *host* that begin with *space*, as far as the job knows them."""
        for name, _ in self._store.states(host_key(host), space.encode()):
            url = name.decode("utf-8", "replace")
            if not url.startswith(space):
                break
            yield url
        if self._store.archive is not None:
            yield from self._store.archive.urls.iter(space)


def _nothing(identity: bytes) -> bool:
    """No page is read here that could lead to anything."""
    return False
