"""Every atom: what it wants and what it does not, its arguments, and when it can be asked."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_spider_suite.errors import FilterError, SettingsError
from scrapy_spider_suite.urls.filters import (
    ATOMS,
    AtomKind,
    Fact,
    FilterInputs,
    FilterPage,
    LinkFacts,
    Stage,
    register,
)
from scrapy_spider_suite.urls.filters.atoms import BODY_MAX, STEPS_MAX, body_regex, has_repeats
from scrapy_spider_suite.urls.filters.language import Filter
from scrapy_spider_suite.urls.host_patterns import Countries
from scrapy_spider_suite.urls.hosts import surt
from scrapy_spider_suite.urls.normalize import normalize

GIVEN = FilterInputs({"192.0.2.1": "DE", "2001:db8::1": "AT"}.get)  # type: ignore[arg-type]
PAGE = "https://www.example.co.uk/a/b/page.HTML?q=News"
SHA1 = "f7ff9e8b7bb2e09b70935a5d785e0cc5d9d0abf0"  # of b"Hello"

# Atom, URL that is wanted, URL that is not.
LINKS = [
    ("HostEquals(Example.com.)", "http://example.com/", "http://www.example.com/"),
    ("HostEquals(bücher.de)", "http://xn--bcher-kva.de/x", "http://bucher.de/"),
    ("HostEquals([2001:db8::1])", "http://[2001:db8::1]:81/", "http://[2001:db8::2]/"),
    ("HostEquals(a.com)", "http://a.com:81/", "http://a.com.b/"),
    ("HostEndsWith(.com)", "https://a.com:81/", "https://a.org:81/.com"),
    ("HostEndsWith(a.com)", "http://a.com/", "https://b/a.com"),
    ("HostEqualsOneOf(a.com, b.com)", "https://b.com:8080/", "https://c.com/"),
    ("not ForbiddenHost(a.com)", "https://b.com/", "https://a.com/"),
    ("HostEndsWith(.example.com)", "http://a.example.com/", "http://example.com/"),
    ("HostEndsWith(example.com)", "http://badexample.com/", "http://example.org/"),
    ("HostEndsWithOneOf(.de, .рф)", "http://a.xn--p1ai/", "http://a.com/de"),
    ("DomainEqualsOneOf(example.co.uk)", "http://a.b.example.co.uk/", "http://example.uk/"),
    ("DomainEqualsOneOf(x.github.io)", "http://x.github.io/", "http://y.github.io/"),
    ("PublicSuffixEqualsOneOf(.co.uk)", "http://a.b.example.co.uk/", "http://example.uk/"),
    ("PublicSuffixEqualsOneOf(uk, nosuch)", "http://a.nosuch/", "http://192.0.2.1/"),
    ("SchemeEquals(HTTPS)", "https://a.com/", "http://a.com/"),
    ("URLEquals(HTTP://A.com:80)", "http://a.com/", "https://a.com/"),
    ("URLShorterThan(15)", "http://a.com/a", "http://a.com/ab"),
    (r"URLMatchesRegex(.*/\d+\.html)", "http://a.com/12.html", "http://a.com/12.html?x"),
    (r'URLMatchesRegex("https?://(a|b)\.com/")', "http://b.com/", "http://c.com/"),
    (r"URLContainsRegex([?&]page=\d)", "http://a.com/?x&page=3", "http://a.com/page=3"),
    ("URLContainsOneOf(News, blog)", "http://a.com/NEWS", "http://a.com/new"),
    ("URLContainsOneOf(NEWS)", "http://news.com/", "http://new.com/"),
    ('SurtStartsWith("(org,example,")', "http://b.example.org/x", "http://example.com/"),
    ('SurtStartsWith("(org,example,)/a")', "https://example.org/ab", "https://b.example.org/a"),
    ('SurtStartsWith("https://(org,example,:81)", "de,")', "http://x.de/", "http://example.org/"),
    ("PathEndsWithOneOf(.htm, .HTML)", "http://a.com/x.Html?y", "http://a.com/x?y.html"),
    ("PathEndsWithOneOf(/)", "http://a.com/?x", "http://a.com/x"),
    ("FileTypeEqualsOneOf(.pdf, GZ)", "http://a.com/x.tar.gz", "http://a.com/gz"),
    ("FileTypeEqualsOneOf(com)", "http://a.com/x.com", "http://a.com/x/"),
    ("PathEndsWithOneOf(com/)", "http://a.org/com/", "http://a.com/"),
    ("NoMoreSlashThan(2)", "http://a.com/b/c?d/e/f", "http://a.com/b/c/d"),
    ("DuplicateSegmentsLessThan(3)", "http://a.com/x/y/x/y/", "http://a.com/x/y/x/y/x/y"),
    ("DuplicateSegmentsLessThan(2)", "http://a.com/x/y/x/z", "http://a.com/b/b"),
]


def test_long_lists() -> None:
    """They are looked up, and say the same."""
    many = ", ".join(f".h{n}.com" for n in range(2_000))
    for text in (f"HostEndsWithOneOf({many})", f"PathEndsWithOneOf({many})"):
        found = Filter(text, Stage.SCHEDULE)
        assert found.wants("http://a.h77.com:81/b.H1999.com?x", LinkFacts())
        assert not found.wants("http://h77.com/a.h2000.com?.h1.com", LinkFacts())
    ends = Filter(f"HostEndsWithOneOf({many})", Stage.FETCH)
    assert not ends.wants("http://h7.com/", LinkFacts())


@pytest.mark.parametrize(("text", "wanted", "unwanted"), LINKS)
def test_atoms_of_links(text: str, wanted: str, unwanted: str) -> None:
    """One URL of each kind."""
    assert normalize(wanted) == wanted
    assert normalize(unwanted) == unwanted
    for stage in Stage:
        found = Filter(text, stage)
        assert found.wants(wanted, LinkFacts())
        assert not found.wants(unwanted, LinkFacts())


@pytest.mark.parametrize(
    ("text", "wanted", "unwanted"),
    [
        ("SameHost()", LinkFacts(via="http://www.example.co.uk/"), LinkFacts(via="http://a.com/")),
        ("SameHost()", LinkFacts(), LinkFacts(via="http://example.co.uk/")),
        ("SameHost()", LinkFacts(via="https://www.example.co.uk:8443/"), LinkFacts(via="http://x/")),
        ("DepthLessThan(3)", LinkFacts(depth=2), LinkFacts(depth=3)),
        ("HopsBeyondScopeLessThan(1)", LinkFacts(beyond=0), LinkFacts(beyond=1)),
        ("CountryEqualsOneOf(de, FR)", LinkFacts(address="192.0.2.1"),
         LinkFacts(address="2001:db8::1")),
        ("not CountryEqualsOneOf(DE)", LinkFacts(), LinkFacts(address="192.0.2.1")),
    ],
)  # fmt: skip
def test_atoms_of_how_it_was_found(text: str, wanted: LinkFacts, unwanted: LinkFacts) -> None:
    """And of where its host lives."""
    found = Filter(text, Stage.FETCH, GIVEN)
    assert found.wants(PAGE, wanted)
    assert not found.wants(PAGE, unwanted)


def html(body: bytes, **headers: str) -> FilterPage:
    """A page."""
    return FilterPage(200, body, "Text/HTML; charset=utf-8", **headers)


@pytest.mark.parametrize(
    ("text", "wanted", "unwanted"),
    [
        ("IsHttpResponse()", html(b""), FilterPage(200, b"", http=False)),
        ("StatusCategory(4)", FilterPage(404, b""), FilterPage(503, b"")),
        ("ContentTypeStartsWith(text/)", html(b""), FilterPage(200, b"", "application/pdf")),
        ("MediaTypeEqualsOneOf(text/html)", html(b""), FilterPage(200, b"", "text/htmlx")),
        ("MediaTypeEqualsOneOf(image/*)",
         FilterPage(200, b"", "image/png"), FilterPage(200, b"", "imagex/p")),
        ("MediaTypeEqualsOneOf(image/*)", FilterPage(200, b"", "image/png"), FilterPage(200, b"")),
        ("LanguageEqualsOneOf(de, en-GB)", html(b"", content_language="fr, de-AT"),
         html(b'<html lang="en">')),
        ("LanguageEqualsOneOf(en)", html(b"<!doctype html>\n<HTML class=x LANG=en-US>"),
         html(b"<html lang=eno>")),
        ("LanguageEqualsOneOf(en)", html(b"<html lang=en>"), html(b"<p lang=en>")),
        ("IsProbablyBinary()",
         FilterPage(200, b"\0a\0b\0"), FilterPage(200, b"a" * 1000 + b"\0" * 9)),
        (f"DigestEquals({SHA1})", html(b"Hello"), html(b"hello")),
        ("DigestEquals(677Z5C33WLQJW4ETLJOXQXQMYXM5BK7Q)", html(b"Hello"), html(b"")),
        ('ResponseMatches("(?s).*b")', html(b"a\nb"), html(b"a\nbc")),
        ("ResponseMatches(.*b)", html(b"ab"), html(b"a\nb")),
        ("ResponseContainsRegex(\xe9+t)", html(b"\xe9\xe9t\xff"), html("\xe9t".encode()[:1])),
        ("PageContainsOneOf(Spider, crawler)", html(b"a SPIDER"), html(b"spi der")),
        ("PageContainsOneOf(\xc9t\xe9)", FilterPage(200, b"", text_of=lambda: "\xe9t\xc9"),
         FilterPage(200, b"", text_of=lambda: "ete")),
    ],
)  # fmt: skip
def test_atoms_of_responses(text: str, wanted: FilterPage, unwanted: FilterPage) -> None:
    """Headers, status, body."""
    for stage in (Stage.PARSE, Stage.FOLLOW, Stage.STORE):
        found = Filter(text, stage)
        assert found.wants(PAGE, LinkFacts(page=wanted))
        assert not found.wants(PAGE, LinkFacts(page=unwanted))
    assert not found.wants(PAGE, LinkFacts())


def test_the_digest_is_that_of_the_fetch_log() -> None:
    """Both spellings are of one SHA-1."""
    assert hashlib.sha1(b"Hello").hexdigest() == SHA1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("HostEquals()", "a text"),
        ("HostEquals(a.com/x)", "a host such as example.com"),
        ("HostEquals(a com)", "a host such as example.com"),
        ('HostEquals("a.com", "b.com")', "one text"),
        ('HostEquals(a"b")', "a text without quotes or within them"),
        ("HostEqualsOneOf( , )", "one text or more"),
        ('HostEqualsOneOf("a.com" b.com)', "a comma after a quoted text"),
        ('HostEqualsOneOf(b"c", d)', "quotes around the whole of a text"),
        ("SameHost(x)", "no argument"),
        ("SchemeEquals(ftp)", "http or https"),
        ("URLEquals(ftp://a.com/)", "an http or https URL"),
        ("URLShorterThan(0)", "a whole number >= 1"),
        ("URLShorterThan(-3)", "a whole number >= 1"),
        ("DuplicateSegmentsLessThan(1)", "a whole number >= 2"),
        ('URLMatchesRegex("(")', "a regular expression as RE2 has them (missing ): ()"),
        ('URLMatchesRegex("(?=a)")', "invalid perl operator"),
        ("URLMatchesRegex((a{500}){500})", "double quotes"),
        ("URLMatchesRegex(a{1000}a{1000})", "a shorter regular expression"),
        ("ResponseMatches(\u20ac)", "ISO-8859-1 characters"),
        ("FileTypeEqualsOneOf(application/pdf)", "file types such as pdf"),
        ("SurtStartsWith(example.org)", "SURT prefixes such as (org,example,"),
        ("SurtStartsWith(\"ftp://(org,\")", "SURT prefixes for http or https"),
        ("CountryEqualsOneOf(Germany)", "country codes of two letters"),
        ("StatusCategory(200)", "the hundreds of a status"),
        ("StatusCategory(9)", "the hundreds of a status, from 1 to 5"),
        ("MediaTypeEqualsOneOf(html)", "media types such as"),
        ("DigestEquals(abc)", "a SHA-1"),
    ],
)  # fmt: skip
def test_arguments_that_make_no_sense(text: str, why: str) -> None:
    """The error says what was expected, and where."""
    with pytest.raises(FilterError, match=re.escape(why)) as raised:
        Filter(text, Stage.STORE, GIVEN)
    assert str(raised.value).startswith(f"line 1, column {text.index('(') + 1}: ")


def test_countries_need_a_file() -> None:
    """The setting is named."""
    with pytest.raises(FilterError, match="expects SUITE_COUNTRIES to name a file"):
        Filter("CountryEqualsOneOf(DE)", Stage.FETCH)


def test_every_atom_is_here_and_its_example_is_one() -> None:
    """None is left out of this file, and of what the manual shows each can be read."""
    source = Path(__file__).read_text(encoding="utf-8")
    for name, kind in ATOMS.items():
        assert f"{name}(" in source, name
        text = f"{name}({kind.example})"
        for stage in Stage:
            if stage in kind.stages:
                Filter(text, stage, GIVEN)
            else:
                with pytest.raises(FilterError, match="which is not known yet"):
                    Filter(text, stage, GIVEN)


def test_the_stages_of_atoms() -> None:
    """A link has no answer, a link of a page no address."""
    assert ATOMS["HostEquals"].stages == tuple(Stage)
    assert ATOMS["CountryEqualsOneOf"].stages == (Stage.FETCH, Stage.PARSE, Stage.STORE)
    assert ATOMS["StatusCategory"].stages == (Stage.PARSE, Stage.FOLLOW, Stage.STORE)


@pytest.fixture
def odd() -> Iterator[None]:
    """An atom of a project's own."""
    register(
        AtomKind(
            "IsOdd()", "", "its length is odd", frozenset({Fact.DEPTH}),
            lambda argument, given: lambda url, subject: len(url) % 2 == 1,
        )
    )  # fmt: skip
    yield
    del ATOMS["IsOdd"]


