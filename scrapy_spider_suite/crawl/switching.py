"""Sinks that are switched on and off, and replaced, while a crawl runs.

One that has other files to write is another sink: what the pages bring that are out at that moment
still goes to the one before, which ends when they have been through. So what is begun with one
folder, form or name ends with it, and nothing is in two places.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from scrapy_spider_suite.crawl.sinks.commit_log import CommitLog, Sink, finish_quietly
from scrapy_spider_suite.signals import settings_changed, settings_changing

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.queue.leases import Lease
    from scrapy_spider_suite.settings.suite import SuiteSettings


class Replaceable(Sink, Protocol):
    """A sink that ends while the crawl goes on."""

    @property
    def busy(self) -> bool:
        """Whether pages that have settled are still to come back to it."""


S = TypeVar("S", bound=Replaceable)


@dataclass(slots=True, eq=False)
class _Former(Generic[S]):
    """What was in use (None: nothing was), and the pages that were out when that changed."""

    sink: S | None
    leases: set[Lease]
    ending: asyncio.Task[None] | None = None


class Switch(Generic[S]):
    """A sink (see `commitlog`) that is whichever the settings ask for.

    Attributes:
        names: those that it is made anew for.
    """

    names: ClassVar[frozenset[str]]

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._formers: list[_Former[S]] = []
        self._now = self.make(log.settings, ())
        log.crawler.signals.connect(self._check, settings_changing)
        log.crawler.signals.connect(self._change, settings_changed)

    def make(self, settings: SuiteSettings, before: Collection[S]) -> S | None:
        """The sink that *settings* ask for; *before* it were those that have not ended yet.

        Raises the `SuiteError`s.
        """
        raise NotImplementedError

    def check(self, new: SuiteSettings) -> None:
        """Raise `SettingsError` if `make` would."""

    def _concerns(self, old: SuiteSettings, new: SuiteSettings) -> bool:
        return any(getattr(old, name) != getattr(new, name) for name in self.names)

    def _check(self, old: SuiteSettings, new: SuiteSettings) -> None:
        if self._concerns(old, new):
            self.check(new)

    def _change(self, old: SuiteSettings, new: SuiteSettings) -> None:
        if self._concerns(old, new):
            crawl = self._log.crawl
            now = self.make(new, self._sinks)
            out = set() if crawl is None else set(crawl.leases.values())
            self._formers.append(_Former(self._now, out))
            self._now = now

    def of(self, lease: Lease | None) -> S | None:
        """The one that has what the page of *lease* brings (None: what is of no page)."""
        for former in self._formers:
            if lease in former.leases:
                return former.sink
        return self._now

    @property
    def _sinks(self) -> list[S]:
        """The one in use, and those that have not ended: they came before it."""
        every = [*(former.sink for former in self._formers), self._now]
        return [sink for sink in every if sink is not None]

    # A sink

    def settled(self, lease: Lease) -> None:
        """See `Sink`."""
        sink = self.of(lease)
        for former in self._formers:
            former.leases.discard(lease)
        if sink is not None:
            sink.settled(lease)

    def pulse(self) -> None:
        """See `Sink`; those that have nothing more to wait for end."""
        for sink in self._sinks:
            sink.pulse()
        for former in self._formers:
            waits = former.leases or (former.sink is not None and former.sink.busy)
            if former.ending is None and not waits:
                former.ending = asyncio.create_task(self._end(former))

    async def _end(self, former: _Former[S]) -> None:
        if former.sink is not None:
            await finish_quietly(former.sink.finish())
            former.sink.pulse()  # nothing is paused for it any more
            await finish_quietly(former.sink.close())
        self._formers.remove(former)

    async def finish(self) -> None:
        """See `Sink`."""
        await self._each(lambda sink: sink.finish())

    async def close(self) -> None:
        """See `Sink`."""
        await self._each(lambda sink: sink.close())

    async def _each(self, step: Callable[[S], Awaitable[None]]) -> None:
        """Have those take this *step* that have not ended by then."""
        ending = [former.ending for former in self._formers if former.ending is not None]
        await asyncio.gather(*ending, return_exceptions=True)  # whatever it is, the others end
        for sink in self._sinks:
            await finish_quietly(step(sink))
