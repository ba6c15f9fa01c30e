"""Python values as msgpack and back, exactly, without pickle and eval.

Standard msgpack holds plain values. Each other container is an array whose first element is a
*mark*; each other scalar (datetime, Decimal, UUID, ...) is an extension. Instances of listed
classes are stored as class name and state, and rebuilt without ``__init__``. Types are exact: a
subclass of ``dict`` or ``str`` is refused. Identity is not kept. A class is looked up only under
an allowed prefix, and must say itself that it has that name. Depth and size are checked before
anything is built.
"""

from __future__ import annotations

import dataclasses
import enum
import ipaddress
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import cache, cached_property, lru_cache, reduce
from importlib import import_module
from operator import or_
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import ModuleType
from typing import Any, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo, available_timezones

import attrs
import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.errors import CodecError
from scrapy_spider_suite.runtime.text import counted

_CLASS_NAME = re.compile(r"(?P<module>\w+(\.\w+)*):(?P<path>\w+(\.\w+)*)")


class ClassList:
    """The classes whose names (``package.module:Class.Inner``) may be written and read.

    *allowed* holds dotted prefixes, *aliases* short names that are always allowed. Modules under an
    allowed prefix are imported on demand, except ``__main__`` modules.
    """

    def __init__(
        self, allowed: Iterable[str] = (), aliases: Mapping[str, type] | None = None
    ) -> None:
        self.allowed = tuple(dict.fromkeys(allowed))
        self._by_name: dict[str, type] = dict(aliases or {})
        self._names: dict[type, str] = {cls: name for name, cls in self._by_name.items()}

    def __repr__(self) -> str:
        return f"<ClassList: {', '.join(self.allowed) or 'nothing allowed'}>"

    def name_of(self, cls: type) -> str:
        """Return the name by which :meth:`find` finds *cls*; raise CodecError if there is none."""
        name = self._names.get(cls)
        if name is None:
            name = f"{cls.__module__}:{cls.__qualname__}"
            if self.find(name) is not cls:
                raise CodecError(f"{name} is another class of the same name")
            self._names[cls] = name
        return name

    def find(self, name: str) -> type:
        """Return the class called *name*; raise CodecError if it is not allowed or not there."""
        cls = self._by_name.get(name)
        if cls is None:
            cls = self._by_name[name] = self._look_up(name)
        return cls

    def _look_up(self, name: str) -> type:
        match = _CLASS_NAME.fullmatch(name)
        if match is None:
            raise CodecError(f"class {name!r} cannot be imported by name")
        module, path = match["module"], match["path"]
        dotted = f"{module}.{path}."
        if not any(dotted.startswith(f"{prefix}.") for prefix in self.allowed):
            raise CodecError(f"class {name} is not on the list of storable classes")
        found: object = _import(module)
        for part in path.split("."):
            found = vars(found).get(part) if isinstance(found, (ModuleType, type)) else None
        if not isinstance(found, type) or (found.__module__, found.__qualname__) != (module, path):
            raise CodecError(f"there is no class {name}")
        return found


def _import(module: str) -> ModuleType:
    loaded = sys.modules.get(module)
    if loaded is not None:
        return loaded
    if "__main__" in module.split("."):
        raise CodecError(f"module {module} is a program, it is not imported for a class")
    try:
        return import_module(module)
    except Exception as error:  # a module's own code runs here and may raise anything
        raise CodecError(f"module {module} cannot be imported: {error!r}") from error


BIG_INT = 0x10  # extension code of integers beyond 64 bits: two's complement, big-endian

_MICROSECOND = timedelta(microseconds=1)
_OFFSET = re.compile(r"([+-]\d{1,12})(?:=(.*))?", re.DOTALL)


