"""Noticing what stands still."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from scrapy_spider_suite.operate.supervision import StallCounter, Watchdog, stacks, tasks


def test_stillness() -> None:
    """It counts looks at the same, from anew when something moved or nothing needs to."""
    stillness = StallCounter()
    assert [stillness.observe(n) for n in (1, 1, 1, 2, 2)] == [0, 1, 2, 0, 1]
    assert stillness.observe(2, excused=True) == 0
    assert stillness.observe(2) == 1


def _guarded(limit: float) -> tuple[Watchdog, threading.Event]:
    tripped = threading.Event()
    return Watchdog(lambda: limit, tripped.set, tick=0.01), tripped


def test_it_trips_when_nobody_beats() -> None:
    """Once there was a first beat."""
    watchdog, tripped = _guarded(0.05)
    assert not tripped.wait(0.2)
    watchdog.beat()
    assert tripped.wait(10)
    watchdog.stop()


def test_no_limit_no_thread() -> None:
    """Nothing is watched, and nothing costs."""
    before = threading.active_count()
    watchdog, tripped = _guarded(0.0)
    watchdog.beat()
    assert threading.active_count() == before
    assert not tripped.is_set()


def test_after_the_end_nothing_trips() -> None:
    """What ends may take its time; stopping twice is harmless."""
    watchdog, tripped = _guarded(0.5)
    watchdog.beat()
    watchdog.stop()
    watchdog.stop()
    assert not tripped.wait(1.0)


def test_processor_time_of_others_is_no_stall() -> None:
    """The alarm counts that of all threads; the main thread's alone matters."""
    watchdog, tripped = _guarded(0.2)
    watchdog._thread = threading.Thread(target=int)  # no watching by ticks: the alarm alone
    over = time.process_time() + 0.5

    def burn() -> None:
        while time.process_time() < over:
            sum(range(1_000))

    watchdog.beat()
    other = threading.Thread(target=burn)
    other.start()
    other.join()
    assert not tripped.is_set()
    burnt = time.thread_time() + 20.0  # a busy machine counts it coarsely
    while time.thread_time() < burnt and not tripped.is_set():
        sum(range(1_000))
    watchdog.stop()
    assert tripped.is_set()


def test_reports() -> None:
    """They name the function that a thread or task is in."""
    go_on = threading.Event()

    def lingers() -> None:
        go_on.wait(10)

    thread = threading.Thread(target=lingers, name="lingering")
    thread.start()
    try:
        assert "Thread lingering" in stacks()
        assert "in lingers" in stacks()
    finally:
        go_on.set()
        thread.join()


def test_report_of_tasks(run: Any) -> None:
    """No more of them than anybody reads."""

    async def waits_for_ever() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> str:
        waiting = [asyncio.ensure_future(waits_for_ever()) for _ in range(5)]
        await asyncio.sleep(0)
        text = tasks(asyncio.get_running_loop(), most=4)
        for each in waiting:
            each.cancel()
        return text

    text = run(main())
    assert "waits_for_ever" in text
    assert "more tasks" in text
