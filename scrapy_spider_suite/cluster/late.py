"""An agent of a list that is started again after the whole crawl has ended, with the mark of that.

It may be alone: the others have gone for good. So it does not wait for them if it has nothing to
do, but says that to those that it meets (`LATE`), who may be as late, or crawl: then they say that
the crawl goes on. Where it goes on the mark goes, and the agent is one as any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from scrapy_spider_suite.agents.members import Post
from scrapy_spider_suite.runtime.clock import boottime
from scrapy_spider_suite.store.interface import KV

ENDED: Final = b"ended"
"""Under which an agent keeps that it has closed after the end."""

COMING: Final = 15.0
"""Seconds for which others may be on their way; and after which one that has said nothing of
itself is gone."""
_LOOK: Final = 0.25


class Late:
    """Of an agent with *others*, of which *met* have been met; *kv* is this agent's, *post* says
    what it does, and *say* tells those that were met whether it is idle.

    Attributes:
        late: the crawl had ended when this agent was started, and does not go on.
    """

    def __init__(
        self, others: Collection[str], met: Collection[str], kv: KV, *,
        post: Callable[[], Post], say: Callable[[bool], None],
    ) -> None:  # fmt: skip
        self.late = kv.get(ENDED) is not None
        self._others, self._met, self._kv = others, met, kv
        self._post, self._say = post, say
        self._idle: dict[str, tuple[bool, float]] = {}  # what others said last, and when

    def mark(self) -> None:
        """The crawl has ended, and this agent closes."""
        self._kv.put(ENDED, b"")

    def forget(self) -> None:
        """The crawl goes on."""
        self.late = False
        self._kv.delete(ENDED)

    def heard(self, sender: str, *, idle: bool) -> None:
        """*sender* is late, too."""
        self._idle[sender] = idle, boottime()

    async def goes_on(self) -> bool:
        """Wait until it is known whether this agent has more to do."""
        began, activity = boottime(), self._post().activity
        since: dict[str, float] = {}  # when each of the others was met
        while True:
            said, now = self._post(), boottime()
            since.update((name, now) for name in self._met if name not in since)
            if said.left or said.activity != activity:
                return True
            self._say(said.idle)
            there = len(self._met) == len(self._others) or now - began > COMING
            rest = all(self._rests(name, met, now) for name, met in since.items())
            if said.idle and there and rest:
                return False
            await asyncio.sleep(_LOOK)

    def _rests(self, name: str, met: float, now: float) -> bool:
        idle, when = self._idle.get(name, (False, met))
        return idle or now - when > COMING
