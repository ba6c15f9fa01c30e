"""The atoms that look at a URL, and at how it was found."""

from __future__ import annotations

from scrapy_spider_suite.urls.domains import public_suffix, registered_domain
from scrapy_spider_suite.urls.filters import arguments as read
from scrapy_spider_suite.urls.filters.regexes import contains, matches
from scrapy_spider_suite.urls.filters.registry import Given, atom
from scrapy_spider_suite.urls.filters.repeats import repeats
from scrapy_spider_suite.urls.filters.subject import Fact, Subject, Test
from scrapy_spider_suite.urls.filters.surt import host_part, surt
from scrapy_spider_suite.urls.normalize import host_of, normalize

_AUTHORITY = len("http://")
_FEW = 16
"""Endings that are tried one by one."""

# Hosts


@atom("HostEquals(host)", "example.com", "the host is *host*")
def _host_equals(argument: str, given: Given) -> Test:
    beginnings = _beginnings(read.host(read.text(argument)))
    return lambda url, subject: url.startswith(beginnings)


_ONE_OF_HOSTS = "the host is one of *hosts*"


@atom("HostEqualsOneOf(hosts)", "example.com, example.org", _ONE_OF_HOSTS)
@atom("ForbiddenHost(hosts)", "example.com, example.org", f"{_ONE_OF_HOSTS}; to follow `not`")
def _host_equals_one_of(argument: str, given: Given) -> Test:
    hosts = frozenset(read.hosts(argument))
    return lambda url, subject: host_of(url) in hosts


@atom(
    "HostEndsWith(suffix)", ".example.com",
    "the host ends with *suffix*: with a dot before it, what lies below a domain",
)  # fmt: skip
def _host_ends_with(argument: str, given: Given) -> Test:
    return _host_ends((read.host(read.text(argument)),))


@atom("HostEndsWithOneOf(suffixes)", ".de, .at, .ch", "the host ends with one of *suffixes*")
def _host_ends_with_one_of(argument: str, given: Given) -> Test:
    suffixes = read.hosts(argument)
    if len(suffixes) <= _FEW:
        return _host_ends(suffixes)
    ends = read.ends_with_one_of(suffixes)
    return lambda url, subject: ends(host_of(url))


def _host_ends(suffixes: tuple[str, ...]) -> Test:
    """Without cutting out the host, which would take as long again; few have a port or a colon."""

    def test(url: str, subject: Subject) -> bool:
        slash = url.index("/", _AUTHORITY + 1)
        if url.endswith(suffixes, _AUTHORITY, slash):
            return True
        return url.find(":", _AUTHORITY, slash) > 0 and host_of(url).endswith(suffixes)

    return test


def _beginnings(host: str) -> tuple[str, ...]:
    """How all normal URLs on *host* begin."""
    return tuple(f"{scheme}://{host}{end}" for scheme in ("http", "https") for end in "/:")


@atom(
    "SameHost()", "", "the host is that of the page that led there; a seed has none, and passes",
    Fact.VIA,
)  # fmt: skip
def _same_host(argument: str, given: Given) -> Test:
    read.nothing(argument)
    last, beginnings = "", _beginnings("")

    def test(url: str, subject: Subject) -> bool:
        nonlocal last, beginnings
        if subject.via != last:  # the links of a page are asked about one after the other
            last, beginnings = subject.via, _beginnings(host_of(subject.via or "http:///"))
        return not last or url.startswith(beginnings)

    return test


@atom(
    "DomainEqualsOneOf(domains)", "example.co.uk, example.org",
    "the registered domain, by the list of public suffixes, is one of *domains*",
)  # fmt: skip
def _domain_equals_one_of(argument: str, given: Given) -> Test:
    domains = frozenset(read.hosts(argument))
    return lambda url, subject: registered_domain(host_of(url)) in domains


@atom(
    "PublicSuffixEqualsOneOf(suffixes)", "co.uk, de",
    "what names are registered under, by the list of public suffixes, is one of *suffixes*",
)  # fmt: skip
def _public_suffix_equals_one_of(argument: str, given: Given) -> Test:
    suffixes = frozenset(name.removeprefix(".") for name in read.hosts(argument))
    return lambda url, subject: public_suffix(host_of(url)) in suffixes


@atom(
    "CountryEqualsOneOf(codes)", "DE, AT, CH",
    "the address of the host is in one of the countries, by the file that SUITE_COUNTRIES names; "
    "an address that it does not have is in none",
    Fact.ADDRESS,
)  # fmt: skip
def _country_equals_one_of(argument: str, given: Given) -> Test:
    codes = frozenset(code.upper() for code in read.texts(argument))
    if not all(len(code) == 2 and code.isascii() and code.isalpha() for code in codes):
        raise ValueError("country codes of two letters such as DE (ISO 3166-1)")
    country_of = given.country_of
    if country_of is None:
        raise ValueError("SUITE_COUNTRIES to name a file of addresses")
    return lambda url, subject: bool(subject.address) and country_of(subject.address) in codes


