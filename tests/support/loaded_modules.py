"""Which modules some code loads."""

from __future__ import annotations

import subprocess
import sys


def loaded_by(code: str, *flags: str) -> set[str]:
    """The modules that are loaded once a new process has run *code*; *flags* are Python's."""
    command = [sys.executable, *flags, "-c", f"{code}\nimport sys\nprint(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.split())
