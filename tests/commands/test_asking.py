"""Who of the agents that are asked is waited for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from scrapy_spider_suite.cluster.membership import SILENCE
from scrapy_spider_suite.operate.executors import all_agents


def row(name: str, heard: float, *, runs: bool = True) -> Any:
    """A member that was heard at that time."""
    return SimpleNamespace(
        name=name, heard=heard * 1000, incarnation="1" if runs else "",
        missing=lambda now: not runs or now - heard > SILENCE,
    )  # fmt: skip


class Crawl:
    """Agents of which *late* answers after some looks, and the others never; a second a look."""

    def __init__(self, late: int) -> None:
        self.now, self._late, self.refused = 100.0, late, {"r": "no answer"}
        self.asked: list[list[str]] = []

    async def overview(self) -> Any:
        """All were heard when the waiting began; one is stopped, by and by."""
        self.now += 1
        rows = (row("killed", 100), row("ends", 100, runs=self.now < 105), row("late", self.now))
        return SimpleNamespace(now=self.now, view=SimpleNamespace(rows=rows))

    async def answers(self, id: str, names: list[str]) -> dict[str, Any]:
        """One answers late, another one as it ends."""
        self.asked.append(names)
        found = {"late": self.now >= 100 + self._late, "ends": self.now >= 105}
        return {name: name for name in names if found.get(name)}


def test_who_is_not_heard_any_more_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever is heard is, until it answers; what came at the last moment counts."""
    for name in ("_POLL", "_CHECK", "_TELL"):
        monkeypatch.setattr(all_agents, name, 0.0)
    crawl = Crawl(late=30)
    line: Any = SimpleNamespace(admin=crawl, sender=crawl)
    names = ["killed", "ends", "late", "r"]
    heard = asyncio.run(all_agents._wait(line, "id", names, 600.0, {"away": "stopped"}))
    assert set(heard.replies) == {"ends", "late"}
    assert heard.silent == {"away": "stopped", "killed": "not heard for 16 s", "r": "no answer"}
    assert crawl.now == 130
    assert crawl.asked[-1] == ["late"]
    assert capsys.readouterr().err == "waiting for ends, killed, late, 600 s at most\n"
