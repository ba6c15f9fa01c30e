"""Scrapy's requests, items, headers and cookies as bytes, and back.

Requests hold plain values, and instances of classes on the list: the project's and those of
``SUITE_STORABLE`` (docs/jobs.md). Callbacks are methods of the spider, stored by name. All else
raises `UnstorableError` with its key.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPMethod, HTTPStatus
from http.cookiejar import Cookie
from types import MethodType
from typing import Any

from lxml.etree import _ElementUnicodeResult  # type: ignore[import-untyped]
from scrapy import Item, Request, Spider
from scrapy.http import FormRequest, Headers, JsonRequest, XmlRpcRequest
from scrapy.http.request import NO_CALLBACK

from scrapy_spider_suite.errors import CodecError, UnstorableError
from scrapy_spider_suite.store import value_codec


class SpiderMethods:
    """The methods of one spider by name. ``True`` stands for Scrapy's ``NO_CALLBACK``."""

    def __init__(self, spider: Spider) -> None:
        self._spider = spider
        self._names: dict[object, str] = {}
        self._seen: set[str] = set()

    def name_of(self, callback: object) -> str | bool:
        """Return the name of *callback*; raise CodecError if it is no method of this spider."""
        if callback is NO_CALLBACK:
            return True
        if not isinstance(callback, MethodType) or callback.__self__ is not self._spider:
            raise CodecError(f"{callback!r} is not a method of the spider")
        name = self._names.get(callback.__func__)
        if name is None:
            name = callback.__name__
            if self.find(name) != callback:
                raise CodecError(f"{callback!r} has no name in the spider")
            self._names[callback.__func__] = name
        return name

    def find(self, name: str | bool) -> Any:
        """The bound method called *name*; raises CodecError if there is none. Runs nothing."""
        if name is True:
            return NO_CALLBACK
        if not isinstance(name, str) or name.startswith("__"):
            raise CodecError(f"{name!r} is no name of a callback")
        if name not in self._seen:
            if not callable(inspect.getattr_static(self._spider, name, None)):
                raise CodecError(f"the spider has no method {name!r}")
            self._seen.add(name)
        found = getattr(self._spider, name)
        if not isinstance(found, MethodType) or found.__self__ is not self._spider:
            raise CodecError(f"the spider has no method {name!r}")
        return found


def _item_state(value: Item) -> dict[str, Any]:
    value_codec.refuse_extras(value, ("_values",))
    return dict(value)


def _build_item(cls: type[Item], state: dict[str, Any]) -> Item:
    """An item with the fields that are set; ``__init__`` does not run."""
    item = cls.__new__(cls)
    Item.__init__(item, state)
    return item


ITEM_KIND = value_codec.ObjectKind(lambda cls: issubclass(cls, Item), _item_state, _build_item)
_HEADERS_KIND = value_codec.ObjectKind(
    lambda cls: cls is Headers,
    lambda headers: [headers.encoding, dict(headers.items())],
    lambda cls, state: Headers(*state[::-1]),
)

VERSION = 1  # first byte of every stored request

_ALIASES: Mapping[str, type] = {
    "R": Request, "F": FormRequest, "J": JsonRequest, "X": XmlRpcRequest, "H": Headers,
    "S": HTTPStatus, "M": HTTPMethod,
}  # fmt: skip
# Requests only; some releases keep a deprecated twin of FormRequest beside the class of that name.
_SCRAPYS = "scrapy.http.request"
_NOT_A_PROJECT = sys.stdlib_module_names | {"scrapy", "scrapy_spider_suite"}

# The fields of a stored request. Numbers are for ever; defaults are left out.
_FIELDS: tuple[tuple[str, type | tuple[type, ...], object], ...] = (
    ("url", str, ""), ("callback", (str, bool), None), ("method", str, "GET"),
    ("headers", dict, {}), ("body", bytes, b""), ("cookies", (dict, list), {}), ("meta", dict, {}),
    ("encoding", str, "utf-8"), ("priority", int, 0), ("dont_filter", object, False),
    ("flags", list, []), ("errback", (str, bool), None), ("cb_kwargs", dict, {}),
    ("class", str, "R"), ("extra", dict, {}),
)  # fmt: skip
_URL, _CALLBACK, _HEADERS, _META, _ERRBACK, _CB_KWARGS, _CLASS, _EXTRA = 0, 1, 3, 6, 11, 12, 13, 14
_SIMPLE = tuple(
    (number, name, default)
    for number, (name, _, default) in enumerate(_FIELDS)
    if number not in (_URL, _CALLBACK, _HEADERS, _ERRBACK, _CLASS, _EXTRA)
)

