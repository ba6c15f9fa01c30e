"""Mode ``lan``: a fixed list of agents that exchange messages over UDP only (K21).

`Handshake`: an agent fetches once an agent that agrees has answered, or after `HANDSHAKE_SECONDS`.
Of two that disagree the one of lower `Seniority` ends, then the later name.

Rounds: the first agent by name finds the end, when two rounds in a row report the same (Mattern,
Distributed Computing 2, 1987, 161-175). Each agent writes the end down before it confirms it.
`LateStart`: an agent started after the end waits to hear whether the crawl goes on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from scrapy_spider_suite.cluster.agreement import shared_settings
from scrapy_spider_suite.cluster.assignment import Member
from scrapy_spider_suite.cluster.mailbox import MessageRules
from scrapy_spider_suite.cluster.membership import (
    PROTOCOL,
    SKEW_MAX,
    Heartbeat,
    settings_difference,
)
from scrapy_spider_suite.cluster.messages import Message
from scrapy_spider_suite.cluster.mode import HAS_ENDED, AgentContext
from scrapy_spider_suite.cluster.transports.udp import UdpTransport, parse_agents
from scrapy_spider_suite.errors import JoinRefusedError, SettingsError
from scrapy_spider_suite.runtime.clock import boottime
from scrapy_spider_suite.runtime.tasks import WarnOnce, cancel_tasks, logged_task, wait_at_most
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.store.job_reader import is_fresh_store

if TYPE_CHECKING:
    from scrapy_spider_suite.cluster.agent import Agent

logger = logging.getLogger(__name__)

SendMessage = Callable[[str, Sequence[Any]], bool]
"""Sends a message to an agent if there is room."""

MEET, AGREE, REFUSE = range(200, 203)
"""Kinds of messages: a question, agreement, refusal. All carry the sender's terms."""

HANDSHAKE_SECONDS: Final = 2.0
"""Seconds for which an answer is awaited before the first fetch."""

_AGAIN: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds between two questions; transports resend anyhow."""
_PAUSE: Final = 0.25  # seconds between two questions to an agent that speaks and has not been met
_LATE: Final = 16  # messages to each other agent whose times are remembered
_BYTES: Final = 6_000  # of all values in a message, which has 8 KiB at most
_JOB: Final = b"job:"  # prefix of the key that holds the job of another agent
_CLOCK, _LIST = "clock", "list"
_OTHERS: Final = (
    "agent {} has another list, other fixed settings or another release, and all agents of a crawl "
    "need the same: {}"
)
_MET: Final = b"met"  # key that exists once this job has met an agent that agrees


class Seniority(IntEnum):
    """How far an agent has come: the higher one stays."""

    BEGINS = 0
    ALONE = 1
    MET = 2  # in an earlier process of the job
    AMONG = 3


class Handshake:
    """The handshakes of an agent with the *others* of its list.

    Args:
        terms: shared settings besides the list, as text.
        skew: seconds by which clocks may differ.

    Attributes:
        met: agents that agree.
        digest: 64 bits, equal for agents that agree.
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
        """Wait for an agent that agrees. Raises `JoinRefusedError`: one disagrees."""
        if not self._others:
            self._answered.set()
        await wait_at_most(self._answered, HANDSHAKE_SECONDS)
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
        for wait in _AGAIN:
            for other in self._others:
                if other not in self.met:
                    self.greet(other)
            await asyncio.sleep(wait)

    def greet(self, other: str, kind: int = MEET, asked: float = 0.0) -> None:
        """Send this agent's terms to *other*, as an answer to its message of the time *asked*."""
        wall = self._wall()
        self._asked.setdefault(other, deque(maxlen=_LATE)).append((wall, boottime()))
        said = [kind, self._terms, int(self._standing), self._job, wall, asked, self._skew]
        self._tell(other, said)

    def wonder(self, other: str) -> None:
        """Ask *other*, which speaks and has not been met; at most every `_PAUSE` seconds."""
        said = self._asked.get(other)
        if not said or boottime() - said[-1][1] > _PAUSE:
            self.greet(other)

    def heard(self, sender: str, message: Sequence[Any]) -> None:
        """Take a *message*. Raises `ValueError` or `TypeError` for invalid ones."""
        kind, terms, standing, job, wall, asked, skew = message
        if not isinstance(terms, dict) or not isinstance(job, str):
            raise TypeError(f"no terms from {sender}")
        if not all(map(math.isfinite, (wall, asked, skew))):
            raise ValueError(f"no time from {sender}")
        there = {str(setting): str(text) for setting, text in terms.items()}
        standing = Seniority(standing)
        if self._refused:
            return
        differ = why = settings_difference(self._terms, there)
        if not differ:
            said = dict(self._asked.get(sender, ()))
            took = boottime() - said[asked] if asked in said else None
            skew = min(skew, self._skew)
            off = None if took is None else self._off(wall, took, kind, skew)
            if off is None:
                self._agrees(sender, kind, job, wall, answers=took is not None)
                return
            differ, why = self._clocks(sender, off, skew), _CLOCK
        self.met.discard(sender)
        own = self._standing
        if own < standing or (own == standing and self._name > sender):
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

    def _off(self, wall: float, took: float, kind: int, skew: float) -> float | None:
        """Return the least seconds by which the sender's clock is ahead, or None within *skew*.

        *wall* came in an answer that *took* so long. With REFUSE the other agent found too many.
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

    def _agrees(self, sender: str, kind: int, job: str, wall: float, *, answers: bool) -> None:
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
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= most:
        return data.decode()
    return f"{data[: most - 24].decode('utf-8', 'ignore')}… ({xxh3_64_hexdigest(data)})"


ENDED: Final = b"ended"
"""Key that exists once the agent has closed after the end."""

ARRIVAL_SECONDS: Final = 15.0
"""Seconds for which others may still arrive; and after which a silent agent counts as gone."""
_LOOK: Final = 0.25


class LateStart:
    """An agent that is started after the end.

    Attributes:
        late: the crawl had ended at the start, and does not go on.
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
        self._kv.put(ENDED, b"")

    def forget(self) -> None:
        self.late = False
        self._kv.delete(ENDED)

    def heard(self, sender: str, *, idle: bool) -> None:
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
"""Kinds of messages: question of a round; its answer; the crawl is over; the confirmation is noted;
this agent started late, and is idle or not; the crawl goes on. They count after a handshake only.
"""

