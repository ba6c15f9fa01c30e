"""Mode ``lan``: a fixed list of agents that exchange messages over UDP only.

An agent fetches once an agent that agrees has answered, or after `HANDSHAKE_SECONDS`. Of two that
disagree the one of lower `Seniority` ends, then the later name.

The first agent by name finds the end, when two rounds in a row report the same (Mattern,
Distributed Computing 2, 1987, 161-175). Each agent writes the end down before it confirms it. An
agent started after the end waits to hear whether the crawl goes on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xxhash import xxh3_64_intdigest

from scrapy_spider_suite.cluster.assignment import Member
from scrapy_spider_suite.cluster.mailbox import HAS_ENDED, ClusterMode
from scrapy_spider_suite.cluster.membership import (
    PROTOCOL,
    SKEW_MAX,
    settings_difference,
    shared_settings,
    shortened,
)
from scrapy_spider_suite.cluster.messages import Message
from scrapy_spider_suite.cluster.transports.udp import UdpTransport, parse_agents
from scrapy_spider_suite.errors import JoinRefusedError, SettingsError
from scrapy_spider_suite.runtime.clock import boottime
from scrapy_spider_suite.runtime.tasks import WarnOnce, cancel_tasks, logged_task, wait_at_most
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.store.job_reader import is_fresh_store

if TYPE_CHECKING:
    from scrapy_spider_suite.cluster.agent import Agent

logger = logging.getLogger(__name__)

MEET, AGREE, REFUSE = range(200, 203)  # kinds of messages, which carry the sender's terms
HANDSHAKE_SECONDS: Final = 2.0  # seconds for which an answer is awaited before the first fetch
_AGAIN: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # seconds between two questions
_PAUSE: Final = 0.25  # seconds between two questions to an agent that speaks and has not been met
_LATE: Final = 16  # messages to each other agent whose times are remembered
_BYTES: Final = 6_000  # of all values in a message, which has 8 KiB at most
_JOB: Final = b"job:"  # prefix of the key that holds the job of another agent
_CLOCK, _LIST = "clock", "list"
_DISAGREES: Final = (
    "agent {} has another list, other fixed settings or another protocol, and all agents of a "
    "crawl need the same: {}"
)
_MET: Final = b"met"  # key that exists once this job has met an agent that agrees


class Seniority(IntEnum):
    """How far an agent has come: the higher one stays."""

    BEGINS = 0
    ALONE = 1
    MET = 2  # in an earlier process of the job
    AMONG = 3


class Handshake:
    """The handshakes of *agent* with the *others* of its list, about its *terms*.

    *skew*: seconds by which clocks may differ. *digest*: 64 bits, equal for agents that agree.
    """

    def __init__(
        self, agent: Agent, others: Sequence[str], terms: Mapping[str, str], *,
        skew: float = SKEW_MAX, wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.met: set[str] = set()  # agents that agree
        self._agent, self._others = agent, others
        self._name, self._job, self._kv = agent.name, agent.job.file.id, agent.kv
        self._skew, self._wall = skew, wall
        self._asked: dict[str, deque[tuple[float, float]]] = {}  # wall time and another, of late
        listed = ", ".join(sorted([agent.name, *others]))
        whole = {**terms, "SUITE_AGENTS": listed, "the protocol": str(PROTOCOL)}
        # Equal for agents that agree.
        self.digest = xxh3_64_intdigest(repr(sorted(whole.items())).encode())
        most = _BYTES // len(whole)
        self._terms = {setting: shortened(text, most) for setting, text in whole.items()}
        self._begins, self._among = True, False
        self._refused: JoinRefusedError | None = None
        self._answered = asyncio.Event()
        self._refusals: dict[str, str] = {}  # why an agent was refused

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
        self._agent.send_notice(other, said)

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
            if asked not in said:  # no answer to a question of this process
                if kind == MEET or sender not in self.met:
                    self.greet(sender, MEET, wall)
                return
            took, why = boottime() - said[asked], _CLOCK
            differ = self._clock_difference(sender, wall, took, kind, min(skew, self._skew))
            if not differ:
                self._meet(sender, job)
                if kind == MEET:
                    self.greet(sender, AGREE, wall)
                return
        self.met.discard(sender)
        own = self._standing
        if own < standing or (own == standing and self._name > sender):
            if kind != REFUSE:
                self.greet(sender, REFUSE, wall)  # so that it can say so, too
            text = differ if why == _CLOCK else _DISAGREES.format(sender, differ)
            self._end(JoinRefusedError(text, _CLOCK if why == _CLOCK else "terms"))
            return
        if self._refusals.get(sender) != why:
            self._refusals[sender] = why
            logger.warning("agent %s is refused by agent %s: %s", sender, self._name, differ)
        self.greet(sender, REFUSE, wall)

    def unlisted(self, by: str) -> None:
        why = (
            f"agent {by} runs with another list, on which agent {self._name} is not, and all "
            "agents of a crawl need the same SUITE_AGENTS"
        )
        if self._begins and not self._refused:
            self._end(JoinRefusedError(why, "terms"))
        elif not self._refused and self._refusals.get(by) != _LIST:
            self._refusals[by] = _LIST
            logger.warning("%s: this one runs already, and goes on; stop one of the two", why)

    def _clock_difference(
        self, sender: str, wall: float, took: float, kind: int, skew: float
    ) -> str:
        """Return one line on clocks that differ by more than *skew*; otherwise "".

        *wall* came in an answer that *took* so long. With REFUSE the other agent found it so.
        """
        now = self._wall()
        ahead, behind = wall - now, now - took - wall  # by so much at least
        if max(ahead, behind) > skew:
            off = ahead if ahead > behind else -behind
        elif kind == REFUSE:
            off = (ahead - behind) / 2
        else:
            return ""
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

    def _meet(self, sender: str, job: str) -> None:
        self._refusals.pop(sender, None)
        key, now = _JOB + sender.encode(), job.encode()
        known = self._kv.get(key)
        if known is not None and known != now:
            logger.error(
                "agent %s has begun anew: its job directory was lost. What it had is lost with it: "
                "URLs that others had sent to it, and what it had fetched, which is fetched again; "
                "add the seeds of this crawl again (scrapy frontier add)", sender,
            )  # fmt: skip
        if known != now:
            self._kv.put(key, now)
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
            self._agent.over("refused")


ENDED: Final = b"ended"  # key that exists once the agent has closed after the end
ARRIVAL_SECONDS: Final = 15.0  # for which agents may still arrive; a silent one is gone then
_LATE_CHECK: Final = 0.25
# Kinds of messages: question of a round; its answer; the crawl is over; the confirmation is noted;
# this agent started late, and is idle or not; the crawl goes on. They count after a handshake only.
ASK, POST, END, NOTED, LATE, ON = range(100, 106)
OVER: Final = b"over"  # key that exists once the crawl is over; its value: agents that know it
_BEAT: Final = 1.0
_LAST: Final = 15.0  # seconds for which the others are waited for at the end


class _RoundReport(NamedTuple):
    incarnation: int
    round: int
    idle: int  # 0 or 1
    sent: int
    received: int
    activity: int


class LanMode(ClusterMode):
    """Mode ``lan`` of *agent* among *names*."""

    listens = True

    def __init__(
        self, agent: Agent, names: Sequence[str], terms: Mapping[str, str], *,
        skew: float = SKEW_MAX, wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._agent, self._kv = agent, agent.kv
        self._names = sorted(names)
        self._others = [name for name in self._names if name != agent.name]
        self._first = self._names[0]
        self._leads = self._first == agent.name
        self.handshake = Handshake(agent, self._others, terms, skew=skew, wall=wall)
        self._round = 1
        self._reports: dict[str, _RoundReport] = {}
        self._last_reports: list[_RoundReport] = []
        self._refused_senders: set[str] = set()
        self.late = self._kv.get(ENDED) is not None  # the crawl had ended, and does not go on
        self._late_idle: dict[str, tuple[bool, float]] = {}  # what late agents said last, and when
        known = self._kv.get(OVER)
        self._over_before = known is not None  # as of an earlier process
        self._found = self._over_before  # that it is over
        self._know = set((known or b"").decode().splitlines())  # agents that know it
        self._noted = set(self._know)
        self._dismissed = asyncio.Event()
        self._once = WarnOnce(logger, f"agent {agent.name}")
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None

    async def open(self) -> None:
        # A list has no epochs: messages carry the digest of the terms in their place.
        ownership, members = self._agent.ownership, [Member(name) for name in self._names]
        ownership.set_members(self.handshake.digest, members)
        ownership.hold_own()
        self._agent.changed()

    def start(self) -> None:
        self._asking = logged_task(self.handshake.ask(), "greetings")
        if self.late:
            if not self._agent.heartbeat().left:
                logger.warning(HAS_ENDED)
            self._task = logged_task(self._wait_late(), "rounds")
        elif self._leads:
            self._task = logged_task(self._lead(), "rounds")
        elif self._over_before:
            self._task = logged_task(self._follow(), "rounds")

    async def meet(self) -> None:
        await self.handshake.meet()

    def accepts(self, message: Message) -> bool:
        if message.epoch == self.handshake.digest:
            self._refused_senders.discard(message.sender)
            return True
        if message.sender in self._others and message.sender not in self._refused_senders:
            self._refused_senders.add(message.sender)
            logger.warning(
                "agent %s does not take the URLs that agent %s sends: they do not agree on the "
                "list, the fixed settings or the protocol", self._agent.name, message.sender,
            )  # fmt: skip
            self.handshake.greet(message.sender)
        return False

    def agrees(self, to: str) -> bool:
        return to in self.handshake.met

    async def close(self, *, over: bool = False) -> None:
        if over and self.ended:
            self._kv.delete(OVER)
            self._kv.put(ENDED, b"")
        await cancel_tasks(self._task, self._asking)

    def drain(self) -> None:
        logger.error("with SUITE_CLUSTER = 'lan' the list of agents is fixed: this one stays")

    @property
    def stats(self) -> dict[str, int | float]:
        return {"cluster/agents": len(self._names), "cluster/round": self._round}

    # Rounds

    async def _lead(self) -> None:
        while not self._found:
            self._reports[self._agent.name] = self._own_report()
            for name in self._others:
                if name not in self._reports and self.agrees(name):
                    self._agent.send_notice(name, [ASK, self._round])
            await asyncio.sleep(_BEAT)
            if len(self._reports) == len(self._names):
                self._finish_round()
        await self._tell_all()
        self._end()

    def _finish_round(self) -> None:
        reports = [self._reports[name]._replace(round=0) for name in self._names]
        sent, received = sum(each.sent for each in reports), sum(each.received for each in reports)
        quiet = all(each.idle for each in reports) and sent == received
        self._found = quiet and reports == self._last_reports
        self._last_reports = reports if quiet else []
        self._round += 1
        self._reports.clear()

    async def _tell_all(self) -> None:
        until, wait = asyncio.get_running_loop().time() + _LAST, _BEAT / 4
        await self._note_end()
        while left := [name for name in self._others if name not in self._noted]:
            for name in left:
                self._agent.send_notice(name, [END])
            if asyncio.get_running_loop().time() > until:
                wait = _BEAT
                names = ", ".join(left)
                self._once.say("left", f"the crawl is over; {names} are waited for: start them")
            await asyncio.sleep(wait)
            if self._know > self._noted:
                await self._note_end()

    async def _note_end(self) -> None:
        self._kv.put(OVER, "\n".join(sorted(self._know)).encode())
        know = set(self._know)
        await self._agent.write_durably()
        for name in know - self._noted:
            self._agent.send_notice(name, [NOTED])
        self._noted |= know

    async def _follow(self) -> None:
        self._found = True
        self._forget_late()
        await self._note_end()
        until = asyncio.get_running_loop().time() + _LAST
        while not self._dismissed.is_set() and asyncio.get_running_loop().time() < until:
            self._agent.send_notice(self._first, [END])
            await wait_at_most(self._dismissed, _BEAT / 4)
        self._end()

    def _reopen(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._over_before = self._found = False
        self._kv.delete(OVER)
        self._forget_late()
        if self._leads:
            self._task = logged_task(self._lead(), "rounds")

    def _own_report(self) -> _RoundReport:
        own = self._agent.heartbeat()
        return _RoundReport(
            self._agent.incarnation, self._round, own.idle, own.sent, own.received, own.activity
        )

    # After the end

    async def _wait_late(self) -> None:
        if not await self._goes_on():
            self._end()
            return
        self._forget_late()
        if self._leads:
            await self._lead()

    async def _goes_on(self) -> bool:
        met = self.handshake.met
        began, activity = boottime(), self._agent.heartbeat().activity
        since: dict[str, float] = {}  # when each of the others was met
        while True:
            own, now = self._agent.heartbeat(), boottime()
            since.update((name, now) for name in met if name not in since)
            if own.left or own.activity != activity:
                return True
            for name in met:
                self._agent.send_notice(name, [LATE, own.idle])
            there = len(met) == len(self._others) or now - began > ARRIVAL_SECONDS
            reports = [self._late_idle.get(name, (False, when)) for name, when in since.items()]
            rest = all(idle or now - when > ARRIVAL_SECONDS for idle, when in reports)
            if own.idle and there and rest:
                return False
            await asyncio.sleep(_LATE_CHECK)

    def _forget_late(self) -> None:
        self.late = False
        self._kv.delete(ENDED)

    # Messages of others

    def heard(self, sender: str, message: Sequence[Any]) -> None:
        kind, *rest = message
        leads, tell = self._leads, self._agent.send_notice
        if kind in (MEET, AGREE, REFUSE):
            self.handshake.heard(sender, message)
        elif sender not in self.handshake.met:
            self.handshake.wonder(sender)  # it will say that again
        elif kind == ASK and sender == self._first:
            (number,) = rest
            self._round = int(number)
            if (self._over_before or self.late) and not self.ended:
                self._reopen()
            if not (self._found or self.ended):  # it was asked before that was known
                tell(sender, [POST, *self._own_report()])
        elif kind == POST and leads and self._found:
            tell(sender, [END])
        elif kind == POST and leads:
            report = _RoundReport(*map(int, rest))
            if report.round == self._round:
                self._reports[sender] = report
        elif kind == END and sender == self._first:
            if not (self._found or self.ended):
                if self._task is not None:  # it was late
                    self._task.cancel()
                self._task = logged_task(self._follow(), "rounds")
        elif kind == END and leads:
            known = self._found and sender in self._noted
            if known or (self.late and self.ended):  # it had noted all before
                tell(sender, [NOTED])
            elif self._found:
                self._know.add(sender)
        elif kind == NOTED and sender == self._first:
            self._dismissed.set()
        elif kind == LATE:
            (idle,) = rest
            if self.late:
                self._late_idle[sender] = bool(idle), boottime()
            else:
                tell(sender, [ON] if not self._found else [END] if leads else [LATE, True])
        elif kind == ON:
            if self.late and not self.ended:
                self._reopen()
        else:
            raise ValueError(f"no message has the number {kind!r} from {sender}")

    def _end(self) -> None:
        self.ended = True
        self._agent.over("")


def make_lan_mode(agent: Agent) -> LanMode:
    """Return the mode of *agent*, with its transport. Raises `SettingsError`, `ValueError`."""
    settings, phasing = agent.crawl.settings, agent.phasing
    try:
        agents = parse_agents(settings.agents)
    except ValueError as error:
        raise SettingsError(f"SUITE_AGENTS: {error}") from error
    if agent.name not in agents:
        raise SettingsError.of("SUITE_AGENT_NAME", agent.name, f"one of {', '.join(agents)}")
    if is_fresh_store(agent.job.store):
        agent.kv.delete(b"names")  # those of a start that was refused
    check_agent_names(agent.kv, agents)
    if phasing is not None:
        phasing.check(agents)
    mode = LanMode(
        agent, list(agents), shared_settings(settings, agent.ownership.assignment),
        skew=SKEW_MAX if phasing is None else phasing.skew,
    )  # fmt: skip
    key = "" if settings.cluster_key is None else settings.cluster_key.text
    mode.transport = UdpTransport(
        agent.name, agents, key.encode(), unlisted=mode.handshake.unlisted
    )
    return mode


def check_agent_names(kv: KV, names: Iterable[str]) -> None:
    """Raise `SettingsError` if *names* are not those in *kv* that the job began with."""
    # Hosts do not move, so rows of another agent would stay for ever.
    given = "\n".join(sorted(names)).encode()
    known = kv.get(b"names") or given
    if known != given:
        raise SettingsError(
            f"SUITE_AGENTS: expected {', '.join(known.decode().splitlines())}, the agents that "
            "the job was begun with: their addresses may change, and nothing else"
        )
    kv.put(b"names", given)