_registry = value_codec.ClassRegistry()
# The text of a link, which CrawlSpider puts into meta: a str that holds on to its document.
_registry.register(_ElementUnicodeResult, "lxml.text", str, str)


register = _registry.register


class RequestCodec:
    """Requests of one spider as bytes, and back. *allowed* are dotted prefixes of classes."""

    def __init__(self, spider: Spider, allowed: Iterable[str] = ()) -> None:
        kinds = (*value_codec.DEFAULT_KINDS, ITEM_KIND, _HEADERS_KIND, value_codec.ObjectKind(
            lambda cls: issubclass(cls, Request), self._nested_state,
            lambda cls, state: self.from_record(state, cls),
        ))  # fmt: skip
        classes = value_codec.ClassList((_SCRAPYS, *allowed), _ALIASES)
        self.values = value_codec.ValueCodec(classes, _registry, kinds)
        self._callbacks = SpiderMethods(spider)
        self._proven: set[type] = {Request, FormRequest, JsonRequest, XmlRpcRequest}

    @classmethod
    def from_spider(
        cls, spider: Spider, modules: Iterable[str], storable: Iterable[str] = ()
    ) -> RequestCodec:
        """The codec of a crawl; allows *storable* and the classes of SPIDER_MODULES (*modules*)."""
        names = [module.partition(".")[0] for module in (type(spider).__module__, *modules)]
        return cls(spider, (*(name for name in names if name not in _NOT_A_PROJECT), *storable))

    def encode(self, request: Request) -> bytes:
        """Return *request* as bytes; raise UnstorableError if part of it has no stored form."""
        record = self.record(request)
        try:
            data = self.values.dumps(record)
        except CodecError as error:
            raise self._blame(record, error) from error
        if type(request) not in self._proven:
            self._prove(request, data)
        return b"%c%b" % (VERSION, data)

    def decode(self, data: bytes) -> Request:
        """Build a request, by allowed classes and decoders only; raises CodecError."""
        if data[:1] != bytes([VERSION]):
            raise CodecError("a stored request is damaged or was written by another release")
        return self.from_record(self.values.loads(data[1:]))

    def record(self, request: Request) -> dict[int, Any]:
        """Return the fields of *request* that differ from the default, by number."""
        record: dict[int, Any] = {_URL: request.url}
        for number, method in ((_CALLBACK, request.callback), (_ERRBACK, request.errback)):
            if method is not None:
                try:
                    record[number] = self._callbacks.name_of(method)
                except CodecError as error:
                    raise UnstorableError(_FIELDS[number][0], error) from error
        for number, name, default in _SIMPLE:
            value = getattr(request, name)
            if value != default or type(value) is not type(default):
                record[number] = value
        headers = request.headers
        if headers:
            if type(headers) is not Headers:
                raise UnstorableError("headers", f"{type(headers).__qualname__} is not Headers")
            record[_HEADERS] = dict(headers.items())
        if not request.url.isprintable() or " " in request.url:
            again = Request(request.url, encoding=request.encoding, meta=request.meta)
            if again.url != request.url:
                said = f"{request.url!r} is not the same when it is read back"
                raise UnstorableError("url", said)
        if type(request) is not Request:
            self._add_class(record, request)
        return record

    def from_record(self, record: object, cls: type | None = None) -> Request:
        """The request with these fields, of class *cls* by default; raises CodecError."""
        arguments = _arguments(record)
        cls = cls or self.values.classes.find(arguments.pop("class", "R"))
        if not issubclass(cls, Request):
            raise CodecError(f"{cls.__qualname__} is not a request class")
        for name in ("callback", "errback"):
            if name in arguments:
                arguments[name] = self._callbacks.find(arguments[name])
        try:
            if cls is Request:
                return Request(**arguments)
            return _build_subclass(cls, arguments)
        except Exception as error:  # the constructor of the user's class may raise anything
            raise CodecError(f"a stored request cannot be built: {error!r}") from error

    def _nested_state(self, request: Request) -> dict[int, Any]:
        record = self.record(request)
        record.pop(_CLASS, None)
        return record

    def _add_class(self, record: dict[int, Any], request: Request) -> None:
        cls = type(request)
        try:
            record[_CLASS] = self.values.classes.name_of(cls)
            value_codec.refuse_extras(request, cls.attributes)
        except CodecError as error:
            raise UnstorableError("class", error) from error
        own = [name for name in cls.attributes if name not in Request.attributes]
        if own:
            record[_EXTRA] = {name: getattr(request, name) for name in own}

    def _blame(self, record: dict[int, Any], error: CodecError) -> UnstorableError:
        for key, value in _parts(record):
            try:
                self.values.dumps(value)
            except CodecError as found:
                return UnstorableError(key, found)
        return UnstorableError("request", error)

    def _prove(self, request: Request, data: bytes) -> None:
        """Once for each class of the user: check that its ``__init__`` builds an equal request."""
        try:
            again = self.from_record(self.values.loads(data))
            before, after = self._outline(request), self._outline(again)
            same = before == after or self.values.dumps(before) == self.values.dumps(after)
        except CodecError as error:
            raise UnstorableError("class", error) from error
        if not same:
            raise UnstorableError("class", f"{type(request).__qualname__} rebuilds differently")
        self._proven.add(type(request))

    def _outline(self, request: Request) -> dict[int, Any]:
        record = self.record(request)
        for number in (_META, _CB_KWARGS):
            record[number] = set(record.get(number, ()))
        return record


