"""What the codec tests share: classes to store, an equality that overlooks nothing, strategies."""

from __future__ import annotations

import asyncio
import enum
import ipaddress
import math
import time as time_module
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime, time, timedelta, timezone
from decimal import Decimal
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, ClassVar, TypeVar
from zoneinfo import ZoneInfo

import attrs
import scrapy
from hypothesis import strategies as st
from scrapy import Request
from scrapy.http import Headers

from scrapy_spider_suite.errors import CodecError

HERE = __name__

T = TypeVar("T")


class Colour(enum.Enum):
    """An enum, with an alias."""

    RED = "r"
    GREEN = "g"
    SCARLET = RED


class Right(enum.Flag):
    """Flags, to be combined."""

    READ = 1
    WRITE = 2
    RUN = 4


class Level(enum.IntEnum):
    """An enum whose members are ints too."""

    LOW = 1


@dataclass
class Book:
    """A dataclass whose ``__post_init__`` must not run again."""

    title: str
    price: Decimal = Decimal(0)
    tags: list[Any] = field(default_factory=list)
    built: ClassVar[int] = 0

    def __post_init__(self) -> None:
        Book.built += 1

    @cached_property
    def length(self) -> int:
        """Kept in ``__dict__`` by its first use."""
        return len(self.title)


@dataclass(frozen=True, slots=True)
class Point:
    """A dataclass without a ``__dict__``, whose fields cannot be assigned."""

    x: int
    y: int = 0


def _upper(text: str) -> str:
    return text.upper()


@dataclass
class Draft:
    """A dataclass with a field that is assigned later."""

    text: str = field(init=False)


@attrs.define
class Shelf:
    """An attrs class with slots, a converter and a factory."""

    name: str = attrs.field(converter=_upper)
    books: list[Any] = attrs.field(factory=list)


@attrs.frozen(slots=False)
class Label:
    """A frozen attrs class."""

    text: str = "none"


class BookItem(scrapy.Item):
    """An item, whose ``__init__`` must not run again."""

    title = scrapy.Field()
    price = scrapy.Field()
    built: ClassVar[int] = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        BookItem.built += 1
        super().__init__(*args, **kwargs)


class PageRequest(Request):
    """A subclass as Scrapy documents them: its own parameter is one of its ``attributes``."""

    attributes: tuple[str, ...] = (*Request.attributes, "page")

    def __init__(self, *args: Any, page: int = 1, **kwargs: Any) -> None:
        self.page = page
        kwargs.setdefault("priority", 7)
        super().__init__(*args, **kwargs)


class StubbornRequest(Request):
    """A subclass that cannot be built from its attributes."""

    def __init__(self, number: int) -> None:
        super().__init__(f"http://a.example/{number}")


class DriftingRequest(Request):
    """A subclass that is something else each time it is built."""

    def __init__(self, url: str, **kwargs: Any) -> None:
        super().__init__(url + "x", **kwargs)


class LeakyRequest(Request):
    """A subclass with an attribute that Scrapy itself would lose."""

    def __init__(self, url: str, note: str = "", **kwargs: Any) -> None:
        super().__init__(url, **kwargs)
        self.note = note


class CodecSpider(scrapy.Spider):
    """A spider with every kind of callback, good and bad."""

    name = "codec"
    touched = 0

    def parse_page(self, response: Any, **kwargs: Any) -> None:
        """An ordinary callback."""

    def _parse_hidden(self, response: Any) -> None:
        """A callback with an underscore, as CrawlSpider has."""

    def failed(self, failure: Any) -> None:
        """An errback."""

    alias = parse_page

    @property
    def tempting(self) -> Any:
        """Looking a callback up must not run this."""
        self.touched += 1
        return self.parse_page

    @classmethod
    def a_class_method(cls, response: Any) -> None:
        """Not a method of the instance."""

    @staticmethod
    def a_static_method(response: Any) -> None:
        """Not a method at all."""


