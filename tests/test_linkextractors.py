"""The drop-in ``LinkExtractor``, with Scrapy's own as the measure."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy.http import HtmlResponse, Response, TextResponse, XmlResponse
from scrapy.link import Link
from scrapy.linkextractors import LinkExtractor as ScrapysExtractor
from scrapy.spiders import CrawlSpider, Rule
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.linkextractors import LinkExtractor, read_anchors

URL = "http://a.example/x/page.html"
PAGES = Path(__file__).parent / "data" / "pages"

# Pieces of broken and whole markup, so that a few draws make any of it.
MARKUP = st.sampled_from(
    [
        *("<", ">", '"', "'", "=", " ", "/", "\n", "\r\n", "\r", "\f", "\0", "\x01", "a", "x", "é"),
        *(
            "&amp;",
            "&copy",
            "&copy=",
            "&notit;",
            "&#65;",
            "&#x80;",
            "&#13;",
            "&#0",
            "&#xd800;",
            "&",
        ),
        *("<a ", "<a href=", '<a href="', "<A HREF='", ' href="x1"', " href='x2'", " href=x3"),
        *('<a href="t1">', "<a\thref=t2>", "<a/href=t3>", '<a x=1 href = "t4" y >', '<a id="q">'),
        *('<a class="q" href="t5" rel="z, NoFollow">', '<a href="t6" href="t7">', "<a href=t8 />"),
        *(
            "</a>",
            "</A >",
            "</a x='>'>",
            "</a/>",
            '<a href="t9">text</a>',
            "<area href=r1>",
            "<area ",
        ),
        *("<p>", "</p>", "<div>", "</div>", "<b>", "</b>", "<span>", "</span>", "<h1>", "</h1>"),
        *("<i class=x>", "</i>", "<font>", "<br>", "</br>", "<hr>", "<img alt='", "<wbr>", "<x-y>"),
        *("<table>", "<tr>", "<td>", "</td>", "</table>", "<ul>", "<li>", "</li>", "</ul>", "<dd>"),
        *("<form>", "<fieldset>", "<center>", "<pre>", "<select>", "<option>", "<svg>", "</svg>"),
        *("<html>", "<html/>", "</html>", "<head>", "</head>", "<body>", "<body/>", "</body>"),
        *(
            "<!--",
            "-->",
            "--!>",
            "<!-->",
            "<!--->",
            "-",
            "<!",
            "<?",
            "</",
            "</>",
            "<![CDATA[",
            "]]>",
        ),
        *("<style>", "</style>", "<textarea>", "</textarea>", "<title>", "</title>", "<title/>"),
        *("<script>", "<SCRIPT a=b>", "</script>", "</script >", "<script/>", "<xmp>", "</xmp>"),
        *("<iframe>", "</iframe>", "<noframes>", "</noframes>", "<noembed>", "<noscript>"),
        *(
            "<plaintext>",
            "<base href=/b/>",
            "<base>",
            "<!DOCTYPE html>",
            "<frameset>",
            "<template>",
        ),
    ]
)
SOUP = st.lists(MARKUP, max_size=40).map("".join)

INLINE = st.sampled_from(["b", "I", "span", "em", "font", "x-y", "svg", "small", "label", "wbr"])
BLOCK = st.sampled_from(["div", "p", "h2", "section", "table", "ul", "li", "td", "title"])
TEXT = st.sampled_from(["text", " ", "a &lt; b", "x < y", "<br>", "<img src=i />", "<!-- > -->"])


def element(name: str, inside: str, whole: bool) -> str:
    """An element, with its end tag if it is *whole*."""
    return f'<{name} class="c">{inside}' + (f"</{name}>" if whole else "")


# Links as pages write them: with elements inside, most of which end.
CONTENT = st.recursive(
    TEXT,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.builds(element, INLINE, inner, st.booleans()),
        st.builds(element, BLOCK, inner, st.just(True)),
    ),
    max_leaves=8,
)
LINKS = st.lists(
    st.builds(
        "{}<a {}href='{}'>{}</a>".format,
        st.sampled_from(["", "<p>", "<ul><li>", "</b>", "<td>", "<i>"]),
        st.sampled_from(["", 'rel="nofollow" ', "title='>' "]),
        st.integers(0, 5),
        CONTENT,
    ),
    max_size=5,
).map("".join)

REFERENCES = st.lists(
    st.sampled_from(
        [
            *(
                "http://",
                "https://",
                "HTTP://",
                "//",
                "/",
                "a",
                "b.html",
                "Q",
                "x-y.test",
                "A.test",
            ),
            *(
                ".",
                "..",
                "../",
                "./",
                "?",
                "#",
                "&",
                "&amp;",
                "=",
                ";",
                ":",
                "%41",
                "%zz",
                "é",
                "[",
                "]",
            ),
            *(
                " ",
                "\t",
                "|",
                "@",
                "~",
                "+",
                "(",
                "xn--a.test",
                ":80",
                ":8080",
                "127.0.0.1",
                "\\",
                "1",
            ),
            *(
                "javascript:",
                "mailto:",
                "data:",
                "ftp://",
                "file:///",
                "foo:",
                ".pdf",
                ".tar.gz",
                "^",
            ),
        ]
    ),
    max_size=7,
).map("".join)
URLS = st.sampled_from(
    [
        *(URL, URL + "?q=1#f", "http://a.example", "https://b.example/a//b/", "file:///tmp/x.html"),
        *("http://a.example:8080/y;p=1/é'?q='", "http://127.0.0.1/a/b/c/", "http://u:p@a.example/"),
    ]
)


def drop_odd(value: str) -> str | None:
    """Every other link, elsewhere."""
    return None if len(value) % 2 else value.replace("/x/", "/é/")


ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"allow": r"[t1-3]"},
    {"allow": ["t5", "t6"], "deny": "t6"},
    {"deny": ("t1", "x")},
    {"allow_domains": "a.example"},
    {"allow_domains": ["b.test", "A.Example"], "deny_domains": "q.a.example"},
    {"deny_domains": ["a.example"]},
    {"restrict_xpaths": "//p"},
    {"restrict_css": ("p", "div")},
    {"restrict_text": "x"},
    {"tags": "area"},
    {"tags": ("a", "link", "img")},
    {"tags": "*", "attrs": "*"},
    {"attrs": ("href", "class")},
    {"tags": None},
    {"canonicalize": True},
    {"unique": False},
    {"unique": False, "canonicalize": True},
    {"process_value": drop_odd},
    {"deny_extensions": []},
    {"deny_extensions": "html"},
    {"deny_extensions": ["b.html", "PDF"]},
    {"strip": False},
]
if "deny_tags" in inspect.signature(ScrapysExtractor).parameters:  # Scrapy 2.17
    ARGUMENTS += [{"deny_tags": "a"}, {"deny_attrs": "href"}, {"tags": "*", "deny_tags": "a"}]


def page(body: str, url: str = URL, encoding: str = "utf-8") -> HtmlResponse:
    """A response with *body*."""
    return HtmlResponse(url, body=body.encode(encoding, "xmlcharrefreplace"), encoding=encoding)


def check(response: TextResponse, **arguments: Any) -> list[Link]:
    """Compare the links of both extractors, before and after the tree is made, and return them."""
    extractor = LinkExtractor(**arguments)
    found = extractor.extract_links(response)
    assert found == ScrapysExtractor(**arguments).extract_links(response)
    assert found == extractor.extract_links(response)
    return found


@settings(deadline=None, max_examples=120)
@given(SOUP)
def test_any_markup(body: str) -> None:
    check(page(body), deny_extensions=[], unique=False)


@settings(deadline=None, max_examples=120)
@given(LINKS)
def test_texts(body: str) -> None:
    check(page(body), unique=False)


@settings(deadline=None, max_examples=120)
@given(st.lists(REFERENCES, max_size=5), URLS, st.sampled_from(["", "<base href='/b/'>"]))
def test_urls(references: list[str], url: str, base: str) -> None:
    body = base + "".join(f'<a href="{reference}">t</a>' for reference in references)
    check(page(body, url))
    check(page(body, url, "cp1251"), unique=False, strip=False)


@settings(deadline=None, max_examples=90)
@given(st.one_of(SOUP, LINKS), st.sampled_from(ARGUMENTS))
def test_arguments_on_any_markup(body: str, arguments: dict[str, Any]) -> None:
    check(page(body), **arguments)


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=lambda given: ",".join(given) or "none")
def test_arguments(arguments: dict[str, Any]) -> None:
    body = """<p><a href="t1">x</a> <a href="/x/t2.html" class="t3">y</a><a href="t1">again</a></p>
    <div><area href=" t5.PDF " rel=nofollow><a href="//q.a.example/t6">x</a><link href=l></div>
    <a href="http://b.test:80/t6?b=1&a=2#f">x</a><a href="é.html;x=1">z</a><img class=i href=j>
    <a href="ftp://a.example/">f</a><a href="mailto:t1">m</a><a href="t1#f">t1</a>
    <area href=b.html>"""
    check(page(body), **arguments)
    # By position, as Scrapy has them.
    bound = inspect.signature(ScrapysExtractor).bind(**arguments)
    bound.apply_defaults()
    by_position = LinkExtractor(*bound.args).extract_links(page(body))
    assert by_position == LinkExtractor(**arguments).extract_links(page(body))


@pytest.mark.parametrize("encoding", ["utf-8", "cp1251", "shift_jis", "utf-16", "iso-2022-jp"])
def test_encodings(encoding: str) -> None:
    found = check(page("<a href='ф?ф=ф#ф'>ф</a><p><a href=д>д <b>ы</b></a>", encoding=encoding))
    assert [link.text for link in found] == ["ф", "д ы"]


@pytest.mark.parametrize("name", sorted(path.name for path in PAGES.glob("*.html")))
def test_whole_pages(name: str) -> None:
    check(HtmlResponse(URL, body=(PAGES / name).read_bytes()))


@pytest.mark.parametrize(
    "body",
    [
        "<!DOCTYPE html><html><head><title>a<b</title></head><body><a href=1>x</a></body></html>\n",
        '<A CLASS="b" HREF="1" REL="nofollow">x</A >',
        "<a href=1><div><h3>x</h3><p>y</p></div><img src=i alt='>'></a>",
        "<a href=1>one<a href=2>two</a>",
        "<p>a < b <a href=1>x &amp; y</a><!-- <a href=no> --><br/>",
        "<script>if (a<b) '<a href=no>'</script><style>a>b</style><a href=1><b>x</a></b>",
        "<script><!-- document.write('<b>') //--></script><a href=1>x</a>",
        "<svg><path d='M0'/></svg><iframe src=i></iframe><map><area href=1></map>",
    ],
)
def test_most_pages_need_no_tree(body: str) -> None:
    assert read_anchors(body)
    check(page(body))


@pytest.mark.parametrize(
    "response",
    [
        XmlResponse(URL, body=b"<x><a href='1'>t</a></x>"),
        TextResponse(URL, body=b"<html><a href='1'>t</a></html>", encoding="utf-8"),
        HtmlResponse(URL, body=b""),
        HtmlResponse(URL, body=b"\xef\xbb\xbf<a href=1>t</a>"),
        HtmlResponse(URL, body=b" \0<a hr\0ef=1>\0t</a> "),
    ],
)
def test_any_response(response: TextResponse) -> None:
    check(response)


def test_a_tree_that_the_spider_has_changed() -> None:
    response = page("<a href=1>t</a><footer><a href=2>t</a></footer>")
    assert len(check(response)) == 2
    response.css("footer").drop()
    assert len(check(response)) == 1


def test_each_call_has_links_of_its_own() -> None:
    """What a rule does to its links is not seen by the next."""
    response = page("<a href=1>t</a>")
    for link in LinkExtractor().extract_links(response):
        link.url = "http://other.example/"
    check(response)


def test_rules_of_a_spider() -> None:
    def spider(extractor: Any) -> list[tuple[str, Any]]:
        class Ruled(CrawlSpider):
            name = "ruled"
            rules = (
                Rule(extractor(allow="/list")),
                Rule(extractor(restrict_css="p"), callback="parse_book"),
                Rule(extractor(deny="/list"), process_links=lambda links: links[:2]),
            )

            def parse_book(self, response: Response) -> None:
                raise AssertionError

        made = Ruled.from_crawler(get_crawler(Ruled))
        body = "<a href=/list>l</a><p><a href=/book/1>b</a></p><a href=/b><a href=/c><a href=/d>"
        requests = made._requests_to_follow(page(body))
        return [(request.url, request.meta) for request in requests]

    found = spider(LinkExtractor)
    assert found == spider(ScrapysExtractor)
    assert len(found) == 4


def test_matches() -> None:
    extractor = LinkExtractor(allow="/x", deny_domains=["b.example"])
    assert isinstance(extractor, ScrapysExtractor)
    assert extractor.matches("http://a.example/x")
    assert not extractor.matches("http://b.example/x")


HOSTILE = {
    "links": "<a href=/1>x</a>" * 65_000,
    "open links": "<a href=/1>" * 90_000,
    "open links in others": "<a href=/1><b>" * 70_000,
    "nested": "<a href=1>" + "<div>" * 200_000,
    "attributes": "<a " + "".join(f"a{number}=1 " for number in range(100_000)) + ">",
    "unclosed": '<a href="x ' * 90_000,
    "unclosed tags": "<a x=y " * 150_000,
    "blanks": "<a" + " " * 1_000_000,
    "slashes": ("<a " + "/" * 60_000 + ">") * 16,
    "slashes in odd quotes": ('<a x /= "' + "/" * 60_000 + "'>\">") * 16,
    "comments": "<!-- " * 200_000,
    "comments in a link": "<a href=1>" + "<!-- -->" * 120_000,
    "scripts": "<script><!--" * 90_000,
    "brackets": "<" * 1_000_000,
    "brackets in a link": "<a href=1>" + "< " * 500_000,
    "references": "<a href=1>" + "&amp;&#65" * 100_000 + "</a>",
    "names": "<a href=1>&" + "a" * 1_000_000 + "</a>",
    "ends": "<a href=1>" + "</html>" * 140_000,
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_hostile_pages(body: str) -> None:
    """Time is linear in the page, however it is built: quadratic time would take hours."""
    read_anchors(body)
