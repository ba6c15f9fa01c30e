"""Blocks and the pause, as a job keeps them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.errors import ActionError
from scrapy_spider_suite.frontier.overrides import Rule
from scrapy_spider_suite.frontier.policy import Block, Policy
from scrapy_spider_suite.operate.actions import Action, is_time
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.urls.host_patterns import HostPattern

logger = logging.getLogger(__name__)

BLOCKS = "blocks"
"""The `KV` that blocks lie in."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """One block. Times are seconds since the epoch; *until* may be infinite."""

    subject: str
    who: str
    when: float
    reason: str
    until: float = math.inf

    def put_into(self, policy: Policy) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.when))
        rule = Rule(self.subject, f"block by {self.who} on {stamp}")
        block = Block(rule, self.reason, self.until)
        policy.blocks.put(HostPattern.parse(self.subject), block)

    def check(self) -> None:
        """Raises `ActionError`: the block is invalid."""
        texts = (self.subject, self.who, self.reason)
        if not all(isinstance(text, str) for text in texts):
            raise ActionError("a block's subject, its reason and whose it is are texts")
        if not is_time(self.when) or not (self.until == math.inf or is_time(self.until)):
            raise ActionError("a block begins and ends at a time before the year 10000")
        try:
            HostPattern.parse(self.subject)
        except ValueError as error:
            raise ActionError(str(error)) from None

    def put(self, kv: KV) -> None:
        """Raises `ActionError`: the block is invalid."""
        self.check()
        until = None if math.isinf(self.until) else self.until
        kv.put(
            self.subject.encode(), msgpack.packb([self.who, self.when, self.reason, until])
        )


def stored_blocks(kv: KV) -> Iterator[StoredBlock]:
    """All valid blocks of a job."""
    for key, data in kv.items():
        try:
            who, when, reason, until = msgpack.unpackb(data)
            until = math.inf if until is None else until
            block = StoredBlock(key.decode(), who, when, reason, until)
            block.check()
        except (ActionError, ValueError, TypeError, msgpack.UnpackException) as error:
            _complain(key, str(error))
        else:
            yield block


@lru_cache(maxsize=1000)
def _complain(key: bytes, why: str) -> None:
    logger.error("the block of %r is not in force, since it cannot be read: %s", key[:80], why)


def policy_with_blocks(kv: KV, wall: float) -> Policy:
    """A policy with the blocks that hold at *wall*."""
    policy = Policy()
    for each in stored_blocks(kv):
        if each.until > wall:
            each.put_into(policy)
    return policy


def apply_blocks(kv: KV, policy: Policy, wall: float) -> float:
    """Put the blocks of a job into *policy*, and delete the blocks that have ended.

    Returns the next end of a block (wall).
    """
    first = math.inf
    known = {str(subject): subject for subject in policy.blocks}
    for each in list(stored_blocks(kv)):
        if each.until <= wall:
            kv.delete(each.subject.encode())
            continue
        known.pop(each.subject, None)
        each.put_into(policy)
        first = min(first, each.until)
    for subject in known.values():
        policy.blocks.remove(subject)
    policy.bump_revision()
    return first


OPERATOR = "the operator"
"""The reason of a pause, for the scheduler and the status file."""
_PAUSED = b"paused"


def store_pause(kv: KV, action: Action) -> None:
    kv.put(_PAUSED, msgpack.packb([action.who, action.when, action.why]))


def delete_pause(kv: KV) -> None:
    kv.delete(_PAUSED)


def paused_by(kv: KV, *, comment: bool = True) -> str:
    """The name of the operator who paused the job, with their *comment*; "": it is not paused."""
    data = kv.get(_PAUSED)
    if data is None:
        return ""
    who, _, why = msgpack.unpackb(data)
    return f"{who}: {why}" if why and comment else str(who)


def pause_reasons(kv: KV, known: Iterable[str], *, comment: bool = True) -> list[str]:
    """The reasons why a job is paused: an operator by name, and the other *known* reasons."""
    operator = paused_by(kv, comment=comment)
    found = [f"{OPERATOR} ({operator})"] if operator else []
    return found + [each for each in known if each != OPERATOR]
