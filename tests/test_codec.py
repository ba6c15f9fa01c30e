"""Requests as bytes and back: equal, small, and harmless whatever the bytes are."""

from __future__ import annotations

import encodings
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any, NamedTuple

import lxml.html  # type: ignore[import-untyped]
import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request, Spider
from scrapy.http import FormRequest, Headers, JsonRequest, TextResponse, XmlRpcRequest
from scrapy.http.request import NO_CALLBACK, form
from support.codec_values import (
    HERE,
    Book,
    BookItem,
    CodecSpider,
    Colour,
    DriftingRequest,
    LeakyRequest,
    PageRequest,
    Point,
    StubbornRequest,
    any_text,
    refused,
    same,
    values,
)

from scrapy_spider_suite.errors import CodecError
from scrapy_spider_suite.store.request_codec import (
    VERSION,
    RequestCodec,
    UnstorableError,
    register,
)

URL = "https://www.example.com/catalogue/category/books/travel_2/index.html?p"
SPIDER = CodecSpider()


class Price(NamedTuple):
    """A class that its user registers."""

    amount: int
    currency: str


def codec(spider: Spider = SPIDER, *allowed: str) -> RequestCodec:
    """A codec that allows the classes of the tests."""
    return RequestCodec(spider, allowed or (HERE,))


def again(request: Request) -> Request:
    """The request after a round trip through two codecs, as on a resume."""
    return codec().decode(codec().encode(request))


headers = st.dictionaries(
    st.sampled_from(["Accept", "x-one", "Referer"]),
    st.none() | st.text("abc é", max_size=5) | st.lists(st.binary(max_size=4), max_size=3),
)
cookies = st.dictionaries(any_text, any_text | st.booleans() | st.integers(), max_size=2)
verbose_cookies = st.lists(
    st.fixed_dictionaries({"name": any_text, "value": any_text, "secure": st.booleans()}),
    max_size=2,
)
arguments: dict[str, st.SearchStrategy[Any]] = {
    "callback": st.sampled_from([SPIDER.parse_page, SPIDER._parse_hidden, NO_CALLBACK, None]),
    "errback": st.sampled_from([SPIDER.failed, None]),
    "headers": headers,
    "cookies": cookies | verbose_cookies,
    "meta": st.dictionaries(any_text, values, max_size=3),
    "cb_kwargs": st.dictionaries(any_text, values, max_size=2),
    "priority": st.integers(-(2**70), 2**70),
    "dont_filter": st.booleans(),
    "flags": st.lists(any_text, max_size=2),
    "encoding": st.sampled_from(["utf-8", "cp1252", "latin-1"]),
}
urls = st.text("abc/?&=#%é ", max_size=8).map(lambda path: f"http://a.example/{path}")
methods = st.sampled_from(["GET", "POST", "put"])


OWN: dict[type[Request], dict[str, st.SearchStrategy[Any]]] = {
    Request: {"method": methods, "body": st.binary(max_size=9)},
    FormRequest: {"formdata": st.dictionaries(st.text("ab"), st.text("ab"))},
    JsonRequest: {"data": st.dictionaries(st.text("ab"), st.integers())},
    XmlRpcRequest: {"methodname": st.just("m"), "params": st.just((1, "a"))},
    PageRequest: {"page": st.integers(), "method": methods},
}


@st.composite
def requests(draw: st.DrawFn, nested: bool = True) -> Request:
    """Requests of any class with any arguments, some with another request in their meta."""
    cls = draw(st.sampled_from(list(OWN)))
    always = {"url": urls, **(OWN[cls] if cls is XmlRpcRequest else {})}
    often = {name: one for name, one in {**arguments, **OWN[cls]}.items() if name not in always}
    kwargs = draw(st.fixed_dictionaries(always, optional=often))
    request: Request = cls(**kwargs)
    if nested and draw(st.booleans()):
        request.meta["inner"] = [draw(requests(nested=False))]
    return request


