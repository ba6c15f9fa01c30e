"""What becomes of packs when they are closed: their indexes are merged, and they are uploaded.

Neither holds up the crawl, and neither has to be done when it ends: another crawl goes on with it,
or ``scrapy packs merge`` and ``upload``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_spider_suite.errors import PackError, SettingsError
from scrapy_spider_suite.packs.folder_index import Merging
from scrapy_spider_suite.packs.pack_file import Uploaded
from scrapy_spider_suite.packs.upload import Target, Uploads

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.commitlog import CommitLog
    from scrapy_spider_suite.settings.suite import SuiteSettings

logger = logging.getLogger(__name__)


def target_of(settings: SuiteSettings, folder: Path) -> Target | None:
    """Where packs of *folder* are uploaded to, if anywhere.

    Raises `SettingsError`: nothing knows such a URL as SUITE_PACKS_UPLOAD.
    """
    url = settings.packs_upload
    if not url:
        return None
    try:
        target = Target(url)
        target.require_elsewhere(folder)
    except PackError as error:
        raise SettingsError(f"SUITE_PACKS_UPLOAD = {url!r}: {error}") from error
    return target


class ClosedPacks:
    """Those of an *agent* in *folder*.

    Stats: ``suite/packs/uploaded``, ``suite/packs/uploaded_bytes``, ``suite/packs/upload_failed``,
    ``suite/packs/upload_waiting`` (at the end).

    Raises `SettingsError`: nothing knows such a URL as SUITE_PACKS_UPLOAD.
    """

    def __init__(self, log: CommitLog, folder: Path, agent: str) -> None:
        self._stats = log.crawler.stats
        self._loop = asyncio.get_running_loop()
        self._patience = log.settings.stop_timeout
        self._merging = Merging(folder)
        self._failing = False
        self._uploads: Uploads | None = None
        if target := target_of(log.settings, folder):
            self._uploads = Uploads(
                folder, agent, target, keep=log.settings.packs_keep, told=self._told
            )

    def look(self) -> None:
        """Another pack is closed."""
        self._merging.look()
        if self._uploads is not None:
            self._uploads.look()

    def pulse(self) -> None:
        """Once a second."""
        self._merge(self._merging.poll)

    def _merge(self, step: Callable[[], str]) -> None:
        try:
            error = step()
        except OSError as found:  # no memory, no processes: the packs' own indexes serve
            error = str(found)
        if error:
            logger.warning("The indexes of packs could not be merged: %s", error)

    async def finish(self) -> None:
        """The last pack is closed."""
        merging = partial(self._merging.finish, self._patience)
        await asyncio.gather(asyncio.to_thread(self._merge, merging), self._finish_uploads())

    async def _finish_uploads(self) -> None:
        if self._uploads is None:
            return
        left = await asyncio.to_thread(self._uploads.finish, self._patience)
        self._stats.set_value("suite/packs/upload_waiting", len(left))
        if left:
            logger.warning(
                "packs wait to be uploaded: %d, from %s on: the next run does it, or "
                "`scrapy packs upload`", len(left), left[0].name,
            )  # fmt: skip

    def _told(self, pack: Path, what: Uploaded | Exception) -> None:
        """In the thread of the uploads, which may outlive the crawl."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(partial(self._say, pack, what))

    def _say(self, pack: Path, what: Uploaded | Exception) -> None:
        if isinstance(what, Uploaded):
            self._stats.inc_value("suite/packs/uploaded")
            self._stats.inc_value("suite/packs/uploaded_bytes", what.size)
            if self._failing:
                logger.info("Packs are uploaded again: %s is there", pack.name)
            self._failing = False
            return
        self._stats.inc_value("suite/packs/upload_failed")
        if not self._failing:  # it is tried again every few minutes
            logger.warning("%s; it is tried again, and stays here until then", what)
        self._failing = True
