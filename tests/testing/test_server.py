"""FakeWeb: up and down in a loop or a thread, few files, one address, many addresses, load."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.client import HTTPSConnection
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.byte_servers import tls_context

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.testing import FakeWeb, FakeWebConfig, Ready, gaps, read_arrivals
from scrapy_spider_suite.testing import fake_web as server_module

Ask = Callable[..., Any]


async def fetch(address: str, port: int, host: str, paths: list[str]) -> list[bytes]:
    """Fetch *paths* one after the other on one connection; the status of each."""
    reader, writer = await asyncio.open_connection(address, port)
    statuses = []
    for path in paths:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        statuses.append(head[9:12])
        await reader.readexactly(int(head.partition(b"Content-Length: ")[2].partition(b"\r")[0]))
    writer.close()
    return statuses


def test_in_the_callers_loop() -> None:
    """``async with``; a crawl of the whole web finds the promised pages and the log has each."""

    async def scenario() -> None:
        async with FakeWeb(FakeWebConfig(hosts=20, pages=50, addresses=4)) as web:
            graph = web.web
            paths = [graph.path(page) for page in range(50)]
            crawls = [
                fetch(*web.directory.endpoint(graph.host_name(host)), graph.host_name(host), paths)
                for host in range(20)
            ]
            assert {status for each in await asyncio.gather(*crawls) for status in each} == {b"200"}
            seen = {web.url(each.host, each.path) for each in web.arrivals}
            assert seen == set(graph.reachable())
            assert len(web.arrivals) == 1000
        by_host = gaps(web.arrivals, "host")
        assert all(len(each.values) == 49 and each.smallest > 0 for each in by_host.values())

    asyncio.run(scenario())


def test_in_a_thread(tmp_path: Path, ask: Ask) -> None:
    """``with``; the log is complete once it is down, and the seeds are in their file."""
    config = FakeWebConfig(
        hosts=3, seeds=2, log=tmp_path / "log", dns_log=tmp_path / "dns", seeds_file=tmp_path / "s"
    )
    with FakeWeb(config) as web:
        for url in web.web.roots():
            assert ask(web, url).status == 200
        assert len(web.ready.seeds) == 2
        kept = web.arrivals
    assert list(read_arrivals(tmp_path / "log")) == [
        each._replace(start=round(each.start, 6), end=round(each.end, 6)) for each in kept
    ]
    assert (tmp_path / "s").read_text().split() == web.web.roots(2)
    assert (tmp_path / "dns").read_text().startswith("#")


def test_the_log_is_written_while_it_runs(tmp_path: Path, ask: Ask) -> None:
    """At least every half second, for readers in other processes."""

    async def scenario() -> None:
        async with FakeWeb(FakeWebConfig(hosts=1, log=tmp_path / "log")) as web:
            await fetch(*web.directory.endpoint("h000000.fake.test"), "h000000.fake.test", ["/"])
            for _ in range(100):
                if list(read_arrivals(tmp_path / "log")):
                    return
                await asyncio.sleep(0.02)
            raise AssertionError("nothing was written for two seconds")

    asyncio.run(scenario())


@pytest.mark.parametrize("addresses", [300, 3000])
def test_many_addresses(addresses: int, ask: Ask) -> None:
    """One socket each, all on one port."""
    with FakeWeb(FakeWebConfig(hosts=5000, addresses=addresses)) as web:
        assert web.ready.addresses == addresses
        assert len(web.ready.ports) == 1
        for host in (0, addresses - 1, 4999):
            assert ask(web, web.web.base(host) + "/").status == 200
        assert web.arrivals[1].address == web.ready.last_address


FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
from scrapy_spider_suite.testing.cli import main
sys.exit(main(["--hosts", "5000", "--addresses", "3000", "--seconds", "0.1", "--port", "0"]))
"""