class TestRoundTrip:
    """What comes back is the request that was stored."""

    @given(requests())
    def test_any_request(self, request: Request) -> None:
        """Every attribute of every storable request comes back equal."""
        assert same(again(request), request)

    def test_size(self) -> None:
        """A plain request takes little more than its URL and the callback's name."""
        assert len(URL) == 70
        assert len(codec().encode(Request(URL))) < 80
        assert len(codec().encode(Request(URL, callback=SPIDER.parse_page))) < 95

    def test_callbacks_are_methods_of_the_new_spider(self) -> None:
        """A resumed crawl has another spider object; callbacks are bound to that one."""
        other = CodecSpider()
        request = Request(URL, callback=SPIDER.parse_page, errback=SPIDER.failed)
        restored = codec(other).decode(codec().encode(request))
        assert (restored.callback, restored.errback) == (other.parse_page, other.failed)

    def test_shared_objects_become_copies(self) -> None:
        """Identity is not kept: documented, and stated here."""
        shared: list[int] = []
        stored = codec().encode(Request(URL, cb_kwargs={"a": shared, "b": shared}))
        shared.append(1)
        restored = codec().decode(stored)
        assert restored.cb_kwargs == {"a": [], "b": []}
        assert restored.cb_kwargs["a"] is not restored.cb_kwargs["b"]

    def test_objects_of_the_project(self) -> None:
        """Items, dataclasses, enums, headers and requests travel in meta and cb_kwargs."""
        inner = FormRequest(URL, formdata={"a": "b"}, callback=SPIDER.parse_page)
        meta = {"item": BookItem(title="a"), "next": [inner, Request(URL)], "seen": {Point(1)}}
        extra = {"headers": Headers({"A": ["b", "c"]}, "latin-1"), "book": Book("a")}
        request = Request(URL, meta=meta, cb_kwargs={**extra, "colour": Colour.RED})
        assert same(again(request), request)

    def test_subclasses_keep_what_they_do_not_default(self) -> None:
        """A subclass's own defaults do not come back where the request had something else."""
        json = JsonRequest(URL, data={"a": 1}, dumps_kwargs={"indent": 1})
        del json.headers["Content-Type"]
        rpc = XmlRpcRequest(URL, methodname="m", params=(1,), method="GET", dont_filter=False)
        page = PageRequest(URL, page=3, priority=0)
        for request in (json, rpc, page):
            assert same(again(request), request)

    def test_scrapys_classes_by_their_own_name(self) -> None:
        """Where ``scrapy.http.FormRequest`` is a deprecated twin, both of them are storable."""
        request = form.FormRequest(URL, formdata={"a": "b"})
        assert same(RequestCodec(SPIDER).decode(RequestCodec(SPIDER).encode(request)), request)

    def test_the_text_of_a_link(self) -> None:
        """CrawlSpider puts a text of lxml into meta; it comes back as plain text."""
        text = lxml.html.fromstring("<p>a <b>book</b></p>").xpath("string()")
        back = again(Request(URL, meta={"link_text": text})).meta["link_text"]
        assert type(text) is not str
        assert (type(back), back) == (str, "a book")

    def test_registered_classes(self) -> None:
        """A class that was registered is stored by its own functions."""
        register(Price, "test.price", list, Price._make)
        assert again(Request(URL, meta={"price": Price(1, "€")})).meta["price"] == (1, "€")

    def test_the_format_is_kept(self) -> None:
        """Bytes of the first release can be read by every later one."""
        stored = bytes.fromhex(
            "018d00b1687474703a2f2f612e6578616d706c652f01aa70617273655f706167650ba6"
            "6661696c656402a4504f535404c401620581a16ba1760683a164c71312323032342d30"
            "352d30315430313a30323a3030a17493c700000192c70001c709104000000000000000"
            "00a17093c70004ba737570706f72742e636f6465635f76616c7565733a506f696e7482"
            "a17801a1790007a6637031323532080509c30a91a1660c81a17293c70004d920737570"
            "706f72742e636f6465635f76616c7565733a50616765526571756573748300b1687474"
            "703a2f2f622e6578616d706c652f08070e81a470616765020382c40641636365707491"
            "c40161c4015892c40162c40163"
        )
        expected = Request(
            "http://a.example/", method="POST", callback=SPIDER.parse_page, errback=SPIDER.failed,
            headers={"Accept": "a", "X": ["b", "c"]}, body=b"b", cookies={"k": "v"},
            meta={"d": datetime(2024, 5, 1, 1, 2), "t": (1, {2**70}), "p": Point(1)},
            cb_kwargs={"r": PageRequest("http://b.example/", page=2)},
            priority=5, dont_filter=True, flags=["f"], encoding="cp1252",
        )  # fmt: skip
        assert same(codec().decode(stored), expected)
        assert codec().encode(expected) == stored


