"""What another agent holds is held back, and little of it in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from handovers import Side

from scrapy_spider_suite.frontier.outcomes import Event


def test_few_entries_are_held_back_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a host with more of them the rest waits on disk; all of it goes on when it may."""
    monkeypatch.setattr("scrapy_spider_suite.storage.holding._MOST", 3)
    a = Side(tmp_path / "a")
    for page in range(40):
        a.put("h0.t", page, "pending")
    holding, fronts = a.frontier.holding, a.frontier.residents.fronts
    holding.change(lambda host, url: int(url[-1]) % 2 == 0, by_host=False)
    found: list[str] = []

    def visits() -> None:
        for _ in range(60):
            a.now += 5.0
            for host in a.frontier.wanting_address(a.now, 9):
                a.frontier.resolved(host, "10.0.0.1", "10.0.0.1", 1e18, a.now)
            for lease in a.frontier.acquire(a.now):
                found.append(lease.entry.url)
                lease.event = Event.SUCCESS
                a.frontier.release(lease, a.now)
                a.frontier.settle(lease, a.now)

    visits()
    assert 0 < len(found) < 40
    assert fronts.leased("h0.t") == 3
    holding.change(None)
    visits()
    assert sorted(found) == sorted(f"http://h0.t/{page}" for page in range(40))
    assert fronts.leased("h0.t") == 0
    a.close()
