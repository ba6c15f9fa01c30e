"""One agent among the others of a fixed list, which exchange letters over UDP, and only that (K21).

Who is on the list owns and holds its part for the life of the crawl: an agent that is gone is
waited for. The first of the list by name finds out that the crawl is over: in rounds, of which two
one after the other have to say the same (Mattern, Distributed Computing 2, 1987, 161-175).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from scrapy_spider_suite.agents.members import PROTOCOL, Post
from scrapy_spider_suite.agents.tables import Member
from scrapy_spider_suite.agents.transport import Once
from scrapy_spider_suite.cluster.shares import Shares
from scrapy_spider_suite.cluster.watched import watched

logger = logging.getLogger(__name__)

Tell = Callable[[str, Sequence[Any]], bool]
"""Sends a message to an agent, if there is room for it."""

ASK, POST, REFUSE, END = range(100, 104)
"""What a message is: what do you say in this round? this; I take no part; the crawl is over."""

_BEAT: Final = 1.0
_LAST: Final = 15.0
"""Seconds for which the first agent goes on saying that the crawl is over, where somebody does not
answer."""


class _Said(NamedTuple):
    """What an agent said in a round; *incarnation* is that of its process."""

    incarnation: int
    round: int
    idle: bool
    sent: int
    received: int
    activity: int


class Neighbour:
    """The agent of *shares* among *names*, all of those on the list.

    *terms* is the same for agents that agree on their settings. The other arguments are those of
    `peer.Peer`. Messages of others are given to `heard`; *tell* is to be set before `start`.

    Attributes:
        ended: the crawl is over: all agents are idle.
    """

    tell: Tell

    def __init__(
        self, names: Sequence[str], shares: Shares, incarnation: int, terms: str, *,
        changed: Callable[[], None], post: Callable[[], Post], over: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.ended = False
        self._names = sorted(names)
        self._others = [name for name in self._names if name != shares.name]
        self._shares = shares
        self._incarnation = incarnation
        self._terms = terms
        self._changed, self._post, self._over = changed, post, over
        self._round = 1
        self._said: dict[str, _Said] = {}
        self._before: list[_Said] = []
        self._told: set[str] = set()  # who has heard that it is over
        self._once = Once(logger, f"agent {shares.name}")
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Own, and hold, what is this agent's."""
        self._shares.settle(1, [Member(name) for name in self._names])
        self._shares.hold_own()
        self._changed()

    def start(self) -> None:
        """Ask the others from now on, if that is this agent's business."""
        if self._first == self._shares.name:
            self._task = watched(self._ask(), "rounds")

    async def close(self) -> None:
        """Stop; the others wait for this agent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def may_fetch(self, delay: float = 0.0) -> bool:
        """Always: nobody else ever holds what is here."""
        return True

    def drain(self) -> None:
        """Nobody takes what this agent has: the list is what it is."""
        logger.error("with SUITE_CLUSTER = 'lan' the list of agents is fixed: this one stays")

    @property
    def busy(self) -> bool:
        """Never: everybody keeps what he has."""
        return False

    @property
    def stats(self) -> dict[str, int | float]:
        """See `Members`."""
        return {"cluster/agents": len(self._names), "cluster/round": self._round}

    @property
    def _first(self) -> str:
        return self._names[0]

    # Rounds

    async def _ask(self) -> None:
        while not self.ended:
            self._say(self._shares.name, self._own())
            for name in self._others:
                if name not in self._said:
                    self.tell(name, [ASK, PROTOCOL, self._terms, self._round])
            await asyncio.sleep(_BEAT)
            if len(self._said) == len(self._names):
                self._next_round()
        await self._tell_all()
        self._over("")

    def _next_round(self) -> None:
        said = [self._said[name] for name in self._names]
        sent, received = sum(each.sent for each in said), sum(each.received for each in said)
        quiet = all(each.idle for each in said) and sent == received
        same = [each._replace(round=0) for each in said]
        self.ended = quiet and same == self._before
        self._before = same if quiet else []
        self._round += 1
        self._said.clear()

    async def _tell_all(self) -> None:
        until = asyncio.get_running_loop().time() + _LAST
        while len(self._told) < len(self._others) and asyncio.get_running_loop().time() < until:
            for name in self._others:
                if name not in self._told:
                    self.tell(name, [END])
            await asyncio.sleep(_BEAT / 4)

    def _own(self) -> _Said:
        said = self._post()
        return _Said(
            self._incarnation, self._round, said.idle, said.sent, said.received, said.activity
        )

    def _say(self, name: str, said: _Said) -> None:
        if said.round == self._round:
            self._said[name] = said

    # What others say

    def heard(self, sender: str, message: Sequence[Any]) -> None:
        """Take in a *message* of another agent. Raises `ValueError` or `TypeError`: it is none."""
        kind, *rest = message
        if kind == ASK and sender == self._first:
            protocol, terms, number = rest
            if (protocol, terms) == (PROTOCOL, self._terms):
                self._round = int(number)
                self.tell(sender, [POST, *self._own()])
            else:
                self._differs(sender)
        elif kind == POST and self._first == self._shares.name:
            incarnation, number, idle, sent, received, activity = map(int, rest)
            said = _Said(incarnation, number, bool(idle), sent, received, activity)
            self._say(sender, said)
        elif kind == REFUSE and self._first == self._shares.name:
            self._once.say(f"terms {sender}", f"{sender} has other settings, or another release")
        elif kind == END and sender == self._first:
            self.tell(sender, [END])
            # The answer has to get there; if it is lost, it is asked for again meanwhile.
            asyncio.get_running_loop().call_later(2 * _BEAT, self._end)
        elif kind == END and self._first == self._shares.name:
            self._told.add(sender)
        else:
            raise ValueError(f"no message has the number {kind!r} from {sender}")

    def _end(self) -> None:
        if not self.ended:
            self.ended = True
            self._over("")

    def _differs(self, sender: str) -> None:
        logger.error(
            "agent %s has other fixed settings, or another release: all agents of a crawl need the "
            "same; this agent ends", sender,
        )  # fmt: skip
        self.tell(sender, [REFUSE])
        self._over("refused")
