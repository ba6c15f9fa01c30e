"""Which addresses an agent uses alone, and which other agents use, too.

Only shared addresses go by the ledger, at a call for each fetch. An agent asks about an address
before its first fetch; an agent alone there is told, and the new one waits until it uses the
ledger. A cut-off agent stays alone until its lease ends. After a loss of Redis no agent becomes
alone before all units are claimed, or a lease has passed, and all agents have named their
addresses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING, Final

from scrapy_spider_suite.cluster.membership import AddressQuestion
from scrapy_spider_suite.errors import FencedError, RegistryError
from scrapy_spider_suite.frontier.workbench import AddressState
from scrapy_spider_suite.runtime.tasks import WarnOnce

if TYPE_CHECKING:
    from scrapy_spider_suite.cluster.registry import AgentRegistry
    from scrapy_spider_suite.crawl.context import Crawl

logger = logging.getLogger(__name__)

ADDRESSES_PER_CALL: Final = 500
"""Some milliseconds of Redis's time."""


class AddressSharing(IntEnum):
    """The use of an address; ``meet.lua`` answers the first three."""

    ASK = 0  # ask again: another agent there may not know of this one
    ALONE = 1
    SHARED = 2
    NEW = 3

class AddressBook:
    """The addresses of one process.

    *quiet*: whether no fetch without the ledger is under way at an address, and its delay is over.
    """

    def __init__(self, quiet: Callable[[str], bool]) -> None:
        self._quiet = quiet
        self._known: dict[str, AddressSharing] = {}
        self._open: dict[str, None] = {}  # to be asked about, in this order
        self._never: set[str] = set()  # of these, those that nothing is known of
        self._gone: set[str] = set()
        self._told: set[str] = set()
        self._mine: dict[str, None] = {}  # where it goes on, and the server is to hear of it
        self._complete = False

    def __len__(self) -> int:
        return len(self._known)

    def count(self, standing: AddressSharing) -> int:
        return sum(each is standing for each in self._known.values())

    def standing(self, address: str) -> AddressSharing:
        """Return the sharing of *address*; a new one is asked about in the next call."""
        found = self._known.get(address)
        if found is None:
            self._gone.discard(address)
            self._ask(address)
            return AddressSharing.NEW
        return found

    def is_told(self, address: str) -> bool:
        """Whether others wait until this agent uses the ledger at *address*."""
        return address in self._told

    def _ask(self, address: str) -> None:
        self._known[address] = AddressSharing.NEW
        self._open[address] = None
        self._never.add(address)

    def keep(self, addresses: Collection[str]) -> None:
        """Drop all quiet addresses besides *addresses*."""
        for address in [each for each in self._known if each not in addresses]:
            if self._quiet(address):
                del self._known[address]
                self._open.pop(address, None)
                self._never.discard(address)
                self._told.discard(address)
                self._mine.pop(address, None)
                self._gone.add(address)

    def forget(self) -> None:
        """Ask about all addresses again: others may have taken this agent for gone."""
        self._complete = False
        self._mine.clear()
        for address in self._known:
            self._ask(address)

    def again(self) -> None:
        """The server lost its state: report known addresses, ask about the others."""
        self._complete = False
        self._told.clear()  # whoever waits is heard of again
        for address, standing in self._known.items():
            if standing in (AddressSharing.ALONE, AddressSharing.SHARED):
                self._mine[address] = None
            else:
                self._ask(address)

    def question(self, known: int) -> AddressQuestion:
        new = list(islice(self._open, ADDRESSES_PER_CALL))
        heard = [
            address for address in islice(self._told, ADDRESSES_PER_CALL) if self._quiet(address)
        ]
        # An earlier process of this agent was there.
        self._gone.update(address for address in heard if address not in self._known)
        mine = list(islice(self._mine, ADDRESSES_PER_CALL))
        complete = len(self._never) <= len(new) and self._never.issubset(new)
        complete = complete and len(mine) == len(self._mine)
        return AddressQuestion(
            new, list(islice(self._gone, ADDRESSES_PER_CALL)), heard, mine, complete, known
        )

    def answered(
        self, asked: AddressQuestion, states: Sequence[int], news: Sequence[str]
    ) -> set[str]:
        """Take the answer to *asked*; return the addresses with news."""
        self._complete = self._complete or asked.complete
        self._gone.difference_update(asked.gone)
        self._told.difference_update(asked.heard)
        for address in asked.mine:
            self._mine.pop(address, None)
        changed = set()
        for address, state in zip(asked.new, states, strict=True):
            if address not in self._open:
                continue  # it is gone meanwhile
            del self._open[address]
            self._never.discard(address)
            self._known[address] = AddressSharing(state)
            if state == AddressSharing.ASK:
                self._open[address] = None
            else:
                changed.add(address)
        for address in news:
            if self._known.get(address) is AddressSharing.ALONE:
                self._known[address] = AddressSharing.SHARED
                changed.add(address)
            self._told.add(address)
        return changed


