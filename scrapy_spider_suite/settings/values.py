"""The types of settings' values: how each is read, and what is allowed, in words.

A value is a Python object (``4``, ``True``, ``["a"]``) or text from a command line (``"4"``,
``"true"``, ``"a,b"``); both read the same. Each factory returns a `ValueType`, whose ``parse``
raises `ValueError` for any other value; errors for users are built from ``allowed``.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from scrapy_spider_suite.urls.normalizer import SpellingRules, parameter_names

_TEXT = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")


class Endpoint(NamedTuple):
    """A host, without brackets, and a port; 0 where none was given."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else host


def endpoint(text: str, *, whole: bool = False) -> Endpoint:
    """Parse ``host``, ``host:port`` or ``[host]:port``; with *whole* the port is required.

    Raises `ValueError`.
    """
    found = _TEXT.fullmatch(text)
    if found is None or (whole and found[3] is None):
        raise ValueError(f"{text!r} is not HOST:PORT")
    port = 0 if found[3] is None else int(found[3])
    if found[3] is not None and not 0 < port < 65536:
        raise ValueError(f"{text!r}: no port has the number {port}")
    return Endpoint(found[1] or found[2], port)


T = TypeVar("T")
N = TypeVar("N", int, float)

_DURATION = re.compile(r"(\d+(?:\.\d+)?) *([smhdw]?)", re.IGNORECASE)
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([kmg]?)b?", re.IGNORECASE)
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
TRUTH_VALUES = {"1": True, "true": True, "0": False, "false": False}
"""The spellings of True and False, in lower case."""
_MEDIA_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]+/(\*|[a-z0-9!#$&^_.+-]+)")
_HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9_.]{0,64}")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^/]")
_RELATIVE = re.compile(r"(file|local)://(?!/)")
_URL_PASSWORD = re.compile(r"://[^/@]*:(?!\d+/)[^@]*@")  # with a / in it, too
_SECRET = 16
_SCHEMES = ("redis://", "rediss://", "unix://")
_USER = re.compile(r"//.*@")
_PASSWORD = re.compile(r"(password=)[^&]*")
_LEVELS = logging.getLevelNamesMapping()
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


@dataclass(frozen=True, slots=True)
class ValueType:
    """How a setting's value is read.

    Attributes:
        parse: returns the typed value of what a user wrote; raises ValueError.
        allowed: the allowed values, to follow "expected", such as "a number of seconds >= 0".
        unit: such as "seconds", "bytes", "hosts"; may be empty.
    """

    parse: Callable[[object], object]
    allowed: str
    unit: str = ""


def boolean() -> ValueType:
    """Return the type of True and False, spelled as in Scrapy's settings."""

    def parse(raw: object) -> bool:
        return _lookup(TRUTH_VALUES, str(raw).lower())

    return ValueType(parse, "True or False")


def integer(low: int, high: int | None = None, unit: str = "") -> ValueType:
    """Return the type of whole numbers from *low* to *high*, both included."""

    def parse(raw: object) -> int:
        if isinstance(raw, float) and raw.is_integer():
            raw = int(raw)
        if isinstance(raw, bool) or not isinstance(raw, int | str):
            raise ValueError(raw)
        return check_range(int(raw), low, high)

    bounds = f">= {low}" if high is None else f"from {low} to {high}"
    return ValueType(parse, f"a whole number {bounds}", unit)


def duration(low: float = 0.0) -> ValueType:
    """Return the type of durations: a float of seconds, also written ``10m``, ``2h`` or ``7d``."""

    def parse(raw: object) -> float:
        if isinstance(raw, str):
            number, letter = _match(_DURATION, raw)
            seconds = float(number) * _SECONDS[letter.lower()]
        elif isinstance(raw, int | float) and not isinstance(raw, bool):
            seconds = float(raw)
        else:
            raise ValueError(raw)
        if not math.isfinite(seconds):
            raise ValueError(raw)
        return check_range(seconds, low, None)

    return ValueType(parse, f"a number of seconds >= {low:g}, or one like 10m, 2h, 7d", "seconds")