def same(left: Any, right: Any) -> bool:
    """Return whether two values are equal in every bit that a program could notice."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return repr(left) == repr(right) and math.copysign(1, left) == math.copysign(1, right)
    if isinstance(left, Decimal):
        return repr(left) == repr(right)
    if isinstance(left, datetime | time):
        zones = left.tzinfo, right.tzinfo
        clocks = left.replace(tzinfo=None), right.replace(tzinfo=None)
        return (
            clocks[0] == clocks[1] and left.fold == right.fold and repr(zones[0]) == repr(zones[1])
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, set | frozenset):
        found = (any(same(one, other) for other in right) for one in left)
        return len(left) == len(right) and all(found)
    if isinstance(left, Headers):
        return left.encoding == right.encoding and dict(left.items()) == dict(right.items())
    if isinstance(left, dict | scrapy.Item):
        return same(list(left.keys()), list(right.keys())) and same(
            [left[key] for key in left], [right[key] for key in right]
        )
    if isinstance(left, Request):
        return all(same(getattr(left, name), getattr(right, name)) for name in left.attributes)
    if is_dataclass(left) or attrs.has(type(left)):
        parts = fields(left) if is_dataclass(left) else attrs.fields(type(left))
        return all(same(getattr(left, part.name), getattr(right, part.name)) for part in parts)
    return bool(left == right)


def in_a_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run *coroutine* in a loop of its own; unlike asyncio.run, leave the reactor's current."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for *condition*, as long as a slow machine may take."""
    end = time_module.monotonic() + 10
    while not condition():
        if time_module.monotonic() > end:
            raise AssertionError("it never came true")
        await asyncio.sleep(0.002)


class Loop(list[Any]):
    """A subclass of list: not storable."""


@contextmanager
def refused(reason: str) -> Iterator[None]:
    """Expect a CodecError whose message contains *reason*."""
    try:
        yield
    except CodecError as error:
        if reason not in str(error):
            raise AssertionError(f"{error} does not say {reason!r}") from error
    else:
        raise AssertionError("nothing was raised")


any_text = st.text(st.characters(exclude_categories=()), max_size=12)
zones = st.one_of(
    st.none(),
    st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes))),
    st.sampled_from(["Europe/Berlin", "America/New_York", "UTC"]).map(ZoneInfo),
)
networks = st.builds(
    lambda address, bits: ipaddress.ip_network((address, bits), strict=False),
    st.ip_addresses(v=4),
    st.integers(0, 32),
)
_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    any_text,
    st.binary(max_size=12),
    st.datetimes(timezones=zones),
    st.datetimes().map(lambda moment: moment.replace(fold=1)),
    st.dates(),
    st.times(timezones=zones),
    st.timedeltas(),
    st.decimals(),
    st.uuids(),
    st.ip_addresses(),
    networks,
    st.ip_addresses(v=6).map(ipaddress.ip_interface),
    any_text.map(PurePosixPath),
    any_text.map(PureWindowsPath),
    st.sampled_from([Path("a/b"), Path(), Path("/")]),
    st.sampled_from([Colour.RED, Colour.SCARLET, Level.LOW, Right.READ | Right.RUN, Right(0)]),
    st.builds(range, st.integers(), st.integers(), st.integers(1)),
    st.builds(Point, st.integers(), st.integers()),
)


@st.composite
def opaque(draw: st.DrawFn, inner: str) -> Any:
    """Draw from a strategy of this module: without its repr, of which hypothesis writes pages."""
    return draw(globals()[inner])


leaves: st.SearchStrategy[Any] = opaque("_leaves")
_keys = st.recursive(
    leaves.filter(lambda leaf: "NaN" not in str(leaf) and leaf == leaf),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
keys: st.SearchStrategy[Any] = opaque("_keys")


def _nest(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(any_text, inner, max_size=4),
        st.sets(keys, max_size=4),
        st.frozensets(keys, max_size=4),
        st.builds(Book, any_text, st.decimals(), st.lists(inner, max_size=2)),
        st.builds(Shelf, any_text, st.lists(inner, max_size=2)),
        st.builds(lambda title, price: BookItem(title=title, price=price), inner, inner),
    )


_values = st.recursive(leaves, _nest, max_leaves=12)
values: st.SearchStrategy[Any] = opaque("_values")
