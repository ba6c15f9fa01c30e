"""Every verb that can be asked of a job, and the function that carries it out."""

from __future__ import annotations

from scrapy_spider_suite.control import (
    blocking,
    dropping,
    leaving,
    pausing,
    renewing,
    setting,
    snapshotting,
)
from scrapy_spider_suite.control.operator import Verb

VERBS: dict[str, Verb] = {
    "pause": pausing.pause,
    "resume": pausing.resume,
    "block": blocking.block,
    "unblock": blocking.unblock,
    "set": setting.set_value,
    "add": renewing.add,
    "refetch": renewing.refetch,
    "retry": renewing.retry,
    "drop": dropping.drop,
    "snapshot": snapshotting.snapshot,
    "drain": leaving.drain,
}

URGENT = frozenset({"pause", "resume", "block", "unblock", "set"})
"""What is in force as soon as it is read, and so is read before all else."""
