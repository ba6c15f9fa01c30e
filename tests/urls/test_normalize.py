"""The normal form of URLs: against real URLs and made-up ones (``test_wpt``: the standard's)."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Request

from scrapy_spider_suite.urls.normalize import (
    LinkResolver,
    Unusable,
    host_of,
    normalize,
    parse_reference,
    split_url,
)

DATA = Path(__file__).parent.parent / "data" / "urls"
REAL = (DATA / "real_urls.txt").read_text(encoding="utf-8").splitlines()

# Text in which URLs, their parts and what breaks them are likely.
WORDS = """
    http:// https:// HTTP: // / /./ /../ ../ ./ . .. ... ? # @ : ; & = % %2e %2E %41 %7e %zz %%32e
    a b.c A é ü.de xn-- xn--nxasmq6b a.example :80 :443 :8080 [::1] 127.0.0.1 0x7f.1 javascript:
    data: mailto: | [ ] ^ ` { } " ' < > ~ - _ * ! $ ( ) , + 。
"""
PIECES = st.sampled_from(
    [*WORDS.split(), " ", "\t", "\n", "\\", "\ud800", "\0", "\x7f", "\U0001f600"]
)
URLISH = st.lists(PIECES, max_size=10).map("".join) | st.text(max_size=20)
BASES = st.sampled_from(
    [
        "http://a.example/",
        "https://b.example:8443/x/y/z?q=1",
        "http://c.example/d/e/",
        "http://[::1]/x",
    ]
)


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("HTTP://WWW.Example.COM", "http://www.example.com/"),
        ("  http://a.example/b \n", "http://a.example/b"),
        ("http://a.example:80/", "http://a.example/"),
        ("https://a.example:443/", "https://a.example/"),
        ("http://a.example:443/", "http://a.example:443/"),
        ("http://a.example:0080/x", "http://a.example/x"),
        ("http://a.example./x", "http://a.example/x"),
        ("http://a.example..:81/x", "http://a.example:81/x"),
        ("http://0x7f../", "http://0.0.0.127/"),
        ("http://./", None),
        ("http://../x", None),
        ("http://user:pass@a.example/", "http://a.example/"),
        ("http://a.example/x#frag?no", "http://a.example/x"),
        ("http://a.example?", "http://a.example/"),
        ("http://a.example/??", "http://a.example/??"),
        ("http://a.example?q", "http://a.example/?q"),
        ("http://a.example/a/../b/./c", "http://a.example/b/c"),
        ("http://a.example/a/%2e%2E/b", "http://a.example/b"),
        ("http://a.example\\b\\c", "http://a.example/b/c"),
        ("http://a.example/%7euser/%2d%5F%41?%7E", "http://a.example/~user/-_A?~"),
        ("http://a.example/%c3%a9%2f", "http://a.example/%C3%A9%2F"),
        ("http://a.example/é?ü", "http://a.example/%C3%A9?%C3%BC"),
        ("http://a.example/100%", "http://a.example/100%25"),
        ("http://a.example/%%32e", "http://a.example/%252e"),
        (
            "http://a.example/[x]|{y}^`?[z]=\\",
            "http://a.example/%5Bx%5D%7C%7By%7D%5E%60?%5Bz%5D=%5C",
        ),
        ("http://a.example/a b\t\n?c d", "http://a.example/a%20b?c%20d"),
        ("http://münchen.example/", "http://xn--mnchen-3ya.example/"),
        ("http://exa<mple/", None),
        ("http://\u00ad/", None),
        ("http://2130706433/", "http://127.0.0.1/"),
        ("http://[::FFFF:7F00:1]/", "http://[::ffff:7f00:1]/"),
        ("http://a.example/?b=2&a=1&a=1", "http://a.example/?b=2&a=1&a=1"),
        ("ftp://a.example/", None),
        ("javascript:void(0)", None),
        ("/no/base", None),
        ("", None),
        ("http://", None),
        ("http://a b/", None),
        ("http://a.example:99999/", None),
        ("http://a.example/\ud800", "http://a.example/%EF%BF%BD"),
        ("http://\ud800.example/", None),
    ],
)
def test_normal_form(url: str, normal: str | None) -> None:
    """Each rule of the normal form, by example."""
    assert normalize(url) == normal


@pytest.mark.parametrize(
    ("href", "normal"),
    [
        ("p.html", "https://a.example:81/x/y/p.html"),
        ("p/q?r=/../s", "https://a.example:81/x/y/p/q?r=/../s"),
        ("/p", "https://a.example:81/p"),
        ("//b.example", "https://b.example/"),
        ("../p", "https://a.example:81/x/p"),
        ("../../../p", "https://a.example:81/p"),
        ("../", "https://a.example:81/x/"),
        ("..", "https://a.example:81/x/"),
        ("../#top", "https://a.example:81/x/"),
        ("../?q", "https://a.example:81/x/?q"),
        ("..//p", "https://a.example:81/x//p"),
        ("../http://b.example/", "https://a.example:81/x/http://b.example/"),
        (".", "https://a.example:81/x/y/"),
        ("?q", "https://a.example:81/x/y/z?q"),
        ("", "https://a.example:81/x/y/z?old=1"),
        ("#top", "https://a.example:81/x/y/z?old=1"),
        ("https:p", "https://a.example:81/x/y/p"),
        ("http:p", "http://p/"),
        ("java\nscript:x", None),
        ("mailto:a@b.example", None),
    ],
)
def test_relative_references(href: str, normal: str | None) -> None:
    """References are resolved as the URL standard says, whatever the base's query or port."""
    assert normalize(href, "https://a.example:81/x/y/z?old=1#frag") == normal


