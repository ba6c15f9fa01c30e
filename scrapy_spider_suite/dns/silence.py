"""Whether the name servers answer: one warning when they do not, and one when they do again."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pycares.errno import ARES_ECONNREFUSED, ARES_ETIMEOUT

logger = logging.getLogger(__name__)

_UNANSWERED = frozenset({ARES_ECONNREFUSED, ARES_ETIMEOUT})
_PATIENCE = 3
"""Questions in a row without an answer: a single one may be the fault of its name's own servers."""


class Silence:
    """Counts questions without an answer from any name server. *now* is in seconds."""

    def __init__(self) -> None:
        self._unanswered = _PATIENCE - 1  # before any answer, the first one counts
        self._since: float | None = None

    @property
    def lasts(self) -> bool:
        """Whether no name server answers, as of the last questions."""
        return self._since is not None

    def note(self, code: int | None, servers: Sequence[str], now: float) -> None:
        """A question to *servers* ended with *code*, None for addresses."""
        if code not in _UNANSWERED:
            self._unanswered = 0
            if self._since is not None:
                logger.warning("Name servers answer again, after %.0f s", now - self._since)
                self._since = None
            return
        self._unanswered += 1
        if self._since is None and self._unanswered >= _PATIENCE:
            self._since = now
            logger.warning(
                "No name server answers (%s; SUITE_DNS_SERVERS chooses them): new hosts wait",
                named(servers),
            )


def named(servers: Sequence[str]) -> str:
    """*servers* in words; none are those of the system."""
    return ", ".join(servers) or "those of the system"
