"""Values as bytes and back: exact for what is storable, refused with a reason for all else."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, namedtuple
from datetime import datetime, timedelta, tzinfo
from decimal import Decimal
from enum import Flag
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.codec_values import (
    HERE,
    Book,
    BookItem,
    Colour,
    Draft,
    Label,
    Loop,
    Point,
    Shelf,
    refused,
    same,
    values,
)

from scrapy_spider_suite.errors import CodecError
from scrapy_spider_suite.store import value_codec as module
from scrapy_spider_suite.store.request_codec import ITEM_KIND
from scrapy_spider_suite.store.value_codec import (
    DEFAULT_KINDS,
    MAX_BYTES,
    ClassList,
    ClassRegistry,
    ValueCodec,
)

KINDS = (*DEFAULT_KINDS, ITEM_KIND)


def codec(*allowed: str, **options: Any) -> ValueCodec:
    """A codec for the classes of the tests."""
    return ValueCodec(ClassList(allowed or (HERE,)), kinds=KINDS, **options)


class Nowhere(tzinfo):
    """A time zone of one's own."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        """Always UTC."""
        return timedelta(0)

    def dst(self, moment: datetime | None) -> None:
        """Unknown."""

    def tzname(self, moment: datetime | None) -> str:
        """As the class."""
        return "Nowhere"


class Text(str):
    """A subclass of str."""

    __slots__ = ()


Pair = namedtuple("Pair", "a b")


class TestRoundTrip:
    """What comes back is what was stored."""

    @given(values)
    @example([float("nan"), -0.0, float("inf"), 2**64, -(2**63) - 1, "\ud800"])
    @example({(1, frozenset({2})): {b"k": {None: True, 1.5: []}}})
    def test_any_value(self, value: Any) -> None:
        """Every mix of storable values comes back equal, of the same types, in the same order."""
        store = codec()
        assert same(store.loads(store.dumps(value)), value)

    def test_plain_values_are_plain_msgpack(self) -> None:
        """Anything that msgpack has a type for can be read by any msgpack library."""
        value = {"a": [1, 2.5, None, True, b"x"]}
        assert msgpack.unpackb(codec().dumps(value)) == value

    def test_unset_fields(self) -> None:
        """A field that nobody assigned gets its default; one that is set later stays unset."""
        store, shelf = codec(), Shelf.__new__(Shelf)
        shelf.name = "top"
        again = store.loads(store.dumps(shelf))
        assert (again.name, again.books) == ("TOP", [])
        assert not hasattr(store.loads(store.dumps(Draft())), "text")

    def test_init_does_not_run_again(self) -> None:
        """Dataclasses, attrs classes and items are put together without their own code."""
        store, built = codec(), (Book.built, BookItem.built)
        data = store.dumps([Book("a"), BookItem(title="b")])
        assert (Book.built, BookItem.built) == (built[0] + 1, built[1] + 1)
        store.loads(data)
        assert (Book.built, BookItem.built) == (built[0] + 1, built[1] + 1)

    def test_cached_properties_are_left_out(self) -> None:
        """What a cached property left in the instance is computed anew."""
        store, book = codec(), Book("four")
        assert book.length == 4
        again = store.loads(store.dumps(book))
        assert "length" not in vars(again)
        assert again == book

    def test_a_new_field_gets_its_default(self) -> None:
        """A class may gain fields with defaults between two runs."""
        store = codec()
        old = [module._MARKS[module._OBJECT], f"{HERE}:Book", {"title": "a"}]
        assert store.loads(msgpack.packb(old)) == Book("a")
        none = [module._MARKS[module._OBJECT], f"{HERE}:Label", {}]
        assert store.loads(msgpack.packb(none)) == Label()

    def test_a_lost_field_is_an_error(self) -> None:
        """A field that the class no longer has, or one without a default, is named."""
        store = codec()
        with refused("no field 'colour'"):
            store.loads(
                msgpack.packb([module._MARKS[module._OBJECT], f"{HERE}:Point", {"colour": 1}])
            )
        with refused("field 'x' of Point was not stored"):
            store.loads(msgpack.packb([module._MARKS[module._OBJECT], f"{HERE}:Point", {"y": 1}]))


