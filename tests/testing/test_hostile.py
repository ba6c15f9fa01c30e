"""The hostile site: each behaviour does to a client what it says, and the server lives on."""

from __future__ import annotations

import gzip
import re
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scrapy_spider_suite.testing import FakeWeb, FakeWebConfig, hostile_site
from scrapy_spider_suite.testing.hostile_site import BEHAVIOURS, PAGE

Ask = Callable[..., Any]
Exchange = Callable[..., bytes]

ENDLESS = [
    "header-endless", "continue-endless", "chunk-extension-endless", "trailer-endless",
    "endless-body", "endless-chunks", "robots-endless-line",
]  # fmt: skip
BULKY = ["many-links", "many-hosts", "robots-huge", "gzip-bomb"]


@pytest.fixture(scope="module")
def web() -> Iterator[FakeWeb]:
    """Hostile hosts only, whose endless answers end after a while."""
    config = FakeWebConfig(hosts=0, hostile=True, hostile_seconds=0.12, hostile_pace=0.002)
    with FakeWeb(config) as web:
        yield web


def request(host: str, path: str = "/") -> bytes:
    """A request of which the server closes the connection."""
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()


def play(web: FakeWeb, exchange: Exchange, name: str) -> bytes:
    """All bytes that a behaviour answers; those for robots.txt leave other paths alone."""
    host = f"{name}.hostile.test"
    path = "/robots.txt" if name.startswith("robots-") else "/"
    return exchange(web, host, request(host, path))


def body_of(data: bytes) -> bytes:
    """What follows the head."""
    return data.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("name", sorted(set(BEHAVIOURS) - set(BULKY)))
def test_every_behaviour_plays(web: FakeWeb, exchange: Exchange, ask: Ask, name: str) -> None:
    """On its own host, by its path and as a robots.txt; afterwards the host still answers."""
    host = f"{name}.hostile.test"
    received = play(web, exchange, name)
    assert received or name in ("close", "silence")
    assert web.arrivals[-1].host == host
    claimed = re.match(rb"HTTP/\d\.\d (\d\d\d)", received)
    assert web.arrivals[-1].status == (int(claimed[1]) if claimed else 0)
    assert ask(web, web.url(host, "/ok")).status == 200
    by_path = exchange(web, "hostile.test", request("hostile.test", f"/{name}"))
    assert by_path[:5] == received[:5]
    robots = f"robots-{name.removeprefix('robots-')}.hostile.test"
    as_robots = exchange(web, robots, request(robots, "/robots.txt"))
    assert as_robots[:5] == received[:5]
    assert ask(web, web.url(robots, "/a")).status == 200


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_answers_go_on(web: FakeWeb, exchange: Exchange, name: str) -> None:
    """Until the time is up; the last byte that would end them never comes."""
    began = time.monotonic()
    received = play(web, exchange, name)
    assert time.monotonic() - began >= 0.11
    assert len(received) > 10_000
    assert not received.endswith(b"0\r\n\r\n")


def test_a_client_may_leave_an_endless_answer(web: FakeWeb) -> None:
    """Its script is ended, and the log has its line."""
    host = "silence.hostile.test"
    with socket.create_connection(web.directory.endpoint(host)) as client:
        client.sendall(request(host))
        time.sleep(0.03)
    time.sleep(0.05)
    assert web.arrivals[-1].host == host
    assert web.arrivals[-1].end - web.arrivals[-1].start < 0.11


def test_bulky_answers(web: FakeWeb, ask: Ask) -> None:
    """Ten megabytes of different links, fifty of robots.txt, correctly framed."""
    for name in ("many-links", "many-hosts"):
        page = ask(web, web.url(f"{name}.hostile.test")).body
        hrefs = re.findall(rb'href="([^"]*)"', page)
        assert 10_000_000 < len(page) < 11_500_000
        assert len(hrefs) == len(set(hrefs)) > 200_000
    robots = ask(web, web.url("robots-huge.hostile.test", "/robots.txt")).body
    assert len(robots) > 50_000_000
    rules = ask(web, web.url("robots-rules.hostile.test", "/robots.txt")).body
    assert rules.count(b"Disallow") == 100_000


@pytest.mark.slow
def test_gzip_bomb(web: FakeWeb, exchange: Exchange) -> None:
    """One megabyte becomes one gigabyte, and the member is correct to its last byte."""
    packed = body_of(play(web, exchange, "gzip-bomb"))
    assert len(packed) < 2 << 20
    unpacker = zlib.decompressobj(31)
    size, rest = 0, packed
    while rest and not unpacker.eof:
        size += len(unpacker.decompress(rest, 16 << 20))
        rest = unpacker.unconsumed_tail
    assert (size, unpacker.eof) == (1 << 30, True)


def test_other_bombs(web: FakeWeb, exchange: Exchange) -> None:
    """Deflate, and gzip within gzip: 100 MB each."""
    deflated = body_of(play(web, exchange, "deflate-bomb"))
    assert len(zlib.decompress(deflated)) == 100 << 20
    twice = body_of(play(web, exchange, "gzip-bomb-twice"))
    assert len(twice) < 10_000
    assert len(gzip.decompress(gzip.decompress(twice))) == 100 << 20


