"""Which encoding a page is read in, declared or not, and what links then are on the wire."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_spider_suite.urls.extract import Markup, PageContext, extract

META = '<meta charset="{}"><a href="/{}">'
URL = "http://a.example/"


def links(body: bytes, content_type: str | None = None, encoding: str | None = None) -> list[str]:
    """The links of *body*."""
    return extract(body, PageContext(URL, content_type=content_type, encoding=encoding)).links


@pytest.mark.parametrize(
    ("label", "codec", "text"),
    [
        ("utf-8", "utf-8", "é漢"),
        ("windows-1251", "cp1251", "Привет"),
        ("koi8-r", "koi8-r", "Привет"),
        ("latin1", "cp1252", "é€"),
        ("iso-8859-2", "iso8859-2", "łó"),
        ("shift_jis", "cp932", "表示ソ"),
        ("euc-jp", "euc_jp", "日本"),
        ("iso-2022-jp", "iso2022_jp", "日本"),
        ("gbk", "gb18030", "中文"),
        ("big5", "big5hkscs", "功許蓋"),
        ("euc-kr", "cp949", "한국"),
    ],
)
def test_every_way_to_declare(label: str, codec: str, text: str) -> None:
    """The same page in each encoding, declared by header, by meta and by the caller."""
    expected = links(f'<a href="/{text}">'.encode(), encoding="utf-8")
    plain = f'<a href="/{text}">'.encode(codec)
    assert links(plain, f"text/html; charset={label}") == expected
    assert links(plain, encoding=label) == expected
    assert links(META.format(label, text).encode(codec)) == expected
    http_equiv = f'<meta http-equiv=Content-Type content="text/html; charset={label}">'
    assert links(http_equiv.encode() + plain) == expected


@pytest.mark.parametrize(
    ("bom", "codec"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
    ],
)
def test_byte_order_mark_wins(bom: bytes, codec: str) -> None:
    """A byte order mark says more than the header and the meta together."""
    body = bom + META.format("latin1", "é").encode(codec)
    assert links(body, "text/html; charset=koi8-r") == ["http://a.example/%C3%A9"]


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be", "utf-32-be"])
def test_wide_encodings_without_a_mark(codec: str) -> None:
    """Declared by the header only, the byte order is read off the markup."""
    body = '<a href="/é">'.encode(codec)
    label = codec[:6]
    assert links(body, f"text/html; charset={label}") == ["http://a.example/%C3%A9"]


@pytest.mark.parametrize("label", ["utf-16", "utf-32", "base64", "idna", "cp037", "utf-7", "nope"])
def test_impossible_declarations(label: str) -> None:
    """A label that names nothing the page can be in is not believed, wherever it stands."""
    body = META.format(label, "é").encode()
    assert links(body, f"text/html; charset={label}") == ["http://a.example/%C3%A9"]


def test_guess() -> None:
    """Without a declaration: UTF-8 if it is valid, though cut off, else windows-1252."""
    assert links("<a href=/é>é".encode()[:-1]) == ["http://a.example/%C3%A9"]
    assert links("<a href=/é>\xff".encode("latin-1")) == ["http://a.example/%C3%A9"]


def test_broken_bytes() -> None:
    """Bytes that are no text become U+FFFD, as does NUL; the rest of the page is read."""
    body = b"<meta charset=utf-8>\xff<a href=/\xc3><a href=/\xe2\x82x><a href=/a\0b>"
    assert links(body) == [
        "http://a.example/%EF%BF%BD",
        "http://a.example/%EF%BF%BDx",
        "http://a.example/a%EF%BF%BDb",
    ]


def test_query_in_the_encoding_of_the_page() -> None:
    """As browsers do: the query in the page's encoding, path and fragment in UTF-8."""
    body = META.format("windows-1251", "Я?q=Яя&漢;=&#x6f22;#Я".replace("漢", "")).encode("cp1251")
    assert links(body) == ["http://a.example/%D0%AF?q=%DF%FF&;=%26%2328450%3B"]
    assert links('<a href="?q=表@">'.encode("cp932"), encoding="shift_jis") == [
        "http://a.example/?q=%95%5C@"
    ]
    utf16 = codecs.BOM_UTF16_LE + '<a href="?é">'.encode("utf-16-le")
    assert links(utf16) == ["http://a.example/?%C3%A9"]


@settings(deadline=None)
@given(st.binary(), st.sampled_from([None, "utf-8", "utf-16", "gb18030", "shift_jis", "big5"]))
def test_any_value_in_any_encoding(value: bytes, label: str | None) -> None:
    """Every value of every page can be read."""
    page = Markup(b"<" + value, label)
    assert isinstance(page.read_url(value), str)