def _parts(record: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    for number, value in record.items():
        name = _FIELDS[number][0]
        if number in (_META, _CB_KWARGS) and type(value) is dict:
            yield from ((f"{name}[{key!r}]", {key: item}) for key, item in value.items())
        elif number == _EXTRA:
            yield from value.items()
        else:
            yield name, value


def _arguments(record: object) -> dict[str, Any]:
    if type(record) is not dict or _URL not in record:
        raise CodecError("a stored request is damaged: it has no URL")
    arguments = {}
    for number, value in record.items():
        if type(number) is not int or not 0 <= number < len(_FIELDS):
            raise CodecError(f"a stored request has an unknown field {number!r}")
        name, expected, _ = _FIELDS[number]
        if not isinstance(value, expected):
            raise CodecError(f"a stored request is damaged: {name} is {value!r}")
        arguments[name] = value
    return arguments


def _build_subclass(cls: type[Request], arguments: dict[str, Any]) -> Request:
    extra = arguments.pop("extra", {})
    for name in extra:
        if name not in cls.attributes:
            raise CodecError(f"{cls.__qualname__} has no attribute {name!r}")
    fields = ((name, default) for name, _, default in _FIELDS if name in Request.attributes)
    defaults = {name: copy.copy(default) for name, default in fields}
    request = cls(**{**defaults, **arguments, **extra})
    request.headers = Headers(arguments.get("headers"), request.encoding)
    return request


_values = value_codec.ValueCodec()
_COOKIE = (
    "version", "name", "value", "port", "port_specified", "domain", "domain_specified",
    "domain_initial_dot", "path", "path_specified", "secure", "expires", "discard", "comment",
    "comment_url", "_rest", "rfc2109",
)  # fmt: skip
"""The attributes of a cookie, in the order of its arguments; `_rest` has SameSite and the like."""


def pack_cookies(cookies: Iterable[Cookie]) -> bytes:
    return _values.dumps([[vars(cookie)[name] for name in _COOKIE] for cookie in cookies])


def unpack_cookies(data: bytes, now: float) -> list[Cookie]:
    """The cookies in *data* that have not expired at *now* (wall seconds). Raises CodecError."""
    states = _values.loads(data)
    try:
        cookies = [Cookie(*state) for state in states]
        for cookie in cookies:
            texts = (cookie.name, cookie.value or "", cookie.domain, cookie.path)
            if not all(isinstance(text, str) for text in texts):
                raise TypeError(f"{texts} are not all text")
        return [cookie for cookie in cookies if not cookie.is_expired(int(now))]
    except (TypeError, ValueError, AttributeError) as error:
        raise CodecError(f"stored cookies are damaged: {error!r}") from error


def merge_cookies(mine: bytes | None, theirs: bytes) -> bytes:
    """Both packed jars as one, in which a cookie of *theirs* wins. Raises CodecError."""
    met = {
        (cookie.domain, cookie.path, cookie.name): cookie
        for packed in (mine, theirs) if packed is not None
        for cookie in unpack_cookies(packed, 0.0)
    }  # fmt: skip
    return pack_cookies(met.values())


def without_host(cookies: Iterable[Cookie], host: str) -> list[Cookie]:
    """Those of *cookies* that *host* did not set for itself."""
    return [cookie for cookie in cookies if cookie.domain.removeprefix(".") != host]