def number(low: float, high: float) -> ValueType:
    """Return the type of floats from *low* to *high*, both included."""

    def parse(raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float | str):
            raise ValueError(raw)
        if not low <= float(raw) <= high:  # nor is a NaN
            raise ValueError(raw)
        return float(raw)

    return ValueType(parse, f"a number from {low:g} to {high:g}")


def size(low: int = 0) -> ValueType:
    """Return the type of sizes: an int of bytes, also written ``512K``, ``64M`` or ``2G``."""

    def parse(raw: object) -> int:
        if isinstance(raw, str):
            number, letter = _match(_SIZE, raw)
            return check_range(int(float(number) * _BYTES[letter.lower()]), low, None)
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise ValueError(raw)
        return check_range(raw, low, None)

    return ValueType(parse, f"a number of bytes >= {low}, or one like 512K, 64M, 2G", "bytes")


def choice(*names: str) -> ValueType:
    """Return the type of a word out of *names*."""

    def parse(raw: object) -> str:
        return _lookup({name: name for name in names}, str(raw).lower())

    return ValueType(parse, " or ".join(repr(name) for name in names))


def choices(*names: str) -> ValueType:
    """Return the type of a list of words out of *names*; values keep the order of *names*."""

    def parse(raw: object) -> tuple[str, ...]:
        allowed = {name: name for name in names}
        chosen = {_lookup(allowed, item.lower()) for item in split_texts(raw)}
        return tuple(name for name in names if name in chosen)

    return ValueType(parse, f"a list of {', '.join(repr(name) for name in names)}")


def log_level() -> ValueType:
    """Return the type of a level of Python's logging: its name, or its number as text."""

    def parse(raw: object) -> str:
        text = str(raw).upper()
        return text if text.isdecimal() else _lookup({each: each for each in _LEVELS}, text)

    return ValueType(parse, "DEBUG, INFO, WARNING, ERROR or CRITICAL")


def file() -> ValueType:
    """Return the type of the path of a file that exists; an empty text is None, no file."""

    def parse(raw: object) -> Path | None:
        if not isinstance(raw, str | os.PathLike):
            raise ValueError(raw)
        if raw == "":
            return None
        path = Path(raw)
        if not path.is_file():
            raise ValueError(raw)
        return path

    return ValueType(parse, "the path of a file that exists")


def folder() -> ValueType:
    """Return the type of the path of a folder, which need not exist yet; an empty text is None."""

    def parse(raw: object) -> Path | None:
        return None if raw == "" else _folder(raw)

    return ValueType(parse, "the path of a folder")


def switch_or_folder() -> ValueType:
    """Return the type of True, False, or the path of a folder, which need not exist yet."""

    def parse(raw: object) -> bool | Path:
        if (truth := TRUTH_VALUES.get(str(raw).lower())) is not None:
            return truth
        return _folder(raw)

    return ValueType(parse, "True, False, or the path of a folder")


def _folder(raw: object) -> Path:
    if not isinstance(raw, str | os.PathLike) or raw == "" or "\0" in str(raw):
        raise ValueError(raw)
    path = Path(raw)
    if path.exists() and not path.is_dir():
        raise ValueError(raw)
    return path


def _list_of(parse_item: Callable[[str], object], allowed: str) -> ValueType:
    def parse(raw: object) -> tuple[object, ...]:
        return tuple(parse_item(item) for item in split_texts(raw))

    return ValueType(parse, allowed)


def _matched(pattern: re.Pattern[str], item: str) -> str:
    if not pattern.fullmatch(item):
        raise ValueError(item)
    return item


def texts() -> ValueType:
    """Return the type of a list of texts without control characters."""
    return _list_of(_printable, "a list of texts such as 'seeds.txt.gz, example.com'")


def _printable(item: str) -> str:
    if not item.isprintable():
        raise ValueError(item)
    return item


def media_types() -> ValueType:
    """Return the type of a list of media types in lower case, with ``*`` for any part."""
    allowed = "a list of media types such as 'text/*, application/xhtml+xml'"
    return _list_of(lambda item: _matched(_MEDIA_TYPE, item.lower()), allowed)


