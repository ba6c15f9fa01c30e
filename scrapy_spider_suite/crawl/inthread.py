"""An iterator that blocks, run in a thread of its own, for the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

_AHEAD = 4
"""Items that are made before they are asked for."""


async def in_thread(make: Callable[[], Iterator[T]]) -> AsyncGenerator[T]:
    """Yield what the iterator that *make* makes yields; raises what it raises.

    To be closed (`contextlib.aclosing`). A thread that waits for ever, as for a pipe that nobody
    writes to, does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    items: asyncio.Queue[tuple[bool, T | Exception | None]] = asyncio.Queue()
    room, stopped = threading.Semaphore(_AHEAD), threading.Event()

    def run() -> None:
        end: Exception | None = None
        try:
            for item in make():
                room.acquire()
                if stopped.is_set():
                    return
                loop.call_soon_threadsafe(items.put_nowait, (True, item))
        except Exception as error:  # whatever it is, it is raised where the items are used
            end = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(items.put_nowait, (False, end))

    threading.Thread(target=run, name="suite-reader", daemon=True).start()
    try:
        while True:
            more, item = await items.get()
            if not more:
                if isinstance(item, Exception):
                    raise item
                return
            room.release()
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        room.release()
