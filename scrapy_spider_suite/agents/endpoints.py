"""Where an agent listens, as text: ``host``, ``host:port``, or ``[host]:port`` for IPv6."""

from __future__ import annotations

import re
from typing import NamedTuple

_TEXT = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")


class Endpoint(NamedTuple):
    """A host, without brackets, and a port; 0 where none was given."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else host


def endpoint(text: str, *, whole: bool = False) -> Endpoint:
    """Return what *text* says. Raises `ValueError`: it is none, or not *whole*, with a port."""
    found = _TEXT.fullmatch(text)
    if found is None or (whole and found[3] is None):
        raise ValueError(f"{text!r} is not HOST:PORT")
    port = 0 if found[3] is None else int(found[3])
    if found[3] is not None and not 0 < port < 65536:
        raise ValueError(f"{text!r}: no port has the number {port}")
    return Endpoint(found[1] or found[2], port)