def _without_addresses(value: object) -> str:
    """An id that is the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))



class TestUnstorable:
    """What cannot be stored is named by the key that its user wrote."""

    @pytest.mark.parametrize(
        ("key", "arguments"),
        [
            ("callback", {"callback": lambda response: None}),
            ("callback", {"callback": partial(SPIDER.parse_page, a=1)}),
            ("callback", {"callback": CodecSpider().parse_page}),
            ("callback", {"callback": SPIDER.a_class_method}),
            ("callback", {"callback": SPIDER.a_static_method}),
            ("callback", {"callback": MethodType(print, SPIDER)}),
            ("errback", {"errback": print}),
            ("meta['x']", {"meta": {"ok": 1, "x": object()}}),
            ("meta['x']", {"meta": {"x": {"deep": [lambda: None]}}}),
            ("meta['x']", {"meta": {"x": TextResponse(URL)}}),
            ("meta['x']", {"meta": {"x": Request(URL, callback=print)}}),
            ("cb_kwargs['y']", {"cb_kwargs": {"y": Path.cwd}}),
            ("cookies", {"cookies": {"a": object()}}),
            ("flags", {"flags": [object()]}),
            ("priority", {"priority": type("Number", (int,), {})(3)}),
        ],
        ids=_without_addresses,
    )
    def test_key(self, key: str, arguments: dict[str, Any]) -> None:
        """The error has the key and a reason, both in its message."""
        with pytest.raises(UnstorableError) as caught:
            codec().encode(Request(URL, **arguments))
        assert str(caught.value).startswith(f"{key}: ")

    def test_a_key_of_a_strange_type(self) -> None:
        """Keys of meta may be anything; an unstorable one is shown as it is."""
        with pytest.raises(UnstorableError, match=r"meta\[<class 'int'>\]"):
            codec().encode(Request(URL, meta={int: 1}))  # type: ignore[dict-item]

    @pytest.mark.parametrize(
        "request_",
        [StubbornRequest(1), DriftingRequest(URL), LeakyRequest(URL, note="a")],
        ids=repr,
    )
    def test_subclasses_that_do_not_come_back(self, request_: Request) -> None:
        """A subclass that its attributes do not rebuild is refused at once, not on the resume."""
        with pytest.raises(UnstorableError) as caught:
            codec().encode(request_)
        assert str(caught.value).startswith("class: ")

    def test_a_class_that_is_not_allowed(self) -> None:
        """A request class from elsewhere has to be named in SUITE_STORABLE."""
        with pytest.raises(UnstorableError, match=r"class: .*not on the list"):
            codec(SPIDER, "elsewhere").encode(PageRequest(URL))
        with refused("not on the list"):
            codec(SPIDER, "elsewhere").decode(codec().encode(PageRequest(URL)))

    def test_foreign_headers(self) -> None:
        """A subclass of Headers would come back as Headers."""
        request = Request(URL)
        request.headers = type("Mine", (Headers,), {})({"a": "b"})
        with pytest.raises(UnstorableError, match="headers: Mine"):
            codec().encode(request)

    def test_a_url_that_scrapy_escapes_anew(self) -> None:
        """Scrapy cuts spaces off an otherwise empty host, a bit at a time: refused."""
        with pytest.raises(UnstorableError, match="url: "):
            codec().encode(Request("http://\x07\xad"))

    def test_too_big(self) -> None:
        """A request whose parts are storable but not all together says so."""
        request = Request(URL, meta={"a": "x" * 9_000_000, "b": "y" * 9_000_000})
        with pytest.raises(UnstorableError, match=r"request: .*more than"):
            codec().encode(request)


class TestAllowed:
    """Which classes a crawl allows by itself."""

    def test_project_packages(self) -> None:
        """The spider's own package and those of SPIDER_MODULES, but neither Python nor Scrapy."""
        modules = ["json.spiders", "shop.spiders", "shop.more"]
        codec = RequestCodec.from_spider(Spider("plain"), modules)
        assert codec.values.classes.allowed == ("scrapy.http.request", "shop")

    def test_from_spider(self) -> None:
        """The add-on's codec allows the project's packages and SUITE_STORABLE."""
        codec = RequestCodec.from_spider(CodecSpider(), ["shop.spiders"], ["decimal.Context"])
        allowed = codec.values.classes.allowed
        assert allowed == ("scrapy.http.request", "support", "shop", "decimal.Context")


