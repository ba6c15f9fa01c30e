"""The atoms of URLs and of pages, and their regular expressions.

They are RE2's: linear in text and pattern; the product of the two is bounded, and so the time (some
25 ns a step, 0.4 s in all).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable
from typing import Any

from scrapy_spider_suite.urls import filters as read
from scrapy_spider_suite.urls.filters import Fact, FilterInputs, FilterPage, LinkFacts, Test, atom
from scrapy_spider_suite.urls.hosts import public_suffix, registered_domain, surt, surt_prefix
from scrapy_spider_suite.urls.normalize import host_of, normalize

STEPS_MAX = 1 << 24
"""Steps for one text at the most: of a body so much is looked at as is possible with them."""
PROGRAM_MAX = 1_024  # instructions of a pattern's program at the most
BODY_MAX = 1 << 20  # bytes of a body that are looked at, at the most


def url_regex(pattern: str, *, whole: bool) -> Test:
    """A test for *pattern* in a URL, or matching the *whole* URL. Raises `ValueError`."""
    match, _ = _compiled(pattern, latin=False, whole=whole)
    return lambda url, subject: bool(match(url))


def body_regex(pattern: str, *, whole: bool) -> Callable[[bytes], bool]:
    """A test for *pattern* in a body as ISO-8859-1, or matching it *whole*. Raises `ValueError`."""
    try:
        match, limit = _compiled(pattern.encode("latin-1"), latin=True, whole=whole)
    except UnicodeEncodeError:
        raise ValueError("a regular expression of ISO-8859-1 characters") from None
    return lambda body: bool(match(body[:limit]))


def _compiled(
    pattern: str | bytes, *, latin: bool, whole: bool
) -> tuple[Callable[[str | bytes], Any], int]:
    """The match of *pattern*, and the length of the longest text for it."""
    # Only who has a regex needs it.
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    if latin:
        options.encoding = re2.Options.Encoding.LATIN1
    try:
        size = re2.compile(pattern, options).programsize
    except re2.error as error:
        said = error.args[0] if error.args else error
        why = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
        raise ValueError(f"a regular expression as RE2 has them ({why})") from None
    if size > PROGRAM_MAX:
        raise ValueError(
            f"a shorter regular expression: its program has {size:,} instructions, at most "
            f"{PROGRAM_MAX:,} are allowed"
        )
    # A set of one: it only says whether, and asking it costs a fifth of asking an expression.
    one = re2.Set.FullMatchSet(options) if whole else re2.Set.SearchSet(options)
    one.Add(pattern)
    one.Compile()
    return one.Match, min(BODY_MAX, STEPS_MAX // size)


def has_repeats(path: str, times: int) -> bool:
    """Whether a sequence of segments of *path* occurs *times* times in a row; in microseconds."""
    segments = path.strip("/").split("/")
    count = len(segments)
    if count < times or len(set(segments)) == count:
        return False
    numbers: dict[str, int] = {}
    for segment in segments:
        numbers.setdefault(segment, len(numbers))
    planes = [0] * max(1, (len(numbers) - 1).bit_length())
    for place, segment in enumerate(segments):
        number = numbers[segment]
        for plane in range(len(planes)):
            planes[plane] |= (number >> plane & 1) << place
    return any(_has_run(planes, count, period, times) for period in range(1, count // times + 1))


def _has_run(planes: list[int], count: int, period: int, times: int) -> bool:
    differ = 0
    for plane in planes:
        differ |= plane ^ plane >> period
    equal = ~differ & (1 << count - period) - 1
    length, needed = 1, period * (times - 1)
    while length < needed:
        step = min(length, needed - length)
        equal &= equal >> step
        length += step
    return equal != 0


_AUTHORITY = len("http://")
_FEW = 16  # endings that are tried one by one

# Hosts


@atom("HostEquals(host)", "example.com", "the host is *host*")
def _host_equals(argument: str, given: FilterInputs) -> Test:
    beginnings = _beginnings(read.read_host(read.read_text(argument)))
    return lambda url, subject: url.startswith(beginnings)


_ONE_OF_HOSTS = "the host is one of *hosts*"


@atom("HostEqualsOneOf(hosts)", "example.com, example.org", _ONE_OF_HOSTS)
@atom("ForbiddenHost(hosts)", "example.com, example.org", f"{_ONE_OF_HOSTS}; to follow `not`")
def _host_equals_one_of(argument: str, given: FilterInputs) -> Test:
    hosts = frozenset(read.read_hosts(argument))
    return lambda url, subject: host_of(url) in hosts


@atom(
    "HostEndsWith(suffix)", ".example.com",
    "the host ends with *suffix*; a dot in front means all hosts below a domain",
)  # fmt: skip
def _host_ends_with(argument: str, given: FilterInputs) -> Test:
    return _host_ends((read.read_host(read.read_text(argument)),))


@atom("HostEndsWithOneOf(suffixes)", ".de, .at, .ch", "the host ends with one of *suffixes*")
def _host_ends_with_one_of(argument: str, given: FilterInputs) -> Test:
    suffixes = read.read_hosts(argument)
    if len(suffixes) <= _FEW:
        return _host_ends(suffixes)
    ends = read.ends_with_one_of(suffixes)
    return lambda url, subject: ends(host_of(url))


def _host_ends(suffixes: tuple[str, ...]) -> Test:
    """Without cutting out the host, which takes as long again; few have a port or a colon."""

    def test(url: str, subject: LinkFacts) -> bool:
        slash = url.index("/", _AUTHORITY + 1)
        if url.endswith(suffixes, _AUTHORITY, slash):
            return True
        return url.find(":", _AUTHORITY, slash) > 0 and host_of(url).endswith(suffixes)

    return test


def _beginnings(host: str) -> tuple[str, ...]:
    return tuple(f"{scheme}://{host}{end}" for scheme in ("http", "https") for end in "/:")


@atom(
    "SameHost()", "", "the host is that of the page that led there; a seed has none, and passes",
    Fact.VIA,
)  # fmt: skip
def _same_host(argument: str, given: FilterInputs) -> Test:
    read.read_nothing(argument)
    last, beginnings = "", _beginnings("")

    def test(url: str, subject: LinkFacts) -> bool:
        nonlocal last, beginnings
        if subject.via != last:  # the links of a page are asked about one after the other
            last, beginnings = subject.via, _beginnings(host_of(subject.via or "http:///"))
        return not last or url.startswith(beginnings)

    return test


@atom(
    "DomainEqualsOneOf(domains)", "example.co.uk, example.org",
    "the registered domain, by the list of public suffixes, is one of *domains*",
)  # fmt: skip
def _domain_equals_one_of(argument: str, given: FilterInputs) -> Test:
    domains = frozenset(read.read_hosts(argument))
    return lambda url, subject: registered_domain(host_of(url)) in domains


@atom(
    "PublicSuffixEqualsOneOf(suffixes)", "co.uk, de",
    "the public suffix of the host is one of *suffixes*",
)  # fmt: skip
def _public_suffix_equals_one_of(argument: str, given: FilterInputs) -> Test:
    suffixes = frozenset(name.removeprefix(".") for name in read.read_hosts(argument))
    return lambda url, subject: public_suffix(host_of(url)) in suffixes


@atom(
    "CountryEqualsOneOf(codes)", "DE, AT, CH",
    "the address of the host is in one of the countries, by the file in SUITE_COUNTRIES; an "
    "address that the file lacks has no country",
    Fact.ADDRESS,
)  # fmt: skip
def _country_equals_one_of(argument: str, given: FilterInputs) -> Test:
    codes = frozenset(code.upper() for code in read.read_texts(argument))
    if not all(len(code) == 2 and code.isascii() and code.isalpha() for code in codes):
        raise ValueError("country codes of two letters such as DE (ISO 3166-1)")
    country_of = given.country_of
    if country_of is None:
        raise ValueError("SUITE_COUNTRIES to name a file of addresses")
    return lambda url, subject: bool(subject.address) and country_of(subject.address) in codes


# URLs and paths


@atom("SchemeEquals(scheme)", "https", "the scheme is *scheme*")
def _scheme_equals(argument: str, given: FilterInputs) -> Test:
    scheme = read.read_text(argument).lower().removesuffix(":")
    if scheme not in ("http", "https"):
        raise ValueError("http or https")
    beginning = f"{scheme}://"
    return lambda url, subject: url.startswith(beginning)


@atom("URLEquals(url)", "https://example.com/", "the URL is *url*, both in normal form")
def _url_equals(argument: str, given: FilterInputs) -> Test:
    wanted = normalize(read.read_text(argument))
    if wanted is None:
        raise ValueError("an http or https URL")
    return lambda url, subject: url == wanted


@atom("URLShorterThan(n)", "256", "the URL has fewer than *n* characters")
def _url_shorter_than(argument: str, given: FilterInputs) -> Test:
    limit = read.read_number(argument, 1)
    return lambda url, subject: len(url) < limit


@atom("URLMatchesRegex(regex)", r".*/\d+\.html", "the *regex* matches the whole URL")
def _url_matches_regex(argument: str, given: FilterInputs) -> Test:
    return url_regex(read.read_text(argument), whole=True)


@atom("URLContainsRegex(regex)", r"[?&]page=\d", "the *regex* matches somewhere in the URL")
def _url_contains_regex(argument: str, given: FilterInputs) -> Test:
    return url_regex(read.read_text(argument), whole=False)


@atom(
    "URLContainsOneOf(words)", "news, blog",
    "one of *words* stands in the URL; case does not matter",
)  # fmt: skip
def _url_contains_one_of(argument: str, given: FilterInputs) -> Test:
    words = read.read_lowered(argument)
    if len(words) == 1:
        only = words[0]
        return lambda url, subject: only in url.lower()

    def test(url: str, subject: LinkFacts) -> bool:
        folded = url.lower()
        return any(word in folded for word in words)

    return test


@atom(
    "SurtStartsWith(prefixes)", '"http://(org,example,)/docs/", "(de,"',
    "the URL in SURT form begins with one of *prefixes*; http and https count as one",
)  # fmt: skip
def _surt_starts_with(argument: str, given: FilterInputs) -> Test:
    prefixes = tuple(map(surt_prefix, read.read_texts(argument)))
    return lambda url, subject: surt(url).startswith(prefixes)


@atom("PathEndsWithOneOf(suffixes)", ".html, .htm, /", "the path ends so; case does not matter")
def _path_ends_with_one_of(argument: str, given: FilterInputs) -> Test:
    return _path_ends(read.read_lowered(argument))


def _path_ends(suffixes: tuple[str, ...]) -> Test:
    if len(suffixes) > _FEW:
        ends = read.ends_with_one_of(suffixes)
        return lambda url, subject: ends(_path(url).lower())

    def test(url: str, subject: LinkFacts) -> bool:
        query, path = url.find("?"), url.index("/", _AUTHORITY + 1)
        return url.lower().endswith(suffixes, path, query if query > 0 else None)

    return test


@atom(
    "FileTypeEqualsOneOf(types)", "html, pdf",
    "the ending after the last dot of the path is one of *types*; case does not matter",
)  # fmt: skip
def _file_type_equals_one_of(argument: str, given: FilterInputs) -> Test:
    types = read.read_lowered(argument)
    if any("/" in each for each in types):
        raise ValueError("file types such as pdf")
    return _path_ends(tuple(f".{each.removeprefix('.')}" for each in types))


@atom("NoMoreSlashThan(n)", "10", "the path has at most *n* slashes")
def _no_more_slash_than(argument: str, given: FilterInputs) -> Test:
    limit = read.read_number(argument, 1) + 2  # those of "://"
    return lambda url, subject: (
        url.count("/") <= limit or url.partition("?")[0].count("/") <= limit
    )


@atom(
    "DuplicateSegmentsLessThan(n)", "3",
    "no sequence of segments stands *n* times or more in a row in the path",
)  # fmt: skip
def _duplicate_segments_less_than(argument: str, given: FilterInputs) -> Test:
    times = read.read_number(argument, 2)
    return lambda url, subject: not has_repeats(_path(url), times)


def _path(url: str) -> str:
    return url[url.index("/", _AUTHORITY + 1) :].partition("?")[0]


# How it was found


@atom("DepthLessThan(n)", "5", "the URL is fewer than *n* links from a seed", Fact.DEPTH)
def _depth_less_than(argument: str, given: FilterInputs) -> Test:
    limit = read.read_number(argument, 1)
    return lambda url, subject: subject.depth < limit


@atom(
    "HopsBeyondScopeLessThan(n)", "2",
    "fewer than *n* links in a row have led out of `allowed_domains`: 1 is within them only",
    Fact.BEYOND,
)  # fmt: skip
def _hops_beyond_scope_less_than(argument: str, given: FilterInputs) -> Test:
    limit = read.read_number(argument, 1)
    return lambda url, subject: subject.beyond < limit


_NULS, _BEGINNING = 3, 1_000


def _page_test(test: Callable[[FilterPage], bool]) -> Test:
    return lambda url, subject: subject.page is not None and test(subject.page)


@atom("IsHttpResponse()", "", "the answer came over http or https", Fact.PAGE)
def _is_http_response(argument: str, given: FilterInputs) -> Test:
    read.read_nothing(argument)
    return _page_test(lambda page: page.http)


@atom("StatusCategory(n)", "2", "the status has *n* hundreds: 2 is success", Fact.PAGE)
def _status_category(argument: str, given: FilterInputs) -> Test:
    category = read.read_number(argument, 1)
    if category > 5:
        raise ValueError("the hundreds of a status, from 1 to 5, such as 2")
    return _page_test(lambda page: page.status // 100 == category)


@atom(
    "ContentTypeStartsWith(text)", "text/",
    "the header Content-Type begins so; case does not matter", Fact.PAGE,
)  # fmt: skip
def _content_type_starts_with(argument: str, given: FilterInputs) -> Test:
    beginning = read.read_text(argument).lower()
    return _page_test(lambda page: page.content_type.lower().startswith(beginning))


@atom(
    "MediaTypeEqualsOneOf(types)", "text/html, image/*",
    "the media type of the answer, without parameters, is one of *types*, `*` for any part",
    Fact.PAGE,
)  # fmt: skip
def _media_type_equals_one_of(argument: str, given: FilterInputs) -> Test:
    types = frozenset(read.read_lowered(argument))
    if not all("/" in each.strip("/") for each in types):
        raise ValueError("media types such as text/html or image/*")

    def test(page: FilterPage) -> bool:
        media_type = page.media_type
        return media_type in types or f"{media_type.partition('/')[0]}/*" in types

    return _page_test(test)


@atom(
    "LanguageEqualsOneOf(tags)", "de, en-GB",
    "the language of the page, by Content-Language or the `lang` of its `html`, is one of *tags*; "
    "`de` includes `de-AT` (RFC 4647 §3.3.1); a page without both has no language",
    Fact.PAGE,
)  # fmt: skip
def _language_equals_one_of(argument: str, given: FilterInputs) -> Test:
    tags = read.read_lowered(argument)
    wider = tuple(f"{tag}-" for tag in tags)
    return _page_test(
        lambda page: any(said in tags or said.startswith(wider) for said in page.languages)
    )


@atom(
    "IsProbablyBinary()", "", f"{_NULS} zero bytes or more are among the first {_BEGINNING:,}",
    Fact.PAGE,
)  # fmt: skip
def _is_probably_binary(argument: str, given: FilterInputs) -> Test:
    read.read_nothing(argument)
    return _page_test(lambda page: page.body.count(0, 0, _BEGINNING) >= _NULS)


@atom(
    "DigestEquals(sha1)", "da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "the SHA-1 of the body, in hexadecimal or as the fetch log has it (base 32)", Fact.PAGE,
)  # fmt: skip
def _digest_equals(argument: str, given: FilterInputs) -> Test:
    text = read.read_text(argument).upper()
    try:
        wanted = base64.b32decode(text) if len(text) == 32 else bytes.fromhex(text)
    except (ValueError, binascii.Error):
        wanted = b""
    if len(wanted) != 20:
        raise ValueError("a SHA-1 of 40 hexadecimal digits or 32 letters in base 32")
    return _page_test(
        lambda page: hashlib.sha1(page.body, usedforsecurity=False).digest() == wanted
    )


@atom(
    "ResponseMatches(regex)", '"(?s).*<form.*"', "the *regex* matches the whole body as ISO-8859-1",
    Fact.PAGE,
)  # fmt: skip
def _response_matches(argument: str, given: FilterInputs) -> Test:
    test = body_regex(read.read_text(argument), whole=True)
    return _page_test(lambda page: test(page.body))


@atom(
    "ResponseContainsRegex(regex)", '"(?i)<form"', "the *regex* matches somewhere in the body",
    Fact.PAGE,
)  # fmt: skip
def _response_contains_regex(argument: str, given: FilterInputs) -> Test:
    test = body_regex(read.read_text(argument), whole=False)
    return _page_test(lambda page: test(page.body))


@atom(
    "PageContainsOneOf(words)", "crawler, spider",
    "one of *words* stands in the page's text, markup included; case does not matter", Fact.PAGE,
)  # fmt: skip
def _page_contains_one_of(argument: str, given: FilterInputs) -> Test:
    words = read.read_lowered(argument)
    return _page_test(lambda page: any(word in page.folded_text for word in words))
