"""``scrapy`` on a terminal of its own, and what it shows there."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
from pathlib import Path

from support.forks import Fork
from support.projects import SCRAPY, environment


def on_terminal(arguments: list[str], folder: Path, columns: int = 80) -> tuple[int, str]:
    """Run ``scrapy`` in *folder* to its end, with standard error on a terminal.

    Its exit code, and what came there.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with open(os.devnull, "wb") as nothing, open(theirs, "wb") as errors:
        process = Fork(SCRAPY, arguments, folder, environment(), nothing, errors)
    shown = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        try:
            while data := terminal.read(65536):
                shown += data
        except OSError:  # how Linux says that nobody has the other end any more
            pass
    return process.wait(30), shown.decode(errors="replace")
