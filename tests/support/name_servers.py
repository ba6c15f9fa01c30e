"""A name server for tests that says nothing of some names, and of all others that there is none."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import dns.message
import dns.rcode


class _Question(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        """Answer, unless the name begins with ``silent``."""
        data, socket = self.request
        query = dns.message.from_wire(data)
        if not str(query.question[0].name).startswith("silent"):
            answer = dns.message.make_response(query)
            answer.set_rcode(dns.rcode.NXDOMAIN)
            socket.sendto(answer.to_wire(), self.client_address)


@contextmanager
def name_server() -> Iterator[str]:
    """Serve on loopback; the ``address:port``."""
    with socketserver.UDPServer(("127.0.0.1", 0), _Question) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
