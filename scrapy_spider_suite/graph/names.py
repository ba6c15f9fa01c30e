"""Names of vertices, so that what belongs together lies together."""

from __future__ import annotations


def reverse_host(host: str) -> str:
    """``com.example.www`` for ``www.example.com``, and back: Common Crawl's names of hosts.

    An IPv6 literal in its brackets stays as it is.
    """
    return host if host[-1:] == "]" else ".".join(host.split(".")[::-1])
