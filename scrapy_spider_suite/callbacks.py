"""The methods of a spider by name: how a callback is written down and found again."""

from __future__ import annotations

import inspect
from types import MethodType
from typing import Any

from scrapy import Spider
from scrapy.http.request import NO_CALLBACK

from scrapy_spider_suite.errors import CodecError


class SpiderMethods:
    """The methods of one spider and their names; what was found once is remembered.

    ``True`` stands for Scrapy's ``NO_CALLBACK``.
    """

    def __init__(self, spider: Spider) -> None:
        self._spider = spider
        self._names: dict[object, str] = {}
        self._seen: set[str] = set()

    def name_of(self, callback: object) -> str | bool:
        """Return the name of *callback*; raise CodecError if it is no method of this spider."""
        if callback is NO_CALLBACK:
            return True
        if not isinstance(callback, MethodType) or callback.__self__ is not self._spider:
            raise CodecError(f"{callback!r} is not a method of the spider")
        name = self._names.get(callback.__func__)
        if name is None:
            name = self._names[callback.__func__] = self._search(callback)
        return name

    def find(self, name: str | bool) -> Any:
        """Return the method called *name*; raise CodecError if there is none.

        Only bound methods count, and nothing runs to find them: no property, no ``__getattr__``.
        """
        if name is True:
            return NO_CALLBACK
        if not isinstance(name, str) or name.startswith("__"):
            raise CodecError(f"{name!r} is no name of a callback")
        if name not in self._seen:
            if not callable(inspect.getattr_static(self._spider, name, None)):
                raise CodecError(f"the spider has no method {name!r}")
            self._seen.add(name)
        found = getattr(self._spider, name)
        if not isinstance(found, MethodType) or found.__self__ is not self._spider:
            raise CodecError(f"the spider has no method {name!r}")
        return found

    def _search(self, callback: MethodType) -> str:
        """Try the method's own name first: decorators and aliases can give it another."""
        for name in (callback.__name__, *dir(self._spider)):
            try:
                if self.find(name) == callback:
                    return name
            except CodecError:
                continue
        raise CodecError(f"{callback!r} has no name in the spider")