def dotted_paths() -> ValueType:
    """Return the type of a list of import paths such as ``project.items.Book``."""
    allowed = "a list of import paths such as 'project.items.Book'"
    return _list_of(partial(_matched, _DOTTED), allowed)


def parameters() -> ValueType:
    """Return the type of a list of names of query parameters, ``*`` at the end for any ending."""

    def parse(raw: object) -> tuple[str, ...]:
        return tuple(sorted({*parameter_names(split_texts(raw))}))

    return ValueType(parse, "a list of names of parameters such as 'ref, src_*'")


def url_rules() -> ValueType:
    """Return the type of the rules of the normal form by host, from a file or a list.

    A value is the sorted lines without comments: a job keeps the rules, not the file's path.
    """

    def parse(raw: object) -> tuple[str, ...]:
        if isinstance(raw, str | os.PathLike):
            try:
                lines = Path(raw).read_text(encoding="utf-8").splitlines() if raw else []
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(raw) from error
        else:
            lines = list(split_texts(raw))
        try:
            SpellingRules(lines)
        except ValueError as error:
            raise ValueDetailError(str(error)) from None
        bare = (" ".join(line.partition("#")[0].split()) for line in lines)
        return tuple(sorted(filter(None, bare)))

    return ValueType(parse, "a file of rules, or a list such as ['.example.org tracking=yes']")


class ValueDetailError(ValueError):
    """A value is not allowed, with a message of its own in place of ``allowed``."""


def import_path() -> ValueType:
    """Return the type of an import path such as ``project.scores.score``; empty for none."""

    def parse(raw: object) -> str:
        if not isinstance(raw, str):
            raise ValueError(raw)
        return _matched(_DOTTED, raw) if raw else ""

    return ValueType(parse, "an import path such as 'project.scores.score'")


def import_path_or_file() -> ValueType:
    """Return the type of a file that exists, or else of an import path; empty for none."""
    path = import_path()

    def parse(raw: object) -> object:
        if raw and isinstance(raw, str | os.PathLike) and Path(raw).is_file():
            return Path(raw)
        return path.parse(raw)

    return ValueType(parse, f"{path.allowed}, or the path of a file that exists")


def filter_for(stage: str) -> ValueType:
    """Return the type of a filter for *stage*: an expression, or ``@`` and a file's path.

    An expression is checked here; a file, which may change, where it is read.
    """

    def parse(raw: object) -> str:
        if not isinstance(raw, str) or not all(c.isprintable() or c in "\t\r\n" for c in raw):
            raise ValueError(raw)
        text = raw.strip()
        if text.startswith("@") and not Path(text[1:]).is_file():
            raise ValueError(raw)
        if text and not text.startswith("@"):
            _check_filter(text, stage)
        return text

    return ValueType(parse, "a filter such as 'HostEndsWith(.org)', or '@' and a file that exists")


def _check_filter(text: str, stage: str) -> None:
    # A crawl without filters needs neither their parser nor the list of public suffixes.
    from scrapy_spider_suite.errors import FilterError
    from scrapy_spider_suite.urls.filters import Filter, FilterInputs, Stage

    try:
        Filter(text, Stage(stage), FilterInputs(country_of=str))
    except FilterError as error:
        raise ValueDetailError(str(error)) from None


def _lookup(table: dict[str, T], key: str) -> T:
    if key not in table:
        raise ValueError(key)
    return table[key]


def check_range(number: N, low: N, high: N | None) -> N:
    """Return *number*. Raises ValueError: it is not in *low* to *high*, both included."""
    if number < low or (high is not None and number > high):
        raise ValueError(number)
    return number


def _match(pattern: re.Pattern[str], raw: str) -> tuple[str, str]:
    if (found := pattern.fullmatch(raw.strip())) is None:
        raise ValueError(raw)
    return found[1], found[2]


