"""SURT: a URL with its host turned round, so that what belongs together has one beginning.

``http://www.example.org/a`` is ``http://(org,example,www,)/a`` (Heritrix 3, *Sort-friendly URI
Reordering Transform*). Here without the scheme: http and https count as one.
"""

from __future__ import annotations

from scrapy_spider_suite.urls.normalize import split


def surt(url: str) -> str:
    """The SURT of a normal *url*, from its opening parenthesis on."""
    _, host, port, path = split(url)
    turned = host if host[-1] == "]" else ",".join(reversed(host.split("."))) + ","
    return f"({turned}:{port}){path}" if port else f"({turned}){path}"


def host_part(prefix: str) -> str:
    """A SURT prefix as `surt` writes them: ``org,example,`` and ``https://(org,example,`` are one.

    Raises `ValueError`.
    """
    scheme, separator, rest = prefix.rpartition("://")
    if separator and scheme.lower() not in ("http", "https"):
        raise ValueError("SURT prefixes for http or https")
    rest = rest if rest.startswith("(") else f"({rest}"
    authority, parenthesis, path = rest.partition(")")
    if "." in authority or "/" in authority:
        raise ValueError("SURT prefixes such as (org,example,")
    return authority.lower() + parenthesis + path
