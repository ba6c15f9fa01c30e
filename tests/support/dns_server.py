"""A name server on loopback that gives the answers, good and bad, that a test has put into it."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

Run = Callable[[Coroutine[Any, Any, None]], None]
Reply = Callable[[dns.message.Message], "bytes | None"]


class NameServer:
    """Answers over UDP and TCP, in a thread; a name that it was not told of does not exist."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.over_tcp = 0
        self.everything: bytes | None = None
        self._records: dict[tuple[str, str], list[dns.rrset.RRset]] = {}
        self._replies: dict[str, Reply] = {}
        self._udp, self._tcp = _bound_pair()
        self.port: int = self._udp.getsockname()[1]
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """As ``SUITE_DNS_SERVERS`` wants it."""
        return f"127.0.0.1:{self.port}"

    def add(
        self, name: str, *addresses: str, ttl: int = 3600, cnames: tuple[str, ...] = ()
    ) -> None:
        """Let *name* have *addresses* (of one family), at the end of a chain of *cnames*."""
        kind = "AAAA" if addresses and ":" in addresses[0] else "A"
        chain = [name, *cnames]
        found = [
            dns.rrset.from_text(f"{alias}.", ttl, "IN", "CNAME", f"{target}.")
            for alias, target in pairwise(chain)
        ]
        if addresses:
            found.append(dns.rrset.from_text(f"{chain[-1]}.", ttl, "IN", kind, *addresses))
        self._records[name, kind] = found

    def fail(self, name: str, rcode: str) -> None:
        """Answer questions about *name* with *rcode*, such as ``SERVFAIL``."""

        def reply(query: dns.message.Message) -> bytes:
            response = dns.message.make_response(query)
            response.set_rcode(dns.rcode.from_text(rcode))
            return response.to_wire()

        self._replies[name] = reply

    def answer(self, name: str, reply: Reply) -> None:
        """Answer questions about *name* with what *reply* makes of them."""
        self._replies[name] = reply

    def silence(self, name: str) -> None:
        """Do not answer questions about *name*."""
        self._replies[name] = lambda query: None

    def garble(self, name: str, damage: Callable[[bytes], bytes]) -> None:
        """Answer questions about *name* with what *damage* makes of the right answer."""
        self._replies[name] = lambda query: damage(self._response(query).to_wire())

    def close(self) -> None:
        """Stop the thread and close its sockets."""
        self._wake.close()
        self._thread.join()
        for each in (self._udp, self._tcp, self._woken):
            each.close()

    def _serve(self) -> None:
        selector = selectors.DefaultSelector()
        for each in (self._udp, self._tcp, self._woken):
            selector.register(each, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is self._woken:
                    selector.close()
                    return
                if key.fileobj is self._udp:
                    self._serve_udp()
                else:
                    self._serve_tcp()

    def _serve_udp(self) -> None:
        wire, client = self._udp.recvfrom(4096)
        reply = _address_reply(wire, self.everything) if self.everything else self._reply(wire)
        if reply is not None:
            self._udp.sendto(reply, client)

    def _serve_tcp(self) -> None:
        connection, _ = self._tcp.accept()
        with connection:
            (length,) = struct.unpack("!H", connection.recv(2))
            self.over_tcp += 1
            reply = self._reply(connection.recv(length), truncates=False)
            if reply is not None:
                connection.sendall(struct.pack("!H", len(reply)) + reply)

    def _reply(self, wire: bytes, truncates: bool = True) -> bytes | None:
        query = dns.message.from_wire(wire)
        name, kind = _question(query)
        self.asked.append((name, kind))
        if name in self._replies:
            return self._replies[name](query)
        response = self._response(query)
        wire = response.to_wire(max_size=65_535, want_shuffle=False)
        if truncates and len(wire) > 512:
            response.flags |= dns.flags.TC
            response.answer.clear()
            return response.to_wire()
        return wire

    def _response(self, query: dns.message.Message) -> dns.message.Message:
        name, kind = _question(query)
        response = dns.message.make_response(query)
        response.answer.extend(self._records.get((name, kind), []))
        if not any((name, each) in self._records for each in ("A", "AAAA")):
            response.set_rcode(dns.rcode.NXDOMAIN)
        return response


def _question(query: dns.message.Message) -> tuple[str, str]:
    question = query.question[0]
    return question.name.to_text(omit_final_dot=True).lower(), question.rdtype.name


def _address_reply(wire: bytes, address: bytes) -> bytes:
    """Answer any question with one IPv4 *address*, by hand: dnspython would take a millisecond."""
    end = wire.index(b"\0", 12) + 5
    record = b"\xc0\x0c\0\1\0\1" + struct.pack("!IH", 3600, 4) + address
    return wire[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + wire[12:end] + record


def _bound_pair() -> tuple[socket.socket, socket.socket]:
    """Return a UDP and a TCP socket on one port of 127.0.0.1."""
    while True:
        tcp = socket.create_server(("127.0.0.1", 0))
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            udp.bind(tcp.getsockname())
        except OSError:
            tcp.close()
            udp.close()
            continue
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        return udp, tcp


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time
