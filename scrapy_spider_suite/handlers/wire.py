"""A request as bytes: where it goes, and how HTTP/1.1 writes it.

What is written is what Scrapy's own HTTP/1.1 handler writes, with two differences: ``Host`` comes
first (RFC 9110 §7.2 asks for that), and the message's framing is always ours, so a
``Content-Length`` or ``Transfer-Encoding`` among the request's headers cannot contradict the body.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec import Struct
from scrapy.exceptions import UnsupportedURLSchemeError

from scrapy_spider_suite.handlers.errors import UnsendableRequestError

_PORTS: Final = {"http": 80, "https": 443}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^#]*)")
_TARGET = re.compile(rb"[\x21-\x7e]+")
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HOST = re.compile(r"[^\s\\/?#@:\[\]\x00-\x20\x7f]+|\[[0-9A-Fa-f:.]+\]")
_PORT = re.compile(r"[0-9]{0,5}")
_MAX_NETLOC: Final = 2048
"""Characters of user name, password, host and port; many such are remembered, and the IDNA codec
takes half a second for 60,000."""
_NEVER_SENT: Final = frozenset({b"Content-Length", b"Transfer-Encoding", b"Proxy-Authorization"})
_WANTS_LENGTH: Final = frozenset({"POST", "PUT", "PATCH"})
"""Methods whose empty body is announced, since some servers answer 411 otherwise."""
_known_names: set[bytes] = set()


WIRE: Final = "suite_wire"
"""The key of a request's meta under which a `Sent` is left, for whoever takes it away."""


class Sent(NamedTuple):
    """What went over the wire, both ways, but for the body that came.

    Attributes:
        request: head and body as they were sent.
        head: that of the answer as it came, with the empty line.
        protocols: ``http/1.1``, and ``tls/1.3`` where there was TLS.
    """

    request: bytes
    head: bytes
    protocols: tuple[str, ...]


class Origin(Struct, frozen=True, gc=False):
    """Where a URL points to. Thousands are remembered: the garbage collector does not know them.

    Attributes:
        scheme: ``http`` or ``https``.
        host: what is asked of the name service and of the certificate: no brackets, no userinfo.
        port: TCP port.
        header: value of the ``Host`` field.
    """

    scheme: str
    host: str
    port: int
    header: bytes


def split_url(url: str) -> tuple[Origin, bytes]:
    """Return the origin of *url* and the target to ask it for, path and query as they stand.

    Raises:
        UnsupportedURLSchemeError: neither http nor https.
        UnsendableRequestError: the host, port or target cannot be written.
    """
    match = _URL.match(url)
    if match is None:
        raise UnsupportedURLSchemeError(f"not an absolute URL: {url[:200]!r}")
    scheme, netloc, rest = match.groups()
    if len(netloc) > _MAX_NETLOC:
        raise UnsendableRequestError(f"no host has such a name: {url[:200]!r}")
    origin = _origin(scheme, netloc)
    try:
        target = (rest if rest[:1] == "/" else f"/{rest}").encode("ascii")
    except UnicodeEncodeError as error:
        raise UnsendableRequestError(f"URL is not ASCII: {url[:200]!r}") from error
    if not _TARGET.fullmatch(target):
        raise UnsendableRequestError(f"URL has spaces or control characters: {url[:200]!r}")
    return origin, target


@lru_cache(maxsize=4096)
def _origin(scheme: str, netloc: str) -> Origin:
    scheme = scheme.lower()
    if scheme not in _PORTS:
        raise UnsupportedURLSchemeError(f"Unsupported scheme: {scheme!r}")
    hostport = netloc.rpartition("@")[2]
    host, colon, digits = hostport.rpartition(":")
    if not colon or hostport.endswith("]"):
        host, digits = hostport, ""
    # A backslash ends the host for browsers (WHATWG URL) but not for RFC 3986.
    if "\\" in netloc or not _HOST.fullmatch(host) or not _PORT.fullmatch(digits):
        raise UnsendableRequestError(f"no host to connect to: {netloc[:200]!r}")
    port = int(digits) if digits else _PORTS[scheme]
    if not 0 < port < 65_536:
        raise UnsendableRequestError(f"no such port: {port}")
    try:
        name = host.encode("ascii") if host.isascii() else host.encode("idna")
    except UnicodeError as error:
        raise UnsendableRequestError(f"host cannot be encoded: {host[:200]!r}") from error
    header = name if port == _PORTS[scheme] else b"%b:%d" % (name, port)
    return Origin(scheme, name.decode("ascii").strip("[]").lower(), port, header)


def request_bytes(
    method: str, target: bytes, host: bytes, headers: dict[bytes, list[bytes]], body: bytes
) -> bytes:
    """Return the whole request.

    *headers* maps names in the case they are sent in to values; a name with several values is sent
    as several fields. It may be a Scrapy ``Headers``, which is such a dict; its own methods, which
    normalise each name once more, are passed by. Line breaks inside a value become spaces, as in
    Scrapy's handler, so that no value can add a field.

    Raises:
        UnsendableRequestError: the method or a name is not a token (RFC 9110 §5.6.2).
    """
    verb = method.encode("latin-1", "replace")
    if not _TOKEN.fullmatch(verb):
        raise UnsendableRequestError(f"not a method: {method!r}")
    lines = [b"%b %b HTTP/1.1" % (verb, target)]
    if not dict.__contains__(headers, b"Host"):
        lines.append(b"Host: " + host)
    for name, values in dict.items(headers):
        if name in _NEVER_SENT:
            continue
        if name not in _known_names:
            _check_name(name)
        for value in values:
            if b"\n" in value or b"\r" in value:
                value = b" ".join(value.splitlines())
            lines.append(name + b": " + value)
    if body or method in _WANTS_LENGTH:
        lines.append(b"Content-Length: %d" % len(body))
    lines.append(b"\r\n")
    return b"\r\n".join(lines) + body


def _check_name(name: bytes) -> None:
    """Refuse a header name that is no token; remember one that is, since names repeat."""
    if not _TOKEN.fullmatch(name):
        raise UnsendableRequestError(f"not a header name: {name[:200]!r}")
    if len(_known_names) < 1024:
        _known_names.add(name)
