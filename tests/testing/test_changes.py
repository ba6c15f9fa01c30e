"""Pages of the in-vitro web that change: as often as they should, and known to whoever asks."""

from __future__ import annotations

import time
from email.utils import formatdate
from itertools import pairwise
from statistics import mean, median

import pytest

from scrapy_spider_suite.testing import FakeWebConfig, SyntheticWeb
from scrapy_spider_suite.testing.http import Request, ServerReply
from scrapy_spider_suite.testing.synthetic_site import PageChanges, SyntheticSite

NOW = 1_800_000_000.0


def times(changes: PageChanges, page: int, begin: float, end: float) -> list[float]:
    """When a page of the first host changes."""
    found, when = [], begin
    while (when := changes.next(0, page, when)) < end:
        found.append(when)
    return found


def test_as_often_as_they_should() -> None:
    """A Poisson process of the page's rate: mean and spread of what lies between two changes."""
    changes = PageChanges(FakeWebConfig(changes=10, changes_sigma=1))
    rates = [changes.rate(0, page) for page in range(500)]
    assert median(rates) == pytest.approx(0.1, rel=0.2)
    assert max(rates) > 3 * median(rates) > 9 * min(rates)
    for page in range(5):
        rate = changes.rate(0, page)
        gaps = [b - a for a, b in pairwise(times(changes, page, NOW, NOW + 2_000 / rate))]
        assert mean(gaps) * rate == pytest.approx(1, rel=0.1)
        assert mean(gap * gap for gap in gaps) * rate**2 == pytest.approx(2, rel=0.25)


def test_last_and_next_agree() -> None:
    """Between two changes the last is the one before, whenever it is asked, and by whom."""
    config = FakeWebConfig(changes=10)
    found = times(PageChanges(config), 3, NOW, NOW + 500)
    again = PageChanges(config)
    for early, late in pairwise(found):
        assert again.last(0, 3, early) == early
        assert again.last(0, 3, (early + late) / 2) == early
        assert again.next(0, 3, (early + late) / 2) == late


def test_only_who_knows_it_is_told_that_nothing_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """304 by the tag, or by the date without one; another tag after a change; a lastmod."""
    now = NOW
    monkeypatch.setattr("scrapy_spider_suite.testing.synthetic_site.time", lambda: now)
    config = FakeWebConfig(hosts=1, pages=20, changes=100, errors=0)
    web = SyntheticWeb(config, (8080,))
    site, changes, host = SyntheticSite(web), PageChanges(config), web.host_name(0)

    def get(tags: str = "", since: str = "") -> ServerReply:
        return site.answer(Request("GET", "/", "/", host, True, 0, tags, since))

    last = changes.last(0, 0, now)
    tag, date = f'"{int(last * 1e6):x}"', formatdate(last, usegmt=True)
    first = get()
    assert f"ETag: {tag}\r\nLast-Modified: {date}\r\n".encode() in first.data
    assert get().data == first.data
    assert get(tag).status == get("", date).status == 304
    assert get('"other"', date).status == 200
    now = changes.next(0, 0, now)
    assert get(tag).status == 200
    assert get().data.partition(b"\r\n\r\n")[2] != first.data.partition(b"\r\n\r\n")[2]
    sitemap = site.answer(Request("GET", "/sitemap.xml", "/sitemap.xml", host, True, 0)).data
    assert time.strftime("<lastmod>%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)).encode() in sitemap


def test_without_validators() -> None:
    """Some pages may have none: they are sent again."""
    config = FakeWebConfig(hosts=1, pages=400, changes=1e6, conditional=0.5)
    changes = PageChanges(config)
    share = mean(changes.conditional(0, page) for page in range(400))
    assert 0.4 < share < 0.6
