"""Keeps the index of a folder of packs where the packs are: a batch of pages at a time.

Packs are read in the order of their names, each from where it was left. A pack that was written
anew since then (`redact`, a recovery) is read again from its beginning. One that is not there any
more keeps its pages in the index: it was taken elsewhere. So does one that was uploaded, when the
index is made anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from scrapy_spider_suite.errors import SearchDamagedError, SearchError
from scrapy_spider_suite.packs.pack_file import packs_away
from scrapy_spider_suite.packs.reader import Packs
from scrapy_spider_suite.packs.sorted_lines import identity
from scrapy_spider_suite.search.batch import SECONDS_MAX, Batch, Progress, Unchanged
from scrapy_spider_suite.search.checking import clear_unfinished, verify
from scrapy_spider_suite.search.journal import Journal
from scrapy_spider_suite.search.place import IndexPlace
from scrapy_spider_suite.search.reading import RECORD_MAX
from scrapy_spider_suite.search.writing import Change, Cursor, Opened

logger = logging.getLogger(__name__)


class Follower:
    """The index of the packs in *folder*.

    *stop* says whether to write what there is and be done; *clock* is in seconds; *patience*: those
    that a page may take, see `Journal`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        stop: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        patience: float = 0.0,
    ) -> None:
        self.place = IndexPlace(folder)
        self._packs = Packs([folder], RECORD_MAX)
        self._stop = stop
        self._clock = clock
        self._patience = patience
        self._verified: Path | None = None
        self._known: tuple[Path, tuple[int, int, int]] | None = None
        self._cursors: dict[str, Cursor] = {}
        self._unchanged: Unchanged = {}

    def step(self, wait: float = 0.0) -> Progress:
        """Read a batch and write it.

        *wait*: seconds to wait for another process that writes. Raises `SearchBusyError` (it still
        writes) and `OSError` (a full disk); the index is as it was, then.
        """
        with self.place.held(wait):
            path = self.place.current()
            try:
                return self._batch(path)
            except SearchDamagedError as error:
                logger.error("%s: it is made anew of the packs that are here", error)
                self.place.clear()
                self._known = None
                done = self._batch(path)
                done.rebuilt = str(error)
                return done

    def rebuild(self, told: Callable[[Progress], object], wait: float = 0.0) -> None:
        """Make the index anew of the packs that are there; the old one is used until it is done.

        What that has of packs that were uploaded is taken from it. *told* is called with what each
        batch came to. Raises `SearchError` (no pack is here: the index stays), and as `step`.
        """
        with self.place.held(wait):
            if not self._packs.files():
                raise SearchError(f"{self.place.packs}: no pack is here: the index of texts cannot "
                                  "be made anew, and stays as it is")  # fmt: skip
            new = self.place.begin()
            lost = self._keep_away(new)
            if lost:
                told(Progress(rebuilt=lost))
            more = True
            while more and not self._stop():
                progress = self._batch(new)
                told(progress)
                more = progress.more
            if not more:
                self.place.install()

    def _keep_away(self, new: Path) -> str:
        """Take what the index has of packs that are elsewhere into the *new* one; why it cannot be.
        """
        away = {pack.name for pack, _ in packs_away(self.place.packs)}
        if not away or not self.place.exists():
            return ""
        try:
            verify(self.place.current())
            old = Opened(self.place.current())
            cursors = [each for each in old.cursors().values() if each.name in away]
            if cursors:
                change = Change(new)
                for cursor in cursors:
                    change.copy(old, cursor)
                change.commit()
        except SearchDamagedError as error:
            self.place.begin()  # nothing half
            return f"{error}, and what it had of packs that are not here ({len(away)}) is lost"
        return ""

    def bring_back(self, urls: Iterable[str], wait: float = 0.0) -> Progress:
        """Put what the packs have of *urls* into the index. Raises as `step`."""
        with self.place.held(wait):
            return self._batch(self.place.current(), urls)

    def _batch(self, path: Path, urls: Iterable[str] = ()) -> Progress:
        if path.exists() and self._verified != path:
            clear_unfinished(path)
            verify(path)
        self._verified = path
        cursors = self._read_cursors(path)
        due = self._clock() + SECONDS_MAX
        with Journal(self.place.folder, self._patience) as journal:
            batch = Batch(path, self._packs, cursors, self._unchanged, journal,
                          lambda: self._stop() or self._clock() > due)  # fmt: skip
            try:
                batch.revive(urls)
                batch.run()
            except BaseException:
                self._verified = self._known = None
                batch.discard()
                raise
        self._cursors, self._known = cursors, _state(path)
        return batch.progress

    def _read_cursors(self, path: Path) -> dict[str, Cursor]:
        """How far each pack was read: by the index, if another process has written it."""
        state = _state(path)
        if state is None:
            return {}
        return self._cursors if state == self._known else Opened(path).cursors()


def _state(index: Path) -> tuple[Path, tuple[int, int, int]] | None:
    """What is another after each change of the index; None if there is none."""
    try:
        return index, identity((index / "meta.json").stat())
    except FileNotFoundError:
        return None
