"""Cookies as bytes and back."""

from __future__ import annotations

from http.cookiejar import Cookie
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.errors import CodecError
from scrapy_spider_suite.store.request_codec import pack_cookies, unpack_cookies
from scrapy_spider_suite.store.value_codec import ValueCodec

texts = st.none() | st.text(max_size=5)


def cookie(name: str = "a", **changes: Any) -> Cookie:
    """A cookie as a site sets it, with *changes*."""
    usual: dict[str, Any] = {
        "version": 0, "name": name, "value": "1", "port": None, "port_specified": False,
        "domain": "a.example", "domain_specified": False, "domain_initial_dot": False,
        "path": "/", "path_specified": True, "secure": False, "expires": None, "discard": True,
        "comment": None, "comment_url": None, "rest": {}, "rfc2109": False,
    }  # fmt: skip
    return Cookie(**{**usual, **changes})


cookies = st.builds(
    cookie,
    name=st.text(max_size=5),
    version=st.sampled_from([0, 1, None]),
    value=texts,
    port=st.sampled_from([None, "80", "80,81"]),
    domain=st.sampled_from(["a.example", ".a.example", "::1"]),
    domain_specified=st.booleans(),
    domain_initial_dot=st.booleans(),
    path=st.text(max_size=5),
    path_specified=st.booleans(),
    secure=st.booleans(),
    expires=st.none() | st.integers(10, 2**40),
    discard=st.booleans(),
    comment=texts,
    comment_url=texts,
    rest=st.dictionaries(st.sampled_from(["HttpOnly", "SameSite"]), texts),
    rfc2109=st.booleans(),
)


@given(st.lists(cookies, max_size=4))
def test_round_trip(before: list[Cookie]) -> None:
    """Every attribute comes back, and the order."""
    after = unpack_cookies(pack_cookies(before), now=0)
    assert [vars(one) for one in after] == [vars(one) for one in before]


def test_an_ordinary_cookie_is_small() -> None:
    """Little more is stored than the texts of a cookie."""
    one = cookie("session", value="x" * 32, expires=2_000_000_000)
    assert len(pack_cookies([one])) < len("session") + 32 + len("a.example/") + 32


def test_expired_cookies_stay_behind() -> None:
    """A cookie that ended while the crawl was down is gone; a session cookie is not."""
    packed = pack_cookies([cookie("old", expires=100), cookie("new", expires=101), cookie("s")])
    assert [one.name for one in unpack_cookies(packed, now=100)] == ["new", "s"]


@pytest.mark.parametrize(
    "state",
    [5, [5], [[]], [["a"]], [["a"] * 12],
     [[0, "a", 1, None, 0, "b", 0, 0, "/", 1, 0, None, 1, None, None, {}, 0]],
     [[0, "a", "1", None, 0, 5, 0, 0, "/", 1, 0, None, 1, None, None, {}, 0]],
     [[0, "a", "1", None, 0, "b", 0, 0, "/", 1, 0, "soon", 1, None, None, {}, 0]]],
    ids=repr,
)  # fmt: skip
def test_damaged(state: Any) -> None:
    """Stored values that are no cookies are refused."""
    with pytest.raises(CodecError):
        unpack_cookies(ValueCodec().dumps(state), now=0)


@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    """Any bytes give cookies or a CodecError."""
    try:
        unpack_cookies(data, now=0)
    except CodecError:
        return