def test_base_that_is_not_http() -> None:
    """Against a base that is not http or https only absolute references have a normal form."""
    assert normalize("x", "ftp://a.example/") is None
    assert normalize("http://b.example", "about:blank") == "http://b.example/"


def test_why_there_is_none() -> None:
    """A resolver tells what is no URL from what is a URL of another kind."""
    resolver = LinkResolver("http://a.example/")
    assert resolver.resolve("tel:123") is Unusable.NOT_HTTP
    assert resolver.resolve("data:" + "x" * 10_000_000) is Unusable.NOT_HTTP
    assert resolver.resolve("http://[") is Unusable.MALFORMED
    assert resolver.base == "http://a.example/"
    assert LinkResolver("about:blank").base is None


def test_real_urls() -> None:
    """Real URLs: stable, as Scrapy writes them, and the same before and after Scrapy."""
    for url in REAL:
        normal = normalize(url)
        assert normal is not None
        assert normalize(normal) == normal == parse_reference(normal, None)
        assert normal == parse_reference(url, None)
        assert Request(normal).url == normal
        assert normalize(Request(url).url) == normal
    assert len(REAL) == 2000


@settings(deadline=None)
@given(URLISH)
def test_idempotent(url: str) -> None:
    """Any text: the normal form is ASCII, its own normal form, and what Scrapy would send."""
    normal = normalize(url)
    if normal is not None:
        assert normal.isascii()
        assert normalize(normal) == normal
        assert Request(normal).url == normal


@settings(deadline=None)
@given(URLISH, BASES)
def test_shortcuts_change_nothing(href: str, base: str) -> None:
    """What is joined without the parser is what the parser makes of it."""
    assert LinkResolver(base).resolve(href) == parse_reference(href, normalize(base))
    assert normalize(href) == normalize(href, "about:blank")


@settings(deadline=None)
@given(BASES | URLISH, st.lists(URLISH, max_size=5))
def test_links_of_a_page_together_are_as_one_by_one(base: str, hrefs: list[str]) -> None:
    """Also with line breaks in them."""
    resolver = LinkResolver(base)
    assert resolver.resolve_all(hrefs) == [resolver.resolve(href) for href in hrefs]
    assert resolver.resolve_all(hrefs) == [parse_reference(href, resolver.base) for href in hrefs]


@settings(deadline=None)
@given(URLISH, BASES)
def test_parts(href: str, base: str) -> None:
    """The parts of a normal URL are found without parsing it, and make it up again."""
    url = normalize(href, base)
    if url is None:
        return
    scheme, host, port, path = split_url(url)
    parsed = urlsplit(url)
    assert (scheme, port) == (parsed.scheme, parsed.port)
    assert host.strip("[]") == parsed.hostname
    assert host_of(url) == host
    assert path.startswith("/")
    assert url.endswith(path)


def test_parts_by_example() -> None:
    """IPv6 literals keep their brackets, a port is a number, a path keeps its query."""
    assert split_url("http://[::1]:81/x?y") == ("http", "[::1]", 81, "/x?y")
    assert split_url("https://a.example/") == ("https", "a.example", None, "/")
    assert host_of("http://[::1]/a:b") == "[::1]"
    assert host_of("http://a.example:8080/") == "a.example"
    assert split_url("http://a.example:8080/x/http://b/") == ("http", "a.example", 8080, "/x/http://b/")


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("a" * 63 + ".example", True),
        ("a" * 64 + ".example", False),
        ("a." + "b" * 64, False),
        ("xn--" + "a" * 60 + ".example", False),
        ("a." * 122 + "example.com", False),
        ("a." * 122 + "example", True),
        ("A." * 122 + "example..", True),
        ("A." * 123 + "examples.", False),
        ("a..example", False),
        ('"a.example', False),
        ("a{b}.example", False),
        ("a_b!.example", True),
        (".a.example", False),
    ],
)
def test_hosts_that_no_name_server_can_know(host: str, known: bool) -> None:
    """RFC 1035: 253 characters, 63 between two dots; however the URL is read."""
    for port in ("", ":8080", ":54321"):
        url = f"http://{host}{port}/x"
        assert (normalize(url) is not None) is known
        found = LinkResolver("http://a.example/").resolve(f"//{host}{port}/x")
        assert isinstance(found, str) is known
        assert isinstance(parse_reference(url, None), str) is known


@pytest.mark.parametrize("start", ["http://", "//", "h\nttp:\t//", "/\t\\", " https:"])
def test_a_host_of_too_many_letters_is_none(start: str) -> None:
    """No name server could know it, and sorting its accents costs quadratic time."""
    base = "http://a.example/"
    assert normalize(f"{start}{'é' * 40}/", base) is not None
    assert normalize(f"{start}{'é' * 257}/", base) is None
    assert normalize(f"{start}a.example/{'é' * 300}", base) is not None
    assert normalize(f"/{'é' * 300}", base) == f"{base}{'%C3%A9' * 300}"
    assert normalize("é" * 300, base) == f"{base}{'%C3%A9' * 300}"
