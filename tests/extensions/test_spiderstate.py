"""``spider.state``: kept without pickle, as far as it can be, and never read from one."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from scrapy import Request
from scrapy.exceptions import NotConfigured
from scrapy.utils.test import get_crawler
from support.codec_values import Book, CodecSpider, Colour, in_a_loop, same, until

from scrapy_spider_suite.extensions import persistence
from scrapy_spider_suite.extensions.persistence import SpiderState
from scrapy_spider_suite.store.interface import MemoryKV


def run(
    kv: MemoryKV | None, change: Callable[[Any], Any], period: float = 60, jobdir: Path | str = ""
) -> Any:
    """Open and close a spider; between, *change* its state. Return the state it had at first."""

    async def crawl(folder: str) -> Any:
        settings = {"SPIDER_MODULES": ["support.codec_values"], "JOBDIR": str(jobdir or folder)}
        crawler = get_crawler(CodecSpider, settings)
        crawler.crawling = True
        spider = CodecSpider.from_crawler(crawler)
        extension = SpiderState.from_crawler(crawler)
        extension.spider_opened(spider)
        first = dict(vars(spider)["state"])
        changed = change(spider)
        if asyncio.iscoroutine(changed):
            await changed
        extension.spider_closed(spider)
        return first

    with (
        patch.object(persistence, "job_kv", lambda crawler, name: kv),
        patch.object(persistence, "STATE_PERIOD", period), TemporaryDirectory() as folder,
    ):
        return in_a_loop(crawl(folder))


def test_kept_over_a_restart() -> None:
    """What the spider left in its state is there again, of the same types."""
    kv = MemoryKV()
    state = {
        "count": 3, 7: {"seen"}, ("a", 1): Book("b"), "colour": Colour.RED,
        "next": Request("http://a.example/"),
    }  # fmt: skip
    assert run(kv, lambda spider: spider.state.update(state)) == {}
    assert same(run(kv, lambda spider: None), state)


def test_a_state_that_the_spider_replaced() -> None:
    """A new dict in ``spider.state`` is saved like the old one."""
    kv = MemoryKV()
    run(kv, lambda spider: setattr(spider, "state", {"a": 1}))
    assert run(kv, lambda spider: None) == {"a": 1}


def test_keys_that_cannot_be_stored(caplog: pytest.LogCaptureFixture) -> None:
    """Each is named once, and the others are kept."""
    kv = MemoryKV()

    async def change(spider: Any) -> None:
        spider.state.update(good=1, bad=print, worse={"deep": object()})
        await asyncio.sleep(0.03)

    run(kv, change, period=0.002)
    assert run(kv, lambda spider: None) == {"good": 1}
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert all("the other keys are" in line for line in lines)
    assert "spider.state['bad']" in lines[0]
    assert "spider.state['worse']" in lines[1]


def test_a_state_that_is_too_big(caplog: pytest.LogCaptureFixture) -> None:
    """Keys that fit one by one but not together leave what was saved before."""
    kv = MemoryKV()
    run(kv, lambda spider: spider.state.update(a=1))
    big = {"b": "x" * (9 << 20), "c": "y" * (9 << 20)}
    run(kv, lambda spider: spider.state.update(big))
    assert "what was saved before stays" in caplog.text
    assert run(kv, lambda spider: None) == {"a": 1}


def test_a_state_that_is_no_dict(caplog: pytest.LogCaptureFixture) -> None:
    """Scrapy documents a dict; anything else is said not to be saved."""
    kv = MemoryKV()
    run(kv, lambda spider: setattr(spider, "state", [1]))
    assert "it is a list, not a dict" in caplog.text
    assert len(kv) == 0


def test_saved_while_the_crawl_runs() -> None:
    """A change is written within a period, and only a change."""
    kv = MemoryKV()
    puts: list[bytes] = []

    class Counting(MemoryKV):
        """Notes every write."""

        def put(self, key: bytes, value: bytes) -> None:
            puts.append(value)
            kv.put(key, value)

    async def change(spider: Any) -> None:
        spider.state["a"] = 1
        await until(lambda: len(puts) == 1)
        spider.state["a"] = 2
        await until(lambda: len(puts) == 2)
        await asyncio.sleep(0.03)

    run(Counting(), change, period=0.002)
    assert len(puts) == 2
    assert run(kv, lambda spider: None) == {"a": 2}


def test_a_damaged_row(caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be read is put aside, not overwritten."""
    kv = MemoryKV()
    kv.put(b"state", b"\xc1")
    assert run(kv, lambda spider: spider.state.update(a=1)) == {}
    assert "cannot be read" in caplog.text
    assert kv.get(b"state.unreadable") == b"\xc1"
    assert run(kv, lambda spider: None) == {"a": 1}


class Bomb:
    """Unpickling this would be noticed."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was read",))


def test_a_pickle_is_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Scrapy's file is mentioned in one warning and left alone."""
    file = tmp_path / "spider.state"
    file.write_bytes(pickle.dumps(Bomb()))
    before = file.read_bytes()
    assert run(MemoryKV(), lambda spider: None, jobdir=tmp_path) == {}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "it is not read" in caplog.text
    assert file.read_bytes() == before


def test_without_a_job() -> None:
    """Without a store the spider has an empty state and nothing fails."""
    assert run(None, lambda spider: spider.state.update(a=print)) == {}
    with pytest.raises(NotConfigured):
        SpiderState.from_crawler(get_crawler())
