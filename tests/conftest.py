"""What every test shares: one asyncio reactor, installed before anything can install another,
and examples that do not depend on the machine.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from scrapy.utils.reactor import install_reactor
from support import lzop as programs
from support.redis_servers import RedisServer

from scrapy_spider_suite.runtime import event_loop

# A module of Twisted or Scrapy that imports the reactor would install the platform's default one,
# which has no asyncio loop, and the suite needs one.
install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")

# A busy machine is slow at any moment, which is no fault; and a run that fails can be repeated.
settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

# Collections walk what thousands of tests have imported: a third of the time of some.
gc.set_threshold(10_000, 20, 100)
event_loop._ENDED_MOST = 40

_LATEST = 0.7
"""Where the last slow test of a process begins among its others."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what `outside_tests.txt` lists; deal slow files evenly to processes."""
    root = Path(__file__).parent
    lines = (root / "outside_tests.txt").read_text().splitlines()
    listed = {root / line for line in lines if not line.startswith("#")}
    assert not (missing := [path for path in listed if not path.exists()]), missing
    for item in items:
        if listed & {item.path, *item.path.parents}:
            item.add_marker("outside")
    if hasattr(config, "workerinput"):  # each gets a part of the list, in order
        items[:] = _spread(items, config.workerinput["workercount"])


def _spread(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """Return *items* in an equal part for each process, the files of slow tests evenly in each.

    No slow file stands at the end of a part: the other processes would wait for it.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    slow = [tests for tests in files.values() if any(map(_is_slow, tests))]
    quick = iter([item for tests in files.values() if tests not in slow for item in tests])
    spread: list[pytest.Item] = []
    for part in range(processes):
        mine = slow[part::processes]
        room = max(0, len(items) // processes - sum(map(len, mine)))
        others = list(islice(quick, room))
        step = int(_LATEST * room / max(1, len(mine)))
        for number, tests in enumerate(mine):
            spread += [*tests, *others[number * step : (number + 1) * step]]
        spread += others[len(mine) * step :]
    return [*spread, *quick]


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def pytest_unconfigure() -> None:
    """Close the reactor's loop, which nothing else does when the reactor never ran."""
    from twisted.internet import reactor

    reactor._asyncioEventloop.close()


async def _cancelled() -> set[asyncio.Task[Any]]:
    """Cancel all tasks but this one: none may go on beside the next test; return them.

    Those that were cancelled already have some turns of the loop to end.
    """
    for _ in range(3):
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    return left


@pytest.fixture(scope="session")
def lzop(tmp_path_factory: pytest.TempPathFactory) -> programs.Lzop:
    """The lzop program, 1.04 or newer."""
    return programs.find(tmp_path_factory.mktemp("lzop"))


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One Redis for a file of tests; tests that kill or pause one start their own."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Writers of packs write nothing before it is set, or 20 seconds are over."""
    begun = threading.Event()

    def recover(*_: object) -> list[Any]:
        begun.wait(20)
        return []

    monkeypatch.setattr("scrapy_spider_suite.packs.writer.recover_folder", recover)
    return begun


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Run a coroutine on the reactor's loop, so that Twisted's timers and sockets work in it."""
    from twisted.internet import reactor

    loop: asyncio.AbstractEventLoop = reactor._asyncioEventloop

    def run_on_reactor(coroutine: Coroutine[Any, Any, Any]) -> Any:
        # asyncio.run() in an earlier test has unset the current loop.
        asyncio.set_event_loop(loop)
        left: set[asyncio.Task[Any]] = set()
        try:
            result = loop.run_until_complete(coroutine)
        finally:
            left |= loop.run_until_complete(_cancelled())
        assert not left, "tasks that nobody ended"
        return result

    return run_on_reactor