OVER: Final = b"over"
"""Key that holds that the crawl is over; at the first agent, which agents know it."""

_BEAT: Final = 1.0
_LAST: Final = 15.0
"""Seconds for which an agent waits for the first to note the end; then the first names who is
missing."""


class _RoundReport(NamedTuple):
    incarnation: int
    round: int
    idle: bool
    sent: int
    received: int
    activity: int


class LanMode(MessageRules):
    """Mode ``lan`` of an agent among *names*; set *tell* before `start`."""

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
        self._handshake = Handshake(
            context, self._others, terms, tell=lambda to, message: self.tell(to, message),
            skew=skew, wall=wall,
        )  # fmt: skip
        self._round = 1
        self._said: dict[str, _RoundReport] = {}
        self._before: list[_RoundReport] = []
        self._refused_senders: set[str] = set()  # whose messages were not taken
        kv = self._kv = context.kv
        self._late = LateStart(
            self._others, self._handshake.met, kv, post=self._post, say=self._say_late
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
        # A list has no epochs: what stands in each message for one says what its sender goes by.
        self._ownership.set_members(self._handshake.digest, [Member(name) for name in self._names])
        self._ownership.hold_own()
        self._changed()

    def start(self) -> None:
        """Begin the handshakes, and the rounds if this agent leads them."""
        self._asking = logged_task(self._handshake.ask(), "greetings")
        if self._late.late:
            if not self._post().left:
                logger.warning(HAS_ENDED)
            self._task = logged_task(self._rest(), "rounds")
        elif self._leads:
            self._task = logged_task(self._lead(), "rounds")
        elif self._over_before:
            self._task = logged_task(self._follow(), "rounds")

    async def meet(self) -> None:
        """Wait shortly for an agent that agrees. Raises `JoinRefusedError`."""
        await self._handshake.meet()

    def takes(self, message: Message) -> bool:
        if message.epoch == self._handshake.digest:
            self._refused_senders.discard(message.sender)
            return True
        if message.sender in self._others and message.sender not in self._refused_senders:
            self._refused_senders.add(message.sender)
            logger.warning(
                "agent %s does not take the URLs that agent %s sends: they do not agree on the "
                "list, the fixed settings or the release", self._ownership.name, message.sender,
            )  # fmt: skip
            self._handshake.greet(message.sender)
        return False

    def agrees(self, to: str) -> bool:
        """Whether the agent *to* agrees with this one; others keep no rows of it."""
        return to in self._handshake.met

    def unlisted(self, by: str) -> None:
        self._handshake.unlisted(by)

    async def close(self, *, over: bool = False) -> None:
        """Stop; the others wait for this agent, unless it is *over*."""
        if over and self.ended:
            self._kv.delete(OVER)
            self._late.mark()
        await cancel_tasks(self._task, self._asking)

    def may_fetch(self, delay: float = 0.0) -> bool:
        return True

    def drain(self) -> None:
        logger.error("with SUITE_CLUSTER = 'lan' the list of agents is fixed: this one stays")

    @property
    def busy(self) -> bool:
        return False

    @property
    def stats(self) -> dict[str, int | float]:
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
        self._kv.put(OVER, "\n".join(sorted(self._know)).encode())
        know = set(self._know)
        await self._written()
        for name in know - self._noted:
            self.tell(name, [NOTED])
        self._noted |= know

    async def _follow(self) -> None:
        self._found = True
        self._late.forget()
        await self._note()
        until = asyncio.get_running_loop().time() + _LAST
        while not self._dismissed.is_set() and asyncio.get_running_loop().time() < until:
            self.tell(self._first, [END])
            await wait_at_most(self._dismissed, _BEAT / 4)
        self._end()

    def _goes_on(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._over_before = self._found = False
        self._kv.delete(OVER)
        self._late.forget()
        if self._leads:
            self._task = logged_task(self._lead(), "rounds")

    async def _rest(self) -> None:
        if not await self._late.goes_on():
            self._end()
            return
        self._late.forget()
        if self._leads:
            await self._lead()

    def _say_late(self, idle: bool) -> None:
        for name in self._handshake.met:
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
        """Take a *message*. Raises `ValueError` or `TypeError` for invalid ones."""
        kind, *rest = message
        leads, late = self._leads, self._late.late
        if kind in (MEET, AGREE, REFUSE):
            self._handshake.heard(sender, message)
        elif sender not in self._handshake.met:
            self._handshake.wonder(sender)  # it will say that again
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
        known = self._found and sender in self._noted
        if known or (self._late.late and self.ended):  # it had noted all before
            self.tell(sender, [NOTED])
        elif self._found:
            self._know.add(sender)

    def _hears_late(self, sender: str, *, idle: bool) -> None:
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
    try:
        agents = parse_agents(settings.agents)
    except ValueError as error:
        raise SettingsError(f"SUITE_AGENTS: {error}") from error
    if agent.name not in agents:
        raise SettingsError.of("SUITE_AGENT_NAME", agent.name, f"one of {', '.join(agents)}")
    if is_fresh_store(agent.job.store):
        context.kv.delete(b"names")  # those of a start that was refused
    check_agent_names(context.kv, agents)
    if phasing is not None:
        phasing.check(tuple(agents))
    mode = LanMode(
        context, list(agents), shared_settings(settings, agent.ownership.assignment),
        skew=SKEW_MAX if phasing is None else phasing.terms.skew,
    )  # fmt: skip
    mode.tell = agent.send_notice
    key = "" if settings.cluster_key is None else settings.cluster_key.text
    return mode, UdpTransport(agent.name, agents, key.encode(), unlisted=mode.unlisted)


def check_agent_names(kv: KV, names: Iterable[str]) -> None:
    """Raise `SettingsError` if *names* are not those in *kv* that the job began with.

    Hosts do not move, so rows of another agent would stay for ever.
    """
    given = "\n".join(sorted(names)).encode()
    known = kv.get(b"names") or given
    if known != given:
        raise SettingsError(
            f"SUITE_AGENTS: expected {', '.join(known.decode().splitlines())}, the agents that "
            "the job was begun with: their addresses may change, and nothing else"
        )
    kv.put(b"names", given)