class TestRefused:
    """What would not come back equal is refused with a reason."""

    @pytest.mark.parametrize(
        "value",
        [
            OrderedDict(a=1),
            defaultdict(list),
            Counter("abc"),
            Text("a"),
            Loop(),
            Pair(1, 2),
            SimpleNamespace(),
            object(),
            lambda: None,
            int,
            complex(1),
            Exception("a"),
            datetime(2024, 1, 1, tzinfo=Nowhere()),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_type(self, value: Any) -> None:
        """Subclasses of storable types and everything else unknown is refused, also deep inside."""
        store = codec()
        for wrapped in (value, [value], {"a": (value,)}):
            with refused("stored form"):
                store.dumps(wrapped)

    def test_a_value_that_contains_itself(self) -> None:
        """A cycle is an error of the codec's own, not a RecursionError."""
        loop: list[Any] = []
        loop.append({"again": (loop,)})
        with refused("contains itself"):
            codec().dumps(loop)

    def test_depth(self) -> None:
        """Values nest as deep as msgpack writes; reading has a limit, too."""
        store = codec()
        deep: Any = 1
        for _ in range(300):
            deep = [deep]
        assert store.loads(store.dumps(deep)) == deep
        for _ in range(1_000):
            deep = [deep]
        with refused("nests too deep"):
            store.dumps(deep)
        with refused("damaged"):
            store.loads(b"\x91" * 5_000 + b"\xc0")

    def test_size(self) -> None:
        """More bytes than allowed are refused both ways."""
        store = codec()
        with refused("more than"):
            store.dumps(b"x" * MAX_BYTES)
        with refused("more than"):
            store.loads(b"x" * (MAX_BYTES + 1))

    def test_attributes_beside_the_fields(self) -> None:
        """An attribute that would be lost is a reason to refuse the whole."""
        book = Book("a")
        book.note = "b"  # type: ignore[attr-defined]
        with refused("'note'"):
            codec().dumps(book)


class TestClasses:
    """Only classes on the list are named, looked up and imported."""

    def test_a_class_that_is_not_allowed(self) -> None:
        """The message says what the user can do something about."""
        with refused("not on the list"):
            codec("elsewhere").dumps(Colour.RED)
        data = codec().dumps(Colour.RED)
        with refused("not on the list"):
            codec("elsewhere").loads(data)

    def test_prefixes_end_at_a_dot(self) -> None:
        """Allowing ``support.codec`` does not allow ``support.codec_values``."""
        with refused("not on the list"):
            codec("support.codec").dumps(Point(1))
        assert codec(f"{HERE}.Point").dumps(Point(1))

    def test_a_local_class(self) -> None:
        """A class that cannot be imported by its name is refused when it is stored."""

        class Local(Flag):
            """Nobody can import this."""

            A = 1

        with refused("cannot be imported by name"):
            ValueCodec(ClassList([__name__])).dumps(Local.A)

    def test_a_class_under_a_foreign_name(self) -> None:
        """What a project's module imported from elsewhere is not the project's."""
        listed = ClassList([HERE])
        for name in ("Decimal", "Headers", "ZoneInfo", "math.floor", "same", "Book.title"):
            with refused("no class"):
                listed.find(f"{HERE}:{name}")

    def test_a_module_is_not_imported_unless_allowed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Bytes that name a class of another module have no effect beyond an error."""
        source = "import enum\nclass Colour(enum.Enum):\n    RED = 1\n"
        (tmp_path / "suite_sentinel.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        name = "suite_sentinel:Colour"
        data = msgpack.packb([module._MARKS[module._OBJECT], name, "RED"])
        with refused("not on the list"):
            codec().loads(data)
        assert "suite_sentinel" not in sys.modules
        assert codec("suite_sentinel").loads(data).value == 1
        monkeypatch.delitem(sys.modules, "suite_sentinel")

    def test_programs_and_broken_modules(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A ``__main__`` module is never run for a class; a module that fails is an error."""
        package = tmp_path / "suite_broken"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "__main__.py").write_text("raise SystemExit('ran')")
        (package / "bad.py").write_text("1 / 0")
        monkeypatch.syspath_prepend(tmp_path)
        listed = ClassList(["suite_broken"])
        with refused("is a program"):
            listed.find("suite_broken.__main__:A")
        with refused("ZeroDivisionError"):
            listed.find("suite_broken.bad:A")
        with refused("cannot be imported"):
            listed.find("suite_broken.none:A")
        monkeypatch.delitem(sys.modules, "suite_broken")

    def test_aliases_are_allowed(self) -> None:
        """A class with an alias is stored under it, without being on the list."""
        store = ValueCodec(ClassList(aliases={"S": HTTPStatus}))
        assert store.loads(store.dumps(HTTPStatus.NOT_FOUND)) is HTTPStatus.NOT_FOUND
        assert len(store.dumps(HTTPStatus.OK)) < 12


class TestRegistry:
    """Classes with a stored form of their own."""

    def test_round_trip(self) -> None:
        """Registered classes need not be on the list and may hold other values."""
        registry = ClassRegistry()
        registry.register(Pair, "pair", list, lambda state: Pair(*state))
        registry.register(complex, "complex", lambda z: (z.real, z.imag), lambda s: complex(*s))
        store = ValueCodec(registry=registry)
        value = {"a": Pair(1, {2j}), Pair(1, 2): 3}
        again = store.loads(store.dumps(value))
        assert same(again, value)
        assert type(next(iter(again.values()))) is Pair

    def test_subclasses_are_not_included(self) -> None:
        """Only instances of exactly the registered class are stored by its encoder."""
        registry = ClassRegistry()
        registry.register(OrderedDict, "od", list, OrderedDict)

        class Mine(OrderedDict[str, int]):
            """A subclass."""

        with refused("stored form"):
            ValueCodec(registry=registry).dumps(Mine())

    def test_failing_functions(self) -> None:
        """What a registered function raises becomes an error of the codec."""
        registry = ClassRegistry()
        registry.register(Pair, "pair", lambda pair: 1 / 0, lambda state: Pair(*state))
        store = ValueCodec(registry=registry)
        with refused("ZeroDivisionError"):
            store.dumps(Pair(1, 2))
        registry.register(Pair, "pair", list, lambda state: Pair(*state[1:]))
        with refused("TypeError"):
            store.loads(store.dumps(Pair(1, 2)))
        with refused("registered as 'pair'"):
            ValueCodec().loads(store.dumps(Pair(1, 2)))

    @pytest.mark.parametrize("cls", [dict, str, int, tuple, Decimal])
    def test_built_in_types_keep_their_form(self, cls: type) -> None:
        """Nobody can change how a basic type is stored."""
        with pytest.raises(ValueError, match="stored as it is"):
            ClassRegistry().register(cls, "mine", list, list)

    def test_names(self) -> None:
        """A bad name is refused."""
        with pytest.raises(ValueError, match="no name"):
            ClassRegistry().register(Loop, "a b", list, Loop)


class TestHostileBytes:
    """Reading any bytes at all gives a value or a CodecError."""

    @given(st.binary(max_size=200))
    def test_any_bytes(self, data: bytes) -> None:
        """Random bytes."""
        _read(codec(), data)

    @given(values, st.data())
    def test_damaged_values(self, value: Any, data: st.DataObject) -> None:
        """A stored value with bits turned over, bytes cut off or put in."""
        store = codec()
        stored = bytearray(store.dumps(value))
        at = data.draw(st.integers(0, len(stored) - 1))
        stored[at] ^= 1 << data.draw(st.integers(0, 7))
        _read(store, bytes(stored))
        _read(store, bytes(stored[:at]))
        _read(store, bytes(stored[:at] + b"\xc7\x00\x05" + stored[at:]))

    @pytest.mark.parametrize(
        "value",
        [
            module._MARKS[0],
            {"a": module._MARKS[1]},
            [1, module._MARKS[1]],
            [module._MARKS[module._SET], []],
            {1: 2, module._MARKS[module._SET]: 3},
            [module._MARKS[module._RANGE], 1, 2, 0],
            [module._MARKS[module._OBJECT], 1],
            [module._MARKS[module._OBJECT], ["a"], {}],
            [module._MARKS[module._OBJECT], "os:system", ["ls"]],
            [module._MARKS[module._OBJECT], f"{HERE}:Loop", []],
            [module._MARKS[module._OBJECT], f"{HERE}:Colour", ["RED", "GREEN"]],
            [module._MARKS[module._OBJECT], f"{HERE}:Colour", "__class__"],
            [module._MARKS[module._OBJECT], f"{HERE}:Right", {"READ": 1, "x": 2}],
            [module._MARKS[module._OBJECT], f"{HERE}:BookItem", {"__init__": 1}],
            [module._MARKS[module._OBJECT], f"{HERE}:Book", 5],
            [module._MARKS[module._REGISTERED], "os", 5],
            msgpack.ExtType(100, b"a"),
            msgpack.ExtType(0x12, b"2024-99-01"),
            msgpack.ExtType(0x12, b"2024-01-01T00:00:00 ../../etc/passwd"),
            msgpack.ExtType(0x12, b"2024-01-01T00:00:00 +999999999999"),
            msgpack.ExtType(0x15, b"999999999999,0,0"),
            msgpack.ExtType(0x16, b"1E99999999999999999999"),
            msgpack.ExtType(0x17, b"short"),
        ],
        ids=repr,
    )
    def test_crafted(self, value: Any) -> None:
        """Well-formed msgpack that no codec writes is refused."""
        with pytest.raises(CodecError):
            codec().loads(msgpack.packb(value))


def _read(store: ValueCodec, data: bytes) -> None:
    try:
        store.loads(data)
    except CodecError:
        return
