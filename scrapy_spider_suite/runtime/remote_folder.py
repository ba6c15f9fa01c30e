"""A folder on any file system that `fsspec` knows: local, SFTP, an object store.

Where incomplete files are visible, a file is written under another name, and then renamed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from scrapy_spider_suite.runtime import files

_STORES: Final = frozenset({
    "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "ocilake", "hf",
})  # fmt: skip
"""Protocols of object stores."""
_LOCAL: Final = frozenset({"file", "local"})
_RENAMING: Final = _LOCAL | {"sftp", "ssh"}
"""Protocols whose ``mv`` replaces the target by a rename; others may copy."""
PART: Final = ".part"


class RemoteFolder:
    """The folder *url*, as fsspec has it. Raises `ImportError`, `ValueError`: unknown protocol.

    *is_store*: an object store, where a file appears whole. *is_local*: it is on this machine.
    """

    def __init__(self, url: str) -> None:
        import fsspec  # type: ignore[import-untyped]

        self.url = url.rstrip("/")
        protocol = url.partition("://")[0] if "://" in url else "file"
        fsspec.get_filesystem_class(protocol.partition("::")[0])
        self.is_store, self.is_local = protocol in _STORES, protocol in _LOCAL
        self.renames = protocol in _RENAMING
        self._system: Any = None

    @contextmanager
    def connected(self) -> Iterator[tuple[Any, str]]:
        """The file system and the path of the folder, which is made.

        Any exception drops the connections. Libraries of file systems have errors of their own.
        """
        import fsspec

        try:
            if self._system is None:
                self._system = fsspec.core.url_to_fs(self.url, skip_instance_cache=True)
            system, folder = self._system
            if not self.is_store:  # there it would be the bucket
                system.makedirs(folder, exist_ok=True)
            yield system, folder.rstrip("/")
        except Exception:
            self._system = None  # with its connections, which may be what is broken
            raise

    def local_path(self) -> Path | None:
        import fsspec

        return Path(fsspec.core.url_to_fs(self.url)[1]) if self.is_local else None

    def rename(self, system: Any, name: str, target: str) -> None:
        """Rename the file *name* to *target*, whatever is there, durably where it is local."""
        if self.is_local:
            files.sync_path(Path(name))
        if not self.renames and system.exists(target):
            system.rm_file(target)  # WebHDFS renames nothing onto a file, and does not say so
        system.mv(name, target)
        system.invalidate_cache()
        if self.is_local:
            files.sync_path(Path(target).parent)

    # Small files, as a whole

    def write(self, name: str, data: bytes) -> None:
        """Write the file *name*, which appears whole."""
        with self.connected() as (system, folder):
            target = f"{folder}/{name}"
            if self.is_store:
                system.pipe_file(target, data)
                return
            system.makedirs(target.rpartition("/")[0], exist_ok=True)
            system.pipe_file(f"{target}{PART}", data)
            self.rename(system, f"{target}{PART}", target)

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes of the file *name*. Raises `FileNotFoundError`, and others."""
        with self.connected() as (system, folder):
            found: bytes = system.cat_file(f"{folder}/{name}", start=start, end=end)
            return found

    def remove(self, name: str) -> None:
        """Remove the file *name*; it may be gone."""
        with self.connected() as (system, folder), suppress(FileNotFoundError):
            system.rm_file(f"{folder}/{name}")


def error_line(what: str, error: Exception) -> str:
    """*what* and why, in one line without the user and password of a URL."""
    words = " ".join(str(getattr(error, "strerror", None) or error).split())
    return re.sub(r"://[^/\s@]*@", "://", f"{what}: {words or type(error).__name__}")[:500]
