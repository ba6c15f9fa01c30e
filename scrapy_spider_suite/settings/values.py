"""The types of settings' values: how each is read, and what is allowed, in words.

A value is a Python object (``4``, ``True``, ``["a"]``) or text from a command line (``"4"``,
``"true"``, ``"a,b"``); both read the same.
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
_QUEUE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^/]")
_WEBHOOK = re.compile(r"https?://[!-~]+")
_RELATIVE = re.compile(r"(file|local)://(?!/)")
_URL_PASSWORD = re.compile(r"://[^/@]*:(?!\d+/)[^@]*@")  # with a / in it, too
_SECRET = 16
REDIS_SCHEMES = ("redis://", "rediss://", "unix://")
_USER = re.compile(r"//.*@")
_PASSWORD = re.compile(r"(password=)[^&]*")
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


class ValueDetailError(ValueError):
    """A value is not allowed, with a message of its own in place of ``allowed``."""


@dataclass(frozen=True, slots=True)
class ValueType:
    """How a setting's value is read."""

    parse: Callable[[object], Any]  # returns the typed value of what a user wrote, or ValueError
    allowed: str  # to follow "expected", such as "a number of seconds >= 0"
    unit: str = ""  # such as "seconds", "bytes", "hosts"


def _value_type(allowed: str, unit: str = "") -> Callable[[Callable[[object], object]], ValueType]:
    return lambda parse: ValueType(parse, allowed, unit)


def _check_range(number: N, low: N, high: N | None) -> N:
    if not low <= number <= (number if high is None else high):  # nor is a NaN
        raise ValueError(number)
    return number


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


def _one_of(names: Collection[str], text: str) -> str:
    if text not in names:
        raise ValueError(text)
    return text


def _matched(pattern: re.Pattern[str], raw: object) -> str:
    if not isinstance(raw, str) or not pattern.fullmatch(raw):
        raise ValueError(raw)
    return raw


def _number_and_unit(pattern: re.Pattern[str], raw: str) -> tuple[float, str]:
    if (found := pattern.fullmatch(raw.strip())) is None:
        raise ValueError(raw)
    return float(found[1]), found[2].lower()


# Numbers and words


@_value_type("True or False")
def boolean(raw: object) -> bool:
    if (truth := TRUTH_VALUES.get(str(raw).lower())) is None:
        raise ValueError(raw)
    return truth


def integer(low: int, high: int | None = None, unit: str = "") -> ValueType:
    """Return the type of whole numbers from *low* to *high*, both included."""

    def parse(raw: object) -> int:
        if isinstance(raw, float) and raw.is_integer():
            raw = int(raw)
        if isinstance(raw, bool) or not isinstance(raw, int | str):
            raise ValueError(raw)
        return _check_range(int(raw), low, high)

    bounds = f">= {low}" if high is None else f"from {low} to {high}"
    return ValueType(parse, f"a whole number {bounds}", unit)


def duration(low: float = 0.0) -> ValueType:
    """Return the type of durations: a float of seconds, also written ``10m``, ``2h`` or ``7d``."""

    def parse(raw: object) -> float:
        if isinstance(raw, str):
            number, letter = _number_and_unit(_DURATION, raw)
            seconds = number * _SECONDS[letter]
        elif isinstance(raw, int | float) and not isinstance(raw, bool):
            seconds = float(raw)
        else:
            raise ValueError(raw)
        if not math.isfinite(seconds):
            raise ValueError(raw)
        return _check_range(seconds, low, None)

    return ValueType(parse, f"a number of seconds >= {low:g}, or one like 10m, 2h, 7d", "seconds")


def number(low: float, high: float) -> ValueType:
    """Return the type of floats from *low* to *high*, both included."""

    def parse(raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float | str):
            raise ValueError(raw)
        return _check_range(float(raw), low, high)

    return ValueType(parse, f"a number from {low:g} to {high:g}")


def size(low: int = 0) -> ValueType:
    """Return the type of sizes: an int of bytes, also written ``512K``, ``64M`` or ``2G``."""

    def parse(raw: object) -> int:
        if isinstance(raw, str):
            number, letter = _number_and_unit(_SIZE, raw)
            raw = int(number * _BYTES[letter])
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise ValueError(raw)
        return _check_range(raw, low, None)

    return ValueType(parse, f"a number of bytes >= {low}, or one like 512K, 64M, 2G", "bytes")


@_value_type(f"{duration(20.0).allowed}, or 'forever'", "seconds")
def grace_period(raw: object) -> object:
    return None if str(raw).lower() in ("forever", "none") else duration(20.0).parse(raw)


