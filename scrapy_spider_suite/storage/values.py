"""Python values as bytes and back, exactly, with neither pickle nor eval.

The bytes are standard msgpack. What msgpack has no type for:

=====================================  =================================================
value                                  stored as
=====================================  =================================================
None, bool, int, float, str, bytes     msgpack's own (ints beyond 64 bits: an extension)
list, dict with plain keys             array, map
tuple, set, frozenset, range,          array whose first element is a *mark*, an empty
dict with other keys                   extension that says which
datetime, Decimal, UUID, paths, ...    an extension (``leaves.py``)
enum members, dataclasses, attrs       marked array: name of the class, state
registered classes                     marked array: registered name, what their encoder
                                       returned
=====================================  =================================================

Types are exact: a subclass of ``dict`` or ``str`` or a namedtuple would come back as something
else, so it is refused unless its class is registered. Floats keep every bit, NaN too. Identity is
not kept: what was one object in two places comes back as two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.errors import CodecError
from scrapy_spider_suite.storage.classes import ClassList
from scrapy_spider_suite.storage.leaves import BIG_INT, DECODERS, LEAVES, big_int_bytes
from scrapy_spider_suite.storage.objects import DEFAULT_KINDS, Kind
from scrapy_spider_suite.storage.shape import check_shape

T = TypeVar("T")

MAX_DEPTH = 64
"""Deepest nesting of containers; a marked array and the state of an object are a level each."""
MAX_ITEMS = 1_000_000
"""Most elements, over all containers, of one value."""
MAX_BYTES = 16 << 20
"""Longest stored form, in bytes."""

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_PACKER_KEEPS = 1 << 20  # bytes of buffer; a packer never gives memory back by itself
_TUPLE, _SET, _FROZENSET, _PAIRS, _RANGE, _OBJECT, _REGISTERED = range(7)
_MARKS = [msgpack.ExtType(number, b"") for number in range(7)]
_NAME = re.compile(r"[\w.:-]{1,64}")


class _Mark(NamedTuple):
    """The first element of a marked array, while it is being read."""

    number: int


_READ_MARKS = [_Mark(number) for number in range(len(_MARKS))]


class Registered(NamedTuple):
    """A class with its own stored form."""

    cls: type
    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class Registry:
    """The classes that were given a stored form of their own, by class and by name."""

    def __init__(self) -> None:
        self.by_class: dict[type, Registered] = {}
        self.by_name: dict[str, Registered] = {}

    def register(
        self, cls: type[T], name: str, encode: Callable[[T], Any], decode: Callable[[Any], T]
    ) -> None:
        """Store instances of exactly *cls* as what *encode* makes of them.

        *encode* returns a storable value, *decode* makes an equal instance from it. *name* stands
        in the stored bytes: keep it, or what was stored cannot be read any more. Registering the
        same name again replaces it, as reloading a module does.

        Raises:
            ValueError: a built-in type that is stored as it is, or a name that is not 1 to 64
                letters, digits and ``_ . : -``.
        """
        if cls in _PLAIN or cls in _LOWER or cls in LEAVES:
            raise ValueError(f"{cls.__name__} is stored as it is")
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name for a stored class")
        old = self.by_name.pop(name, None)
        if old is not None:
            del self.by_class[old.cls]
        again = self.by_class.pop(cls, None)
        if again is not None:
            del self.by_name[again.name]
        self.by_name[name] = self.by_class[cls] = Registered(cls, name, encode, decode)


class ValueCodec:
    """Writes and reads values; *classes* are those that may be named, *kinds* how they are taken
    apart.

    Not for use by several threads at once.
    """

    def __init__(
        self,
        classes: ClassList | None = None,
        registry: Registry | None = None,
        kinds: Iterable[Kind] = DEFAULT_KINDS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.classes = classes or ClassList()
        self.registry = registry or Registry()
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

    def kind_of(self, cls: type) -> Kind:
        """Return how instances of *cls* are taken apart; raise CodecError if nothing knows how."""
        for kind in self.kinds:
            if kind.accepts(cls):
                return kind
        raise CodecError(f"{cls.__module__}.{cls.__qualname__} has no stored form")


def _new_packer(unicode_errors: str | None = None) -> msgpack.Packer:
    return msgpack.Packer(default=_big_int, strict_types=True, unicode_errors=unicode_errors)


def _big_int(value: int) -> msgpack.ExtType:
    """Called for the one lowered value that msgpack cannot write: an int beyond 64 bits."""
    return msgpack.ExtType(BIG_INT, big_int_bytes(value))


class _Writer:
    """Lowers one value to what msgpack writes as it stands, counting what it costs."""

    __slots__ = ("codec", "left")

    def __init__(self, codec: ValueCodec) -> None:
        self.codec = codec
        self.left = MAX_ITEMS

    def lower(self, value: Any, depth: int) -> Any:
        """Return the lowered form of *value*, which stands *depth* levels deep."""
        cls = type(value)
        if cls in _PLAIN:
            return value
        leaf = LEAVES.get(cls)
        if leaf is not None:
            return msgpack.ExtType(leaf[0], leaf[1].encode(value))
        if depth > MAX_DEPTH:
            raise CodecError(f"it contains itself or nests deeper than {MAX_DEPTH} levels")
        lower = _LOWER.get(cls)
        if lower is not None:
            self.left -= len(value)
            if self.left < 0:
                raise CodecError(f"it has more than {MAX_ITEMS:,} elements")
            return lower(self, value, depth + 1)
        return self._lower_object(value, cls, depth + 1)

    def _lower_list(self, value: list[Any], depth: int) -> list[Any]:
        return [item if type(item) in _PLAIN else self.lower(item, depth) for item in value]

    def _lower_dict(self, value: dict[Any, Any], depth: int) -> Any:
        lowered = {}
        for key, item in value.items():
            if type(key) not in _PLAIN:
                pairs = [part for pair in value.items() for part in pair]
                return [_MARKS[_PAIRS], *self._lower_list(pairs, depth)]
            lowered[key] = item if type(item) in _PLAIN else self.lower(item, depth)
        return lowered

    def _lower_tuple(self, value: tuple[Any, ...], depth: int) -> list[Any]:
        return [_MARKS[_TUPLE], *self._lower_list(list(value), depth)]

    def _lower_set(self, value: set[Any], depth: int) -> list[Any]:
        return [_MARKS[_SET], *self._lower_list(list(value), depth)]

    def _lower_frozenset(self, value: frozenset[Any], depth: int) -> list[Any]:
        return [_MARKS[_FROZENSET], *self._lower_list(list(value), depth)]

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


_LOWER: Mapping[type, Callable[[_Writer, Any, int], Any]] = {
    list: _Writer._lower_list,
    dict: _Writer._lower_dict,
    tuple: _Writer._lower_tuple,
    set: _Writer._lower_set,
    frozenset: _Writer._lower_frozenset,
}


class _Reader:
    """Raises one value from what msgpack read; msgpack calls it for inner values first."""

    __slots__ = ("codec", "open_marks")

    def __init__(self, codec: ValueCodec) -> None:
        self.codec = codec
        self.open_marks = 0

    def extension(self, code: int, data: bytes) -> Any:
        """Return the mark or the value that an extension stands for."""
        if code < len(_READ_MARKS) and not data:
            self.open_marks += 1
            return _READ_MARKS[code]
        return DECODERS[code](data)

    def array(self, items: list[Any]) -> Any:
        """Return the value that an array stands for."""
        if not items or type(items[0]) is not _Mark:
            return items
        self.open_marks -= 1
        mark = items.pop(0).number
        if mark == _OBJECT:
            return self._object(*items)
        if mark == _REGISTERED:
            return self._registered(*items)
        return _RAISE[mark](items)

    def _object(self, name: Any, state: Any) -> Any:
        cls = self.codec.classes.find(name)
        return _guard(self.codec.kind_of(cls).build, cls, state)

    def _registered(self, name: Any, state: Any) -> Any:
        registered = self.codec.registry.by_name.get(name)
        if registered is None:
            raise CodecError(f"no class is registered as {name!r}")
        return _guard(registered.decode, state)


def _guard(function: Callable[..., Any], *values: Any) -> Any:
    """Call what takes apart or builds objects of the user's classes."""
    try:
        return function(*values)
    except CodecError:
        raise
    except Exception as error:  # the user's code runs in it and may raise anything
        cls = values[0] if isinstance(values[0], type) else type(values[0])
        raise CodecError(f"the stored form of {cls.__qualname__} failed: {error!r}") from error


def _from_pairs(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


_RAISE: Mapping[int, Callable[[list[Any]], Any]] = {
    _TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
    _PAIRS: _from_pairs,
    _RANGE: lambda items: range(*items),
}
