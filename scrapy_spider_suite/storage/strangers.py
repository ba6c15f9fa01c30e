"""Rows of queues that another agent has made: read as `records` reads them, and not believed."""

from __future__ import annotations

from scrapy_spider_suite.frontier.entries import Entry, host_key
from scrapy_spider_suite.store.rows import unpack_row
from scrapy_spider_suite.store.url_states import is_mark
from scrapy_spider_suite.urls.normalize import host_of


def unpack_strange(host: object, row: object, mark: object = "") -> Entry:
    """The entry of *host* in the *row* of another agent's queue, with its *mark*.

    Raises `ValueError`, or what `unpack_row` does: there is none that could have been stored there.
    """
    if not isinstance(host, str) or "\0" in host or not isinstance(row, bytes):
        raise ValueError(f"{str(host)[:100]!r} has no such row")
    entry = unpack_row(host, b"", row)
    if not entry.url or entry.volatile:
        raise ValueError("a URL that is not pending")
    if entry.url.count("/") < 2:
        raise ValueError(f"{entry.url[:200]!r} is no URL")
    homes = {host}
    if entry.payload is not None:
        homes.add(host_of(entry.url))  # a spider may have chosen another slot than its host
    elif host_of(entry.url) != host:
        raise ValueError(f"{entry.url[:200]!r} is no URL of {host[:100]!r}")
    if not entry.identity.startswith(tuple(map(host_key, homes))):
        raise ValueError("a URL that is known by another host")
    if not (isinstance(mark, str) and is_mark(mark)):
        raise ValueError(f"{str(mark)[:100]!r} is nothing that is known of a seed")
    entry.mark = mark
    return entry
