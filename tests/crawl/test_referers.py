"""The numbers of referrer policies, which jobs keep, and policies of a project's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from scrapy.http import Response
from scrapy.settings import Settings
from scrapy.spidermiddlewares.referer import RefererMiddleware, UnsafeUrlPolicy

from scrapy_spider_suite.crawl.requests import LinkReferers
from scrapy_spider_suite.fetch.exchange import Exchange
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.store.rows import POLICY_MAX


class Own(UnsafeUrlPolicy):
    """One that has no number."""


def referers(**settings: object) -> LinkReferers:
    """Those of a crawl with these settings."""
    middleware = RefererMiddleware(Settings(settings))
    crawler: Any = SimpleNamespace(get_spider_middleware=lambda kind: middleware)
    return LinkReferers(crawler)


def number(found: LinkReferers, policy: str) -> int:
    """What is kept of links of a page that sends *policy*."""
    return found.policy(page({"Referrer-Policy": policy}))


def page(headers: dict[str, str]) -> Exchange:
    return Exchange.of_handler("http://a.t/", "GET", Response("http://a.t/", headers=headers))


def referer(found: LinkReferers, number: int) -> str | None:
    """What a link to the same host sends with it."""
    link = Entry("a.t", "http://a.t/2", referrer="http://a.t/1", referrer_policy=number)
    return found.referer(link)


def test_numbers_stay_as_they_are() -> None:
    """They are in rows of jobs, and on their way between agents."""
    found = referers()
    numbers = {name: number(found, name) for name in RefererMiddleware(Settings()).policies}
    assert numbers == {
        "no-referrer": 1, "no-referrer-when-downgrade": 2, "same-origin": 3, "origin": 4,
        "strict-origin": 5, "origin-when-cross-origin": 6, "strict-origin-when-cross-origin": 7,
        "unsafe-url": 8, "scrapy-default": 9, "": 2,
    }  # fmt: skip
    assert found.policy(page({})) == 0


def test_a_text_that_is_no_policy_is_not_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    """A site may send another one with each page, and Python keeps each warning."""
    found = referers()
    assert [number(found, each) for each in ("x" * 1_000, "a.b", "origin, new-one", "\xff")] == [
        0, 0, 4, 0,
    ]  # fmt: skip
    assert not recwarn.list


def test_numbers_of_later_releases_tell_nobody() -> None:
    """Another agent may have sent them."""
    assert [referer(referers(), each) for each in (10, POLICY_MAX)] == [None, None]


def test_policies_of_the_project() -> None:
    """One by the name of a standard one holds; by another, it tells nobody, but as the default."""
    own = f"{__name__}.Own"
    named = referers(REFERRER_POLICIES={"no-referrer": own, "ours": own})
    assert referer(named, number(named, "no-referrer")) == "http://a.t/1"
    other = referers(REFERRER_POLICIES={"ours": own})
    assert referer(other, number(other, "ours")) is None
    default = referers(REFERRER_POLICIES={"ours": own}, REFERRER_POLICY=own)
    assert referer(default, number(default, "ours")) == "http://a.t/1"


def test_a_policy_that_the_project_took_away() -> None:
    """REFERRER_POLICY decides, also of links that were found when there was one."""
    assert number(referers(REFERRER_POLICIES={"origin": None}), "origin") == 0
    assert referer(referers(REFERRER_POLICIES={"origin": None}), 4) == "http://a.t/1"
