"""Small file systems in memory, for full and read-only disks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def tmpfs(path: Path, size: str) -> Iterator[Path]:
    """A file system of *size* (``8m``) at *path* while the block runs.

    Skips the test where mounting is not permitted, unless CI says that it has to be.
    """
    path.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path))
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def make_read_only(path: Path) -> None:
    """Let nothing more be written to the file system at *path*."""
    _mount("-o", "remount,ro", str(path))


def _mount(*arguments: str) -> None:
    try:
        subprocess.run(["mount", *arguments], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        if os.environ.get("CI_MOUNTS"):
            raise
        pytest.skip(f"a file system cannot be mounted here: {error}")
