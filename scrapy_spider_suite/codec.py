"""Scrapy requests as bytes and back: what of a request is stored, and what cannot be.

What may stand in ``meta``, ``cb_kwargs``, ``cookies``, ``flags`` and a subclass's own attributes:

====================================================  ==========================================
value                                                 stored
====================================================  ==========================================
None, bool, int, float, str, bytes, bytearray,        always
list, tuple, set, frozenset, range, dict (with any
of these as keys)
datetime, date, time, timedelta (aware ones with a    always
``timezone`` or ``ZoneInfo``), Decimal, UUID,
pathlib paths, ipaddress objects
enum members, dataclasses, attrs classes,             if the class is on the list (below)
``scrapy.Item`` subclasses
``Request``, ``FormRequest``, ``JsonRequest``,        always, by the rules for requests
``XmlRpcRequest``, ``Headers``
subclasses of ``Request``                             if the class is on the list: its
                                                      ``attributes``, by its ``__init__``
texts of lxml (``meta["link_text"]`` of CrawlSpider)  always, as plain text
anything given to `register`                          as its encoder says
lambdas, functions, responses, selectors, open        never: `UnstorableError` names the key
files, subclasses of dict or str, namedtuples, ...
====================================================  ==========================================

Callbacks and errbacks are stored by name and have to be methods of the spider. On the list are the
classes of the project's own packages (the first part of the spider's module and of SPIDER_MODULES)
and those under a prefix in ``SUITE_STORABLE``. Nothing else is imported or instantiated, whatever
the bytes say.

A stored request is a copy: an object that two requests share in ``cb_kwargs`` comes back as two.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPMethod, HTTPStatus
from typing import Any, TypeVar

from lxml.etree import _ElementUnicodeResult  # type: ignore[import-untyped]
from scrapy import Request, Spider
from scrapy.http import FormRequest, Headers, JsonRequest, XmlRpcRequest

from scrapy_spider_suite.callbacks import SpiderMethods
from scrapy_spider_suite.errors import CodecError, UnstorableError
from scrapy_spider_suite.kinds import HeadersKind, ItemKind, header_state
from scrapy_spider_suite.storage.classes import ClassList
from scrapy_spider_suite.storage.objects import DEFAULT_KINDS, refuse_extras
from scrapy_spider_suite.storage.values import MAX_BYTES, Registry, ValueCodec

T = TypeVar("T")

VERSION = 1
"""First byte of every stored request."""

_ALIASES: Mapping[str, type] = {
    "R": Request,
    "F": FormRequest,
    "J": JsonRequest,
    "X": XmlRpcRequest,
    "H": Headers,
    "S": HTTPStatus,
    "M": HTTPMethod,
}
# Requests only; some releases keep a deprecated twin of FormRequest beside the class of that name.
_SCRAPYS = "scrapy.http.request"
_NOT_A_PROJECT = sys.stdlib_module_names | {"scrapy", "scrapy_spider_suite"}

# The fields of a stored request. Numbers are for ever; defaults are left out.
_FIELDS: tuple[tuple[str, type | tuple[type, ...], object], ...] = (
    ("url", str, ""),
    ("callback", (str, bool), None),
    ("method", str, "GET"),
    ("headers", dict, {}),
    ("body", bytes, b""),
    ("cookies", (dict, list), {}),
    ("meta", dict, {}),
    ("encoding", str, "utf-8"),
    ("priority", int, 0),
    ("dont_filter", object, False),
    ("flags", list, []),
    ("errback", (str, bool), None),
    ("cb_kwargs", dict, {}),
    ("class", str, "R"),
    ("extra", dict, {}),
)
_URL, _CALLBACK, _HEADERS, _META, _ERRBACK, _CB_KWARGS, _CLASS, _EXTRA = 0, 1, 3, 6, 11, 12, 13, 14
_SIMPLE = tuple(
    (number, name, default)
    for number, (name, _, default) in enumerate(_FIELDS)
    if number not in (_URL, _CALLBACK, _HEADERS, _ERRBACK, _CLASS, _EXTRA)
)

_registry = Registry()
# The text of a link, which CrawlSpider puts into meta: a str that holds on to its document.
_registry.register(_ElementUnicodeResult, "lxml.text", str, str)


def register(
    cls: type[T], name: str, encode: Callable[[T], Any], decode: Callable[[Any], T]
) -> None:
    """Make instances of *cls* storable in requests and in ``spider.state``.

    ::

        register(Money, "money", lambda money: [money.amount, money.currency],
                 lambda state: Money(*state))

    *encode* returns a value of the types in this module's table; *decode* makes an equal instance
    from it and has to take what it is given for data from the disk. *name* is written in place of
    the class, so the class may move; keep the name. Subclasses are not included. Call it where the
    class is defined, before the crawl begins.

    Raises:
        ValueError: *cls* is stored as it is, or *name* is not 1 to 64 letters, digits, ``_ . : -``.
    """
    _registry.register(cls, name, encode, decode)


def project_packages(spidercls: type[Spider], spider_modules: Iterable[str]) -> tuple[str, ...]:
    """Return the top-level packages that are the project's own: neither Python's nor Scrapy's."""
    modules = (spidercls.__module__, *spider_modules)
    names = dict.fromkeys(module.partition(".")[0] for module in modules)
    return tuple(name for name in names if name not in _NOT_A_PROJECT)


