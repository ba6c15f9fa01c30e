"""Agents of a list meet: those that disagree on the list, the fixed settings or the release part.

Each asks all others as it begins, and fetches once one that agrees has answered: who agrees with
one agrees with all. Where nobody answers within `MEETING` seconds it goes on alone, since on a LAN
who is away is waited for; rows carry `Greeting.digest`, so no others come from elsewhere. Of two
that disagree one ends: who has just begun, then who has met nobody yet, then the later by name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any, Final

from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from scrapy_spider_suite.agents.members import PROTOCOL
from scrapy_spider_suite.errors import JoinRefusedError
from scrapy_spider_suite.storage.kv import KV

logger = logging.getLogger(__name__)

Tell = Callable[[str, Sequence[Any]], bool]
"""Sends a message to an agent, if there is room for it."""

MEET, AGREE, REFUSE = range(200, 203)
"""What a message is: what do you go by? I agree; you have to end. All say what the sender goes by.
"""

MEETING: Final = 2.0
"""Seconds for which an answer is waited for before anything is fetched."""

_AGAIN: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds between two questions; letters are sent again anyhow, and who begins asks itself."""
_BYTES: Final = 6_000
"""Of all values in a message: a letter of one row has 8 KiB at most."""
_JOB: Final = b"job:"
"""Under which, with its name, an agent keeps what job another one has."""
_MET: Final = b"met"
"""There if this job has ever met another agent that agreed."""


class Standing(IntEnum):
    """How far an agent has come: the higher stays."""

    BEGINS = 0
    ALONE = 1
    MET = 2


class Greeting:
    """Of the agent *name*, whose directory is *job*, with the *others* of its list.

    *terms* is what they have to agree on besides the list, as text; *kv* is this agent's; *tell*
    sends a message; *over* is told ``refused`` if this agent has to end after `meet`.

    Attributes:
        met: those that agree.
        digest: the same for agents that agree, 64 bits.
    """

    def __init__(
        self, name: str, others: Sequence[str], terms: Mapping[str, str], job: str, kv: KV, *,
        tell: Tell, over: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.met: set[str] = set()
        self._name, self._others, self._job, self._kv = name, others, job, kv
        self._tell, self._over = tell, over
        listed = ", ".join(sorted([name, *others]))
        whole = {**terms, "SUITE_AGENTS": listed, "the protocol": str(PROTOCOL)}
        self.digest = xxh3_64_intdigest(repr(sorted(whole.items())).encode())
        most = _BYTES // len(whole)
        self._terms = {setting: _cut(text, most) for setting, text in whole.items()}
        self._begins = True
        self._refused = ""
        self._answered = asyncio.Event()
        self._said: dict[str, str] = {}  # why another one was refused

    async def meet(self) -> None:
        """Wait for one that agrees. Raises `JoinRefusedError`: one does not."""
        with suppress(TimeoutError):
            async with asyncio.timeout(MEETING):
                await self._answered.wait()
        if self._refused:
            raise JoinRefusedError(self._refused, "terms")
        self._begins = False

    async def ask(self) -> None:
        """Ask those that have not been met."""
        for wait in _AGAIN:
            for other in self._others:
                if other not in self.met:
                    self.greet(other)
            await asyncio.sleep(wait)

    def greet(self, other: str, kind: int = MEET) -> None:
        """Say to *other* what this agent goes by."""
        self._tell(other, [kind, self._terms, int(self._standing), self._job])

    def heard(self, sender: str, message: Sequence[Any]) -> None:
        """Take in a *message*. Raises `ValueError` or `TypeError`: it is none."""
        kind, terms, standing, job = message
        if not isinstance(terms, dict) or not isinstance(job, str):
            raise TypeError(f"no terms from {sender}")
        there = {str(setting): str(text) for setting, text in terms.items()}
        if there == self._terms:
            self._said.pop(sender, None)
            self._agree(sender, job)
            if kind == MEET:
                self.greet(sender, AGREE)
            return
        self.met.discard(sender)
        differ = _difference(self._terms, there)
        if self._yields(Standing(standing), sender, asked=kind == REFUSE):
            self._end(sender, kind, differ)
        else:
            if self._said.get(sender) != differ:
                self._said[sender] = differ
                logger.warning("agent %s is refused by agent %s: %s", sender, self._name, differ)
            self.greet(sender, REFUSE)

    @property
    def _standing(self) -> Standing:
        if self._kv.get(_MET) is not None:
            return Standing.MET
        return Standing.BEGINS if self._begins else Standing.ALONE

    def _yields(self, standing: Standing, sender: str, *, asked: bool) -> bool:
        """Whether it is this agent that ends; *asked* to do so it does, unless it has come further
        since."""
        own = self._standing
        return own < standing or (own == standing and (asked or self._name > sender))

    def _agree(self, sender: str, job: str) -> None:
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
        self._answered.set()

    def _end(self, sender: str, kind: int, differ: str) -> None:
        if self._refused:
            return
        self._refused = (
            f"agent {sender} has another list, other fixed settings or another release, and all "
            f"agents of a crawl need the same: {differ}"
        )
        if kind == MEET:
            self.greet(sender)  # so that it can say so, too
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