def choice(*names: str) -> ValueType:
    """Return the type of a word out of *names*."""
    allowed = " or ".join(repr(name) for name in names)
    return ValueType(lambda raw: _one_of(names, str(raw).lower()), allowed)


def choices(*names: str) -> ValueType:
    """Return the type of a list of words out of *names*; values keep the order of *names*."""

    def parse(raw: object) -> tuple[str, ...]:
        chosen = {_one_of(names, item.lower()) for item in split_texts(raw)}
        return tuple(name for name in names if name in chosen)

    return ValueType(parse, f"a list of {', '.join(repr(name) for name in names)}")


@_value_type("DEBUG, INFO, WARNING, ERROR or CRITICAL")
def log_level(raw: object) -> str:
    """A name or a number of Python's logging."""
    text = str(raw).upper()
    return text if text.isdecimal() else _one_of(logging.getLevelNamesMapping(), text)


# Files and folders; an empty text is None


def _path_that(is_right: Callable[[Path], bool]) -> Callable[[object], Path | None]:
    def parse(raw: object) -> Path | None:
        if not isinstance(raw, str | os.PathLike) or "\0" in str(raw):
            raise ValueError(raw)
        if raw and not is_right(Path(raw)):
            raise ValueError(raw)
        return Path(raw) if raw else None

    return parse


file = ValueType(_path_that(Path.is_file), "the path of a file that exists")
folder = ValueType(
    _path_that(lambda path: path.is_dir() or not path.exists()), "the path of a folder"
)


@_value_type("True, False, or the path of a folder")
def switch_or_folder(raw: object) -> object:
    truth = TRUTH_VALUES.get(str(raw).lower())
    if raw == "":
        raise ValueError(raw)
    return folder.parse(raw) if truth is None else truth


@_value_type("a URL without a password, such as 's3://bucket/folder', or an absolute path")
def remote_folder(raw: object) -> str:
    """A folder on a file system of fsspec. A password would be written into jobs and logs."""
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


# Texts


name = ValueType(partial(_matched, _NAME), "at most 64 letters, digits, '_' and '.'")


@_value_type("a text in one line")
def line(raw: object) -> str:
    if not isinstance(raw, str) or not raw.isprintable():
        raise ValueError(raw)
    return raw.strip()


def _list_of(parse_item: Callable[[str], object], allowed: str) -> ValueType:
    return ValueType(lambda raw: tuple(parse_item(item) for item in split_texts(raw)), allowed)


texts = _list_of(line.parse, "a list of texts such as 'seeds.txt.gz, example.com'")
media_types = _list_of(
    lambda item: _matched(_MEDIA_TYPE, item.lower()),
    "a list of media types such as 'text/*, application/xhtml+xml'",
)
dotted_paths = _list_of(
    partial(_matched, _DOTTED), "a list of import paths such as 'project.items.Book'"
)
parameters = ValueType(
    lambda raw: tuple(sorted({*parameter_names(split_texts(raw))})),
    "a list of names of parameters such as 'ref, src_*'",
)


def _name_and_weight(item: str) -> tuple[str, float]:
    name, _, weight = item.partition("=")
    return _matched(_QUEUE, name.strip()), _check_range(float(weight), 0.001, 1e6)


weights = ValueType(
    lambda raw: tuple(
        f"{name}={weight:g}"
        for name, weight in dict(map(_name_and_weight, split_texts(raw))).items()
    ),
    "a list of names and weights above 0 such as 'bulk=1, fresh=3'",
)


@_value_type("a file of rules, or a list such as ['.example.org tracking=yes']")
def url_rules(raw: object) -> tuple[str, ...]:
    """The sorted lines without comments: a job keeps the rules, not the file's path."""
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


import_path = ValueType(
    lambda raw: raw and _matched(_DOTTED, raw), "an import path such as 'project.scores.score'"
)


@_value_type(f"{import_path.allowed}, or the path of a file that exists")
def import_path_or_file(raw: object) -> str | Path:
    if raw and isinstance(raw, str | os.PathLike) and Path(raw).is_file():
        return Path(raw)
    return str(import_path.parse(raw))


ASSIGNMENTS = ("ring", "url-sum", "host-parity")  # assignment functions that have names


assignment = ValueType(
    lambda raw: raw if raw in ASSIGNMENTS else _matched(_DOTTED, raw),
    f"{', '.join(map(repr, ASSIGNMENTS))}, or {import_path.allowed}",
)


