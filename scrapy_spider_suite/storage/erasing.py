"""Rewriting the tables in which deleted rows may still lie, and telling whether that worked.

RocksDB does not say of a compaction that it failed, but it counts what fails in the background.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from threading import Thread

from rocksdict import BottommostLevelCompaction, CompactOptions, Rdict

Range = tuple[str, bytes, bytes]
"""A family, the first key in it, and the first that is behind."""
_ERRORS = "rocksdb.background-errors"


class Eraser:
    """Rewrites the tables of *families* that hold keys of *ranges*, in a thread of its own.

    The others are only written out, since the log holds rows of all of them. It takes seconds.
    *failure* says, once it has ended, what is left; empty: nothing.
    """

    def __init__(
        self, db: Rdict, families: Mapping[str, Rdict], ranges: Collection[Range]
    ) -> None:
        self.failure = ""
        self._cut = False
        self._db = db
        self._families = dict(families)
        self._ranges = tuple(ranges)
        self._thread = Thread(target=self._rewrite, daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether it is at work."""
        return self._thread.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, *timeout* seconds at most."""
        self._thread.join(timeout)

    def cut_short(self, db: Rdict) -> None:
        """Have *db*, which is to be closed, end it, and wait for that."""
        if self.is_alive():
            self._cut = True
            db.cancel_all_background(False)
        self.join()

    def _rewrite(self) -> None:
        options = CompactOptions()
        # Tables of the last level would be left as they are, with what they hold.
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
        try:
            before = self._errors()
            for family in self._families.values():
                family.flush()
            for name, begin, end in self._ranges:
                self._families[name].compact_range(begin, end, options)
            if self._cut or self._errors() > before:
                self.failure = "the store's tables could not all be rewritten"
        except Exception as error:  # the library raises nothing narrower
            self.failure = f"the store's tables could not be rewritten ({error})"
        finally:
            # The database keeps its lock as long as anything refers to it.
            del self._db, self._families

    def _errors(self) -> int:
        return self._db.property_int_value(_ERRORS) or 0