_LOOK: Final = 1.0
"""Seconds between two questions; for one or two of them another agent waits for this one."""
_GATHER: Final = 0.02  # seconds in which addresses for a question gather
_KEEP: Final = 30.0  # seconds between two checks of which addresses are left
_TROUBLE: Final = "trouble"


class SharedAddresses:
    """The addresses of the agent of *crawl*; *news* is told those with news."""

    def __init__(self, crawl: Crawl, news: Callable[[set[str]], None]) -> None:
        self._away = False
        self._once = WarnOnce(logger, "addresses that agents share")
        self._crawl = crawl
        self._news = news
        self._book = AddressBook(self._quiet)
        self._by_ledger: set[str] = set()
        self._asked = asyncio.Event()
        self._era = 0
        self._kept = 0.0

    def standing(self, address: AddressState) -> AddressSharing:
        found = self._book.standing(address.key)
        if found is AddressSharing.NEW:
            self._asked.set()
        return found

    def will_say(self, address: AddressState) -> bool:
        """Whether an answer about *address* comes in a moment."""
        return not self._away and self._book.standing(address.key) is AddressSharing.NEW

    def quiet_in(self) -> float:
        """Return the seconds until all fetches and all delays of addresses are over."""
        crawl = self._crawl
        longest = crawl.settings.project.longest_fetch
        addresses = crawl.frontier.workbench.addresses.values()
        wires = (longest + each.delay for each in addresses if each.wire)
        return max(crawl.frontier.residents.clocks.all_free_at() - crawl.now(), *wires, 0.0)

    def forget(self) -> None:
        self._book.forget()
        self._asked.set()

    def counts(self) -> dict[str, int]:
        return {"addresses": len(self._book), "shared": self._book.count(AddressSharing.SHARED)}

    def begun(self, address: AddressState) -> None:
        """A fetch by the ledger begins at *address*; none without it is left there."""
        if not address.wire and self._book.is_told(address.key):
            self._by_ledger.add(address.key)

    def _quiet(self, key: str) -> bool:
        frontier = self._crawl.frontier
        address = frontier.workbench.addresses.get(key)
        if key in self._by_ledger:
            return True
        if address is not None and address.wire:
            return False
        # An earlier process may have been there just now.
        return frontier.residents.clocks.next_fetch(key) <= self._crawl.now()

    async def run(self, registry: AgentRegistry) -> None:
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

    async def _ask(self, registry: AgentRegistry) -> None:
        crawl = self._crawl
        if crawl.now() - self._kept > _KEEP:
            self._kept = crawl.now()
            self._book.keep(crawl.frontier.workbench.addresses)
        asked = self._book.question(self._era or registry.answer.era)
        states, news = await registry.ask_addresses(asked)
        if asked.known != registry.answer.era:
            self._book.again()
        self._era = registry.answer.era
        self._by_ledger.difference_update(asked.heard, asked.gone)
        self._news(self._book.answered(asked, states, news))
