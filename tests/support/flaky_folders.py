"""``flaky://PATH``: a local folder that is slow, or fails, while a file says so.

The file is named by the environment variable `FLAKY`: ``slow SECONDS`` or ``fail``; without the
file all is well.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

import fsspec
from fsspec.implementations.local import LocalFileSystem

FLAKY: Final = "SUITE_TEST_FLAKY"


def trouble() -> None:
    """Do what the file says."""
    try:
        said = Path(os.environ[FLAKY]).read_text().split()
    except (KeyError, OSError):
        return
    if said[:1] == ["slow"]:
        time.sleep(float(said[1]))
    elif said[:1] == ["fail"]:
        raise OSError("the folder is away, says the test")


class FlakyFolder(LocalFileSystem):
    """A file system with trouble in each call."""

    protocol = "flaky"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        path = str(path).removeprefix("flaky://")
        return LocalFileSystem._strip_protocol(path)

    def pipe_file(self, path: str, value: bytes, *args: Any, **kwargs: Any) -> Any:
        """Write, unless."""
        trouble()
        return super().pipe_file(path, value, *args, **kwargs)

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """Read, unless."""
        trouble()
        return super().cat_file(path, *args, **kwargs)

    def rm_file(self, path: str) -> None:
        """Remove, unless."""
        trouble()
        super().rm_file(path)


fsspec.register_implementation("flaky", FlakyFolder, clobber=True)
