"""When the bytes of a request may go out, where a host or an address takes several at a time.

There the delay runs from start to start. A transfer begins with the connection, which may take
long; the server sees a request only when its bytes come.
"""

from __future__ import annotations

from scrapy_spider_suite.frontier.states import AddressState, HostState


class Departure:
    """That of one transfer. Times are seconds of the workbench's clock."""

    __slots__ = ("_address", "_host")

    def __init__(self, host: HostState, address: AddressState) -> None:
        self._host = host
        self._address = address

    def pause(self, now: float) -> float:
        """Seconds until it may be: others may have gone out since the transfer began."""
        host, address, pause = self._host, self._address, 0.0
        if host.concurrency > 1:
            pause = host.sent + host.gap() - now
        if address.concurrency != 1:
            pause = max(pause, address.sent + address.delay - now)
        return max(0.0, pause)

    def gone(self, now: float) -> None:
        """The bytes are out: the delays run from here, no longer from where the transfer began."""
        for place in (self._host, self._address):
            if place.concurrency != 1:
                place.sent = place.began = now
                place.start_clock(now)


def departure(host: HostState, address: AddressState) -> Departure | None:
    """Return that of a transfer to *host* at *address*; None where no delay runs from the start."""
    by_host = host.concurrency > 1 and host.gap()
    by_address = address.concurrency != 1 and address.delay
    return Departure(host, address) if by_host or by_address else None
