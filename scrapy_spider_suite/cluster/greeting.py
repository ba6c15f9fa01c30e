"""Agents of a list meet: those that disagree on the list, the fixed settings or the release part,
and those whose clocks do.

Each asks all others as it begins, and fetches once one that agrees has answered: who agrees with
one agrees with all. Where nobody answers within `MEETING` seconds it goes on alone, since on a LAN
who is away is waited for; rows carry `Greeting.digest`, so no others come from elsewhere. Of two
that disagree one ends: whose `Standing` is lower, then the later by name. A standing only ever
rises, and who has to end has no say any more, so it is never both. Where the list of the one does
not have the other, it is that one, if it has only begun.

Each message says when it was sent, by its sender's clock, and which one it answers: between that
question and its answer that clock was read, so within these bounds it is known how far it is off,
however long either took. Agents have met when each has had an answer of the other.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any, Final

from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from scrapy_spider_suite.agents.members import PROTOCOL, SKEW_MAX
from scrapy_spider_suite.errors import JoinRefusedError
from scrapy_spider_suite.runtime.clock import boottime
from scrapy_spider_suite.store.interface import KV

logger = logging.getLogger(__name__)

Tell = Callable[[str, Sequence[Any]], bool]
"""Sends a message to an agent, if there is room for it."""

MEET, AGREE, REFUSE = range(200, 203)
"""What a message is: what do you go by? I agree; we do not. All say what the sender goes by."""

MEETING: Final = 2.0
"""Seconds for which an answer is waited for before anything is fetched."""

_AGAIN: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds between two questions; letters are sent again anyhow, and who begins asks itself."""
_PAUSE: Final = 0.25
"""Seconds between two questions to who speaks and is not met."""
_LATE: Final = 16
"""Messages to each other agent whose times are remembered."""
_BYTES: Final = 6_000
"""Of all values in a message: a letter of one row has 8 KiB at most."""
_JOB: Final = b"job:"
"""Under which, with its name, an agent keeps what job another one has."""
_CLOCK, _LIST = "clock", "list"
_OTHERS: Final = (
    "agent {} has another list, other fixed settings or another release, and all agents of a crawl "
    "need the same: {}"
)
_MET: Final = b"met"
"""There if this job has ever met another agent that agreed."""


class Standing(IntEnum):
    """How far an agent has come: the higher stays."""

    BEGINS = 0
    ALONE = 1
    MET = 2
    """Its job has met others, in an earlier process."""

    AMONG = 3
    """It has met others."""


class Greeting:
    """Of the agent *name*, whose directory is *job*, with the *others* of its list.

    *terms* is what they have to agree on besides the list, as text; *kv* is this agent's; *tell*
    sends a message; *over* is told ``refused`` if this agent has to end after `meet`. Clocks may
    differ by *skew* seconds; *wall* reads the one here.

    Attributes:
        met: those that agree.
        digest: the same for agents that agree, 64 bits.
    """

    def __init__(
        self, name: str, others: Sequence[str], terms: Mapping[str, str], job: str, kv: KV, *,
        tell: Tell, over: Callable[[str], None], skew: float = SKEW_MAX,
        wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.met: set[str] = set()
        self._name, self._others, self._job, self._kv = name, others, job, kv
        self._tell, self._over = tell, over
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
            async with asyncio.timeout(MEETING):
                await self._answered.wait()
        if self._refused:
            raise self._refused
        if not self._answered.is_set():
            logger.warning(
                "no agent of SUITE_AGENTS has answered agent %s within %g s (%s): it begins with "
                "what is its own. Those that run with another key do not hear it",
                self._name, MEETING, ", ".join(self._others),
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
        standing = Standing(standing)
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
    def _standing(self) -> Standing:
        if self._among:
            return Standing.AMONG
        if self._kv.get(_MET) is not None:
            return Standing.MET
        return Standing.BEGINS if self._begins else Standing.ALONE

    def _yields(self, standing: Standing, sender: str) -> bool:
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
