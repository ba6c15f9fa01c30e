"""The types of settings that several processes share: secrets, addresses, places of a ledger."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from scrapy_spider_suite.agents.endpoints import endpoint
from scrapy_spider_suite.settings.scrapyredis import RedisUrl, redis_url
from scrapy_spider_suite.settings.values import ValueType, WrongLine, duration, import_path

ASSIGNMENTS = ("ring", "url-sum", "host-parity")
"""Assignment functions that have names."""

_SECRET = 16


@dataclass(frozen=True, slots=True)
class Secret:
    """What is not to be shown."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        return "***"


SECRETS = frozenset({"SUITE_CLUSTER_KEY"})
"""The settings that are such."""


def secret() -> ValueType:
    """Return the type of a `Secret` of 16 characters or more; an empty text is None."""

    allowed = f"{_SECRET} characters or more"

    def parse(raw: object) -> Secret | None:
        if isinstance(raw, Secret):
            return raw
        if raw == "":
            return None
        if not isinstance(raw, str) or len(raw) < _SECRET or not raw.isprintable():
            raise WrongLine(f"expected {allowed}")  # what was given is not to be shown
        return Secret(raw)

    return ValueType(parse, allowed)


def grace() -> ValueType:
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
