"""Where agents of a test may listen for messages over UDP."""

from __future__ import annotations

import socket

KEY = b"sixteen bytes or more"


def free_addresses(count: int) -> list[tuple[str, int]]:
    """Addresses of loopback at which nobody listened a moment ago."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [each.getsockname() for each in sockets]
    for each in sockets:
        each.close()
    return addresses