class Scalar(NamedTuple):
    """How the values of one class are written: ``decode(encode(value))`` equals *value*."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def _as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _as_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _by_text(cls: type) -> Scalar:
    return Scalar(lambda value: _as_bytes(str(value)), lambda data: cls(_as_text(data)))


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def _zone_text(zone: tzinfo) -> str:
    if type(zone) is ZoneInfo and zone.key in _zones():
        return zone.key
    if type(zone) is not timezone:
        raise CodecError(f"time zone {zone!r} has no stored form")
    offset = zone.utcoffset(None)
    name = zone.tzname(None)
    named = "" if name == timezone(offset).tzname(None) else f"={name}"
    return f"{offset // _MICROSECOND:+d}{named}"


def _zone(text: str) -> tzinfo:
    match = _OFFSET.fullmatch(text)
    if match is None:
        if text not in _zones():
            raise CodecError(f"there is no time zone {text!r} here")
        return ZoneInfo(text)
    offset = timedelta(microseconds=int(match[1]))
    return timezone(offset) if match[2] is None else timezone(offset, match[2])


def _write_time(value: datetime | time) -> bytes:
    """ISO text, ``~`` if it is the second of two equal clock times, then a space and the zone."""
    text = value.replace(tzinfo=None, fold=0).isoformat() + "~" * value.fold
    return _as_bytes(text if value.tzinfo is None else f"{text} {_zone_text(value.tzinfo)}")


def _read_time(data: bytes, cls: type[datetime] | type[time]) -> datetime | time:
    clock, aware, zone = _as_text(data).partition(" ")
    value = cls.fromisoformat(clock.removesuffix("~"))
    fold = int(clock.endswith("~"))
    return value.replace(fold=fold, tzinfo=_zone(zone) if aware else None)


SCALARS: dict[type, tuple[int, Scalar]] = {
    bytearray: (0x11, Scalar(bytes, bytearray)),
    datetime: (0x12, Scalar(_write_time, lambda data: _read_time(data, datetime))),
    date: (0x13, Scalar(
        lambda day: day.isoformat().encode(), lambda data: date.fromisoformat(data.decode())
    )),
    time: (0x14, Scalar(_write_time, lambda data: _read_time(data, time))),
    timedelta: (0x15, Scalar(
        lambda span: f"{span.days},{span.seconds},{span.microseconds}".encode(),
        lambda data: timedelta(*map(int, data.split(b","))),
    )),
    Decimal: (0x16, _by_text(Decimal)),
    UUID: (0x17, Scalar(lambda value: value.bytes, lambda data: UUID(bytes=data))),
    PurePosixPath: (0x18, _by_text(PurePosixPath)),
    PureWindowsPath: (0x19, _by_text(PureWindowsPath)),
    type(Path()): (0x1A, _by_text(Path)),
    ipaddress.IPv4Address: (0x1B, _by_text(ipaddress.IPv4Address)),
    ipaddress.IPv6Address: (0x1C, _by_text(ipaddress.IPv6Address)),
    ipaddress.IPv4Network: (0x1D, _by_text(ipaddress.IPv4Network)),
    ipaddress.IPv6Network: (0x1E, _by_text(ipaddress.IPv6Network)),
    ipaddress.IPv4Interface: (0x1F, _by_text(ipaddress.IPv4Interface)),
    ipaddress.IPv6Interface: (0x20, _by_text(ipaddress.IPv6Interface)),
}  # fmt: skip
"""Class -> its extension code, fixed for ever, and its form."""

DECODERS: dict[int, Callable[[bytes], Any]] = {
    BIG_INT: lambda data: int.from_bytes(data, "big", signed=True),
    **{code: leaf.decode for code, leaf in SCALARS.values()},
}
"""Extension code -> how its payload is read; raises ValueError and its kin for bad payloads."""


_NO_DEFAULT = object()


class ObjectKind(NamedTuple):
    """How instances of the classes that it *accepts* are taken apart and built again.

    *state* returns storable values, or raises CodecError; *build* may raise any exception.
    """

    accepts: Callable[[type], bool]
    state: Callable[[Any], Any]
    build: Callable[[Any, Any], Any]


def _enum_state(value: enum.Enum) -> list[str]:
    cls = type(value)
    for name, member in cls.__members__.items():
        if member is value:
            return [name]
    if not isinstance(value, enum.Flag):
        raise CodecError(f"{value!r} is no member of its enum")
    names = [name for name, flag in type(value).__members__.items() if flag in value]
    if _build_enum(cls, names) != value:
        raise CodecError(f"{value!r} is not made of named flags")
    return names


def _build_enum(cls: type[enum.Enum], state: list[str]) -> Any:
    members = [cls.__members__[name] for name in state]
    if len(members) == 1:
        return members[0]
    if not issubclass(cls, enum.Flag):
        raise CodecError(f"{cls.__qualname__} has no combined members")
    return reduce(or_, members, cls(0))


def _has_fields(cls: type) -> bool:
    has_fields = dataclasses.is_dataclass(cls) or "__attrs_attrs__" in vars(cls)
    # A base in C (dict, Exception) has parts that are no fields, and a __new__ of its own.
    return has_fields and getattr(cls, "__new__", None) is object.__new__


def _fields_state(value: Any) -> dict[str, Any]:
    cls: Any = type(value)
    names = _defaults(cls)
    refuse_extras(value, names)
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _build_fields(cls: type, state: dict[str, Any]) -> Any:
    """An instance with these fields; no code of the class runs. A new field gets its default."""
    defaults = _defaults(cls)
    for name in state:
        if name not in defaults:
            raise CodecError(f"{cls.__qualname__} has no field {name!r}")
    value: object = object.__new__(cls)
    for name, default in defaults.items():
        found = state[name] if name in state else default()
        if found is not _NO_DEFAULT:
            object.__setattr__(value, name, found)
    return value


DEFAULT_KINDS: tuple[ObjectKind, ...] = (
    ObjectKind(lambda cls: issubclass(cls, enum.Enum), _enum_state, _build_enum),
    ObjectKind(_has_fields, _fields_state, _build_fields),
)
"""Enums by the names of members or flags; dataclasses and attrs classes by their fields."""


def refuse_extras(value: object, known: Collection[str], base: type = object) -> None:
    """Raise CodecError if *value* has an attribute neither *known* nor declared by *base*."""
    cls: Any = type(value)
    set_slots = (name for name in _slots(cls, base) if hasattr(value, name))
    for name in (*getattr(value, "__dict__", ()), *set_slots):
        is_known = name in known or name.lstrip("_") in known
        if not is_known and not isinstance(getattr(cls, name, None), cached_property):
            raise CodecError(f"{cls.__qualname__} has an attribute {name!r} beside its fields")


@lru_cache(maxsize=1024)
def _slots(cls: type, base: Any) -> tuple[str, ...]:
    names: list[str] = []
    for part in cls.__mro__[: cls.__mro__.index(base)]:
        slots = vars(part).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            hidden = name.startswith("__") and not name.endswith("__")
            names.append(f"_{part.__name__.lstrip('_')}{name}" if hidden else name)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


@lru_cache(maxsize=1024)
def _defaults(cls: type) -> dict[str, Callable[[], Any]]:
    """By field, what makes its default."""
    is_dataclass = dataclasses.is_dataclass(cls)
    fields: Iterable[Any] = dataclasses.fields(cls) if is_dataclass else attrs.fields(cls)
    return {field.name: _default(cls, field) for field in fields}


def _default(cls: type, field: Any) -> Callable[[], Any]:
    factory = getattr(field, "default_factory", dataclasses.MISSING)
    default = field.default
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        default, factory = attrs.NOTHING, dataclasses.MISSING
        if not field.default.takes_self:
            factory = field.default.factory
    if factory is not dataclasses.MISSING:
        return factory  # type: ignore[no-any-return]
    if default is not dataclasses.MISSING and default is not attrs.NOTHING:
        return lambda: default

    def absent() -> Any:
        if field.init:
            raise CodecError(
                f"field {field.name!r} of {cls.__qualname__} was not stored, it has no default"
            )
        return _NO_DEFAULT

    return absent


_CONTAINERS = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)])

# For first bytes from 0xC0 on: how many bytes follow at least, and how many of them are a length.
# By rows: nil false true; bin; ext; float; unsigned; signed; fixext; str; array and map.
_AFTER = bytes.fromhex("00000000 010204 020305 0408 01020408 01020408 0203050911 010204 02040204")
_WIDTH = bytes.fromhex("00000000 010204 010204 0000 00000000 00000000 0000000000 010204 02040204")


def check_shape(data: bytes, max_depth: int) -> None:
    """Raise CodecError if *data* nests deeper than *max_depth* or announces more than it holds."""
    if len(data) - len(data.translate(None, _CONTAINERS)) <= max_depth:
        return
    # For each open container, outermost first, the values still to come; first, the value itself.
    wanted = [1]
    at, end = 0, len(data)
    while at < end:
        first = data[at]
        after, length = _step(data, at)
        is_map = first & 0xF0 == 0x80 or first in (0xDE, 0xDF)
        if is_map or first & 0xF0 == 0x90 or first in (0xDC, 0xDD):
            length = length * 2 if is_map else length
            if length > end - after:
                raise CodecError("a stored container announces more than was stored")
            wanted[-1] -= 1
            wanted.append(length)
            if len(wanted) > max_depth + 1:
                raise CodecError(f"stored bytes nest deeper than {counted(max_depth, 'level')}")
            at = after
        else:
            at = after + length
            wanted[-1] -= 1
        while len(wanted) > 1 and wanted[-1] <= 0:
            wanted.pop()


def _step(data: bytes, at: int) -> tuple[int, int]:
    first = data[at]
    if first < 0x80 or first >= 0xE0:
        return at + 1, 0
    if first < 0xA0:
        return at + 1, first & 0x0F
    if first < 0xC0:
        return at + 1, first & 0x1F
    width = _WIDTH[first - 0xC0]
    length = int.from_bytes(data[at + 1 : at + 1 + width], "big") if width else 0
    return at + 1 + _AFTER[first - 0xC0], length


T = TypeVar("T")

MAX_DEPTH = 64
"""Deepest nesting of containers; a marked array and the state of an object are a level each."""
MAX_ITEMS = 1_000_000  # most elements, over all containers, of one value
MAX_BYTES = 16 << 20  # longest stored form, in bytes

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_PACKER_KEEPS = 1 << 20  # bytes of buffer; a packer never gives memory back by itself
_TUPLE, _SET, _FROZENSET, _PAIRS, _RANGE, _OBJECT, _REGISTERED = range(7)
_MARKS = [msgpack.ExtType(number, b"") for number in range(7)]
_CONTAINER_TYPES: Mapping[type, int] = {
    list: -1, dict: -1, tuple: _TUPLE, set: _SET, frozenset: _FROZENSET,
}  # fmt: skip
_REGISTERED_NAME = re.compile(r"[\w.:-]{1,64}")


class _Mark(NamedTuple):
    number: int


_READ_MARKS = [_Mark(number) for number in range(len(_MARKS))]


class Registered(NamedTuple):
    cls: type
    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class ClassRegistry:
    """The classes that were given a stored form of their own, by class and by name."""

    def __init__(self) -> None:
        self.by_class: dict[type, Registered] = {}
        self.by_name: dict[str, Registered] = {}

    def register(
        self, cls: type[T], name: str, encode: Callable[[T], Any], decode: Callable[[Any], T]
    ) -> None:
        """Store instances of exactly *cls* in the form that *encode* gives; *decode* reverses it.

        Keep *name*, which stands in the stored bytes. Raises `ValueError` for a built-in type or a
        bad name.
        """
        if cls in _PLAIN or cls in _CONTAINER_TYPES or cls in SCALARS:
            raise ValueError(f"{cls.__name__} is stored as it is")
        if not _REGISTERED_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name for a stored class")
        old = self.by_name.pop(name, None)
        if old is not None:
            del self.by_class[old.cls]
        again = self.by_class.pop(cls, None)
        if again is not None:
            del self.by_name[again.name]
        self.by_name[name] = self.by_class[cls] = Registered(cls, name, encode, decode)


class ValueCodec:
    """Writes and reads values; *classes* may be named, *kinds* take instances apart. One thread."""

    def __init__(
        self,
        classes: ClassList | None = None,
        registry: ClassRegistry | None = None,
        kinds: Iterable[ObjectKind] = DEFAULT_KINDS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.classes = classes or ClassList()
        self.registry = registry or ClassRegistry()
        self.kinds = tuple(kinds)
        self.max_bytes = max_bytes
        self._packer = _new_packer()

    def dumps(self, value: object) -> bytes:
        """Return *value* as bytes; raise CodecError, with the reason, if it has no stored form."""
        lowered = _Writer(self).lower(value, 1)
        try:
            data: bytes = self._packer.pack(lowered)
        except UnicodeEncodeError:  # lone surrogates, which a str may hold
            data = _new_packer("surrogatepass").pack(lowered)
        if len(data) > _PACKER_KEEPS:
            self._packer = _new_packer()
            if len(data) > self.max_bytes:
                raise CodecError(f"{len(data)} bytes are more than the {self.max_bytes} allowed")
        return data

    def loads(self, data: bytes) -> Any:
        """Return the value that *data* stands for; raise CodecError if `dumps` did not write it."""
        if len(data) > self.max_bytes:
            raise CodecError(f"{len(data)} bytes are more than the {self.max_bytes} allowed")
        check_shape(data, MAX_DEPTH)
        reader = _Reader(self)
        most = min(len(data), MAX_ITEMS)
        try:
            value = msgpack.unpackb(
                data,
                ext_hook=reader.extension,
                list_hook=reader.array,
                strict_map_key=False,
                unicode_errors="surrogatepass",
                timestamp=1,
                max_array_len=most,
                max_map_len=most,
            )
        except CodecError:
            raise
        except Exception as error:  # not only msgpack's: keys of the user's classes are hashed
            raise CodecError(f"stored bytes are damaged: {error!r}") from error
        if reader.open_marks:
            raise CodecError("stored bytes are damaged: a mark outside an array")
        return value

    def kind_of(self, cls: type) -> ObjectKind:
        """Return how instances of *cls* are taken apart; raise CodecError if nothing knows how."""
        for kind in self.kinds:
            if kind.accepts(cls):
                return kind
        raise CodecError(f"{cls.__module__}.{cls.__qualname__} has no stored form")


def _new_packer(unicode_errors: str | None = None) -> msgpack.Packer:
    return msgpack.Packer(default=_big_int, strict_types=True, unicode_errors=unicode_errors)


def _big_int(value: int) -> msgpack.ExtType:
    data = value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
    return msgpack.ExtType(BIG_INT, data)


class _Writer:
    __slots__ = ("codec", "left")

    def __init__(self, codec: ValueCodec) -> None:
        self.codec = codec
        self.left = MAX_ITEMS

    def lower(self, value: Any, depth: int) -> Any:
        cls = type(value)
        if cls in _PLAIN:
            return value
        leaf = SCALARS.get(cls)
        if leaf is not None:
            return msgpack.ExtType(leaf[0], leaf[1].encode(value))
        if depth > MAX_DEPTH:
            raise CodecError(f"it contains itself or nests deeper than {MAX_DEPTH} levels")
        if cls not in _CONTAINER_TYPES:
            return self._lower_object(value, cls, depth + 1)
        self.left -= len(value)
        if self.left < 0:
            raise CodecError(f"it has more than {MAX_ITEMS:,} elements")
        if cls is dict:
            return self._lower_dict(value, depth + 1)
        items = self._lower_list(value, depth + 1)
        return items if cls is list else [_MARKS[_CONTAINER_TYPES[cls]], *items]

    def _lower_list(self, value: Iterable[Any], depth: int) -> list[Any]:
        return [item if type(item) in _PLAIN else self.lower(item, depth) for item in value]

    def _lower_dict(self, value: dict[Any, Any], depth: int) -> Any:
        lowered = {}
        for key, item in value.items():
            if type(key) not in _PLAIN:
                pairs = [part for pair in value.items() for part in pair]
                return [_MARKS[_PAIRS], *self._lower_list(pairs, depth)]
            lowered[key] = item if type(item) in _PLAIN else self.lower(item, depth)
        return lowered

    def _lower_object(self, value: Any, cls: type, depth: int) -> list[Any]:
        if cls is range:
            return [_MARKS[_RANGE], value.start, value.stop, value.step]
        registered = self.codec.registry.by_class.get(cls)
        if registered is not None:
            state = _guard(registered.encode, value)
            return [_MARKS[_REGISTERED], registered.name, self.lower(state, depth)]
        kind = self.codec.kind_of(cls)
        name = self.codec.classes.name_of(cls)
        return [_MARKS[_OBJECT], name, self.lower(_guard(kind.state, value), depth)]


class _Reader:
    __slots__ = ("codec", "open_marks")

    def __init__(self, codec: ValueCodec) -> None:
        self.codec = codec
        self.open_marks = 0

    def extension(self, code: int, data: bytes) -> Any:
        if code < len(_READ_MARKS) and not data:
            self.open_marks += 1
            return _READ_MARKS[code]
        return DECODERS[code](data)

    def array(self, items: list[Any]) -> Any:
        if not items or type(items[0]) is not _Mark:
            return items
        self.open_marks -= 1
        mark = items.pop(0).number
        if mark in _BUILD:
            return _BUILD[mark](items)
        name, state = items
        if mark == _OBJECT:
            cls = self.codec.classes.find(name)
            return _guard(self.codec.kind_of(cls).build, cls, state)
        registered = self.codec.registry.by_name.get(name)
        if registered is None:
            raise CodecError(f"no class is registered as {name!r}")
        return _guard(registered.decode, state)


def _guard(function: Callable[..., Any], *values: Any) -> Any:
    try:
        return function(*values)
    except CodecError:
        raise
    except Exception as error:  # the user's code runs in it and may raise anything
        cls = values[0] if isinstance(values[0], type) else type(values[0])
        raise CodecError(f"the stored form of {cls.__qualname__} failed: {error!r}") from error


_BUILD: Mapping[int, Callable[[list[Any]], Any]] = {
    _TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
    _PAIRS: lambda items: dict(zip(items[::2], items[1::2], strict=True)),
    _RANGE: lambda items: range(*items),
}
