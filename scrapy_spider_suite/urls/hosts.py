"""Names of vertices, so that what belongs together lies together.

The registered domain of a host: the part of its name that somebody paid for.

By the list of public suffixes (https://publicsuffix.org) that came with tldextract, its private
section included: two sites of one blog host are two domains.

SURT: a URL with its host turned round, so that what belongs together has one beginning.

``http://www.example.org/a`` is ``http://(org,example,www,)/a`` (Heritrix 3, *Sort-friendly URI
Reordering Transform*). Here without the scheme: http and https count as one.

What a host or a URL looks like where it is named: in text, JSON, scripts, other URLs.

Patterns of bytes, for what is not taken apart: of JSON the letter of ``
`` stands right before a
name, of a URL in a query the digits of ``%2F``. Neither belongs to it.

The seeds' hash sums: which node, phase, terminal or thread a URL falls to (K1, K4, T8).

KSpider adds up the characters of the whole URL for a node, and of the host for a phase (§2.1,
§2.2). Tarantula adds up every other character of the host for a terminal and for a thread of it
(§5.1). Both of its equations are printed with the same modulus, "total number of threads per
crawler system", while its text has them tell terminals and threads; and "even" and "odd"
characters are not said to count from 0 or from 1. Here each has a modulus of its own, and the first
character is an even one.

URLs are in normal form, and so are hosts: of characters that are no ASCII their bytes in UTF-8
count. Each function raises `ValueError` if there is none to fall to.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from tldextract import TLDExtract

from scrapy_spider_suite.urls.normalize import split_url


def reverse_host(host: str) -> str:
    """``com.example.www`` for ``www.example.com``, and back: Common Crawl's names of hosts.

    An IPv6 literal in its brackets stays as it is.
    """
    return host if host[-1:] == "]" else ".".join(host.split(".")[::-1])


# The list that came with the package: the default would fetch a newer one, and stop the crawl
# while it does.
_split = TLDExtract(suffix_list_urls=(), cache_dir=None, include_psl_private_domains=True)


def load_suffixes() -> None:
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


def surt(url: str) -> str:
    """The SURT of a normal *url*, from its opening parenthesis on."""
    _, host, port, path = split_url(url)
    turned = host if host[-1] == "]" else ",".join(reversed(host.split("."))) + ","
    return f"({turned}:{port}){path}" if port else f"({turned}){path}"


def surt_prefix(prefix: str) -> str:
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
    """Where *host* is named; ``*.example.com``: or one below it.

    ``example.com`` is no part of ``www.example.com``, nor of ``example.com.test``. *backwards*: the
    name with its labels in reverse order, if that is sought, too.
    """
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
    """Where *url*, and no longer one, is named: as it is, escaped as in JSON, or in another URL."""
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
    """How one sign of a URL may be written."""
    if sign.isalnum() or sign in b"-._~":
        return re.escape(sign)
    code = sign.hex().encode()
    ways = [re.escape(sign), rb"%(?:25)?(?i:" + code + rb")", rb"\\(?:u00|x)(?i:" + code + rb")"]
    ways += [rb"\\/"] if sign == b"/" else []
    # The longest first: `&` begins `&amp;`, and `%` begins `%25`.
    ways = [b"&amp;", *ways] if sign == b"&" else ways
    return rb"(?:" + b"|".join([*ways[1:], ways[0]] if sign == b"%" else ways) + rb")"


def node_of(url: str, nodes: int) -> int:
    """The node, from 0, that is responsible for *url* (KSpider, figure 2)."""
    return _bucket(url.encode(), nodes)


def phase_of(host: str, phases: int) -> int:
    """The phase, from 0, in which the pages of *host* are fetched (KSpider, figure 4)."""
    return _bucket(host.encode(), phases)


def terminal_of(host: str, terminals: int) -> int:
    """The terminal, from 0, that has the URLs of *host* (Tarantula, equation 1)."""
    return _bucket(host.encode()[::2], terminals)


def thread_of(host: str, threads: int) -> int:
    """The thread of its terminal, from 0, whose trie holds *host* (Tarantula, equation 2)."""
    return _bucket(host.encode()[1::2], threads)


def _bucket(text: bytes, count: int) -> int:
    if count < 1:
        raise ValueError(f"{count} is no number to divide by: expected at least 1")
    return sum(text) % count


def is_on_host(url: str, host: str) -> bool:
    """Whether *url* is of *host*, which may be ``*.example.com``."""
    name = host_of_any(url)
    if host.startswith("*."):
        return name == host[2:] or name.endswith(host[1:])
    return name == host


def host_of_any(url: str) -> str:
    """The host of *url* in lower case, without a dot at its end; "" if it has none."""
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""
