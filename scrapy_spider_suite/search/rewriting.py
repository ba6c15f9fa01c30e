"""The index without some pages, down to the last byte.

tantivy marks what is deleted, and leaves its bytes until parts are merged some day. So all that
stays is copied into a new index, which takes the place of the old one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from scrapy_spider_suite.errors import SearchDamagedError
from scrapy_spider_suite.search.follower import Follower
from scrapy_spider_suite.search.place import IndexPlace
from scrapy_spider_suite.search.schema import key_of
from scrapy_spider_suite.search.writing import Change, Opened

logger = logging.getLogger(__name__)


def hide(folder: Path, field: str, value: str, wait: float) -> None:
    """See `redacting.hide_texts`: *field* is ``host`` or ``url``."""
    place = IndexPlace(folder)
    with place.held(wait):
        try:
            change = Change(place.current())
            change.remove(*((field, value) if field == "host" else ("key", key_of(value))))
            change.commit()
        except SearchDamagedError as error:
            _clear(place, error)


def rewrite(folder: Path, takes: Callable[[str, str], bool], wait: float) -> None:
    """See `redacting.redact_texts`; then the index follows the packs.

    Of a URL of which a version was left out, an older one that is in the packs is put in.
    """
    place = IndexPlace(folder)
    with place.held(wait):
        try:
            dropped = _copy(place, takes)
        except SearchDamagedError as error:
            dropped = []
            _clear(place, error)
    follower = Follower(folder)
    follower.bring_back(dropped, wait)
    while follower.step(wait).more:
        pass


def _copy(place: IndexPlace, takes: Callable[[str, str], bool]) -> list[str]:
    """Put what stays into a new index; return the URLs of which something does not."""
    dropped = []
    old = Opened(place.current())
    change = Change(place.begin())
    for cursor in old.cursors().values():
        dropped += change.copy(old, cursor, takes)
    change.commit()
    place.install()
    return dropped


def _clear(place: IndexPlace, error: SearchDamagedError) -> None:
    """Remove an index of which nobody knows what is in it; the follower makes another one."""
    logger.error("%s: it is made anew of the packs that are here", error)
    place.clear()
