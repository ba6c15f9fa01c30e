"""A command on a terminal of its own, and what it shows there."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path


def on_terminal(
    command: list[str], folder: Path, environment: dict[str, str], columns: int = 80
) -> tuple[int, str]:
    """Run *command* to its end, with standard error on a terminal; exit code and what came there.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        try:
            while data := terminal.read(65536):
                shown += data
        except OSError:  # how Linux says that nobody has the other end any more
            pass
    return process.wait(30), shown.decode(errors="replace")
