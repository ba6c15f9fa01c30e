"""Agents of a list meet: those that disagree on the list, the fixed settings or the release part,
and those whose clocks do.

Each asks all others as it begins, and fetches once one that agrees has answered: who agrees with
one agrees with all. Where nobody answers within `HANDSHAKE_SECONDS` seconds it goes on alone, since
on a LAN who is away is waited for; rows carry `Greeting.digest`, so no others come from elsewhere.
Of two
that disagree one ends: whose `Seniority` is lower, then the later by name. A standing only ever
rises, and who has to end has no say any more, so it is never both. Where the list of the one does
not have the other, it is that one, if it has only begun.

Each message says when it was sent, by its sender's clock, and which one it answers: between that
question and its answer that clock was read, so within these bounds it is known how far it is off,
however long either took. Agents have met when each has had an answer of the other.

An agent of a list that is started again after the whole crawl has ended, with the mark of that.

It may be alone: the others have gone for good. So it does not wait for them if it has nothing to
do, but says that to those that it meets (`LATE`), who may be as late, or crawl: then they say that
the crawl goes on. Where it goes on the mark goes, and the agent is one as any other.

One agent among the others of a fixed list, which exchange messages over UDP, and only that (K21).

Who is on the list owns and holds its part for the life of the crawl: an agent that is gone is
waited for. The first of the list by name finds out that the crawl is over: in rounds, of which two
one after the other have to say the same (Mattern, Distributed Computing 2, 1987, 161-175).

Whoever hears that it is over writes that down before it says so, and goes when the first has noted
it; the first stays until all have said so. So an agent that is killed in between ends when it is
back, whoever is gone by then. What it is started again for after that is up to `late`.

What an agent of a LAN is made of: the others are those of a list (`cluster.lan`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from scrapy_spider_suite.cluster.agreement import shared_settings
from scrapy_spider_suite.cluster.assignment import Member
from scrapy_spider_suite.cluster.mailbox import MessageRules
from scrapy_spider_suite.cluster.membership import PROTOCOL, SKEW_MAX, Heartbeat
from scrapy_spider_suite.cluster.messages import Message
from scrapy_spider_suite.cluster.mode import HAS_ENDED, AgentContext
from scrapy_spider_suite.cluster.transports.udp import Address, UdpTransport, parse_agents
from scrapy_spider_suite.errors import JoinRefusedError, SettingsError
from scrapy_spider_suite.runtime.clock import boottime
from scrapy_spider_suite.runtime.tasks import WarnOnce, logged_task
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.store.job_reader import is_fresh_store

if TYPE_CHECKING:
    from scrapy_spider_suite.cluster.agent import Agent
    from scrapy_spider_suite.settings.suite import SuiteSettings

logger = logging.getLogger(__name__)

SendMessage = Callable[[str, Sequence[Any]], bool]
"""Sends a message to an agent, if there is room for it."""

MEET, AGREE, REFUSE = range(200, 203)
"""What a message is: what do you go by? I agree; we do not. All say what the sender goes by."""

HANDSHAKE_SECONDS: Final = 2.0
"""Seconds for which an answer is waited for before anything is fetched."""

_AGAIN: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds between two questions; messages are sent again anyhow, and who begins asks itself."""
_PAUSE: Final = 0.25
"""Seconds between two questions to who speaks and is not met."""
_LATE: Final = 16
"""Messages to each other agent whose times are remembered."""
_BYTES: Final = 6_000
"""Of all values in a message: a message of one row has 8 KiB at most."""
_JOB: Final = b"job:"
"""Under which, with its name, an agent keeps what job another one has."""
_CLOCK, _LIST = "clock", "list"
_OTHERS: Final = (
    "agent {} has another list, other fixed settings or another release, and all agents of a crawl "
    "need the same: {}"
)
_MET: Final = b"met"
"""There if this job has ever met another agent that agreed."""