def filter_for(stage: str) -> ValueType:
    """Return the type of a filter for *stage*: an expression, or ``@`` and a file's path.

    An expression is checked here; a file, which may change, where it is read.
    """

    def parse(raw: object) -> str:
        if not isinstance(raw, str) or not all(c.isprintable() or c in "\t\r\n" for c in raw):
            raise ValueError(raw)
        text = raw.strip()
        if text.startswith("@"):
            file.parse(text[1:] or None)
        elif text:
            _check_filter(text, stage)
        return text

    return ValueType(parse, "a filter such as 'HostEndsWith(.org)', or '@' and a file that exists")


def _check_filter(text: str, stage: str) -> None:
    # A crawl without filters needs neither their parser nor the list of public suffixes.
    from scrapy_spider_suite.errors import FilterError
    from scrapy_spider_suite.urls.filters import FilterInputs, Stage
    from scrapy_spider_suite.urls.filters.language import Filter

    try:
        Filter(text, Stage(stage), FilterInputs(country_of=str))
    except FilterError as error:
        raise ValueDetailError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Secret:
    """A text that is never shown."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        return "***"


SECRETS = frozenset({"SUITE_CLUSTER_KEY", "SUITE_ALERT_URL"})
"""The settings whose values are a `Secret`."""


@_value_type(f"{_SECRET} characters or more")
def secret(raw: object) -> Secret | None:
    if isinstance(raw, Secret):
        return raw
    if raw == "":
        return None
    if not isinstance(raw, str) or len(raw) < _SECRET or not raw.isprintable():
        raise ValueDetailError(f"expected {secret.allowed}")  # the error must not show the value
    return Secret(raw)


# Hosts and servers


@_value_type("an address such as '10.0.0.7' or 'agent.example:7000'")
def address(raw: object) -> str:
    text = str(raw).strip()
    if text:
        endpoint(text)
    return text


def _address_and_port(item: str) -> tuple[str, int]:
    """Read ``1.2.3.4``, ``1.2.3.4:53``, ``::1`` or ``[::1]:53``; the port is 53 unless given."""
    bare = item.count(":") > 1 and not item.startswith("[")
    host, port = Endpoint(item, 0) if bare else endpoint(item)
    return str(ipaddress.ip_address(host)), port or 53


name_servers = _list_of(
    _address_and_port,
    "a list of IP addresses with or without a port, such as '127.0.0.1:5353'",
)


@_value_type("True, False, or a list of host names and CIDRs such as '10.0.0.0/8'")
def hosts_or_networks(raw: object) -> bool | tuple[str, ...]:
    """Names in lower case without a trailing dot; ``10.0.0.1`` as ``10.0.0.1/32``."""
    truth = TRUTH_VALUES.get(str(raw).lower())
    return tuple(map(_host_or_network, split_texts(raw))) if truth is None else truth


def _host_or_network(item: str) -> str:
    try:
        return str(ipaddress.ip_network(item.strip("[]"), strict=False))
    except ValueError:
        name = item.removesuffix(".").lower()
    # A text that ends like a number or holds a slash was meant as an address, and is misspelt.
    if not _HOST.fullmatch(name) or name.rpartition(".")[2].isdigit():
        raise ValueError(item)
    return name


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


@_value_type("a URL that begins with redis://, rediss:// or unix://")
def redis_url(raw: object) -> RedisUrl | None:
    if raw == "":
        return None
    if not isinstance(raw, str) or not raw.startswith(REDIS_SCHEMES) or not raw.isprintable():
        raise ValueDetailError(f"expected {redis_url.allowed}")  # the value may hold a password
    if not _is_sound(raw):
        raise ValueDetailError(
            "the URL cannot be read: in a password /, ?, # and @ are written as %2F, %3F, %23 "
            "and %40"
        )
    return RedisUrl(add_url_parameters(raw, {}))


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


file_to_be = ValueType(
    _path_that(lambda path: not path.is_dir() and path.absolute().parent.is_dir()),
    "the path of a file in a folder that exists",
)


@_value_type(f"{redis_url.allowed}, or {file_to_be.allowed}")
def redis_or_file(raw: object) -> object:
    return redis_url.parse(raw) if "://" in str(raw) else file_to_be.parse(raw)


@_value_type("a URL that begins with http:// or https://")
def webhook(raw: object) -> Secret | None:
    """A secret: whoever knows such a URL may often post to it."""
    if isinstance(raw, Secret):
        return raw
    if raw == "":
        return None
    if not isinstance(raw, str) or not _WEBHOOK.fullmatch(raw):
        raise ValueDetailError(f"expected {webhook.allowed}")  # the error must not show the value
    return Secret(raw)
