"""Python values as msgpack and back, exactly, without pickle and eval.

Standard msgpack holds plain values. Each other container is an array whose first element is a
*mark*; each other scalar (datetime, Decimal, UUID, ...) is an extension. Instances of listed
classes are stored as class name and state, and rebuilt without ``__init__``. Types are exact: a
subclass of ``dict`` or ``str`` is refused. Identity is not kept. A class is looked up only under
an allowed prefix, and must say itself that it has that name.
"""

from __future__ import annotations

import dataclasses
import enum
import ipaddress
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import cache, cached_property, lru_cache
from importlib import import_module
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import ModuleType
from typing import Any, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo, available_timezones

import attrs
import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.errors import CodecError

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

_Form = tuple[Callable[[Any], bytes], Callable[[bytes], Any]]
"""How the values of one class are written, and read."""


def _by_text(cls: type) -> _Form:
    return (
        lambda value: str(value).encode("utf-8", "surrogatepass"),
        lambda data: cls(data.decode("utf-8", "surrogatepass")),
    )


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def _write_time(value: datetime | time) -> bytes:
    """ISO text, ``~`` if it is the second of two equal clock times, then a space and the zone."""
    zone = value.tzinfo
    if type(zone) is ZoneInfo and zone.key in _zones():
        clock = value.replace(tzinfo=None, fold=0).isoformat()
        return f"{clock}{'~' * value.fold} {zone.key}".encode()
    if zone is not None and type(zone) is not timezone:
        raise CodecError(f"time zone {zone!r} has no stored form")
    return f"{value.replace(fold=0).isoformat()}{'~' * value.fold}".encode()


def _read_time(data: bytes, cls: type[datetime] | type[time]) -> datetime | time:
    clock, _, key = data.decode().partition(" ")
    value = cls.fromisoformat(clock.removesuffix("~")).replace(fold=int(clock.endswith("~")))
    if key and key not in _zones():
        raise CodecError(f"there is no time zone {key!r} here")
    return value.replace(tzinfo=ZoneInfo(key)) if key else value


SCALARS: dict[type, tuple[int, _Form]] = {
    datetime: (0x12, (_write_time, lambda data: _read_time(data, datetime))),
    date: (0x13, (
        lambda day: day.isoformat().encode(), lambda data: date.fromisoformat(data.decode())
    )),
    time: (0x14, (_write_time, lambda data: _read_time(data, time))),
    timedelta: (0x15, (
        lambda span: f"{span.days},{span.seconds},{span.microseconds}".encode(),
        lambda data: timedelta(*map(int, data.split(b","))),
    )),
    Decimal: (0x16, _by_text(Decimal)),
    UUID: (0x17, (lambda value: value.bytes, lambda data: UUID(bytes=data))),
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
    **{code: read for code, (_, read) in SCALARS.values()},
}
"""Extension code -> how its payload is read; raises ValueError and its kin for bad payloads."""


class ObjectKind(NamedTuple):
    """How instances of the classes that it *accepts* are taken apart and built again.

    *state* returns storable values, or raises CodecError; *build* may raise any exception.
    """

    accepts: Callable[[type], bool]
    state: Callable[[Any], Any]
    build: Callable[[Any, Any], Any]


def _enum_state(value: enum.Enum) -> Any:
    return value.value if isinstance(value, enum.Flag) else value.name


def _build_enum(cls: type[enum.Enum], state: Any) -> Any:
    return cls(state) if issubclass(cls, enum.Flag) else cls[state]


def _has_fields(cls: type) -> bool:
    has_fields = dataclasses.is_dataclass(cls) or "__attrs_attrs__" in vars(cls)
    # A base in C (dict, Exception) has parts that are no fields, and a __new__ of its own.
    return has_fields and getattr(cls, "__new__", None) is object.__new__


def _fields_state(value: Any) -> dict[str, Any]:
    cls: Any = type(value)
    names = _fields(cls)
    refuse_extras(value, names)
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _build_fields(cls: type, state: dict[str, Any]) -> Any:
    """An instance with these fields; no code of the class runs. A new field gets its default."""
    fields = _fields(cls)
    for name in state:
        if name not in fields:
            raise CodecError(f"{cls.__qualname__} has no field {name!r}")
    value: object = object.__new__(cls)
    for name, field in fields.items():
        if name in state:
            object.__setattr__(value, name, state[name])
        elif field.init:
            object.__setattr__(value, name, _default(cls, field))
    return value


@lru_cache(maxsize=1024)
def _fields(cls: type) -> dict[str, Any]:
    is_dataclass = dataclasses.is_dataclass(cls)
    fields: Iterable[Any] = dataclasses.fields(cls) if is_dataclass else attrs.fields(cls)
    return {field.name: field for field in fields}


def _default(cls: type, field: Any) -> Any:
    default, factory = field.default, getattr(field, "default_factory", dataclasses.MISSING)
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        factory = default.factory
    if factory is not dataclasses.MISSING:
        return factory()
    if default is dataclasses.MISSING or default is attrs.NOTHING:
        raise CodecError(
            f"field {field.name!r} of {cls.__qualname__} was not stored, it has no default"
        )
    return default


DEFAULT_KINDS: tuple[ObjectKind, ...] = (
    ObjectKind(lambda cls: issubclass(cls, enum.Enum), _enum_state, _build_enum),
    ObjectKind(_has_fields, _fields_state, _build_fields),
)
"""Enums by the names of members, flags by value; dataclasses and attrs classes by their fields."""