class RequestCodec:
    """Writes the requests of one spider as bytes and reads them back.

    *allowed* are dotted prefixes of the classes that may be named in the bytes, *values* (made
    from them) is the codec of everything inside a request. Not for use by several threads at once.
    """

    def __init__(
        self,
        spider: Spider,
        allowed: Iterable[str] = (),
        registry: Registry | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.values = ValueCodec(
            ClassList((_SCRAPYS, *allowed), _ALIASES),
            registry or _registry,
            (*DEFAULT_KINDS, ItemKind(), HeadersKind(), RequestKind(self)),
            max_bytes,
        )
        self._callbacks = SpiderMethods(spider)
        self._proven: set[type] = {Request, FormRequest, JsonRequest, XmlRpcRequest}

    @classmethod
    def from_spider(
        cls, spider: Spider, modules: Iterable[str], storable: Iterable[str] = ()
    ) -> RequestCodec:
        """Return the codec of a crawl: it allows *storable* and the project's own classes.

        *modules* are SPIDER_MODULES; a spider need not know its settings.
        """
        return cls(spider, (*project_packages(type(spider), modules), *storable))

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
        """Return the request that *data* stands for; CodecError if `encode` did not write it.

        Nothing is called but the constructors and decoders of allowed classes.
        """
        if data[:1] != bytes([VERSION]):
            raise CodecError("a stored request is damaged or was written by another release")
        return self.from_record(self.values.loads(data[1:]))

    def record(self, request: Request) -> dict[int, Any]:
        """Return the fields of *request* that differ from the default, by number."""
        record: dict[int, Any] = {_URL: request.url}
        for number, method in ((_CALLBACK, request.callback), (_ERRBACK, request.errback)):
            if method is not None:
                record[number] = self._method_name(method, number)
        for number, name, default in _SIMPLE:
            value = getattr(request, name)
            if value != default or type(value) is not type(default):
                record[number] = value
        headers = request.headers
        if headers:
            if type(headers) is not Headers:
                raise UnstorableError("headers", f"{type(headers).__qualname__} is not Headers")
            record[_HEADERS] = header_state(headers)
        if not record[_URL].isprintable() or " " in record[_URL]:
            _refuse_unstable_url(request)
        if type(request) is not Request:
            self._add_class(record, request)
        return record

    def from_record(self, record: object, cls: type | None = None) -> Request:
        """Return the request with these fields; raise CodecError if they are none of a request.

        *cls* is its class where the record does not say.
        """
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

    def _method_name(self, method: object, number: int) -> str | bool:
        try:
            return self._callbacks.name_of(method)
        except CodecError as error:
            raise UnstorableError(_FIELDS[number][0], error) from error

    def _add_class(self, record: dict[int, Any], request: Request) -> None:
        cls = type(request)
        try:
            record[_CLASS] = self.values.classes.name_of(cls)
            refuse_extras(request, cls.attributes, Request)
        except CodecError as error:
            raise UnstorableError("class", error) from error
        own = [name for name in cls.attributes if name not in Request.attributes]
        if own:
            record[_EXTRA] = {name: getattr(request, name) for name in own}

    def _blame(self, record: dict[int, Any], error: CodecError) -> UnstorableError:
        """Return the error that names the part of *record* that cannot be written by itself."""
        for key, value in _parts(record):
            try:
                self.values.dumps(value)
            except CodecError as found:
                return UnstorableError(key, found)
        return UnstorableError("request", error)

    def _prove(self, request: Request, data: bytes) -> None:
        """Once for each of the user's classes: see that its ``__init__`` gives the same back.

        Not every value has an equality: of meta and cb_kwargs the keys are compared, and what
        seems to differ may still be the same in bytes.
        """
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


class RequestKind:
    """Requests inside requests."""

    def __init__(self, codec: RequestCodec) -> None:
        self._codec = codec

    def accepts(self, cls: type) -> bool:
        """Return whether *cls* is a request class."""
        return issubclass(cls, Request)

    def state(self, value: Request) -> dict[int, Any]:
        """Return the fields that differ from the default; the class stands beside them."""
        record = self._codec.record(value)
        record.pop(_CLASS, None)
        return record

    def build(self, cls: type, state: object) -> Request:
        """Return the request."""
        return self._codec.from_record(state, cls)


def _refuse_unstable_url(request: Request) -> None:
    """Refuse the few URLs, none of which can be fetched, that Scrapy escapes anew each time."""
    again = Request(request.url, encoding=request.encoding, meta=request.meta)
    if again.url != request.url:
        raise UnstorableError("url", f"{request.url!r} is not the same when it is read back")


def _parts(record: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each part of *record* with the name that the user knows it by."""
    for number, value in record.items():
        name = _FIELDS[number][0]
        if number in (_META, _CB_KWARGS) and type(value) is dict:
            yield from ((f"{name}[{key!r}]", {key: item}) for key, item in value.items())
        elif number == _EXTRA:
            yield from value.items()
        else:
            yield name, value


def _arguments(record: object) -> dict[str, Any]:
    """Return the constructor's arguments (and ``class``, ``extra``) from a record."""
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
    """Return an instance of a subclass, which may have other defaults than ``Request``."""
    extra = arguments.pop("extra", {})
    for name in extra:
        if name not in cls.attributes:
            raise CodecError(f"{cls.__qualname__} has no attribute {name!r}")
    defaults = {
        name: copy.copy(default) for name, _, default in _FIELDS if name in Request.attributes
    }
    request = cls(**{**defaults, **arguments, **extra})
    request.headers = Headers(arguments.get("headers"), request.encoding)
    return request