class Seniority(IntEnum):
    """How far an agent has come: the higher stays."""

    BEGINS = 0
    ALONE = 1
    MET = 2
    """Its job has met others, in an earlier process."""

    AMONG = 3
    """It has met others."""


class Handshake:
    """Of the agent *name*, whose directory is *job*, with the *others* of its list.

    *terms* is what they have to agree on besides the list, as text; *kv* is this agent's; *tell*
    sends a message; *over* is told ``refused`` if this agent has to end after `meet`. Clocks may
    differ by *skew* seconds; *wall* reads the one here.

    Attributes:
        met: those that agree.
        digest: the same for agents that agree, 64 bits.
    """

    def __init__(
        self, context: AgentContext, others: Sequence[str], terms: Mapping[str, str], *,
        tell: SendMessage, skew: float = SKEW_MAX, wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.met: set[str] = set()
        name = self._name = context.name
        self._others, self._job, self._kv = others, context.job_id, context.kv
        self._tell, self._over = tell, context.over
        self._skew, self._wall = skew, wall
        self._asked: dict[str, deque[tuple[float, float]]] = {}  # wall time and another, of late
        listed = ", ".join(sorted([name, *others]))
        whole = {**terms, "SUITE_AGENTS": listed, "the protocol": str(PROTOCOL)}
        self.digest = xxh3_64_intdigest(repr(sorted(whole.items())).encode())
        most = _BYTES // len(whole)
        self._terms = {setting: _cut(text, most) for setting, text in whole.items()}
        self._begins, self._among = True, False
        self._refused: JoinRefusedError | None = None
        self._answered = asyncio.Event()
        self._said: dict[str, str] = {}  # why another one was refused

    async def meet(self) -> None:
        """Wait for one that agrees. Raises `JoinRefusedError`: one does not."""
        if not self._others:
            self._answered.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await self._answered.wait()
        if self._refused:
            raise self._refused
        if not self._answered.is_set():
            logger.warning(
                "no agent of SUITE_AGENTS has answered agent %s within %g s (%s): it begins with "
                "what is its own. Those that run with another key do not hear it",
                self._name, HANDSHAKE_SECONDS, ", ".join(self._others),
            )  # fmt: skip
        self._begins = False

    async def ask(self) -> None:
        """Ask those that have not been met."""
        for wait in _AGAIN:
            for other in self._others:
                if other not in self.met:
                    self.greet(other)
            await asyncio.sleep(wait)

    def greet(self, other: str, kind: int = MEET, asked: float = 0.0) -> None:
        """Say to *other* what this agent goes by; it is the answer to what it said when it was
        *asked* there."""
        wall = self._wall()
        self._asked.setdefault(other, deque(maxlen=_LATE)).append((wall, boottime()))
        said = [kind, self._terms, int(self._standing), self._job, wall, asked, self._skew]
        self._tell(other, said)

    def wonder(self, other: str) -> None:
        """Ask *other*, who has spoken and is not met; not for each of many messages in a row."""
        said = self._asked.get(other)
        if not said or boottime() - said[-1][1] > _PAUSE:
            self.greet(other)

    def heard(self, sender: str, message: Sequence[Any]) -> None:
        """Take in a *message*. Raises `ValueError` or `TypeError`: it is none."""
        kind, terms, standing, job, wall, asked, skew = message
        if not isinstance(terms, dict) or not isinstance(job, str):
            raise TypeError(f"no terms from {sender}")
        if not all(map(math.isfinite, (wall, asked, skew))):
            raise ValueError(f"no time from {sender}")
        there = {str(setting): str(text) for setting, text in terms.items()}
        standing = Seniority(standing)
        if self._refused:
            return
        differ = why = _difference(self._terms, there)
        if not differ:
            took = self._took(sender, asked)
            skew = min(skew, self._skew)
            off = None if took is None else self._off(wall, took, kind, skew)
            if off is None:
                self._agrees(sender, kind, job, wall, answers=took is not None)
                return
            differ, why = self._clocks(sender, off, skew), _CLOCK
        self.met.discard(sender)
        if self._yields(standing, sender):
            if kind != REFUSE:
                self.greet(sender, REFUSE, wall)  # so that it can say so, too
            if why == _CLOCK:
                self._end(JoinRefusedError(differ, _CLOCK))
            else:
                self._end(JoinRefusedError(_OTHERS.format(sender, differ), "terms"))
            return
        if self._said.get(sender) != why:
            self._said[sender] = why
            logger.warning("agent %s is refused by agent %s: %s", sender, self._name, differ)
        self.greet(sender, REFUSE, wall)

    def unlisted(self, by: str) -> None:
        """The list of agent *by* does not have this one: they cannot speak to each other."""
        why = (
            f"agent {by} runs with another list, on which agent {self._name} is not, and all "
            "agents of a crawl need the same SUITE_AGENTS"
        )
        if self._refused:
            return
        if self._begins:
            self._end(JoinRefusedError(why, "terms"))
        elif self._said.get(by) != _LIST:
            self._said[by] = _LIST
            logger.warning("%s: this one runs already, and goes on; stop one of the two", why)

    def _took(self, sender: str, asked: float) -> float | None:
        """Seconds since this process has said to *sender* what was *asked* then."""
        said = dict(self._asked.get(sender, ()))
        return boottime() - said[asked] if asked in said else None

    def _off(self, wall: float, took: float, kind: int, skew: float) -> float | None:
        """By how many seconds, at least, a clock is ahead that said *wall* in an answer that *took*
        so long; None if it is off by *skew* at most, unless the other one has found otherwise.
        """
        now = self._wall()
        ahead, behind = wall - now, now - took - wall
        if max(ahead, behind) > skew:
            return ahead if ahead > behind else -behind
        return (ahead - behind) / 2 if kind == REFUSE else None

    def _clocks(self, sender: str, off: float, skew: float) -> str:
        setting = "SUITE_PHASE_GUARD" if skew < SKEW_MAX else "SUITE_CLUSTER"
        return (
            f"the clock of agent {sender} is {abs(off):,.1f} s "
            f"{'ahead of' if off > 0 else 'behind'} that of agent {self._name}: expected "
            f"{skew:g} s at most by {setting}; set it right (NTP)"
        )

    @property
    def _standing(self) -> Seniority:
        if self._among:
            return Seniority.AMONG
        if self._kv.get(_MET) is not None:
            return Seniority.MET
        return Seniority.BEGINS if self._begins else Seniority.ALONE

    def _yields(self, standing: Seniority, sender: str) -> bool:
        """Whether it is this agent that ends."""
        own = self._standing
        return own < standing or (own == standing and self._name > sender)

    def _agrees(self, sender: str, kind: int, job: str, wall: float, *, answers: bool) -> None:
        """*sender* does; that is enough if it *answers* what was asked here, by now."""
        if answers:
            self._said.pop(sender, None)
            self._meets(sender, job)
            if kind == MEET:
                self.greet(sender, AGREE, wall)
        elif kind == MEET or sender not in self.met:
            self.greet(sender, MEET, wall)

    def _meets(self, sender: str, job: str) -> None:
        known = self._kv.get(_JOB + sender.encode())
        if known is not None and known != job.encode():
            logger.error(
                "agent %s has begun anew: its job directory was lost. What it had is lost with it: "
                "URLs that others had sent to it, and what it had fetched, which is fetched again; "
                "add the seeds of this crawl again (scrapy frontier add)", sender,
            )  # fmt: skip
        if known != job.encode():
            self._kv.put(_JOB + sender.encode(), job.encode())
            self._kv.put(_MET, b"")
        self.met.add(sender)
        self._among = True
        self._answered.set()

    def _end(self, why: JoinRefusedError) -> None:
        self._refused = why
        if self._begins:
            self._answered.set()
        else:
            logger.error("%s: this agent ends", self._refused)
            self._over("refused")


def _cut(text: str, most: int) -> str:
    """*text*, or what tells it from others within *most* bytes."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= most:
        return data.decode()
    return f"{data[: most - 24].decode('utf-8', 'ignore')}… ({xxh3_64_hexdigest(data)})"


def _difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """In which settings the two differ."""
    return "; ".join(
        f"{name} is {here.get(name, 'unset')} here and {there.get(name, 'unset')} there"
        for name in sorted(here.keys() | there.keys()) if here.get(name) != there.get(name)
    )  # fmt: skip


ENDED: Final = b"ended"
"""Under which an agent keeps that it has closed after the end."""

ARRIVAL_SECONDS: Final = 15.0
"""Seconds for which others may be on their way; and after which one that has said nothing of
itself is gone."""
_LOOK: Final = 0.25


class LateStart:
    """Of an agent with *others*, of which *met* have been met; *kv* is this agent's, *post* says
    what it does, and *say* tells those that were met whether it is idle.

    Attributes:
        late: the crawl had ended when this agent was started, and does not go on.
    """

    def __init__(
        self, others: Collection[str], met: Collection[str], kv: KV, *,
        post: Callable[[], Heartbeat], say: Callable[[bool], None],
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
            there = len(self._met) == len(self._others) or now - began > ARRIVAL_SECONDS
            rest = all(self._rests(name, met, now) for name, met in since.items())
            if said.idle and there and rest:
                return False
            await asyncio.sleep(_LOOK)

    def _rests(self, name: str, met: float, now: float) -> bool:
        idle, when = self._idle.get(name, (False, met))
        return idle or now - when > ARRIVAL_SECONDS


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


class _RoundReport(NamedTuple):
    """What an agent said in a round; *incarnation* is that of its process."""

    incarnation: int
    round: int
    idle: bool
    sent: int
    received: int
    activity: int


class LanMode(MessageRules):
    """The agent of *ownership* among *names*, all of those on the list.

    *terms* are the settings in which they have to agree, *job* is whose directory it is; *kv* is
    this agent's, and *written* makes durable what it holds. Clocks may differ by *skew* seconds;
    *wall* reads the one here. The other arguments are those of `peer.Peer`. Messages of others are
    given to `heard`; *tell* is to be set before `start`.

    Attributes:
        ended: the crawl is over: all agents are idle.
    """

    listens = True
    tell: SendMessage

    def __init__(
        self, context: AgentContext, names: Sequence[str], terms: Mapping[str, str], *,
        skew: float = SKEW_MAX, wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.ended = False
        self._names = sorted(names)
        self._others = [name for name in self._names if name != context.name]
        self._ownership = context.ownership
        self._incarnation = context.incarnation
        self._changed, self._post, self._over = context.changed, context.heartbeat, context.over
        self._greeting = Handshake(
            context, self._others, terms, tell=lambda to, message: self.tell(to, message),
            skew=skew, wall=wall,
        )  # fmt: skip
        self._round = 1
        self._said: dict[str, _RoundReport] = {}
        self._before: list[_RoundReport] = []
        self._strangers: set[str] = set()  # whose messages were not taken
        kv = self._kv = context.kv
        self._late = LateStart(
            self._others, self._greeting.met, kv, post=self._post, say=self._say_late
        )  # fmt: skip
        self._written = context.written
        known = kv.get(OVER)
        self._over_before = known is not None  # as of an earlier process
        self._found = self._over_before  # that it is over
        self._know = set((known or b"").decode().splitlines())  # who knows it
        self._noted = set(self._know)
        self._dismissed = asyncio.Event()
        self._once = WarnOnce(logger, f"agent {context.name}")
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Own, and hold, what is this agent's."""
        # A list has no epochs: what stands in each message for one says what its sender goes by.
        self._ownership.set_members(self._greeting.digest, [Member(name) for name in self._names])
        self._ownership.hold_own()
        self._changed()

    def start(self) -> None:
        """Ask the others from now on, if that is this agent's business; and who they are."""
        self._asking = logged_task(self._greeting.ask(), "greetings")
        if self._late.late:
            if not self._post().left:
                logger.warning(HAS_ENDED)
            self._task = logged_task(self._rest(), "rounds")
        elif self._leads:
            self._task = logged_task(self._lead(), "rounds")
        elif self._over_before:
            self._task = logged_task(self._follow(), "rounds")

    async def meet(self) -> None:
        """Wait, not for long, for one that agrees. Raises `JoinRefusedError`: one does not."""
        await self._greeting.meet()

    def takes(self, message: Message) -> bool:
        """Whether the sender of *message* agrees with this agent."""
        if message.epoch == self._greeting.digest:
            self._strangers.discard(message.sender)
            return True
        if message.sender in self._others and message.sender not in self._strangers:
            self._strangers.add(message.sender)
            logger.warning(
                "agent %s does not take the URLs that agent %s sends: they do not agree on the "
                "list, the fixed settings or the release", self._ownership.name, message.sender,
            )  # fmt: skip
            self._greeting.greet(message.sender)
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
        return self._first == self._ownership.name

    # Rounds

    async def _lead(self) -> None:
        await self._ask()
        await self._tell_all()
        self._end()

    async def _ask(self) -> None:
        while not self._found:
            self._say(self._ownership.name, self._own())
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
            self._task = logged_task(self._lead(), "rounds")

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

    def _own(self) -> _RoundReport:
        said = self._post()
        return _RoundReport(
            self._incarnation, self._round, said.idle, said.sent, said.received, said.activity
        )

    def _say(self, name: str, said: _RoundReport) -> None:
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
            said = _RoundReport(incarnation, number, bool(idle), sent, received, activity)
            self._say(sender, said)
        elif kind == END and sender == self._first:
            if not (self._found or self.ended):
                if self._task is not None:  # it was late
                    self._task.cancel()
                self._task = logged_task(self._follow(), "rounds")
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


def make_lan_mode(agent: Agent, context: AgentContext) -> tuple[LanMode, UdpTransport]:
    """Return the mode of *agent*, and its transport. Raises `SettingsError`, `ValueError`."""
    settings, phasing = agent.crawl.settings, agent.phasing
    agents = listed_agents(settings)
    if agent.name not in agents:
        raise SettingsError.of("SUITE_AGENT_NAME", agent.name, f"one of {', '.join(agents)}")
    if is_fresh_store(agent.job.store):
        context.kv.delete(b"names")  # those of a start that was refused
    check_agent_names(context.kv, agents)
    if phasing is not None:
        phasing.check(tuple(agents))
    mode = LanMode(
        context, list(agents), shared_settings(settings, agent.assignment),
        skew=SKEW_MAX if phasing is None else phasing.terms.skew,
    )  # fmt: skip
    mode.tell = agent.send_notice
    key = "" if settings.cluster_key is None else settings.cluster_key.text
    return mode, UdpTransport(agent.name, agents, key.encode(), unlisted=mode.unlisted)


def listed_agents(settings: SuiteSettings) -> dict[str, Address]:
    """Those of the list. Raises `SettingsError`: it is none."""
    try:
        return parse_agents(settings.agents)
    except ValueError as error:
        raise SettingsError(f"SUITE_AGENTS: {error}") from error


def check_agent_names(kv: KV, names: Iterable[str]) -> None:
    """Raise `SettingsError` if the agents of the list are not those that the job began with, as
    *kv* keeps them: nothing is handed over, so what is another's by now would stay for ever."""
    given = "\n".join(sorted(names)).encode()
    known = kv.get(b"names") or given
    if known != given:
        raise SettingsError(
            f"SUITE_AGENTS: expected {', '.join(known.decode().splitlines())}, the agents that "
            "the job was begun with: their addresses may change, and nothing else"
        )
    kv.put(b"names", given)
