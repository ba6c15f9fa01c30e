"""Which addresses an agent has for itself, and which others fetch from, too: the deciding part.

Hosts of several agents may live at one address, whose delay holds for all of them. A ledger keeps
it (`ledger`), but costs a call for each fetch, and stops with its server. So only those addresses
go by it that need it. An agent asks about each address once, before its first fetch there; who
fetched there alone until then is told, and only when it has said that it goes by the ledger, too,
is the other one told that it may begin.

An agent that hears nothing any more goes on alone where it was alone, for as long as its lease
lasts: whoever comes to one of its addresses waits for its word until then. It does so also if the
server has lost what it knew meanwhile: nobody is alone anywhere anew before all that was held is
claimed, or a lease is over, and all have said again where they are.

Which addresses of an agent's hosts other agents of its crawl fetch from, too.

The book itself is `agents.addresses`; here it is kept in touch with Redis and with the workbench.
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
"""Addresses of one call; some milliseconds of Redis's time."""


class AddressSharing(IntEnum):
    """Of an address, for this agent; the first three are what ``meet.lua`` answers."""

    ASK = 0
    """It has to ask again: somebody may fetch there who does not know of this agent yet."""

    ALONE = 1
    SHARED = 2
    NEW = 3
    """It was not asked about yet."""


class AddressBook:
    """The addresses that one process fetches from.

    *quiet* says whether nothing without a ledger is under way at an address, and its delay has run
    off since.
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
        """How many have that *standing*."""
        return sum(each is standing for each in self._known.values())

    def standing(self, address: str) -> AddressSharing:
        """Of *address*, which is asked about with the next call if it was not."""
        found = self._known.get(address)
        if found is None:
            self._gone.discard(address)
            self._ask(address)
            return AddressSharing.NEW
        return found

    def is_told(self, address: str) -> bool:
        """Whether others wait for word that *address* goes by the ledger here, too."""
        return address in self._told

    def _ask(self, address: str) -> None:
        self._known[address] = AddressSharing.NEW
        self._open[address] = None
        self._never.add(address)

    def keep(self, addresses: Collection[str]) -> None:
        """This agent has hosts at *addresses*, and nowhere else."""
        for address in [each for each in self._known if each not in addresses]:
            if self._quiet(address):
                del self._known[address]
                self._open.pop(address, None)
                self._never.discard(address)
                self._told.discard(address)
                self._mine.pop(address, None)
                self._gone.add(address)

    def forget(self) -> None:
        """Others may have thought that this agent was gone: everything has to be asked anew."""
        self._complete = False
        self._mine.clear()
        for address in self._known:
            self._ask(address)

    def again(self) -> None:
        """The server has lost what it knew, and nobody thought that this agent was gone: it goes on
        where it was, and says so; where it was not yet, it has to ask anew."""
        self._complete = False
        self._told.clear()  # whoever waits is heard of again
        for address, standing in self._known.items():
            if standing in (AddressSharing.ALONE, AddressSharing.SHARED):
                self._mine[address] = None
            else:
                self._ask(address)

    def question(self, known: int) -> AddressQuestion:
        """What to ask next, in the era *known*."""
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
        """To *asked* came *states* and *news*; return the addresses of which more is known now."""
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
"""Seconds between two questions; so long, or twice, another agent waits for this one's word."""
_GATHER: Final = 0.02
"""Seconds in which addresses for a question gather."""
_KEEP: Final = 30.0
"""Seconds between two looks at which addresses are left."""
_TROUBLE: Final = "trouble"


class SharedAddresses:
    """Of the agent of *crawl*; *news* is told the addresses of which more is known."""

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
        """Of *address*: whether others fetch there."""
        found = self._book.standing(address.key)
        if found is AddressSharing.NEW:
            self._asked.set()
        return found

    def will_say(self, address: AddressState) -> bool:
        """Whether the standing of *address* is known in a moment."""
        return not self._away and self._book.standing(address.key) is AddressSharing.NEW

    def quiet_in(self) -> float:
        """Seconds until all that was begun is over, and the delay of every address."""
        crawl = self._crawl
        longest = crawl.settings.project.longest_fetch
        addresses = crawl.frontier.workbench.addresses.values()
        wires = (longest + each.delay for each in addresses if each.wire)
        return max(crawl.frontier.residents.clocks.over() - crawl.now(), *wires, 0.0)

    def forget(self) -> None:
        """Others may have thought that this agent is gone: all has to be asked anew."""
        self._book.forget()
        self._asked.set()

    def counts(self) -> dict[str, int]:
        """How many addresses there are, and how many of them are shared."""
        return {"addresses": len(self._book), "shared": self._book.count(AddressSharing.SHARED)}

    def begun(self, address: AddressState) -> None:
        """A fetch by the ledger is about to begin at *address*, alone there: those without it are
        over, and its delay."""
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