@pytest.mark.usefixtures("odd")
def test_an_atom_of_a_projects_own() -> None:
    """It is one like the others."""
    found = Filter("IsOdd() and not HostEquals(b.com)", Stage.SCHEDULE)
    assert found.wants("http://a.com/", LinkFacts())
    assert not found.wants("http://a.com/x", LinkFacts())
    assert found.needs(Fact.DEPTH)


# Parts


@settings(max_examples=60)
@given(st.lists(st.sampled_from("ab"), max_size=12), st.integers(2, 4), st.booleans())
def test_repeats(segments: list[str], times: int, slash: bool) -> None:
    """The same as a regular expression with a backreference says."""
    path = "/" + "/".join(segments) + ("/" if slash and segments else "")
    expected = re.search(rf"((?:/[ab])+?)\1{{{times - 1}}}(?=/|$)", path) is not None
    assert has_repeats(path, times) is expected


def test_repeats_takes_no_time() -> None:
    """A path as long as URLs may be, without any repetition but full of what looks like one."""
    word = "a"
    for _ in range(10):  # Thue and Morse: no three in a row
        word += word.translate(str.maketrans("ab", "ba"))
    path = "/" + "/".join(word[:1_000])
    assert not has_repeats(path, 3)
    began = time.thread_time()
    for _ in range(20):
        has_repeats(path, 3)
    assert time.thread_time() - began < 2  # 0.02: the naive way takes minutes


