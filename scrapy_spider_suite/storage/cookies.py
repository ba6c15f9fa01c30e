"""Cookies of the standard library's cookie jar as bytes and back."""

from __future__ import annotations

from collections.abc import Iterable
from http.cookiejar import Cookie
from typing import Any

from scrapy_spider_suite.errors import CodecError
from scrapy_spider_suite.storage.values import ValueCodec

_values = ValueCodec()
_FLAGS = (
    "secure",
    "discard",
    "domain_specified",
    "domain_initial_dot",
    "path_specified",
    "port_specified",
    "rfc2109",
)
# What hardly any cookie has: left out together when all of it is as here.
_RARE: list[Any] = [0, None, None, None, {}]


def pack_cookies(cookies: Iterable[Cookie]) -> bytes:
    """Return *cookies* as bytes, in their order."""
    return _values.dumps([cookie_state(cookie) for cookie in cookies])


def unpack_cookies(data: bytes, now: float) -> list[Cookie]:
    """Return the cookies in *data* that have not expired at *now* (seconds since the epoch).

    Raises:
        CodecError: `pack_cookies` did not write *data*.
    """
    states = _values.loads(data)
    try:
        cookies = [_cookie(*state) for state in states]
        return [cookie for cookie in cookies if not cookie.is_expired(int(now))]
    except (TypeError, ValueError, AttributeError) as error:
        raise CodecError(f"stored cookies are damaged: {error!r}") from error


def without_host(cookies: Iterable[Cookie], host: str) -> list[Cookie]:
    """Those of *cookies* that *host* did not set for itself."""
    return [cookie for cookie in cookies if cookie.domain.removeprefix(".") != host]


def cookie_state(cookie: Cookie) -> list[Any]:
    """Return what makes up *cookie*: name, value, domain, path, expiry, flags, and the rest."""
    flags = sum(1 << bit for bit, name in enumerate(_FLAGS) if getattr(cookie, name))
    state = [cookie.name, cookie.value, cookie.domain, cookie.path, cookie.expires, flags]
    # The jar has no public name for the attributes it does not know, such as SameSite.
    others = vars(cookie)["_rest"]
    rare = [cookie.version, cookie.port, cookie.comment, cookie.comment_url, others]
    return state if rare == _RARE else [*state, *rare]


def _cookie(
    name: str,
    value: str | None,
    domain: str,
    path: str,
    expires: int | None,
    flags: int,
    version: int = 0,
    port: str | None = None,
    comment: str | None = None,
    comment_url: str | None = None,
    others: dict[str, str] | None = None,
) -> Cookie:
    texts = (name, domain, path)
    if not all(isinstance(text, str) for text in texts) or not isinstance(value, str | None):
        raise TypeError(f"{texts} are not all text")
    switches: dict[str, Any] = {name: bool(flags >> bit & 1) for bit, name in enumerate(_FLAGS)}
    return Cookie(
        version=version,
        name=name,
        value=value,
        port=port,
        domain=domain,
        path=path,
        expires=expires,
        comment=comment,
        comment_url=comment_url,
        rest=dict(others or {}),
        **switches,
    )