def split_texts(raw: object) -> tuple[str, ...]:
    """Return the parts of a comma-separated text or a list of texts, without empty ones.

    Raises ValueError: *raw* is neither.
    """
    if isinstance(raw, str):
        parts: Collection[object] = raw.split(",")
    elif isinstance(raw, list | tuple | set | frozenset):
        parts = raw
    else:
        raise ValueError(raw)
    texts = [part.strip() for part in parts if isinstance(part, str)]
    if len(texts) < len(parts):
        raise ValueError(raw)
    return tuple(text for text in texts if text)


def name_servers() -> ValueType:
    """Return the type of a list of name servers, read as (numeric address, port) pairs."""
    allowed = "a list of IP addresses with or without a port, such as '127.0.0.1:5353'"
    return _list_of(_address_and_port, allowed)


def hosts_or_networks() -> ValueType:
    """Return the type of True, False, or a list of host names, IP addresses and CIDRs.

    Values: names in lower case without a trailing dot; ``10.0.0.1`` as ``10.0.0.1/32``.
    """

    def parse(raw: object) -> bool | tuple[str, ...]:
        if (truth := TRUTH_VALUES.get(str(raw).lower())) is not None:
            return truth
        return tuple(_host_or_network(item) for item in split_texts(raw))

    return ValueType(parse, "True, False, or a list of host names and CIDRs such as '10.0.0.0/8'")


def _address_and_port(item: str) -> tuple[str, int]:
    """Read ``1.2.3.4``, ``1.2.3.4:53``, ``::1`` or ``[::1]:53``; the port is 53 unless given."""
    host, port = item, "53"
    if item.startswith("["):
        host, _, rest = item[1:].partition("]")
        port = rest.removeprefix(":") or port
    elif item.count(":") == 1:
        host, _, port = item.partition(":")
    return str(ipaddress.ip_address(host)), check_range(int(port), 1, 65_535)


def _host_or_network(item: str) -> str:
    try:
        return str(ipaddress.ip_network(item.strip("[]"), strict=False))
    except ValueError:
        name = item.removesuffix(".").lower()
    # A text that ends like a number or holds a slash was meant as an address, and is misspelt.
    if not _HOST.fullmatch(name) or name.rpartition(".")[2].isdigit():
        raise ValueError(item)
    return name


def name() -> ValueType:
    """Return the type of a name that files may have; empty for none."""

    def parse(raw: object) -> str:
        if not isinstance(raw, str):
            raise ValueError(raw)
        return _matched(_NAME, raw)

    return ValueType(parse, "at most 64 letters, digits, '_' and '.'")


def line() -> ValueType:
    """Return the type of a text for people, in one line; empty for none."""

    def parse(raw: object) -> str:
        if not isinstance(raw, str) or not raw.isprintable():
            raise ValueError(raw)
        return raw.strip()

    return ValueType(parse, "a text in one line")


def remote_folder() -> ValueType:
    """Return the type of a folder on a file system of fsspec; empty for none.

    A password in it is refused: it would be written into jobs and logs.
    """

    def parse(raw: object) -> str:
        text = str(raw)
        if _URL_PASSWORD.search(text):  # nor may the error show it
            raise ValueDetailError(
                "a password in a URL is kept in jobs and logs: leave it out, and give it as fsspec "
                "takes it, such as in FSSPEC_SFTP_PASSWORD"
            )
        if _RELATIVE.match(text):  # to whatever folder a crawl is started in
            raise ValueDetailError(
                f"{text!r} names no folder: file:// is followed by an absolute path, such as "
                "file:///mnt/archive"
            )
        if not isinstance(raw, str) or not text.isprintable():
            raise ValueError(raw)
        if text and not text.startswith("/") and not _URL.match(text.replace(":///", "://")):
            raise ValueError(raw)
        return text

    return ValueType(
        parse, "a URL without a password, such as 's3://bucket/folder', or an absolute path"
    )


