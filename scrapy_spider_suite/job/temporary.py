"""The folder of a crawl without a job directory: gone after it, or with the next such crawl."""

from __future__ import annotations

from typing import Final

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.storage.temporary import LockedFolder

PREFIX: Final = "scrapy-spider-suite-"


class TemporaryFolder(LockedFolder):
    """See `LockedFolder`. Raises `SettingsError` where it cannot be made."""

    def __init__(self) -> None:
        try:
            super().__init__(PREFIX)
        except OSError as error:
            raise SettingsError(
                f"there is no temporary folder to crawl in ({error}): set JOBDIR, or TMPDIR"
            ) from error