def refuse_extras(value: object, known: Collection[str]) -> None:
    """Raise CodecError if *value* has an attribute in its ``__dict__`` that is not *known*."""
    cls: Any = type(value)
    for name in getattr(value, "__dict__", ()):
        is_known = name in known or name.lstrip("_") in known
        if not is_known and not isinstance(getattr(cls, name, None), cached_property):
            raise CodecError(f"{cls.__qualname__} has an attribute {name!r} beside its fields")


T = TypeVar("T")

MAX_BYTES = 16 << 20  # longest stored form, in bytes

_PLAIN = frozenset({type(None), bool, int, float, str, bytes, bytearray, list, dict})
_TUPLE, _SET, _FROZENSET, _RANGE, _OBJECT, _REGISTERED = range(6)
_MARKS = [msgpack.ExtType(number, b"") for number in range(6)]
_MARKED: Mapping[type, int] = {tuple: _TUPLE, set: _SET, frozenset: _FROZENSET}
_REGISTERED_NAME = re.compile(r"[\w.:-]{1,64}")


class Registered(NamedTuple):
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
        """Make instances of *cls*, not of subclasses, storable in requests and ``spider.state``.

        *encode* returns a storable value; *decode* makes an equal instance, and must not trust it.
        *name* is written in place of the class: the class may move, the name must stay. Call it
        where the class is defined. Raises `ValueError` for a built-in type, or a *name* not of 1 to
        64 letters, digits, ``_.:-``.
        """
        if cls in _PLAIN or cls in _MARKED or cls in SCALARS:
            raise ValueError(f"{cls.__name__} is stored as it is")
        if not _REGISTERED_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name for a stored class")
        self.by_name[name] = self.by_class[cls] = Registered(name, encode, decode)


class ValueCodec:
    """Writes and reads values; *classes* may be named, *kinds* take instances apart. One thread."""

    def __init__(
        self, classes: ClassList | None = None, registry: ClassRegistry | None = None,
        kinds: Iterable[ObjectKind] = DEFAULT_KINDS,
    ) -> None:  # fmt: skip
        self.classes = classes or ClassList()
        self.registry = registry or ClassRegistry()
        self.kinds = tuple(kinds)
        self._packer = self._new_packer()

    def dumps(self, value: object) -> bytes:
        """Return *value* as bytes; raise CodecError, with the reason, if it has no stored form."""
        try:
            data = self._pack(value)
        except ValueError as error:
            raise CodecError(f"it contains itself or nests too deep ({error})") from error
        if len(data) > MAX_BYTES:
            raise CodecError(f"{len(data)} bytes are more than the {MAX_BYTES} allowed")
        return data

    def loads(self, data: bytes) -> Any:
        """Return the value that *data* stands for; raise CodecError if `dumps` did not write it."""
        if len(data) > MAX_BYTES:
            raise CodecError(f"{len(data)} bytes are more than the {MAX_BYTES} allowed")
        reader = _Reader(self)
        try:
            value = msgpack.unpackb(
                data, ext_hook=reader.extension, list_hook=reader.array, object_pairs_hook=dict,
                strict_map_key=False, unicode_errors="surrogatepass", timestamp=1,
            )  # fmt: skip
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

    def _pack(self, value: object) -> bytes:
        try:
            data: bytes = self._packer.pack(value)
        except UnicodeEncodeError:  # lone surrogates, which a str may hold
            data = self._new_packer("surrogatepass").pack(value)
        return data

    def _new_packer(self, unicode_errors: str | None = None) -> msgpack.Packer:
        return msgpack.Packer(default=self._lower, strict_types=True, unicode_errors=unicode_errors)

    def _lower(self, value: Any) -> Any:
        """What is packed in place of *value*, whose type msgpack does not know."""
        cls = type(value)
        if cls is int:
            data = value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
            return msgpack.ExtType(BIG_INT, data)
        if (leaf := SCALARS.get(cls)) is not None:
            return msgpack.ExtType(leaf[0], leaf[1][0](value))
        if cls in _MARKED:
            return [_MARKS[_MARKED[cls]], *value]
        if cls is range:
            return [_MARKS[_RANGE], value.start, value.stop, value.step]
        if (registered := self.registry.by_class.get(cls)) is not None:
            return [_MARKS[_REGISTERED], registered.name, _guard(registered.encode, value)]
        kind, name = self.kind_of(cls), self.classes.name_of(cls)
        return [_MARKS[_OBJECT], name, _guard(kind.state, value)]


class _Reader:
    __slots__ = ("codec", "open_marks")

    def __init__(self, codec: ValueCodec) -> None:
        self.codec = codec
        self.open_marks = 0

    def extension(self, code: int, data: bytes) -> Any:
        if 0 <= code < len(_MARKS) and not data:
            self.open_marks += 1
            return _MARKS[code]
        return DECODERS[code](data)

    def array(self, items: list[Any]) -> Any:
        if not items or type(items[0]) is not msgpack.ExtType:
            return items
        self.open_marks -= 1
        mark = items.pop(0).code
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
    _TUPLE: tuple, _SET: set, _FROZENSET: frozenset, _RANGE: lambda items: range(*items),
}  # fmt: skip
