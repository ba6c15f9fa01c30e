"""A name server for tests that knows some names, says nothing of some, and of others that there is
none.
"""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


class _Server(socketserver.UDPServer):
    addresses: Mapping[str, str]


class _Question(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        """Answer, unless the name begins with ``silent``."""
        data, socket = self.request
        query = dns.message.from_wire(data)
        asked = query.question[0]
        name = str(asked.name).rstrip(".").lower()
        if not name.startswith("silent"):
            answer = dns.message.make_response(query)
            if name not in self.server.addresses:
                answer.set_rcode(dns.rcode.NXDOMAIN)
            elif asked.rdtype == dns.rdatatype.A:
                address = self.server.addresses[name]
                answer.answer.append(dns.rrset.from_text(asked.name, 60, "IN", "A", address))
            socket.sendto(answer.to_wire(), self.client_address)


@contextmanager
def name_server(addresses: Mapping[str, str] | None = None) -> Iterator[str]:
    """Serve the *addresses* of names on loopback; the ``address:port``."""
    with _Server(("127.0.0.1", 0), _Question) as server:
        server.addresses = addresses or {}
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
