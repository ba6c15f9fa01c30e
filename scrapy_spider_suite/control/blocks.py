"""The blocks that are kept in a job: a row for each subject, ``who``, ``when``, why, until when."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.frontier.overrides import Rule
from scrapy_spider_suite.frontier.policy import Block, Policy
from scrapy_spider_suite.frontier.subjects import Subject
from scrapy_spider_suite.storage.kv import KV

STORE = "blocks"
"""The `KV` that blocks lie in."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """One block; times are seconds since the epoch, *until* is infinite without an end."""

    subject: str
    who: str
    when: float
    reason: str
    until: float = math.inf

    def block(self) -> Block:
        """As the policy has it."""
        stamp = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.when))
        return Block(Rule(self.subject, f"block by {self.who} on {stamp}"), self.reason, self.until)

    def put(self, kv: KV) -> None:
        """Keep it."""
        until = None if math.isinf(self.until) else self.until
        kv.put(
            self.subject.encode(), msgpack.packb([self.who, self.when, self.reason, until])
        )


def stored(kv: KV) -> Iterator[StoredBlock]:
    """Every block that is kept."""
    for key, data in kv.items():
        who, when, reason, until = msgpack.unpackb(data)
        yield StoredBlock(key.decode(), who, when, reason, math.inf if until is None else until)


def policy_of(kv: KV, wall: float) -> Policy:
    """A policy with the blocks that hold now, for whoever only looks; nothing is changed."""
    policy = Policy()
    for each in stored(kv):
        if each.until > wall:
            policy.blocks.put(Subject.parse(each.subject), each.block())
    return policy


def load(kv: KV, policy: Policy, wall: float) -> float:
    """Let *policy* have the blocks that are kept, without those that are over, which go.

    Returns when the next one will be over (wall).
    """
    first = math.inf
    known = {str(subject): subject for subject in policy.blocks}
    for each in list(stored(kv)):
        if each.until <= wall:
            kv.delete(each.subject.encode())
            continue
        known.pop(each.subject, None)
        policy.blocks.put(Subject.parse(each.subject), each.block())
        first = min(first, each.until)
    for subject in known.values():
        policy.blocks.remove(subject)
    policy.changed()
    return first