def test_lengths_that_lie(web: FakeWeb, exchange: Exchange) -> None:
    """Too long, too short, negative, twice, with chunks."""
    assert b"Content-Length: 10000" in play(web, exchange, "truncated-body")
    host = "length-too-short.hostile.test"
    keep = request(host).replace(b"Connection: close\r\n", b"")
    assert exchange(web, host, keep, 0.05).endswith(PAGE + b"<TimeoutError>")
    assert b"Content-Length: -5\r\n" in play(web, exchange, "length-negative")
    assert play(web, exchange, "length-twice").count(b"Content-Length") == 2
    assert b"Transfer-Encoding: chunked" in play(web, exchange, "length-and-chunked")


def test_floods_of_fields(web: FakeWeb, exchange: Exchange) -> None:
    """10,000 fields, one of 10 MB, 5,000 cookies; the page follows."""
    assert play(web, exchange, "header-flood").count(b"\r\nX-Field-") == 10_000
    assert len(play(web, exchange, "header-long")) > 10 << 20
    assert play(web, exchange, "cookie-flood").count(b"\r\nSet-Cookie: ") == 5000


def test_resets_and_closes(web: FakeWeb, exchange: Exchange) -> None:
    """Two ways for a connection to end, before and within the answer."""
    assert play(web, exchange, "close") == b""
    assert play(web, exchange, "reset") == b"<ConnectionResetError>"
    assert play(web, exchange, "reset-in-body").endswith(PAGE + b"<ConnectionResetError>")


def test_slow_answers_come_in_pieces(web: FakeWeb) -> None:
    """One byte at a time, a pace apart."""
    host = "slow-head.hostile.test"
    with socket.create_connection(web.directory.endpoint(host), timeout=5) as client:
        client.sendall(request(host))
        first = client.recv(100)
    # A busy machine may hand over several pieces at once, but never the whole head.
    assert b"HTTP/1.1 200".startswith(first[:12])
    assert b"\r\n\r\n" not in first


def test_redirects_that_do_not_end(web: FakeWeb, ask: Ask) -> None:
    """To itself, to and fro, onwards for ever."""
    loop = web.url("redirect-loop.hostile.test")
    assert ask(web, loop).fields["location"] == loop
    pair = web.url("redirect-pair.hostile.test")
    assert ask(web, pair).fields["location"] == pair + "other"
    assert ask(web, pair + "other").fields["location"] == pair
    endless = web.url("redirect-endless.hostile.test")
    assert ask(web, endless).fields["location"] == endless + "1"
    assert ask(web, endless + "41").fields["location"] == endless + "42"
    assert ask(web, web.url("hostile.test", "/redirect-loop")).fields["location"] == web.url(
        "hostile.test", "/redirect-loop/"
    )
    robots = web.url("robots-redirect-endless.hostile.test", "/robots.txt")
    assert ask(web, robots).fields["location"] == robots + "/1"
    assert ask(web, robots + "/1").fields["location"] == robots + "/2"


def test_redirects_to_private_addresses(web: FakeWeb, ask: Ask) -> None:
    """Each of the ways to write one has its own path."""
    base = web.url("redirect-private.hostile.test")
    count = len(hostile_site.PRIVATE_URLS)
    targets = {ask(web, f"{base}{k}").fields["location"] for k in range(count)}
    assert len(targets) == len(hostile_site.PRIVATE_URLS)
    assert "http://169.254.169.254/latest/meta-data/" in targets


def test_the_trap_has_no_end(web: FakeWeb, ask: Ask) -> None:
    """Each page leads to two that were not there before."""
    url = web.url("trap.hostile.test")
    seen: set[str] = set()
    for _ in range(10):
        found = re.findall(r'href="([^"]*)"', ask(web, url).body.decode())
        assert len(found) == 2
        assert not seen & set(found)
        seen.update(found)
        url = found[0]


def test_other_paths_are_404(web: FakeWeb, ask: Ask) -> None:
    """A page of bad links does not lead to itself under a thousand names."""
    assert ask(web, web.url("bad-links.hostile.test", "/etc/passwd")).status == 404
    assert ask(web, web.url("hostile.test", "/bad-links/more")).status == 404
    assert ask(web, web.url("hostile.test", "/none")).status == 404
    assert ask(web, web.url("robots-html.hostile.test", "/none")).status == 404
    assert ask(web, web.url("bad-links.hostile.test", "/robots.txt")).status == 404


def test_the_index_leads_to_everything(web: FakeWeb, ask: Ask) -> None:
    """To each behaviour's host and path; each host has an address of its own."""
    assert web.ready.seeds == (web.url("hostile.test"),)
    hosts = re.findall(r'href="([^"]*)"', ask(web, web.url("hostile.test")).body.decode())
    assert {web.url(f"{name}.hostile.test") for name in BEHAVIOURS} < set(hosts)
    paths = re.findall(r'href="([^"]*)"', ask(web, hosts[-1]).body.decode())
    assert set(paths) == {web.url("hostile.test", f"/{name}") for name in BEHAVIOURS}
    places = {web.directory.endpoint(f"{name}.hostile.test") for name in BEHAVIOURS}
    assert len(places) == len(BEHAVIOURS)


def test_names_that_are_not_hostile_hosts() -> None:
    """They do not exist."""
    for host in ("none.hostile.test", "robots-none.hostile.test", "a.close.hostile.test", "x.test"):
        with pytest.raises(LookupError):
            hostile_site.address_number(host)
    assert hostile_site.address_number("robots-close.hostile.test") == hostile_site.address_number(
        "close.hostile.test"
    )


def test_the_listing_names_all() -> None:
    """A line each."""
    assert len(hostile_site.listing().splitlines()) == len(BEHAVIOURS)
