"""Which rows of other agents have come: what is known, and how much of it in memory."""

from __future__ import annotations

import pytest

from scrapy_spider_suite.cluster.mailbox import ReceivedRows
from scrapy_spider_suite.store.interface import MemoryKV


@pytest.mark.parametrize("reopened", [False, True])
def test_intervals_of_rows_grow_together(reopened: bool) -> None:
    """Also those that come out of their order."""
    kv = MemoryKV()
    known = ReceivedRows(kv)
    for first, last in [(10, 12), (20, 22), (13, 19), (1, 4)]:
        assert not known.has("a", first, last)
        known.put("a", first, last)
    known = ReceivedRows(kv) if reopened else known
    assert known.has("a", 11, 21)
    assert known.has("a", 1, 4)
    assert not known.has("a", 4, 10)
    assert not known.has("a", 23, 23)
    assert not known.has("b", 11, 12)


def test_names_that_somebody_made_up_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of who has not written of late it is read again what has come."""
    monkeypatch.setattr("scrapy_spider_suite.cluster.mailbox._SENDERS", 3)
    known = ReceivedRows(MemoryKV())
    known.put("a", 1, 4)
    for number in range(50):
        known.put(f"forged {number}", 7, 7)
        assert not known.has(f"other {number}", 7, 7)
    assert len(known._intervals) == 3
    assert known.has("a", 1, 4)