def test_no_text_makes_a_regex_slow() -> None:
    """What takes a backtracking engine for ever is done; long texts are cut where it says so."""
    began = time.thread_time()
    assert not Filter('URLMatchesRegex("(x+x+)+y")', Stage.FETCH).wants("x" * 2_000, LinkFacts())
    assert time.thread_time() - began < 2
    assert body_regex("end", whole=False)(b"x" * (BODY_MAX - 3) + b"end")
    assert not body_regex("end", whole=False)(b"x" * BODY_MAX + b"end")
    large = "a[ab]{800}c"
    assert body_regex(large, whole=False)(b"a" * 801 + b"c")
    assert not body_regex(large, whole=False)(b" " * (STEPS_MAX // 800) + b"a" * 801 + b"c")


def test_surt() -> None:
    """As Heritrix writes them, without the scheme."""
    assert surt("http://www.example.org/a/b?c") == "(org,example,www,)/a/b?c"
    assert surt("https://example.org:8443/") == "(org,example,:8443)/"
    assert surt("http://[2001:db8::1]/x") == "([2001:db8::1])/x"


# Countries

TABLE = """network,country
192.0.2.0/25,DE
"198.51.100.1","198.51.100.9","at"  # some
# nothing

2001:db8::/48,FR
2001:db8:1::,2001:db8:1:ffff::,CH
"""


def test_countries() -> None:
    """Both forms of a line, both versions, what lies between ranges, and the mapped ones."""
    countries = Countries.parse(TABLE.splitlines()[1:], "file")
    expected = {
        "192.0.2.0": "DE", "192.0.2.127": "DE", "192.0.2.128": "", "198.51.100.0": "",
        "198.51.100.1": "AT", "198.51.100.9": "AT", "198.51.100.10": "", "0.0.0.0": "",
        "2001:db8:0:5::1": "FR", "2001:db8:1:2::9": "CH", "2001:db8:2::": "",
        "::ffff:192.0.2.5": "DE", "255.255.255.255": "", "": "", "nonsense": "",
    }  # fmt: skip
    assert {address: countries.of(address) for address in expected} == expected
    assert len(countries) == 4


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("network,country", "'country' is no country code of two letters"),
        ("192.0.2.0/24,D1", "no country code"),
        ("192.0.2.0/33,DE", "does not appear to be an IPv4 or IPv6 network"),
        ("192.0.2.1/24,DE", "has host bits set"),
        ("192.0.2.9,192.0.2.1,DE", "the first address is beyond the last"),
        ("192.0.2.9,::1,DE", "the first address is beyond the last"),
        ("1.1.1.1,1.1.1.2,1.1.1.3,DE", "expected network,country or first,last,country"),
        ("DE", "expected network,country or first,last,country"),
        ("10.0.0.0/9,DE", "overlaps another range"),
    ],
)
def test_a_bad_table(line: str, why: str) -> None:
    """The line is named."""
    rows = ["10.0.0.0/8,FR", line]
    with pytest.raises(SettingsError, match=rf"SUITE_COUNTRIES: file, line \d: .*{why}"):
        Countries.parse(rows, "file")
