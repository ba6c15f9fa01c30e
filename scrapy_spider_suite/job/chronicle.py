"""The chronicle of a job, ``JOBDIR/suite/chronicle.jsonl``: its runs, and what they went by.

Each run writes what is another than before: so the file says, for every moment, which settings and
filters held. A row has its time (``when``, seconds since the epoch), the id of its run, and an
event:

- ``begun``: agent, machine, versions, and the digest of the settings, as in its packs;
- ``settings``: all of them, and Scrapy's own that the suite goes by;
- ``changed``: a setting that was given another value while the crawl ran;
- ``filter``: the text of a filter that is in force from then on, "" for none;
- ``seeds``: a list of seeds, of a file with its size and SHA-256; or how many seeds were named one
  by one, and the SHA-256 of their lines;
- ``ended``: the reason, and what was done by then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from scrapy_spider_suite.runtime import files

NAME: Final = "chronicle.jsonl"


def digest_of(settings: Mapping[str, object]) -> str:
    """Return which settings these are: equal ones have equal digests."""
    text = json.dumps(settings, sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


class Chronicle:
    """That of the job whose ``suite`` folder is *folder*."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def rows(self) -> Iterator[dict[str, Any]]:
        """All that was written, the oldest first."""
        return files.rows(self.path)

    def append(self, *rows: dict[str, Any]) -> None:
        """Write *rows*. Raises `OSError`."""
        files.append(self.path, *rows)

    def last(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The settings, and the texts of the filters by stage, that held at the last begin."""
        settings, filters = dict[str, Any](), dict[str, str]()
        for row in self.rows():
            if row.get("event") == "settings":
                settings = row
            elif row.get("event") == "filter":
                filters[str(row.get("stage"))] = str(row.get("text", ""))
        return settings, filters
