"""Notifications to systemd, over real sockets."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrapy_spider_suite.operate.supervision import SystemdNotifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A manager's socket, and its name as NOTIFY_SOCKET has it."""
    abstract = request.param == "abstract"
    name = f"@suite-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name[1:]}" if abstract else name)
        listener.settimeout(5)
        yield listener, name


def test_what_is_sent_arrives(manager: tuple[socket.socket, str]) -> None:
    """One datagram, an assignment a line; a line break in a value is none."""
    listener, name = manager
    notifier = SystemdNotifier.from_environment({"NOTIFY_SOCKET": name})
    notifier.send(READY=1, STATUS="it\nruns")
    assert listener.recv(4096) == b"READY=1\nSTATUS=it runs"
    assert not notifier.watchdog
    notifier.close()
    notifier.send(STOPPING=1)


def test_nobody_listens(tmp_path: Path) -> None:
    """No socket, one that is gone, one that takes no more: the crawl goes on."""
    SystemdNotifier.from_environment({}).send(READY=1)
    gone = SystemdNotifier(str(tmp_path / "gone"))
    gone.send(READY=1)
    gone.close()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "full"))
        notifier = SystemdNotifier(str(tmp_path / "full"))
        for _ in range(10_000):
            notifier.send(STATUS="x" * 1_000)
        notifier.close()


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False), ({"WATCHDOG_USEC": "0"}, False), ({"WATCHDOG_USEC": "30000000"}, True),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, True),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, False),
    ],
)  # fmt: skip
def test_watchdog(environment: dict[str, str], wanted: bool) -> None:
    """Wanted of this process, or not."""
    assert SystemdNotifier.from_environment(environment).watchdog is wanted
