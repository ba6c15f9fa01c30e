"""Calls in a thread: in their order, bounded, and nobody waits for one that is stuck."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

from scrapy_spider_suite.runtime.tasks import DaemonCalls

STUCK = """
import asyncio, threading
from scrapy_spider_suite.runtime.tasks import DaemonCalls
calls = DaemonCalls("stuck", 1)
calls.add(threading.Event().wait)
asyncio.run(calls.drain(0.1))
"""


def test_the_newest_calls_are_done_in_their_order() -> None:
    done: list[int] = []
    begun, goes_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        goes_on.wait()

    calls = DaemonCalls("test", 2)
    calls.add(wait)
    begun.wait()
    for number in range(5):
        calls.add(lambda number=number: done.append(number))  # type: ignore[misc]
    goes_on.set()
    asyncio.run(calls.drain(30.0))
    assert done == [3, 4]
    calls.add(lambda: done.append(5))
    asyncio.run(calls.drain(30.0))
    assert done == [3, 4, 5]


def test_a_stuck_call_keeps_no_process_alive() -> None:
    """Neither the wait for it nor the end of the process."""
    subprocess.run([sys.executable, "-c", STUCK], timeout=60, check=True)
