"""The atoms that look at an answer."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable

from scrapy_spider_suite.urls.filters import arguments as read
from scrapy_spider_suite.urls.filters.regexes import body_contains, body_matches
from scrapy_spider_suite.urls.filters.registry import Given, atom
from scrapy_spider_suite.urls.filters.subject import Fact, Page, Test

_NULS, _BEGINNING = 3, 1_000


def _of(test: Callable[[Page], bool]) -> Test:
    """*test* of the page alone; False without one."""
    return lambda url, subject: subject.page is not None and test(subject.page)


@atom("IsHttpResponse()", "", "the answer came over http or https", Fact.PAGE)
def _is_http_response(argument: str, given: Given) -> Test:
    read.nothing(argument)
    return _of(lambda page: page.http)


@atom("StatusCategory(n)", "2", "the status has *n* hundreds: 2 is success", Fact.PAGE)
def _status_category(argument: str, given: Given) -> Test:
    category = read.number(argument, 1)
    if category > 5:
        raise ValueError("the hundreds of a status, from 1 to 5, such as 2")
    return _of(lambda page: page.status // 100 == category)


@atom(
    "ContentTypeStartsWith(text)", "text/",
    "the header Content-Type begins so; case does not matter", Fact.PAGE,
)  # fmt: skip
def _content_type_starts_with(argument: str, given: Given) -> Test:
    beginning = read.text(argument).lower()
    return _of(lambda page: page.content_type.lower().startswith(beginning))


@atom(
    "MediaTypeEqualsOneOf(types)", "text/html, image/*",
    "the media type of the answer, without parameters, is one of *types*, `*` for any part",
    Fact.PAGE,
)  # fmt: skip
def _media_type_equals_one_of(argument: str, given: Given) -> Test:
    types = frozenset(read.lowered(argument))
    if not all("/" in each.strip("/") for each in types):
        raise ValueError("media types such as text/html or image/*")

    def test(page: Page) -> bool:
        media_type = page.media_type
        return media_type in types or f"{media_type.partition('/')[0]}/*" in types

    return _of(test)


@atom(
    "LanguageEqualsOneOf(tags)", "de, en-GB",
    "the page says so itself, by Content-Language or the `lang` of its `html`; `de` is `de-AT` too "
    "(RFC 4647 §3.3.1), and a page that does not say is none",
    Fact.PAGE,
)  # fmt: skip
def _language_equals_one_of(argument: str, given: Given) -> Test:
    tags = read.lowered(argument)
    wider = tuple(f"{tag}-" for tag in tags)
    return _of(
        lambda page: any(said in tags or said.startswith(wider) for said in page.languages)
    )


@atom(
    "IsProbablyBinary()", "", f"{_NULS} zero bytes or more are among the first {_BEGINNING:,}",
    Fact.PAGE,
)  # fmt: skip
def _is_probably_binary(argument: str, given: Given) -> Test:
    read.nothing(argument)
    return _of(lambda page: page.body.count(0, 0, _BEGINNING) >= _NULS)


@atom(
    "DigestEquals(sha1)", "da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "the SHA-1 of the body, in hexadecimal or as the fetch log has it (base 32)", Fact.PAGE,
)  # fmt: skip
def _digest_equals(argument: str, given: Given) -> Test:
    text = read.text(argument).upper()
    try:
        wanted = base64.b32decode(text) if len(text) == 32 else bytes.fromhex(text)
    except (ValueError, binascii.Error):
        wanted = b""
    if len(wanted) != 20:
        raise ValueError("a SHA-1 of 40 hexadecimal digits or 32 letters in base 32")
    return _of(
        lambda page: hashlib.sha1(page.body, usedforsecurity=False).digest() == wanted
    )


@atom(
    "ResponseMatches(regex)", '"(?s).*<form.*"', "the *regex* matches the whole body as ISO-8859-1",
    Fact.PAGE,
)  # fmt: skip
def _response_matches(argument: str, given: Given) -> Test:
    test = body_matches(read.text(argument))
    return _of(lambda page: test(page.body))


@atom(
    "ResponseContainsRegex(regex)", '"(?i)<form"', "the *regex* matches somewhere in the body",
    Fact.PAGE,
)  # fmt: skip
def _response_contains_regex(argument: str, given: Given) -> Test:
    test = body_contains(read.text(argument))
    return _of(lambda page: test(page.body))


@atom(
    "PageContainsOneOf(words)", "crawler, spider",
    "one of *words* stands in the page's text, markup included; case does not matter", Fact.PAGE,
)  # fmt: skip
def _page_contains_one_of(argument: str, given: Given) -> Test:
    words = read.lowered(argument)
    return _of(lambda page: any(word in page.folded_text for word in words))
