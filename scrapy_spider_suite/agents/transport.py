"""What carries letters between agents: the protocol that Redis Streams and UDP both follow.

A letter that `Transport.send` has taken is sent again until its receiver says that it is kept, or
until it is withdrawn or the transport is closed. It arrives at least once, and perhaps more often:
who receives letters has to bear that, which is easy with URLs. It is acknowledged to the sender
only after the receiver's `Transport.acknowledge`, which the receiver calls once its rows are on
disk. What a process had taken and was not acknowledged is lost to it with the process; it is still
in the outbox, from where it is sent again, perhaps in other letters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Protocol

from scrapy_spider_suite.agents.letters import Bounds, Letter, Packed, Receipt

Received = Callable[[Letter], None]
"""Called with each letter, in the loop's thread; must not raise."""

Acknowledged = Callable[[str, int, int], None]
"""Called with receiver, first and last of a letter that was taken from here; must not raise."""


@dataclass(slots=True)
class MailCounters:
    """What a transport has done since it was made; each is for ``suite/mail/...`` in the stats."""

    taken: int = 0
    """Letters to be sent."""

    rows: int = 0
    """Rows in them."""

    bytes: int = 0
    """Bytes of them."""

    sent: int = 0
    """Times that a letter was put on the wire."""

    resent: int = 0
    """Of these, not for the first time."""

    acknowledged: int = 0
    """Letters that their receivers keep."""

    withdrawn: int = 0
    """Letters that were taken back."""

    received: int = 0
    """Letters handed on, some of them twice."""

    repeated: int = 0
    """Letters that came again and were not handed on again."""

    receipts: int = 0
    """Letters that were acknowledged to their senders."""

    full: int = 0
    """Times that a letter had to wait because there was no room for it."""

    failed: int = 0
    """Times that the server or the network failed; it is tried again."""

    remade: int = 0
    """Streams or connections that had to be made anew because the other side had lost them."""

    forged: int = 0
    """Refused: not from who it says, or with another key."""

    replayed: int = 0
    """Refused: a datagram of a connection that is over, genuine or not."""

    malformed: int = 0
    """Refused: not what it should be."""

    oversized: int = 0
    """Refused: too large, packed or unpacked."""

    unknown: int = 0
    """Refused: from an agent that is not on the list."""

    def took(self, letter: Packed) -> None:
        """*letter* is to be sent."""
        self.taken += 1
        self.rows += letter.rows
        self.bytes += len(letter.data)

    def refuse(self, kind: str) -> None:
        """Something was refused: *kind* is one of the last five."""
        setattr(self, kind, getattr(self, kind) + 1)

    @property
    def refused(self) -> int:
        """What came and was refused, whatever the reason."""
        return self.forged + self.replayed + self.malformed + self.oversized + self.unknown

    def as_dict(self) -> dict[str, int]:
        """Each by its name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}




class Transport(Protocol):
    """Carries letters; belongs to one event loop and is used in its thread only."""

    bounds: Bounds
    """What letters it can carry: for `letters.Packer`."""

    counters: MailCounters

    async def start(self, received: Received, acknowledged: Acknowledged) -> None:
        """Begin to send and to receive. Raises `OSError`: there is no socket for it."""

    def room(self, to: str) -> int:
        """How many letters `send` takes for the agent *to* now; 0 for one that is not known."""

    def send(self, to: str, letter: Packed) -> bool:
        """Take a letter for *to*; False if there is no room. One that is on its way is not doubled.

        There is room again as letters are acknowledged.
        """

    def acknowledge(self, receipt: Receipt) -> None:
        """The rows of a letter that was received are kept: its sender may forget them."""

    def withdraw(self, to: str) -> None:
        """Forget what is on its way to *to*: it may arrive, but nobody will be told."""

    async def close(self, seconds: float = 5.0) -> None:
        """Stop; what is acknowledged already is brought to the senders within *seconds*.

        Nothing is received from the call on, no callback called. It never raises; twice is once.
        """
