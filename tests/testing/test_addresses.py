"""Loopback addresses and sockets on them."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import nullcontext

import pytest

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.testing import FakeWebConfig, fake_web
from scrapy_spider_suite.testing.fake_web import (
    MOST_ADDRESSES,
    FakeWeb,
    LoopbackEndpoint,
    LoopbackListeners,
    address_text,
    files_allowed,
)


def test_addresses_are_loopback_and_differ() -> None:
    """All within 127.0.0.0/8, none ends in 0 or 255, none is 127.0.0.1."""
    numbers = [*range(70_000), MOST_ADDRESSES - 1]
    texts = [address_text(number) for number in numbers]
    assert len(set(texts)) == len(texts)
    assert texts[0] == "127.8.0.1"
    for text in texts[::1000] + texts[-1:]:
        assert ipaddress.ip_address(text) in ipaddress.ip_network("127.0.0.0/8")
        assert text.rpartition(".")[2] not in ("0", "255")


def test_too_few_files_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line says what to do about it."""
    monkeypatch.setattr(fake_web, "files_allowed", lambda wanted: 300)
    for addresses, enough in ((100, True), (200, False)):
        web = FakeWeb(FakeWebConfig(hosts=200, addresses=addresses))
        with nullcontext() if enough else pytest.raises(SettingsError, match="ulimit -n"), web:
            assert web.ready.addresses == addresses


def test_files_are_counted() -> None:
    """At least standard input, output and error must be possible."""
    assert files_allowed(16) >= 3


def test_all_endpoints_have_one_port() -> None:
    """The first ones accept, the rest refuse."""
    listeners = LoopbackListeners(5, 0, listening=4, one_address=False)
    assert len({place.port for place in listeners.endpoints}) == 1
    assert len({place.address for place in listeners.endpoints}) == 5
    assert list(listeners.ports) == [listeners.endpoints[0].port]
    for place in listeners.endpoints[:4]:
        socket.create_connection(place, timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(listeners.endpoints[4], timeout=5)
    listeners.close()


def test_one_address_means_many_ports() -> None:
    """Where loopback is one address, ports tell the endpoints apart."""
    listeners = LoopbackListeners(3, 0, listening=3, one_address=True)
    assert {place.address for place in listeners.endpoints} == {"127.0.0.1"}
    assert len(set(listeners.ports)) == 3
    listeners.close()


def test_nothing_listens_for_the_network() -> None:
    """Every socket is bound to a loopback address."""
    listeners = LoopbackListeners(3, 0, listening=3, one_address=False)
    assert all(each.getsockname()[0].startswith("127.") for each in listeners.sockets)
    listeners.close()
    assert listeners.sockets == []


@pytest.mark.parametrize("one_address", [False, True])
def test_a_port_that_is_taken_is_an_error(one_address: bool) -> None:
    """Even if it is taken on one of the addresses only; the others are let go."""
    first = LoopbackListeners(1, 0, listening=1, one_address=one_address)
    place = first.endpoints[0]
    with pytest.raises(SettingsError, match=f"{place.port} .* taken"):
        LoopbackListeners(3, place.port, listening=3, one_address=one_address)
    first.close()
    second = LoopbackListeners(1, place.port, listening=1, one_address=one_address)
    assert second.endpoints[0] == LoopbackEndpoint(place.address, place.port)
    second.close()
