"""Who may look at the page and who may act on it: tokens, cookies, the names in Host and Origin."""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from scrapy_spider_suite.errors import SettingsError

Request: TypeAlias = Any  # twisted.web.server.Request, whose methods have no types
_SHORTEST: Final = 16  # characters of a token


class Right(IntEnum):
    """Each includes those before it."""

    NONE = 0
    LOOK = 1
    ACT = 2


def read_token(file: str | None, variable: str) -> str | None:
    """The token in *file*, else in the environment *variable*; None: neither is given.

    Raises `SettingsError`.
    """
    try:
        given = Path(file).read_text("latin-1") if file else os.environ.get(variable, "")
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}") from error
    token = given.strip()
    if not (file or token):
        return None
    if len(token) < _SHORTEST or not (token.isascii() and token.isprintable()):
        raise SettingsError(
            f"{file or variable}: expected a token of at least {_SHORTEST} printable ASCII "
            "characters"
        )
    return token


def is_loopback(host: str) -> bool:
    """Whether *host*, a name or an address, is this machine as only itself can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def header_of(request: Request, name: str) -> str | None:
    value: bytes | None = request.getHeader(name.encode())
    return None if value is None else value.decode("latin-1")


class Access:
    """Two tokens, and the cookies that stand for them until the server ends.

    Without a token to look, everybody who reaches the server may look: that is for loopback only.
    """

    def __init__(self, look: str | None, act: str | None) -> None:
        self._tokens = {Right.ACT: act, Right.LOOK: look}
        self._cookies = {right: secrets.token_urlsafe(32) for right in self._tokens}
        self.everybody = Right.NONE if look else Right.LOOK

    @property
    def allows_acts(self) -> bool:
        return self._tokens[Right.ACT] is not None

    def right_of(self, request: Request) -> Right:
        """The right that the cookie or the bearer token of *request* gives."""
        scheme, _, token = (header_of(request, "authorization") or "").partition(" ")
        by_token = self.right_of_token(token) if scheme.lower() == "bearer" else Right.NONE
        cookie = (request.getCookie(self._name(request)) or b"").decode("latin-1")
        by_cookie = _right_of_secret(cookie, self._cookies)
        return max(self.everybody, by_token, by_cookie)

    def right_of_token(self, token: str) -> Right:
        return _right_of_secret(token, self._tokens)

    def give_cookie(self, request: Request, right: Right) -> None:
        request.addCookie(
            self._name(request), self._cookies[right], path=b"/", httpOnly=True, sameSite=b"strict"
        )

    def why_foreign(self, request: Request) -> str:
        """Why *request* may come from a page of another site; "": it does not.

        A name that is rebound to this address (DNS rebinding) shows in Host. With a token it may be
        any: cookies are bound to the name, and no other site knows the token.
        """
        host = header_of(request, "host") or ""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            name = ""
        if self.everybody and not is_loopback(name):
            return "the name of this server in the address is none of loopback"
        # A page of another site may link to the page. Its pictures and scripts, whose requests have
        # no Origin, may ask nothing.
        if header_of(request, "sec-fetch-site") == "cross-site" and request.path != b"/":
            return "the request comes from a page of another site"
        origin = header_of(request, "origin")
        if origin is None:
            return "a form or an act needs an Origin" if request.method == b"POST" else ""
        same = origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")
        return "" if same else "the request comes from a page of another site"

    def _name(self, request: Request) -> bytes:
        # Cookies of one host are shared by all of its ports.
        return b"dashboard-%d" % request.getHost().port


def _right_of_secret(given: str, secrets_by_right: Mapping[Right, str | None]) -> Right:
    found = Right.NONE
    for right, known in secrets_by_right.items():
        # Each is compared, in constant time.
        if known is not None and hmac.compare_digest(given.encode(), known.encode()):
            found = max(found, right)
    return found