def test_too_few_files_are_an_error() -> None:
    """In one line, which says what to do about it."""
    done = subprocess.run(
        [sys.executable, "-c", FEW_FILES], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "open files are limited to 1,024" in done.stderr.replace("1024", "1,024")


def test_one_address(ask: Ask) -> None:
    """As on macOS: ports instead of addresses, and a note about what that means."""
    config = FakeWebConfig(hosts=6, addresses=3, one_address=True, hostile=True)
    with FakeWeb(config) as web:
        assert {len(web.ready.ports), len(set(web.ready.ports))} == {3}
        assert web.ready.first_address == web.ready.last_address == "127.0.0.1"
        assert "one address" in web.ready.notes[0]
        for url in web.web.roots():
            assert ask(web, url).status == 200
        assert ask(web, web.url("close.hostile.test", "/ok")).status == 200
        assert {each.address for each in web.arrivals} == {"127.0.0.1"}


def test_where_loopback_is_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found out, nobody needs to say so."""
    monkeypatch.setattr(server_module, "has_many_addresses", lambda: False)
    with FakeWeb(FakeWebConfig(hosts=2, addresses=2)) as web:
        assert len(web.ready.ports) == 2


def test_refusing_and_hanging_addresses(small: FakeWeb) -> None:
    """One says no at once, the other nothing at all."""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(small.directory.endpoint("refused.test"), timeout=5)
    with pytest.raises(TimeoutError):
        socket.create_connection(small.directory.endpoint("hang.test"), timeout=0.1)


@contextlib.contextmanager
def taken_port(kind: int) -> Iterator[int]:
    """A port on which somebody else listens."""
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1" if kind == socket.SOCK_DGRAM else "127.8.0.1", 0))
        if kind == socket.SOCK_STREAM:
            taken.listen()
        yield taken.getsockname()[1]


def test_what_is_taken_is_an_error(tmp_path: Path) -> None:
    """Ports and files; nothing stays open after a start that failed."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with (
        taken_port(socket.SOCK_STREAM) as port,
        pytest.raises(SettingsError, match="is taken"),
        FakeWeb(FakeWebConfig(port=port)),
    ):
        pass
    with (
        taken_port(socket.SOCK_DGRAM) as port,
        pytest.raises(SettingsError, match="dns_port"),
        FakeWeb(FakeWebConfig(dns_port=port)),
    ):
        pass
    for knob in ("log", "dns_log", "seeds_file"):
        config = FakeWebConfig.from_values({knob: str(tmp_path / "none" / "x")})
        with pytest.raises(SettingsError, match=f"{knob} = .*No such file"), FakeWeb(config):
            pass
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == before[1]


def test_two_webs_at_once(ask: Ask) -> None:
    """Each on a port of its own, on the same addresses."""
    config = FakeWebConfig(hosts=2, addresses=2)
    with FakeWeb(config) as one, FakeWeb(config) as two:
        assert one.ready.http_port != two.ready.http_port
        assert ask(one, one.web.roots()[1]).status == ask(two, two.web.roots()[1]).status == 200


def test_a_web_can_be_started_again_on_its_port(ask: Ask) -> None:
    """Although connections of the first one are still remembered by the kernel."""
    with FakeWeb(FakeWebConfig(hosts=1)) as web:
        ask(web, web.url("h000000.fake.test"))
        port = web.ready.http_port
    with FakeWeb(FakeWebConfig(hosts=1, port=port)) as web:
        assert ask(web, web.url("h000000.fake.test")).status == 200


def test_ready_survives_the_trip() -> None:
    """As a line of JSON, which also has the settings to crawl with."""
    ready = Ready((8080,), 53, 2, 1, "127.8.0.1", "127.8.0.1", ("http://a/",), None, ("note",))
    line = ready.to_json()
    assert Ready.from_json(line) == ready
    assert '"SUITE_DNS_SERVERS": "127.0.0.1:53"' in line
    assert '"http_port": 8080' in line
    for other in ("", "[]", "{}"):
        with pytest.raises(ValueError, match=r"ready line|Expecting"):
            Ready.from_json(other)


def test_times_of_one_connection_do_not_overlap(small: FakeWeb, ask: Ask) -> None:
    """An answer ends before the next request of its connection begins."""
    place = small.directory.endpoint("h000000.fake.test")
    count = len(small.arrivals)
    asyncio.run(fetch(*place, "h000000.fake.test", ["/"] * 50))
    seen = small.arrivals[count:]
    assert len(seen) == 50
    assert all(before.end <= after.start for before, after in pairwise(seen))


def test_an_answer_never_ends_after_its_client_has_it(small: FakeWeb, ask: Ask) -> None:
    """Or else a polite crawler would look impolite whenever the server had to wait for its core."""
    count = len(small.arrivals)
    received = []
    for _ in range(50):
        ask(small, small.url("h000000.fake.test"))
        received.append(time.time())
    ends = [each.end for each in small.arrivals[count:]]
    assert len(ends) == 50
    assert all(end <= at for end, at in zip(ends, received, strict=True))


def test_https(tmp_path: Path) -> None:
    """Everything is served over TLS, and says so in its links; no such file is refused."""
    tls_context(tmp_path, "h000000.fake.test")
    config = FakeWebConfig(hosts=3, pages=5, addresses=2, certificate=tmp_path / "server.pem")
    with FakeWeb(config) as web:
        assert all(seed.startswith("https://h") for seed in web.ready.seeds)
        place = web.directory.endpoint("h000000.fake.test")
        unchecked = ssl._create_unverified_context()
        client = HTTPSConnection(place.address, place.port, context=unchecked)
        for _ in range(2):
            client.request("GET", "/", headers={"Host": f"h000000.fake.test:{place.port}"})
            body = client.getresponse().read()
            assert b"https://h" in body
            assert b"http://" not in body
        client.close()
        assert len(web.arrivals) == 2
    with pytest.raises(SettingsError, match="certificate"):
        FakeWeb(FakeWebConfig(hosts=1, certificate=tmp_path / "none")).__enter__()
