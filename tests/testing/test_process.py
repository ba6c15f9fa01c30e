"""FakeWebProcess: the web in a child, which ends with its parent."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess, gaps


def fetch(web: FakeWebProcess, host: int, path: str) -> int:
    """Fetch a page of the child; the status."""
    number = web.web.address_index(host)
    client = http.client.HTTPConnection(f"127.8.0.{number + 1}", web.ready.http_port, timeout=10)
    client.request("GET", path, headers={"Host": web.web.host_name(host)})
    status = client.getresponse().status
    client.close()
    return status


def test_a_child_serves_and_logs(tmp_path: Path) -> None:
    """The parent knows its graph and its ports, and reads its log."""
    config = FakeWebConfig(hosts=3, addresses=2, overrides={1: {"pages": 3}}, log=tmp_path / "log")
    with FakeWebProcess(config) as web:
        assert [fetch(web, host, "/2.html") for host in (0, 1, 2)] == [200, 404, 200]
        assert web.web.base(1).endswith(f":{web.ready.http_port}")
        assert web.ready.seeds == tuple(web.web.roots(1))
        pid = web.pid
    found = web.arrivals()
    assert [(each.address, each.status) for each in found] == [
        ("127.8.0.1", 200),
        ("127.8.0.2", 404),
        ("127.8.0.1", 200),
    ]
    assert gaps(found, "address")["127.8.0.1"].smallest > 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(RuntimeError, match="not running"):
        web.pid  # noqa: B018
    web.stop()


def test_without_a_log_there_are_no_arrivals() -> None:
    """They would be in the child's memory."""
    with pytest.raises(SettingsError, match="log"):
        FakeWebProcess(FakeWebConfig()).arrivals()


def test_a_child_that_cannot_start_says_why() -> None:
    """Its own line is the message."""
    with (
        FakeWebProcess(FakeWebConfig(hosts=1)) as web,
        pytest.raises(SettingsError, match=r"fakeweb: port \d+ .* taken"),
        FakeWebProcess(FakeWebConfig(hosts=1, port=web.ready.http_port)),
    ):
        pass


PARENT = """
import os, sys, time
from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess
web = FakeWebProcess(FakeWebConfig(hosts=1))
web.start()
print(web.pid, flush=True)
time.sleep(60)
"""


def test_a_child_ends_with_a_parent_that_is_killed() -> None:
    """No web is left behind by a test that crashed."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    with parent:
        child = int(parent.stdout.readline()) if parent.stdout else 0
        os.kill(child, 0)
        parent.send_signal(signal.SIGKILL)
    for _ in range(200):
        if not alive(child):
            break
        time.sleep(0.02)
    assert not alive(child)


def alive(pid: int) -> bool:
    """Whether process *pid* runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_terminated_children_write_their_log(tmp_path: Path) -> None:
    """SIGTERM ends it in good order."""
    web = FakeWebProcess(FakeWebConfig(hosts=1, log=tmp_path / "log"))
    web.start()
    assert fetch(web, 0, "/") == 200
    os.kill(web.pid, signal.SIGTERM)
    web.stop()
    assert [each.path for each in web.arrivals()] == ["/"]
