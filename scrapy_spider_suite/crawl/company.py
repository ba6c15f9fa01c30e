"""Which addresses of an agent's hosts other agents of its crawl fetch from, too.

The book itself is `agents.addresses`; here it is kept in touch with Redis and with the workbench.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from scrapy_spider_suite.agents.addresses import AddressBook, Standing
from scrapy_spider_suite.errors import FencedError, RegistryError
from scrapy_spider_suite.frontier.workbench import AddressState
from scrapy_spider_suite.runtime.tasks import Once

if TYPE_CHECKING:
    from scrapy_spider_suite.agents.registry import Registry
    from scrapy_spider_suite.crawl.context import CrawlCore

logger = logging.getLogger(__name__)

_LOOK: Final = 1.0
"""Seconds between two questions; so long, or twice, another agent waits for this one's word."""
_GATHER: Final = 0.02
"""Seconds in which addresses for a question gather."""
_KEEP: Final = 30.0
"""Seconds between two looks at which addresses are left."""
_TROUBLE: Final = "trouble"


class Company:
    """Of the agent of *core*; *news* is told the addresses of which more is known."""

    def __init__(self, core: CrawlCore, news: Callable[[set[str]], None]) -> None:
        self._away = False
        self._once = Once(logger, "addresses that agents share")
        self._core = core
        self._news = news
        self._book = AddressBook(self._quiet)
        self._by_ledger: set[str] = set()
        self._asked = asyncio.Event()
        self._era = 0
        self._kept = 0.0

    def standing(self, address: AddressState) -> Standing:
        """Of *address*: whether others fetch there."""
        found = self._book.standing(address.key)
        if found is Standing.NEW:
            self._asked.set()
        return found

    def will_say(self, address: AddressState) -> bool:
        """Whether the standing of *address* is known in a moment."""
        return not self._away and self._book.standing(address.key) is Standing.NEW

    def quiet_in(self) -> float:
        """Seconds until all that was begun is over, and the delay of every address."""
        core = self._core
        longest, addresses = core.settings.project.longest_fetch, core.frontier.workbench.addresses
        wires = (longest + each.delay for each in addresses.values() if each.wire)
        return max(core.frontier.residents.clocks.over() - core.now(), *wires, 0.0)

    def forget(self) -> None:
        """Others may have thought that this agent is gone: all has to be asked anew."""
        self._book.forget()
        self._asked.set()

    def counts(self) -> dict[str, int]:
        """How many addresses there are, and how many of them are shared."""
        return {"addresses": len(self._book), "shared": self._book.count(Standing.SHARED)}

    def begun(self, address: AddressState) -> None:
        """A fetch by the ledger is about to begin at *address*, alone there: those without it are
        over, and its delay."""
        if not address.wire and self._book.is_told(address.key):
            self._by_ledger.add(address.key)

    def _quiet(self, key: str) -> bool:
        frontier = self._core.frontier
        address = frontier.workbench.addresses.get(key)
        if key in self._by_ledger:
            return True
        if address is not None and address.wire:
            return False
        # An earlier process may have been there just now.
        return frontier.residents.clocks.next_fetch(key) <= self._core.now()

    async def run(self, registry: Registry) -> None:
        """Ask, and hear, until it is cancelled."""
        while True:
            try:
                await self._ask(registry)
                self._away = False
                self._once.over(_TROUBLE)
            except RegistryError as error:
                self._away = True
                if error.kind != "away":  # which the heartbeats say
                    self._once.say(_TROUBLE, f"{error}; nothing is fetched at new ones meanwhile")
            except FencedError:
                pass  # when it joins again, it is known what it has to ask anew
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await self._asked.wait()
                    await asyncio.sleep(_GATHER)
            self._asked.clear()

    async def _ask(self, registry: Registry) -> None:
        core = self._core
        if core.now() - self._kept > _KEEP:
            self._kept = core.now()
            self._book.keep(core.frontier.workbench.addresses)
        asked = self._book.question(self._era or registry.answer.era)
        states, news = await registry.meet(asked)
        if asked.known != registry.answer.era:
            self._book.again()
        self._era = registry.answer.era
        self._by_ledger.difference_update(asked.heard, asked.gone)
        self._news(self._book.answered(asked, states, news))
