"""When a request goes out, where a host or an address takes several at a time.

There the delay runs from start to start, and the server sees a start when the bytes of the request
come: after the connection and its TLS, which may take longer than the delay.
"""

from __future__ import annotations

from collections.abc import Callable

from scrapy_spider_suite.frontier.states import AddressState, HostState


class Departure:
    """That of one transfer. From `hold` to `gone` no other transfer begins where it goes.

    *freed* is called when others may look again.
    """

    __slots__ = ("_address", "_freed", "_held", "_host")

    def __init__(self, host: HostState, address: AddressState, freed: Callable[[], None]) -> None:
        self._host = host
        self._address = address
        self._freed = freed
        self._held = False

    def hold(self) -> None:
        """Its connection is being made."""
        if not self._held:
            self._held = True
            self._host.departing += 1
            self._address.departing += 1

    def gone(self, now: float) -> None:
        """Its bytes are out at *now*: the delays run from here, not from where it began."""
        self.release()
        for place in (self._host, self._address):
            if place.concurrency != 1:
                place.began = now
                place.start_clock(now)
        self._freed()

    def release(self) -> None:
        """Let others begin; idempotent."""
        if self._held:
            self._held = False
            self._host.departing -= 1
            self._address.departing -= 1


def departure(
    host: HostState, address: AddressState, freed: Callable[[], None]
) -> Departure | None:
    """Return that of a transfer to *host* at *address*; None where no delay runs from the start."""
    by_host = host.concurrency > 1 and host.gap()
    by_address = address.concurrency != 1 and address.delay
    return Departure(host, address, freed) if by_host or by_address else None
