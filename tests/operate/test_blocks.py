"""Blocks that are kept: those that are no good are neither kept nor in anybody's way."""

from __future__ import annotations

import math

import msgpack  # type: ignore[import-untyped]
import pytest

from scrapy_spider_suite.errors import ActionError
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.operate.actions import LATEST
from scrapy_spider_suite.operate.job_target import StoredBlock, apply_blocks
from scrapy_spider_suite.store.interface import MemoryKV


@pytest.mark.parametrize(
    ("when", "until"), [(1e300, math.inf), (-1e17, math.inf), (1.0, 1e300), (1.0, math.nan)]
)
def test_a_block_of_no_time_is_not_kept(when: float, until: float) -> None:
    """It is refused before anything is written."""
    kv = MemoryKV()
    with pytest.raises(ActionError, match="year 10000"):
        StoredBlock("a.test", "ops", when, "x", until).put(kv)
    assert len(kv) == 0


def test_rows_that_are_no_good_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """The others are in force; each that is not is said once."""
    kv, policy = MemoryKV(), Policy()
    kv.put(b"absurd.test", msgpack.packb(["ops", 1e300, "x", None]))
    kv.put(b"no subject at all", msgpack.packb(["ops", 1.0, "x", None]))
    kv.put(b"short.test", msgpack.packb(["ops"]))
    kv.put(b"torn.test", b"\x94\xa3op")
    kv.put(b"\xff.test", msgpack.packb(["ops", 1.0, "x", None]))
    StoredBlock("z.test", "ops", LATEST, "x", until=LATEST).put(kv)
    for _ in range(3):
        assert apply_blocks(kv, policy, 50.0) == LATEST
    assert [str(subject) for subject in policy.blocks] == ["z.test"]
    assert len([r for r in caplog.records if "is not in force" in r.message]) == 5