# URLs and paths


@atom("SchemeEquals(scheme)", "https", "the scheme is *scheme*")
def _scheme_equals(argument: str, given: Given) -> Test:
    scheme = read.text(argument).lower().removesuffix(":")
    if scheme not in ("http", "https"):
        raise ValueError("http or https")
    beginning = f"{scheme}://"
    return lambda url, subject: url.startswith(beginning)


@atom("URLEquals(url)", "https://example.com/", "the URL is *url*, both in normal form")
def _url_equals(argument: str, given: Given) -> Test:
    wanted = normalize(read.text(argument))
    if wanted is None:
        raise ValueError("an http or https URL")
    return lambda url, subject: url == wanted


@atom("URLShorterThan(n)", "256", "the URL has fewer than *n* characters")
def _url_shorter_than(argument: str, given: Given) -> Test:
    limit = read.number(argument, 1)
    return lambda url, subject: len(url) < limit


@atom("URLMatchesRegex(regex)", r".*/\d+\.html", "the *regex* matches the whole URL")
def _url_matches_regex(argument: str, given: Given) -> Test:
    test = matches(read.text(argument))
    return lambda url, subject: test(url)


@atom("URLContainsRegex(regex)", r"[?&]page=\d", "the *regex* matches somewhere in the URL")
def _url_contains_regex(argument: str, given: Given) -> Test:
    test = contains(read.text(argument))
    return lambda url, subject: test(url)


@atom(
    "URLContainsOneOf(words)", "news, blog",
    "one of *words* stands in the URL; case does not matter",
)  # fmt: skip
def _url_contains_one_of(argument: str, given: Given) -> Test:
    words = read.lowered(argument)
    if len(words) == 1:
        only = words[0]
        return lambda url, subject: only in url.lower()

    def test(url: str, subject: Subject) -> bool:
        folded = url.lower()
        return any(word in folded for word in words)

    return test


@atom(
    "SurtStartsWith(prefixes)", '"http://(org,example,)/docs/", "(de,"',
    "the URL in SURT form begins with one of *prefixes*; http and https count as one",
)  # fmt: skip
def _surt_starts_with(argument: str, given: Given) -> Test:
    prefixes = tuple(map(host_part, read.texts(argument)))
    return lambda url, subject: surt(url).startswith(prefixes)


@atom("PathEndsWithOneOf(suffixes)", ".html, .htm, /", "the path ends so; case does not matter")
def _path_ends_with_one_of(argument: str, given: Given) -> Test:
    return _path_ends(read.lowered(argument))


def _path_ends(suffixes: tuple[str, ...]) -> Test:
    if len(suffixes) > _FEW:
        ends = read.ends_with_one_of(suffixes)
        return lambda url, subject: ends(_path(url).lower())

    def test(url: str, subject: Subject) -> bool:
        query, path = url.find("?"), url.index("/", _AUTHORITY + 1)
        return url.lower().endswith(suffixes, path, query if query > 0 else None)

    return test


@atom(
    "FileTypeEqualsOneOf(types)", "html, pdf",
    "what follows the last dot of the path's last segment; case does not matter",
)  # fmt: skip
def _file_type_equals_one_of(argument: str, given: Given) -> Test:
    types = read.lowered(argument)
    if any("/" in each for each in types):
        raise ValueError("file types such as pdf")
    return _path_ends(tuple(f".{each.removeprefix('.')}" for each in types))


@atom("NoMoreSlashThan(n)", "10", "the path has at most *n* slashes")
def _no_more_slash_than(argument: str, given: Given) -> Test:
    limit = read.number(argument, 1) + 2  # those of "://"
    return lambda url, subject: (
        url.count("/") <= limit or url.partition("?")[0].count("/") <= limit
    )


@atom(
    "DuplicateSegmentsLessThan(n)", "3",
    "no sequence of segments stands *n* times or more in a row in the path",
)  # fmt: skip
def _duplicate_segments_less_than(argument: str, given: Given) -> Test:
    times = read.number(argument, 2)
    return lambda url, subject: not repeats(_path(url), times)


def _path(url: str) -> str:
    """The path of a normal *url*."""
    return url[url.index("/", _AUTHORITY + 1) :].partition("?")[0]


# How it was found


@atom("DepthLessThan(n)", "5", "fewer than *n* links lead there from a seed", Fact.DEPTH)
def _depth_less_than(argument: str, given: Given) -> Test:
    limit = read.number(argument, 1)
    return lambda url, subject: subject.depth < limit


@atom(
    "HopsBeyondScopeLessThan(n)", "2",
    "fewer than *n* links in a row have led out of `allowed_domains`: 1 is within them only",
    Fact.BEYOND,
)  # fmt: skip
def _hops_beyond_scope_less_than(argument: str, given: Given) -> Test:
    limit = read.number(argument, 1)
    return lambda url, subject: subject.beyond < limit
