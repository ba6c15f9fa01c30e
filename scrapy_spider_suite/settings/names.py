"""The types of settings that name a crawl and those who run it."""

from __future__ import annotations

import re

from scrapy_spider_suite.settings.values import ValueType

_NAME = re.compile(r"[A-Za-z0-9_.]{0,64}")


def name() -> ValueType:
    """Return the type of a name that files may bear; empty for none."""

    def parse(raw: object) -> str:
        if not isinstance(raw, str) or not _NAME.fullmatch(raw):
            raise ValueError(raw)
        return raw

    return ValueType(parse, "at most 64 letters, digits, '_' and '.'")


def line() -> ValueType:
    """Return the type of a text for people, in one line; empty for none."""

    def parse(raw: object) -> str:
        if not isinstance(raw, str) or not raw.isprintable():
            raise ValueError(raw)
        return raw.strip()

    return ValueType(parse, "a text in one line")
