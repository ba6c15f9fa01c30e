"""Names of hosts: domains, SURTs (Heritrix 3, no scheme), mentions in text, sums, and the scope.

Domains are by the list of public suffixes in tldextract, its private section included. Hash sums
are KSpider's (§2.1, §2.2) and Tarantula's (§5.1, with a modulus of its own for each equation, and
an even first character); a count below 1 raises `ValueError`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from enum import StrEnum
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from scrapy_spider_suite.urls.normalize import host_of, normalize, split_url

if TYPE_CHECKING:
    from tldextract import TLDExtract


def reverse_host(host: str) -> str:
    """``com.example.www`` for ``www.example.com``, and back; IPv6 literals stay."""
    return host if host[-1:] == "]" else ".".join(host.split(".")[::-1])


@cache
def _suffixes() -> TLDExtract:
    # Imported here: packs and phases need no list of suffixes.
    from tldextract import TLDExtract

    # The list that came with the package: the default would fetch a newer one, and stop the crawl
    # while it does.
    return TLDExtract(suffix_list_urls=(), cache_dir=None, include_psl_private_domains=True)


def load_suffixes() -> None:
    _suffixes()("")


@lru_cache(maxsize=16_384)
def registered_domain(host: str) -> str:
    """``example.co.uk`` of ``a.example.co.uk``; an unknown top-level domain counts as a suffix.

    An address, a single label or a public suffix is returned as it is.
    """
    parts = _suffixes()(host)
    if parts.suffix or parts.domain == host:
        return f"{parts.domain}.{parts.suffix}" if parts.domain and parts.suffix else host
    return ".".join(host.split(".")[-2:])


@lru_cache(maxsize=16_384)
def is_public_suffix(host: str) -> bool:
    """Whether anybody can register names under *host*: it must not have cookies."""
    return not _suffixes()(host).domain


@lru_cache(maxsize=16_384)
def public_suffix(host: str) -> str:
    """The suffix of *host*: ``co.uk`` of ``a.example.co.uk``; "" of an address."""
    last = "" if host[-1] in "]0123456789" else host.rpartition(".")[2]
    return _suffixes()(host).suffix or last


def lies_in(host: str, domains: Collection[str]) -> bool:
    """Whether *host* is one of *domains*, or lies below one."""
    while host and host not in domains:
        host = host.partition(".")[2]
    return bool(host)


def surt(url: str) -> str:
    """Of a normal *url*, from its opening parenthesis on."""
    _, host, port, path = split_url(url)
    turned = host if host[-1] == "]" else ",".join(reversed(host.split("."))) + ","
    return f"({turned}:{port}){path}" if port else f"({turned}){path}"


def surt_prefix(prefix: str) -> str:
    """*prefix* (``org,example,``, ``https://(org,example,``) as `surt` has it; or `ValueError`."""
    scheme, separator, rest = prefix.rpartition("://")
    if separator and scheme.lower() not in ("http", "https"):
        raise ValueError("SURT prefixes for http or https")
    rest = rest if rest.startswith("(") else f"({rest}"
    authority, parenthesis, path = rest.partition(")")
    if "." in authority or "/" in authority:
        raise ValueError("SURT prefixes such as (org,example,")
    return authority.lower() + parenthesis + path


_NO_PART: Final = (  # in hexadecimal digits: what is no letter, digit, hyphen, dot, underscore
    rb"(?i:[01][0-9a-f]|2[0-9a-cf]|3[a-f]|40|5[b-e]|60|7[b-f]|[89a-f][0-9a-f])"
)
_ESCAPED: Final = b"|".join((
    rb"(?<=\\[nrtbf])",
    *(rb"(?<=" + lead + _NO_PART + rb")" for lead in (rb"%", rb"%25", rb"\\x", rb"\\u00")),
    rb"(?<=\\u(?!00)(?i:[0-9a-f]{4}))",
))  # fmt: skip
_BEFORE: Final = rb"(?:(?<![\w.-])|" + _ESCAPED + rb")"
_BEFORE_OR_ABOVE: Final = rb"(?:(?<![\w-])|" + _ESCAPED + rb")"
_BEHIND: Final = rb"(?![\w-]|\.\w)"
_BEHIND_OR_BELOW: Final = rb"(?![\w-])"

# What would make another URL of one that ends there: a full stop alone would not.
_GOES_ON: Final = rb"(?![\w%/?=-]|\\/|\\(?:u00|x)(?i:2[56f]|3[df])|\.+\w"
_MORE: Final = rb"(?i:2[56f]|3[df]|[89a-f])"


def host_mentions(host: str, backwards: str = "") -> re.Pattern[bytes]:
    """A pattern for *host* (not in ``a.HOST``, ``HOST.b``), or ``*.HOST``, or it *backwards*."""
    name = host.removeprefix("*.")
    below = name != host
    forms = [_form(_BEFORE_OR_ABOVE if below else _BEFORE, name, _BEHIND)]
    if backwards:
        forms.append(_form(_BEFORE, backwards, _BEHIND_OR_BELOW if below else _BEHIND))
    return re.compile(b"|".join(forms), re.IGNORECASE)


def _form(before: bytes, name: str, behind: bytes) -> bytes:
    text = re.escape(name.encode())
    # To look for the name first is ten times as fast.
    return rb"(?=" + text + rb")" + before + text + behind


def url_mentions(url: str) -> re.Pattern[bytes]:
    scheme, _, rest = url.encode().partition(b":")
    spelled = b"".join(_spelled(rest[at : at + 1]) for at in range(len(rest)))
    # `&` ends one that has no query, and one that is the value of a parameter.
    forms = [
        rb"(?::|\\(?:u00|x)(?i:3a))" + spelled + _GOES_ON + (rb"|&)" if b"?" in rest else rb")"),
        *(lead + rb"(?i:3a)" + spelled + rb"(?![\w/?-]|" + lead + _MORE + rb"|\.+\w)"
          for lead in (rb"%", rb"%25")),
    ]  # fmt: skip
    return re.compile(re.escape(scheme) + rb"(?:" + b"|".join(forms) + rb")")


def _spelled(sign: bytes) -> bytes:
    if sign.isalnum() or sign in b"-._~":
        return re.escape(sign)
    code = sign.hex().encode()
    ways = [re.escape(sign), rb"%(?:25)?(?i:" + code + rb")", rb"\\(?:u00|x)(?i:" + code + rb")"]
    ways += [rb"\\/"] if sign == b"/" else []
    # The longest first: `&` begins `&amp;`, and `%` begins `%25`.
    ways = [b"&amp;", *ways] if sign == b"&" else ways
    return rb"(?:" + b"|".join([*ways[1:], ways[0]] if sign == b"%" else ways) + rb")"


def node_of(url: str, nodes: int) -> int:
    """From 0 (KSpider, figure 2)."""
    return _bucket(url.encode(), nodes)


def phase_of(host: str, phases: int) -> int:
    """From 0 (KSpider, figure 4)."""
    return _bucket(host.encode(), phases)


def terminal_of(host: str, terminals: int) -> int:
    """From 0 (Tarantula, equation 1)."""
    return _bucket(host.encode()[::2], terminals)


def thread_of(host: str, threads: int) -> int:
    """From 0, in its terminal (Tarantula, equation 2)."""
    return _bucket(host.encode()[1::2], threads)


def _bucket(text: bytes, count: int) -> int:
    if count < 1:
        raise ValueError(f"{count} is no number to divide by: expected at least 1")
    return sum(text) % count


def is_on_host(url: str, host: str) -> bool:
    name = host_of_any(url)
    if host.startswith("*."):
        return name == host[2:] or name.endswith(host[1:])
    return name == host


def host_of_any(url: str) -> str:
    """The host of any *url* in lower case, without a final dot; "" without one."""
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


class OutOfScope(StrEnum):
    OFF_SITE = "off_site"
    TOO_DEEP = "too_deep"
    TOO_DEEP_ON_HOST = "too_deep_on_host"
    TOO_LONG = "too_long"


_REMEMBERED: Final = 50_000
"""Hosts whose decision is kept; when there are more, all are forgotten and decided anew."""


class Scope:
    """The limits of one crawl. A domain that is a URL or has a port allows nothing, as in Scrapy.

    *anywhere_to*: down to which depth links may lead anywhere, so that only their length counts.
    """

    __slots__ = (
        "_anywhere", "_decided", "_depth_limit", "_domains", "_url_length_limit", "anywhere_to",
    )  # fmt: skip

    def __init__(
        self, allowed_domains: Collection[str] | None = None, depth_limit: int = 0,
        url_length_limit: int = 0,
    ) -> None:  # fmt: skip
        self._anywhere: Final = not allowed_domains
        self._domains: Final = frozenset(_as_host(name) for name in allowed_domains or () if name)
        self._depth_limit: Final = depth_limit
        self._url_length_limit: Final = url_length_limit
        self._decided: dict[str, bool] = {}
        self.anywhere_to: Final = (depth_limit or math.inf) if self._anywhere else -math.inf

    def refuses(self, url: str, host: str, depth: int) -> OutOfScope | None:
        """Why the normal *url* on *host* may not be followed at *depth*; None if it may."""
        if 0 < self._depth_limit < depth:
            return OutOfScope.TOO_DEEP
        if 0 < self._url_length_limit < len(url):
            return OutOfScope.TOO_LONG
        if not self.allows(host):
            return OutOfScope.OFF_SITE
        return None

    def allows(self, host: str) -> bool:
        if self._anywhere:
            return True
        decided = self._decided.get(host)
        if decided is None:
            if len(self._decided) >= _REMEMBERED:
                self._decided.clear()
            domain = host
            while domain and domain not in self._domains:
                domain = domain.partition(".")[2]
            decided = self._decided[host] = bool(domain)
        return decided


def _as_host(domain: str) -> str:
    if any(sign in domain for sign in "/?#@\\"):
        return domain
    literal = domain.count(":") > 1 and not domain.startswith("[")
    url = normalize(f"http://[{domain}]/" if literal else f"http://{domain}/")
    has_port = ":" in domain.rpartition("]")[2] and not literal
    return domain if url is None or has_port else host_of(url)
