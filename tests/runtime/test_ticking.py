"""The ticker: again and again, but never too much of the time."""

from __future__ import annotations

import asyncio
import time

import pytest
from support.codec_values import in_a_loop, until

from scrapy_spider_suite.runtime.tasks import TIME_SHARE, PeriodicTask


def test_ticks_until_it_is_stopped() -> None:
    """The action runs once a period, from the first period on, and not after stop."""
    calls: list[float] = []

    async def scenario() -> None:
        ticker = PeriodicTask(0.005, lambda: calls.append(time.monotonic()))
        ticker.start()
        assert not calls
        await until(lambda: len(calls) >= 3)
        ticker.stop()
        ticker.stop()
        then = len(calls)
        await asyncio.sleep(0.02)
        assert len(calls) == then

    in_a_loop(scenario())


def test_stopping_from_within() -> None:
    """An action that stops its own ticker is the last."""
    calls: list[int] = []

    async def scenario() -> None:
        def action() -> None:
            calls.append(1)
            ticker.stop()

        ticker = PeriodicTask(0.001, action)
        ticker.start()
        await until(lambda: bool(calls))
        await asyncio.sleep(0.02)

    in_a_loop(scenario())
    assert calls == [1]


def test_a_long_action_is_called_less_often() -> None:
    """What takes long gets at most its share of the time."""
    calls: list[int] = []

    def action() -> None:
        calls.append(1)
        time.sleep(0.02)

    async def scenario() -> None:
        ticker = PeriodicTask(0.001, action)
        ticker.start()
        await until(lambda: bool(calls))
        await asyncio.sleep(0.05)
        ticker.stop()

    in_a_loop(scenario())
    assert 0.02 * TIME_SHARE > 0.05
    assert calls == [1]


def test_what_raises_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """It is said once for each time that it stopped working."""
    calls: list[int] = []

    async def scenario() -> None:
        def action() -> None:
            calls.append(1)
            if len(calls) not in (4, 5):
                raise ValueError("not now")

        ticker = PeriodicTask(0.001, action)
        ticker.start()
        await until(lambda: len(calls) >= 8)
        ticker.stop()

    in_a_loop(scenario())
    assert [r.message.count("is tried again") for r in caplog.records] == [1, 1]
