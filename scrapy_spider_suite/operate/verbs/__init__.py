"""Every verb that can be asked of a job, and the function that carries it out."""

from __future__ import annotations

from scrapy_spider_suite.operate.verb import Apply
from scrapy_spider_suite.operate.verbs import block, drain, drop, enqueue, pause, set, snapshot

APPLY: dict[str, Apply] = {
    "pause": pause.pause,
    "resume": pause.resume,
    "block": block.block,
    "unblock": block.unblock,
    "set": set.set_value,
    "add": enqueue.add,
    "refetch": enqueue.refetch,
    "retry": enqueue.retry,
    "drop": drop.drop,
    "snapshot": snapshot.snapshot,
    "drain": drain.drain,
}

URGENT = frozenset({"pause", "resume", "block", "unblock", "set"})
"""What is in force as soon as it is read, and so is read before all else."""
