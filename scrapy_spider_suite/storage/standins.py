"""Pages that come with ever new session ids: one URL stands for each, the first that was taken.

Only where the ids are known to make no difference. A row is some 20 bytes and the host's name.
"""

from __future__ import annotations

import xxhash

from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.outcomes import OUTCOMES, Event, State
from scrapy_spider_suite.storage.grounds import Grounds, page_rows
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.urls.url_spaces import Session, session_of


class StandIns:
    """Which URL stands for a page, in *kv*."""

    def __init__(self, kv: KV, grounds: Grounds) -> None:
        self._kv = kv
        self._grounds = grounds

    def session(self, url: str, host: str) -> Session | None:
        """The session id in the normal *url* on *host*, if it makes no difference there."""
        ground = self._grounds.get(host)
        if ground is None or not ground.closed:
            return None
        session = session_of(url)
        return session if session is not None and ground.is_empty_session(session.name) else None

    def other(self, url: str, host: str) -> str | None:
        """The page of the normal *url* on *host*, path and query, if another URL stands for it."""
        session = self.session(url, host)
        known = None if session is None else self._kv.get(_key(host, session))
        return None if session is None or known in (None, _short(url)) else session.page

    def claim(self, url: str, host: str) -> None:
        """The normal *url* on *host* stands for its page, unless another one does."""
        session = self.session(url, host)
        if session is not None:
            key = _key(host, session)
            if self._kv.get(key) is None:
                self._kv.put(key, _short(url))

    def concluded(self, entry: Entry, event: Event) -> None:
        """*entry* has ended with *event*: if it is no page, another URL may stand for it."""
        if event is not Event.REPLACED and OUTCOMES[event].state is State.DONE:
            return
        session = self.session(entry.url, entry.host)
        if session is not None:
            key = _key(entry.host, session)
            if self._kv.get(key) == _short(entry.url):
                self._kv.delete(key)


def _short(url: str) -> bytes:
    return xxhash.xxh3_64_digest(url.encode())


def _key(host: str, session: Session) -> bytes:
    """The key of a page's row; begins as all of its host do."""
    return page_rows(host) + xxhash.xxh3_64_digest(f"{session.name} {session.page}".encode())
