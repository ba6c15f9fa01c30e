"""A refusal is one line on the terminal and the exit code 2, wherever the log goes."""

from __future__ import annotations

import logging

import pytest
from scrapy import Spider
from scrapy.crawler import Crawler

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.refusal import RefusedCrawl, refuse


def test_refuse_says_why_and_exits(capsys: pytest.CaptureFixture[str]) -> None:
    """The log goes elsewhere here, so the line is printed; line breaks do not make it two."""
    with pytest.raises(SystemExit) as caught:
        refuse(SettingsError("bad\nvalue"))
    assert caught.value.code == 2
    assert capsys.readouterr().err == "scrapy_spider_suite: bad value\n"


def test_a_log_on_the_terminal_is_enough(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is not printed a second time."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler()])
    with pytest.raises(SystemExit):
        refuse("why")
    assert capsys.readouterr().err == "why\n"


def test_a_refused_crawl_has_no_scheduler(capsys: pytest.CaptureFixture[str]) -> None:
    """Making it says why and ends the process; what could be asked of one gives nothing."""
    with pytest.raises(SystemExit) as caught:
        RefusedCrawl.because(SettingsError("no good")).from_crawler(Crawler(Spider))
    assert caught.value.code == 2
    assert capsys.readouterr().err == "scrapy_spider_suite: no good\n"
    scheduler = RefusedCrawl()
    assert not scheduler.has_pending_requests()
    assert not scheduler.enqueue_request(None)  # type: ignore[arg-type]
    assert scheduler.next_request() is None
