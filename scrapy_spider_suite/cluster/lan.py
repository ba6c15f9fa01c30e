"""One agent among the others of a fixed list, which exchange letters over UDP, and only that (K21).

Who is on the list owns and holds its part for the life of the crawl: an agent that is gone is
waited for. The first of the list by name finds out that the crawl is over: in rounds, of which two
one after the other have to say the same (Mattern, Distributed Computing 2, 1987, 161-175).

Whoever hears that it is over writes that down before it says so, and goes when the first has noted
it; the first stays until all have said so. So an agent that is killed in between ends when it is
back, whoever is gone by then. What it is started again for after that is up to `late`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from scrapy_spider_suite.agents.letters import Letter
from scrapy_spider_suite.agents.members import SKEW_MAX, Post
from scrapy_spider_suite.agents.tables import Member
from scrapy_spider_suite.cluster.greeting import AGREE, MEET, REFUSE, Greeting, Tell
from scrapy_spider_suite.cluster.late import Late
from scrapy_spider_suite.cluster.members import HAS_ENDED
from scrapy_spider_suite.cluster.shares import Shares
from scrapy_spider_suite.runtime.tasks import Once, watched
from scrapy_spider_suite.store.interface import KV

logger = logging.getLogger(__name__)

ASK, POST, END, NOTED, LATE, ON = range(100, 106)
"""What a message is: what do you say in this round? this; the crawl is over (and from others: I
know); I have noted that you know; it was over when I was started, and I am idle, or not; it goes
on. More are in `greeting`, without which none counts."""

OVER: Final = b"over"
"""Under which an agent keeps that the crawl is over; the first of them, who knows it."""

_BEAT: Final = 1.0
_LAST: Final = 15.0
"""Seconds for which an agent that knows that the crawl is over waits for the first to note it; and
after which the first says who does not answer."""


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

    *terms* are the settings in which they have to agree, *job* is whose directory it is; *kv* is
    this agent's, and *written* makes durable what it holds. Clocks may differ by *skew* seconds;
    *wall* reads the one here. The other arguments are those of `peer.Peer`. Messages of others are
    given to `heard`; *tell* is to be set before `start`.

    Attributes:
        ended: the crawl is over: all agents are idle.
    """

    tell: Tell

    def __init__(
        self, names: Sequence[str], shares: Shares, incarnation: int, terms: Mapping[str, str],
        job: str, *, changed: Callable[[], None], post: Callable[[], Post],
        over: Callable[[str], None], kv: KV, written: Callable[[], Awaitable[None]],
        skew: float = SKEW_MAX, wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.ended = False
        self._names = sorted(names)
        self._others = [name for name in self._names if name != shares.name]
        self._shares = shares
        self._incarnation = incarnation
        self._changed, self._post, self._over = changed, post, over
        self._greeting = Greeting(
            shares.name, self._others, terms, job, kv,
            tell=lambda to, message: self.tell(to, message), over=over, skew=skew, wall=wall,
        )  # fmt: skip
        self._round = 1
        self._said: dict[str, _Said] = {}
        self._before: list[_Said] = []
        self._strangers: set[str] = set()  # whose letters were not taken
        self._late = Late(
            self._others, self._greeting.met, kv, post=post, say=self._say_late
        )  # fmt: skip
        self._kv, self._written = kv, written
        known = kv.get(OVER)
        self._over_before = known is not None  # as of an earlier process
        self._found = self._over_before  # that it is over
        self._know = set((known or b"").decode().splitlines())  # who knows it
        self._noted = set(self._know)
        self._dismissed = asyncio.Event()
        self._once = Once(logger, f"agent {shares.name}")
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Own, and hold, what is this agent's."""
        # A list has no epochs: what stands in each letter for one says what its sender goes by.
        self._shares.settle(self._greeting.digest, [Member(name) for name in self._names])
        self._shares.hold_own()
        self._changed()

    def start(self) -> None:
        """Ask the others from now on, if that is this agent's business; and who they are."""
        self._asking = watched(self._greeting.ask(), "greetings")
        if self._late.late:
            if not self._post().left:
                logger.warning(HAS_ENDED)
            self._task = watched(self._rest(), "rounds")
        elif self._leads:
            self._task = watched(self._lead(), "rounds")
        elif self._over_before:
            self._task = watched(self._follow(), "rounds")

    async def meet(self) -> None:
        """Wait, not for long, for one that agrees. Raises `JoinRefusedError`: one does not."""
        await self._greeting.meet()

    def takes(self, letter: Letter) -> bool:
        """Whether the sender of *letter* agrees with this agent."""
        if letter.epoch == self._greeting.digest:
            self._strangers.discard(letter.sender)
            return True
        if letter.sender in self._others and letter.sender not in self._strangers:
            self._strangers.add(letter.sender)
            logger.warning(
                "agent %s does not take the URLs that agent %s sends: they do not agree on the "
                "list, the fixed settings or the release", self._shares.name, letter.sender,
            )  # fmt: skip
            self._greeting.greet(letter.sender)
        return False

    def agrees(self, to: str) -> bool:
        """Whether the agent *to* is known to agree with this one: others keep nothing of it."""
        return to in self._greeting.met

    def unlisted(self, by: str) -> None:
        """The list of agent *by* does not have this one."""
        self._greeting.unlisted(by)

    async def close(self, *, over: bool = False) -> None:
        """Stop; the others wait for this agent, unless it is *over*."""
        if over and self.ended:
            self._kv.delete(OVER)
            self._late.mark()
        tasks = [task for task in (self._task, self._asking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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

    @property
    def _leads(self) -> bool:
        return self._first == self._shares.name

    # Rounds

    async def _lead(self) -> None:
        await self._ask()
        await self._tell_all()
        self._end()

    async def _ask(self) -> None:
        while not self._found:
            self._say(self._shares.name, self._own())
            for name in self._others:
                if name not in self._said and self.agrees(name):
                    self.tell(name, [ASK, self._round])
            await asyncio.sleep(_BEAT)
            if len(self._said) == len(self._names):
                self._next_round()

    def _next_round(self) -> None:
        said = [self._said[name] for name in self._names]
        sent, received = sum(each.sent for each in said), sum(each.received for each in said)
        quiet = all(each.idle for each in said) and sent == received
        same = [each._replace(round=0) for each in said]
        self._found = quiet and same == self._before
        self._before = same if quiet else []
        self._round += 1
        self._said.clear()

    async def _tell_all(self) -> None:
        """Say that it is over until all others know: who is away hears of it when it is back."""
        until, wait = asyncio.get_running_loop().time() + _LAST, _BEAT / 4
        await self._note()
        while left := [name for name in self._others if name not in self._noted]:
            for name in left:
                self.tell(name, [END])
            if asyncio.get_running_loop().time() > until:
                wait = _BEAT
                names = ", ".join(left)
                self._once.say("left", f"the crawl is over; {names} are waited for: start them")
            await asyncio.sleep(wait)
            if self._know > self._noted:
                await self._note()

    async def _note(self) -> None:
        """Write down that it is over, and let those go who know."""
        self._kv.put(OVER, "\n".join(sorted(self._know)).encode())
        know = set(self._know)
        await self._written()
        for name in know - self._noted:
            self.tell(name, [NOTED])
        self._noted |= know

    async def _follow(self) -> None:
        """Write down that it is over, and say so until the first agent has noted it."""
        self._found = True
        self._late.forget()
        await self._note()
        until = asyncio.get_running_loop().time() + _LAST
        while not self._dismissed.is_set() and asyncio.get_running_loop().time() < until:
            self.tell(self._first, [END])
            with suppress(TimeoutError):
                async with asyncio.timeout(_BEAT / 4):
                    await self._dismissed.wait()
        self._end()

    def _goes_on(self) -> None:
        """An earlier process heard that it is over; by now it is another crawl of this job."""
        if self._task is not None:
            self._task.cancel()
        self._over_before = self._found = False
        self._kv.delete(OVER)
        self._late.forget()
        if self._leads:
            self._task = watched(self._lead(), "rounds")

    async def _rest(self) -> None:
        """End, since all have ended, unless there is more to do."""
        if not await self._late.goes_on():
            self._end()
            return
        self._late.forget()
        if self._leads:
            await self._lead()

    def _say_late(self, idle: bool) -> None:
        for name in self._greeting.met:
            self.tell(name, [LATE, idle])

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
        leads, late = self._leads, self._late.late
        if kind in (MEET, AGREE, REFUSE):
            self._greeting.heard(sender, message)
        elif sender not in self._greeting.met:
            self._greeting.wonder(sender)  # it will say that again
        elif kind == ASK and sender == self._first:
            (number,) = rest
            self._round = int(number)
            if (self._over_before or late) and not self.ended:
                self._goes_on()
            if not (self._found or self.ended):  # it was asked before that was known
                self.tell(sender, [POST, *self._own()])
        elif kind == POST and leads and self._found:
            self.tell(sender, [END])
        elif kind == POST and leads:
            incarnation, number, idle, sent, received, activity = map(int, rest)
            said = _Said(incarnation, number, bool(idle), sent, received, activity)
            self._say(sender, said)
        elif kind == END and sender == self._first:
            if not (self._found or self.ended):
                if self._task is not None:  # it was late
                    self._task.cancel()
                self._task = watched(self._follow(), "rounds")
        elif kind == END and leads:
            self._hears(sender)
        elif kind == NOTED and sender == self._first:
            self._dismissed.set()
        elif kind == LATE:
            (idle,) = rest
            self._hears_late(sender, idle=bool(idle))
        elif kind == ON:
            if late and not self.ended:
                self._goes_on()
        else:
            raise ValueError(f"no message has the number {kind!r} from {sender}")

    def _hears(self, sender: str) -> None:
        """*sender* knows that it is over; so it thought in an earlier process, if it is not."""
        known = self._found and sender in self._noted
        if known or (self._late.late and self.ended):  # it had noted all before
            self.tell(sender, [NOTED])
        elif self._found:
            self._know.add(sender)

    def _hears_late(self, sender: str, *, idle: bool) -> None:
        """*sender* knew that it was over when it was started."""
        if self._late.late:
            self._late.heard(sender, idle=idle)
        elif not self._found:
            self.tell(sender, [ON])
        elif self._leads:
            self.tell(sender, [END])
        else:
            self.tell(sender, [LATE, True])

    def _end(self) -> None:
        self.ended = True
        self._over("")
