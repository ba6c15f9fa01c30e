"""Scrapy's own classes as values that can be stored: items and headers."""

from __future__ import annotations

from typing import Any

from scrapy import Item
from scrapy.http import Headers

from scrapy_spider_suite.storage.objects import refuse_extras


class ItemKind:
    """``scrapy.Item`` subclasses, by the fields that are set. Their ``__init__`` does not run."""

    def accepts(self, cls: type) -> bool:
        """Return whether *cls* is an item class."""
        return issubclass(cls, Item)

    def state(self, value: Item) -> dict[str, Any]:
        """Return the fields that are set."""
        refuse_extras(value, ("_values",), Item)
        return dict(value)

    def build(self, cls: type[Item], state: dict[str, Any]) -> Item:
        """Return an item with these fields; a field that the class does not declare is an error."""
        item = cls.__new__(cls)
        Item.__init__(item, state)
        return item


class HeadersKind:
    """``scrapy.http.Headers`` as a value of its own."""

    def accepts(self, cls: type) -> bool:
        """Return whether *cls* is Scrapy's class itself."""
        return cls is Headers

    def state(self, value: Headers) -> list[Any]:
        """Return the encoding and the headers."""
        return [value.encoding, header_state(value)]

    def build(self, cls: type, state: list[Any]) -> Headers:
        """Return the headers."""
        encoding, headers = state
        return Headers(headers, encoding)


def header_state(headers: Headers) -> dict[bytes, Any]:
    """Return the headers as a dict; a header with one value is that value, not a list of it."""
    return {
        name: values[0] if len(values) == 1 and type(values) is list else values
        for name, values in headers.items()
    }
