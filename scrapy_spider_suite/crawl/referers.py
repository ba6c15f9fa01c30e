"""The Referer of links: by the policy of the page that they were found on, or REFERRER_POLICY.

A link keeps where it was found, and the number of the policy that the page sent. What follows from
both for its own URL is worked out when it is fetched: a link costs nothing before that.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from scrapy.spidermiddlewares.referer import (
    POLICY_NO_REFERRER,
    POLICY_NO_REFERRER_WHEN_DOWNGRADE,
    POLICY_ORIGIN,
    POLICY_ORIGIN_WHEN_CROSS_ORIGIN,
    POLICY_SAME_ORIGIN,
    POLICY_SCRAPY_DEFAULT,
    POLICY_STRICT_ORIGIN,
    POLICY_STRICT_ORIGIN_WHEN_CROSS_ORIGIN,
    POLICY_UNSAFE_URL,
    RefererMiddleware,
)

from scrapy_spider_suite.frontier.entries import Flag

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapy_spider_suite.frontier.entries import Entry

# Stored by their numbers, from 1: new ones come last. 0 is that the page sent none.
_POLICIES: Final = (
    POLICY_NO_REFERRER, POLICY_NO_REFERRER_WHEN_DOWNGRADE, POLICY_SAME_ORIGIN, POLICY_ORIGIN,
    POLICY_STRICT_ORIGIN, POLICY_ORIGIN_WHEN_CROSS_ORIGIN, POLICY_STRICT_ORIGIN_WHEN_CROSS_ORIGIN,
    POLICY_UNSAFE_URL, POLICY_SCRAPY_DEFAULT,
)  # fmt: skip
_NO_REFERRER: Final = 1
# A plain integer: operators of flags are Python code.
_SPECULATIVE = int(Flag.SPECULATIVE)


class Referers:
    """What Scrapy's middleware would set, where it is enabled, for one crawl."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @cached_property
    def _middleware(self) -> RefererMiddleware | None:
        return self._crawler.get_spider_middleware(RefererMiddleware)

    def policy(self, page: Response) -> int:
        """The number of the policy that *page* sent; 0 if it sent none that is known.

        One of the project's own that has no number, and may say anything, counts as no-referrer.
        """
        header = page.headers.get(b"Referrer-Policy")
        if header is None or self._middleware is None:
            return 0
        # Not by the middleware's policy(), which warns of each unknown text, and so keeps it.
        known = self._middleware.policies
        for name in reversed(header.decode("latin-1").lower().split(",")):
            if (kind := known.get(name.strip())) is not None:
                other = 0 if kind is self._middleware.default_policy else _NO_REFERRER
                same = (n for n, each in enumerate(_POLICIES, 1) if known.get(each) is kind)
                return next(same, other)
        return 0

    def referer(self, entry: Entry) -> str | None:
        """The Referer of the link *entry*; None if it has none. What nobody linked to has none."""
        if not entry.referrer or entry.flags & _SPECULATIVE or self._middleware is None:
            return None
        kind = self._middleware.default_policy
        if entry.referrer_policy:
            if entry.referrer_policy > len(_POLICIES):
                return None  # another agent's
            name = _POLICIES[entry.referrer_policy - 1]
            kind = self._middleware.policies.get(name, kind)
        return kind().referrer(entry.referrer, entry.url)