ASSIGNMENTS = ("ring", "url-sum", "host-parity")
"""Assignment functions that have names."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A text that is never shown."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        return "***"


SECRETS = frozenset({"SUITE_CLUSTER_KEY"})
"""The settings whose values are a `Secret`."""


def secret() -> ValueType:
    """Return the type of a `Secret` of 16 characters or more; an empty text is None."""

    allowed = f"{_SECRET} characters or more"

    def parse(raw: object) -> Secret | None:
        if isinstance(raw, Secret):
            return raw
        if raw == "":
            return None
        if not isinstance(raw, str) or len(raw) < _SECRET or not raw.isprintable():
            raise ValueDetailError(f"expected {allowed}")  # what was given is not to be shown
        return Secret(raw)

    return ValueType(parse, allowed)


def grace_period() -> ValueType:
    """Return the type of a duration of 20 s or more, or None, which is written ``forever``."""
    seconds = duration(20.0)

    def parse(raw: object) -> object:
        return None if str(raw).lower() in ("forever", "none") else seconds.parse(raw)

    return ValueType(parse, f"{seconds.allowed}, or 'forever'", "seconds")


def assignment() -> ValueType:
    """Return the type of the name of an assignment function, or of the import path of one."""
    path = import_path()

    def parse(raw: object) -> object:
        if raw in ASSIGNMENTS:
            return raw
        if raw == "":
            raise ValueError(raw)
        return path.parse(raw)

    names = ", ".join(map(repr, ASSIGNMENTS))
    return ValueType(parse, f"{names}, or {path.allowed}")


def address() -> ValueType:
    """Return the type of ``host`` or ``host:port``; empty for none."""

    def parse(raw: object) -> str:
        text = str(raw).strip()
        if text:
            endpoint(text)
        return text

    return ValueType(parse, "an address such as '10.0.0.7' or 'agent.example:7000'")


def redis_or_file() -> ValueType:
    """Return the type of the URL of a Redis or the path of a file; an empty text is None."""
    url = redis_url()

    def parse(raw: object) -> RedisUrl | Path | None:
        if isinstance(raw, str) and "://" in raw:
            found = url.parse(raw)
            return found if isinstance(found, RedisUrl) else None
        if not isinstance(raw, str | os.PathLike) or "\0" in str(raw):
            raise ValueError(raw)
        path = None if raw == "" else Path(raw)
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise ValueError(raw)
        return path

    return ValueType(parse, f"{url.allowed}, or the path of a file in a folder that exists")


# Parameters of scrapy-redis's client that are no part of a server's address.
CLIENT_PARAMETERS = frozenset({
    "decode_responses", "encoding", "encoding_errors", "redis_cls", "retry_on_timeout",
    "socket_connect_timeout", "socket_timeout",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """The URL of a Redis, for redis-py; ``str()`` shows no password."""

    url: str = field(repr=False)

    def __str__(self) -> str:
        return _PASSWORD.sub(r"\1***", _USER.sub("//***@", self.url))


def redis_url() -> ValueType:
    """Return the type of a `RedisUrl`; an empty text is None."""
    allowed = "a URL that begins with redis://, rediss:// or unix://"

    def parse(raw: object) -> RedisUrl | None:
        if raw == "":
            return None
        if not isinstance(raw, str) or not raw.startswith(_SCHEMES) or not raw.isprintable():
            raise ValueDetailError(f"expected {allowed}")  # what was given may hold a password
        if not _is_sound(raw):
            raise ValueDetailError(
                "the URL cannot be read: in a password /, ?, # and @ are written as %2F, %3F, %23 "
                "and %40"
            )
        return RedisUrl(add_url_parameters(raw, {}))

    return ValueType(parse, allowed)


def _is_sound(url: str) -> bool:
    # Whether redis-py reads the URL as its author means it.
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    return not parts.fragment and (parts.scheme == "unix" or "@" not in parts.path)


def add_url_parameters(url: str, params: dict[str, Any]) -> str:
    """Return *url* with the *params* that it lacks, without `CLIENT_PARAMETERS`."""
    place, _, query = url.partition("?")
    given = {name: str(value) for name, value in params.items()} | dict(parse_qsl(query))
    kept = {name: value for name, value in given.items() if name not in CLIENT_PARAMETERS}
    return f"{place}?{urlencode(kept)}" if kept else place
