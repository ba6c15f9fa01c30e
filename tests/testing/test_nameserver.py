"""The name server, with dnspython as the client that knows the format."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import dns.flags
import dns.message
import dns.query
import dns.rcode
import dns.rdatatype
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.testing import FakeWeb, FakeWebConfig
from scrapy_spider_suite.testing.name_server import ZoneAnswer, pack_answer, parse_query


@pytest.fixture(scope="module")
def web() -> Iterator[FakeWeb]:
    """A web whose answers may be kept for 77 s."""
    with FakeWeb(FakeWebConfig(hosts=5, addresses=2, ttl=77)) as web:
        yield web


def resolve(web: FakeWeb, name: str, kind: str = "A", timeout: float = 5.0) -> dns.message.Message:
    """Ask the web's name server."""
    query = dns.message.make_query(name, kind)
    return dns.query.udp(query, "127.0.0.1", timeout=timeout, port=web.ready.dns_port)


def records(answer: dns.message.Message) -> list[tuple[str, str, int, str]]:
    """The answer section as (owner, type, time to live, value)."""
    return [
        (str(each.name), dns.rdatatype.to_text(each.rdtype), each.ttl, str(value))
        for each in answer.answer
        for value in each
    ]


def test_a_host_has_an_address(web: FakeWeb) -> None:
    """The one that it is served on; in any case of letters."""
    answer = resolve(web, "H000003.Fake.test")
    place = web.directory.endpoint("h000003.fake.test")
    assert records(answer) == [("h000003.fake.test.", "A", 77, place.address)]
    assert answer.flags & dns.flags.AA
    assert answer.flags & dns.flags.RA
    assert web.queries.names["h000003.fake.test"] == 1


@pytest.mark.parametrize("kind", ["AAAA", "MX", "TXT"])
def test_other_types_have_no_data(web: FakeWeb, kind: str) -> None:
    """The name exists, so it is no NXDOMAIN; a SOA says how long to remember that."""
    answer = resolve(web, "h000003.fake.test", kind)
    assert (answer.rcode(), answer.answer) == (dns.rcode.NOERROR, [])
    assert answer.authority[0].rdtype == dns.rdatatype.SOA
    assert answer.authority[0][0].minimum == 77


def test_unknown_names_do_not_exist(web: FakeWeb) -> None:
    """NXDOMAIN, with a SOA."""
    answer = resolve(web, "h000005.fake.test")
    assert answer.rcode() == dns.rcode.NXDOMAIN
    assert answer.authority[0].rdtype == dns.rdatatype.SOA


def test_special_names(web: FakeWeb) -> None:
    """Aliases, loops, failures, private addresses, no time to live."""
    own = web.directory.serving[0]
    assert records(resolve(web, "alias.test")) == [
        ("alias.test.", "CNAME", 77, "plain.test."),
        ("plain.test.", "A", 77, own),
    ]
    loop = records(resolve(web, "cname-loop.test"))
    assert [each[3] for each in loop] == ["cname-loop-b.test.", "cname-loop.test."]
    assert resolve(web, "servfail.test").rcode() == dns.rcode.SERVFAIL
    assert records(resolve(web, "private.test"))[0][3] == "10.0.0.1"
    assert records(resolve(web, "ttl0.test")) == [("ttl0.test.", "A", 0, own)]
    assert records(resolve(web, "mapped.test", "AAAA"))[0][3] == "::ffff:10.0.0.1"
    assert records(resolve(web, "mapped.test")) == []


def test_silence_and_garbage(web: FakeWeb) -> None:
    """What a resolver must survive."""
    with pytest.raises(dns.exception.Timeout):
        resolve(web, "timeout.test", timeout=0.05)
    with pytest.raises(dns.exception.DNSException):
        resolve(web, "garbage.test", timeout=0.05)


def test_a_slow_answer_comes_late(web: FakeWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later than a resolver's first try may last."""
    answer = web.names.look_up("slow-dns.test")
    assert answer.delay == 2.0
    monkeypatch.setitem(web.names.fixed, "slow-dns.test", ZoneAnswer(v4=answer.v4, delay=0.05))
    began = time.monotonic()
    assert records(resolve(web, "slow-dns.test"))
    assert time.monotonic() - began >= 0.05


def test_what_is_no_query_gets_an_error_or_nothing(web: FakeWeb) -> None:
    """The server goes on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(5)
        client.connect(("127.0.0.1", web.ready.dns_port))
        client.send(b"short")
        client.send(struct.pack(">6H", 7, 0x8000, 1, 0, 0, 0))
        client.send(struct.pack(">6H", 8, 0, 2, 0, 0, 0))
        refusal = dns.message.from_wire(client.recv(512))
    assert (refusal.id, refusal.rcode()) == (8, dns.rcode.FORMERR)
    assert records(resolve(web, "h000001.fake.test"))


@given(st.binary(max_size=80))
def test_any_datagram_is_a_query_or_refused(data: bytes) -> None:
    """Parsing raises ValueError and nothing else."""
    try:
        query = parse_query(data)
    except ValueError:
        return
    assert pack_answer(query, ZoneAnswer(v4=("127.8.0.1",)), 5)[:2] == data[:2]


def test_a_label_of_any_length_is_packed_or_refused() -> None:
    """A pointer in a question is no label."""
    header = struct.pack(">6H", 1, 0, 1, 0, 0, 0)
    with pytest.raises(ValueError, match="pointer"):
        parse_query(header + b"\xc0\x0c\0\1\0\1")
    with pytest.raises(ValueError, match="cut"):
        parse_query(header + b"\4test")
