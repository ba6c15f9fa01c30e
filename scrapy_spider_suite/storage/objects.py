"""Instances of classes, taken apart into plain values and put together again without their
``__init__``.

A *kind* knows one family of classes: enums, dataclasses, attrs classes. It says what an instance
consists of (`state`) and rebuilds one (`build`). What a kind cannot keep it refuses, so that
nothing is lost in silence.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Iterator
from functools import cached_property, lru_cache, reduce
from operator import or_
from typing import Any, Protocol

import attrs

from scrapy_spider_suite.errors import CodecError

_NO_DEFAULT = object()


class Kind(Protocol):
    """How the instances of a family of classes are stored."""

    def accepts(self, cls: type) -> bool:
        """Return whether *cls* belongs to the family."""
        ...

    def state(self, value: Any) -> Any:
        """Return the storable values that *value* consists of; raise CodecError if it cannot."""
        ...

    def build(self, cls: type, state: Any) -> Any:
        """Return an instance of *cls* equal to the one that *state* was taken from.

        Any exception means that *state* does not fit *cls*.
        """
        ...


class EnumKind:
    """Members of enums by their names; a combination of flags by the names of its flags."""

    def accepts(self, cls: type) -> bool:
        """Return whether *cls* is an enum."""
        return issubclass(cls, enum.Enum)

    def state(self, value: enum.Enum) -> list[str]:
        """Return the names of the members that make up *value*."""
        cls = type(value)
        for name, member in cls.__members__.items():
            if member is value:
                return [name]
        if not isinstance(value, enum.Flag):
            raise CodecError(f"{value!r} is no member of its enum")
        names = [name for name, flag in type(value).__members__.items() if flag in value]
        if self.build(cls, names) != value:
            raise CodecError(f"{value!r} is not made of named flags")
        return names

    def build(self, cls: type[enum.Enum], state: list[str]) -> Any:
        """Return the member, or the combination of flags, that has these names."""
        members = [cls.__members__[name] for name in state]
        if len(members) == 1:
            return members[0]
        if not issubclass(cls, enum.Flag):
            raise CodecError(f"{cls.__qualname__} has no combined members")
        return reduce(or_, members, cls(0))


class FieldsKind:
    """Dataclasses and attrs classes, by their fields.

    ``__init__``, ``__post_init__``, converters and validators do not run when an instance is put
    together: its fields get the values they had. A field that the class has gained since gets its
    default; a field that the class has lost is an error. Attributes that are no fields are refused,
    except cached properties, which are computed anew.
    """

    def accepts(self, cls: type) -> bool:
        """Return whether *cls* is a dataclass or an attrs class without a base in C."""
        has_fields = dataclasses.is_dataclass(cls) or "__attrs_attrs__" in vars(cls)
        # A base in C (dict, Exception) has parts that are no fields, and a __new__ of its own.
        return has_fields and getattr(cls, "__new__", None) is object.__new__

    def state(self, value: Any) -> dict[str, Any]:
        """Return the fields that are set, by name."""
        cls: Any = type(value)
        names = _defaults(cls)
        refuse_extras(value, names)
        return {name: getattr(value, name) for name in names if hasattr(value, name)}

    def build(self, cls: type, state: dict[str, Any]) -> Any:
        """Return an instance with these fields."""
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


DEFAULT_KINDS: tuple[Kind, ...] = (EnumKind(), FieldsKind())


def refuse_extras(value: object, known: Collection[str], base: type = object) -> None:
    """Raise CodecError if *value* has an attribute that is not *known*.

    ``_name`` counts as known with ``name``: it holds the value of a property. What *base* itself
    declares is left out.
    """
    for name in _attributes(value, base):
        is_known = name in known or name.lstrip("_") in known
        if not is_known and not isinstance(getattr(type(value), name, None), cached_property):
            raise CodecError(
                f"{type(value).__qualname__} has an attribute {name!r} beside its fields"
            )


def _attributes(value: object, base: type) -> Iterator[str]:
    yield from getattr(value, "__dict__", ())
    cls: Any = type(value)
    for name in _slots(cls, base):
        if hasattr(value, name):
            yield name


@lru_cache(maxsize=1024)
def _slots(cls: type, base: Any) -> tuple[str, ...]:
    """The names of the slots that *cls* and its bases declare, up to *base*."""
    names: list[str] = []
    for part in cls.__mro__[: cls.__mro__.index(base)]:
        slots = vars(part).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            hidden = name.startswith("__") and not name.endswith("__")
            names.append(f"_{part.__name__.lstrip('_')}{name}" if hidden else name)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


@lru_cache(maxsize=1024)
def _defaults(cls: type) -> dict[str, Callable[[], Any]]:
    """Each field's name and what it is without a stored value: `_NO_DEFAULT` leaves it unset."""
    if dataclasses.is_dataclass(cls):
        return {field.name: _dataclass_default(cls, field) for field in dataclasses.fields(cls)}
    return {attribute.name: _attrs_default(cls, attribute) for attribute in attrs.fields(cls)}


def _dataclass_default(cls: type, field: dataclasses.Field[Any]) -> Callable[[], Any]:
    if field.default is not dataclasses.MISSING:
        return lambda: field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory
    return _missing(cls, field.name, field.init)


def _attrs_default(cls: type, attribute: attrs.Attribute[Any]) -> Callable[[], Any]:
    default = attribute.default
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        factory: Any = default
        if not factory.takes_self:
            return factory.factory  # type: ignore[no-any-return]
    elif default is not attrs.NOTHING:
        return lambda: default
    return _missing(cls, attribute.name, attribute.init)


def _missing(cls: type, name: str, needed: bool) -> Callable[[], Any]:
    def absent() -> Any:
        if needed:
            raise CodecError(
                f"field {name!r} of {cls.__qualname__} was not stored, it has no default"
            )
        return _NO_DEFAULT

    return absent
