"""The one normaliser of a crawl: whatever makes an identity of a URL asks it (T5).

In this order: the plain normal form, the options and rules, the project's own normaliser, and the
twin that the evidence speaks for. With none of the last three it is `normalize`, at no cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from scrapy_spider_suite.urls.normalize import host_of, normalize
from scrapy_spider_suite.urls.rewriting import Rules
from scrapy_spider_suite.urls.scope import Scope
from scrapy_spider_suite.urls.twins import Twins

_ROUNDS: Final = 4
"""How often a rule and a twin may take turns, each giving the other something to change."""

Normal = Callable[[str], str | None]
"""What brings a URL into its normal form; None if it has none."""
Plugin = Callable[[str], str | None]
"""A normaliser of the project's own: from a normal URL to a normal URL, None to drop it."""


class Normalizer:
    """Calling it gives the normal form of a URL. Never raises, as long as *plugin* does not.

    *rules* and *plugin* hold for its life; *twins* may come and go, and learn. What lies within
    *scope*, if there is one, never gets a host that does not: a crawl of ``www.example.com`` alone
    would end there.
    """

    __slots__ = ("_plugin", "_rules", "changed", "scope", "twins")

    def __init__(
        self, rules: Rules | None = None, plugin: Plugin | None = None, twins: Twins | None = None
    ) -> None:
        self._rules = None if rules is None or rules.idle else rules
        self._plugin = plugin
        self.twins = twins
        self.scope: Scope | None = None
        self.changed = 0
        """How many links had another spelling than the plain normal form, or were dropped."""

    @property
    def idle(self) -> bool:
        """Whether the plain normal form is all there is at present."""
        return self._rules is None and self._plugin is None and not self.twins

    def __call__(self, url: str, base: str | None = None) -> str | None:
        """The normal form of *url*, resolved against *base*; None if it has none."""
        normal = normalize(url, base)
        return normal if normal is None or self.idle else self.respell(normal)

    def links(self, urls: list[str]) -> list[str]:
        """The normal forms of *urls*, which are in plain normal form, each once, in their order."""
        if self.idle:
            return urls
        found: dict[str, None] = {}
        for url in urls:
            spelled = self.respell(url)
            self.changed += spelled != url
            if spelled is not None:
                found[spelled] = None
        return list(found)

    def respell(self, url: str) -> str | None:
        """The normal form of *url*, which is in plain normal form."""
        url = self._settled(url)
        if self._plugin is not None:
            found = self._plugin(url)
            if found is None or found == url:
                return found
            url = self._settled(found)
        return url

    def _settled(self, url: str) -> str:
        found = self._spelled(url)
        if self.scope is not None and found != url:
            begin, end = found.index("/", 8), url.index("/", 8)
            if found[:begin] != url[:end] and self._leaves(url, found):
                return url[:end] + found[begin:]
        return found

    def _leaves(self, url: str, found: str) -> bool:
        """Whether *found* is beyond the scope that *url* is within."""
        scope = self.scope
        return (
            scope is not None and scope.allows(host_of(url)) and not scope.allows(host_of(found))
        )

    def _spelled(self, url: str) -> str:
        rules, twins = self._rules, self.twins
        for _ in range(_ROUNDS):
            found = url if rules is None else rules.rewrite(url)
            if twins:
                found = twins.preferred(found)
            if found == url:
                break
            url = found
        return url

    def insisted(self, url: str, target: str) -> bool:
        """Whether *url* redirects to another spelling of itself: its server means that one.

        Then *target* is to be fetched as it is, under an identity of its own, or the page would
        never be had. Both are in plain normal form.
        """
        return not self.idle and url != target and self.respell(url) == self.respell(target)
