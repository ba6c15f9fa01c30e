"""What is kept of sitemaps beside the states of URLs, by their state keys.

Of a page, when it changed last (four bytes, for later visits); of a sitemap, the host that vouches
for it, so that it is read as one when it is fetched again; of that host, how many it vouches for.
"""

from __future__ import annotations

import struct

from scrapy_spider_suite.storage.store import Store

_LASTMOD, _SITEMAPS, _COUNTS = "lastmod", "sitemaps", "sitemap_counts"
_ROW = struct.Struct(">I")


def note_lastmod(store: Store, identity: bytes, when: int) -> None:
    """Put into the next batch that a page changed at *when*, in seconds since the epoch.

    *when* lies from 1970 to 2105.
    """
    store.kv(_LASTMOD).put(identity, _ROW.pack(when))


def lastmod(store: Store, identity: bytes) -> int | None:
    """When a page changed, by the last sitemap that said so; None if none did."""
    row = store.kv(_LASTMOD).get(identity)
    return None if row is None or len(row) != _ROW.size else int(_ROW.unpack(row)[0])


def note_sitemap(store: Store, identity: bytes, voucher: str) -> None:
    """Put into the next batch that the host *voucher* vouches for a sitemap."""
    store.kv(_SITEMAPS).put(identity, voucher.encode())


def voucher_of_sitemap(store: Store, identity: bytes) -> str | None:
    """The host that vouches for a sitemap; None for what is none."""
    row = store.kv(_SITEMAPS).get(identity)
    return None if row is None else row.decode()


def vouched(store: Store, host: str) -> int:
    """How many sitemaps *host* vouches for."""
    row = store.kv(_COUNTS).get(host.encode())
    return 0 if row is None or len(row) != _ROW.size else int(_ROW.unpack(row)[0])


def count_vouched(store: Store, host: str, number: int) -> None:
    """Put into the next batch that it vouches for *number* of them."""
    store.kv(_COUNTS).put(host.encode(), _ROW.pack(number))


def forget_url(store: Store, identity: bytes) -> None:
    """Forget what sitemaps say of a URL, or that it is one."""
    store.kv(_LASTMOD).delete(identity)
    store.kv(_SITEMAPS).delete(identity)


def forget_host(store: Store, host: str) -> None:
    """Forget how many sitemaps *host* vouches for."""
    store.kv(_COUNTS).delete(host.encode())
