"""Parcels that have come over TCP as a whole: they lie here until they are taken."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from scrapy_spider_suite.cluster.courier import (
    CourierCounters,
    Inbox,
    as_file,
    label_in,
    one_line,
)
from scrapy_spider_suite.errors import CourierError, ParcelError, SuiteError
from scrapy_spider_suite.storage.parcels import Label

AGAIN: Final = 60.0
"""Seconds until what could not be taken is taken, if nobody offers it before."""

_WHOLE = ".parcel"

logger = logging.getLogger(__name__)


class Landing:
    """What lies in *folder*, which is of one agent alone; *counters* are those of its courier.

    Once half of a parcel is merged its hosts stand still here. So it is taken also if nobody asks
    for it any more.
    """

    def __init__(self, folder: Path, counters: CourierCounters) -> None:
        self._folder = folder
        self._counters = counters
        self._inbox: Inbox | None = None
        self._takes: dict[str, asyncio.Task[None]] = {}
        self._again: dict[str, asyncio.TimerHandle] = {}
        self._closed = False

    def open(self, inbox: Inbox) -> None:
        """Take what lies here, and from now on what comes. Raises `OSError`."""
        self._inbox = inbox
        for path in sorted(self._folder.glob(f"*{_WHOLE}")):
            try:
                label = label_in(path)
            except ParcelError as error:
                logger.warning("hand-over: %s; it is removed", one_line(error))
                path.unlink()
                continue
            self._begin(label, path)

    async def close(self) -> None:
        """Stop; what is not taken stays here."""
        self._closed = True
        for timer in self._again.values():
            timer.cancel()
        tasks = [*self._takes.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def kept(self, label: Label) -> bool:
        """See `Inbox.kept`."""
        assert self._inbox is not None
        return self._inbox.kept(label)

    def place(self, label: Label) -> Path:
        """Where that parcel is to lie."""
        return self._folder / f"{as_file(label.sender)}.{label.parcel}{_WHOLE}"

    def take(self, label: Label) -> asyncio.Task[None]:
        """Have it taken: what raises as `Inbox.take` does, but nothing that nobody foresaw."""
        return self._takes.get(label.parcel) or self._begin(label, self.place(label))

    def _begin(self, label: Label, path: Path) -> asyncio.Task[None]:
        if (timer := self._again.pop(label.parcel, None)) is not None:
            timer.cancel()
        task = asyncio.get_running_loop().create_task(self._take_and_remove(label, path))
        self._takes[label.parcel] = task
        task.add_done_callback(lambda done: self._over(label, path, done))
        return task

    async def _take_and_remove(self, label: Label, path: Path) -> None:
        assert self._inbox is not None
        try:
            await self._inbox.take(label, path)
        except ParcelError:
            path.unlink(missing_ok=True)
            raise
        except (SuiteError, OSError):
            raise
        except Exception as error:
            logger.exception("hand-over: parcel %s cannot be taken; report this", label.parcel)
            raise CourierError(f"an error in taking it: {one_line(error)}") from error
        self._counters.received += 1
        path.unlink(missing_ok=True)

    def _over(self, label: Label, path: Path, task: asyncio.Task[None]) -> None:
        del self._takes[label.parcel]
        if task.cancelled() or (error := task.exception()) is None:
            return
        # Perhaps nobody waits for it any more; who offers it again hears of it.
        logger.debug("hand-over: parcel %s was not taken: %s", label.parcel, one_line(error))
        if path.is_file() and not self._closed:
            loop = asyncio.get_running_loop()
            self._again[label.parcel] = loop.call_later(AGAIN, self._begin, label, path)