_watched: list[str] = []
_watching = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what a program does to the world; Python has no way to take the hook off again."""
    if not _watching or event.partition(".")[0] not in {"import", "exec", "os", "subprocess"}:
        return
    if event in {"os.listdir", "os.scandir"}:
        return
    # Looking a text encoding up loads it from this package of Python's, and nothing else.
    what = arguments[0].co_filename if event == "exec" else str(arguments[0])
    if not what.startswith(("encodings.", encodings.__path__[0])):
        _watched.append(f"{event} {what}")


sys.addaudithook(_audit)


@contextmanager
def nothing_happens() -> Iterator[None]:
    """Fail if anything is imported, executed or started inside."""
    global _watching
    _watched.clear()
    _watching = True
    try:
        yield
    finally:
        _watching = False
    assert _watched == []


class TestHostileBytes:
    """Reading any bytes gives a request or a CodecError, and does nothing else."""

    @given(st.binary(max_size=200))
    def test_any_bytes(self, data: bytes) -> None:
        """Random bytes, with and without the right first byte."""
        self.read(codec(), data)
        self.read(codec(), bytes([VERSION]) + data)

    @given(st.dictionaries(st.integers(-1, 16), values, max_size=5), urls)
    def test_any_record(self, record: dict[int, Any], url: str) -> None:
        """Well-formed values in the wrong places."""
        store = codec()
        data = store.values.dumps({**record, 0: url})
        self.read(store, bytes([VERSION]) + data)

    @given(requests(), st.data())
    def test_damaged_requests(self, request: Request, data: st.DataObject) -> None:
        """A stored request with a bit turned over, or cut off."""
        stored = bytearray(codec().encode(request))
        at = data.draw(st.integers(0, len(stored) - 1))
        stored[at] ^= 1 << data.draw(st.integers(0, 7))
        self.read(codec(), bytes(stored))
        self.read(codec(), bytes(stored[:at]))

    def read(self, store: RequestCodec, data: bytes) -> None:
        """Read *data*, watched."""
        with nothing_happens():
            try:
                restored: Request | None = store.decode(data)
            except CodecError:
                restored = None
        assert restored is None or isinstance(restored, Request)

    @pytest.mark.parametrize(
        ("record", "reason"),
        [
            ([], "no URL"),
            ({1: "parse"}, "no URL"),
            ({0: 5}, "url is 5"),
            ({0: "no-scheme"}, "cannot be built"),
            ({0: URL, 99: 1}, "unknown field 99"),
            ({0: URL, "1": 1}, "unknown field '1'"),
            ({0: URL, 1: "missing"}, "no method 'missing'"),
            ({0: URL, 1: "tempting"}, "no method 'tempting'"),
            ({0: URL, 1: "name"}, "no method 'name'"),
            ({0: URL, 1: "a_class_method"}, "no method"),
            ({0: URL, 1: "a_static_method"}, "no method"),
            ({0: URL, 1: "__init__"}, "no name of a callback"),
            ({0: URL, 1: False}, "no name of a callback"),
            ({0: URL, 3: {"a": object}}, None),
            ({0: URL, 3: {"a": 1.5}}, "cannot be built"),
            ({0: URL, 6: [1]}, r"meta is [1]"),
            ({0: URL, 7: "os", 4: b"a", 3: {"a": "b"}}, "cannot be built"),
            ({0: URL, 13: "os:system"}, "not on the list"),
            ({0: URL, 13: f"{HERE}:Book"}, "not a request class"),
            ({0: URL, 13: "H"}, "not a request class"),
            ({0: URL, 13: f"{HERE}:PageRequest", 14: {"self": 1}}, "no attribute 'self'"),
            ({0: URL, 13: f"{HERE}:StubbornRequest"}, "cannot be built"),
            ({0: URL, 14: {"page": 1}}, "cannot be built"),
        ],
        ids=str,
    )
    def test_crafted(self, record: Any, reason: str | None) -> None:
        """Records that no codec writes are refused, each for its reason."""
        if reason is None:
            return
        spider = CodecSpider()
        with nothing_happens(), refused(reason):
            codec(spider).decode(bytes([VERSION]) + msgpack.packb(record))
        assert spider.touched == 0

    def test_two_classes(self) -> None:
        """A nested request has its class beside its fields; a second one among them is refused."""
        store = codec()
        mark = msgpack.ExtType(4, b"")
        nested = [mark, "J", {0: URL, 13: f"{HERE}:Book"}]
        with refused("cannot be built"):
            store.decode(bytes([VERSION]) + msgpack.packb({0: URL, 6: {"a": nested}}))

    def test_other_versions(self) -> None:
        """A first byte that this release does not know is no request."""
        stored = codec().encode(Request(URL))
        for data in (b"", b"\x00" + stored[1:], b"\x02" + stored[1:]):
            with refused("another release"):
                codec().decode(data)
