"""Telling systemd how it goes: the datagrams of ``sd_notify(3)``."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class Notifier:
    """Sends to the socket *address* (a path, or ``@`` and an abstract name); "" sends nowhere.

    *watchdog* is whether the manager wants to hear ``WATCHDOG=1``. What cannot be sent is not: a
    crawl does not end for it.
    """

    def __init__(self, address: str, *, watchdog: bool = False) -> None:
        self.watchdog = watchdog
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Notifier:
        """As NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID say."""
        process = environment.get("WATCHDOG_PID", "")
        wanted = environment.get("WATCHDOG_USEC", "0").strip("0") != ""
        ours = process in ("", str(os.getpid()))
        return cls(environment.get("NOTIFY_SOCKET", ""), watchdog=wanted and ours)

    def send(self, **assignments: str | int) -> bool:
        """Send *assignments*, such as ``READY=1``; whether they went off."""
        if self._socket is None:
            return False
        lines = (f"{name}={' '.join(str(value).split())}" for name, value in assignments.items())
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Send no more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
