"""The registered domain of a host: the part of its name that somebody paid for.

By the list of public suffixes (https://publicsuffix.org) that came with tldextract, its private
section included: two sites of one blog host are two domains.
"""

from __future__ import annotations

from functools import lru_cache

from tldextract import TLDExtract

# The list that came with the package: the default would fetch a newer one, and stop the crawl
# while it does.
_split = TLDExtract(suffix_list_urls=(), cache_dir=None, include_psl_private_domains=True)


def load() -> None:
    """Read the list now, which takes some 50 ms, and not with the first host."""
    _split("")


@lru_cache(maxsize=16_384)
def registered_domain(host: str) -> str:
    """Return the part of *host* that somebody registered: ``example.co.uk`` of ``a.example.co.uk``.

    That is *host* itself for an address, for a single label and for a public suffix. A top-level
    domain that the list does not have counts as a suffix, as the list's own rules say.
    """
    parts = _split(host)
    if parts.suffix or parts.domain == host:
        return f"{parts.domain}.{parts.suffix}" if parts.domain and parts.suffix else host
    return ".".join(host.split(".")[-2:])


@lru_cache(maxsize=16_384)
def is_public_suffix(host: str) -> bool:
    """Return whether anybody can register names under *host*, so that it must not have cookies."""
    return not _split(host).domain


@lru_cache(maxsize=16_384)
def public_suffix(host: str) -> str:
    """Return under what *host* was registered: ``co.uk`` of ``a.example.co.uk``; "" of an address.
    """
    return _split(host).suffix or ("" if host[-1] in "]0123456789" else host.rpartition(".")[2])
