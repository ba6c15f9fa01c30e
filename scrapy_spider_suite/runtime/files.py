"""Files that are never seen half written, after a power failure neither.

Files of lines of JSON that are only ever appended to, and on the medium when that returns.

Temporary folders that go with their process, or with the next that makes one.

A process that is killed cannot remove its folder. So each folder has a file that its process holds
locked, and whoever makes one removes those whose lock is free.

The folder of a crawl without a job directory: gone after it, or with the next such crawl.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import IO, Any, BinaryIO, Final

from scrapy_spider_suite.errors import JobInUseError, SettingsError, StoreWriteError


def sync_path(path: Path) -> None:
    """Have the file *path*, or the names in the folder *path*, on the medium. Raises `OSError`."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_synced(path: Path, *data: bytes) -> None:
    """Write *data* to *path*, on the medium; its name is there once it is renamed or synced.

    Raises `OSError`.
    """
    with path.open("wb") as file:
        file.writelines(data)
        file.flush()
        os.fsync(file.fileno())


def write_all(file: int, data: bytes | bytearray) -> None:
    """Write all of *data* to the open *file*. Raises `OSError`; a part may be written then."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def replace_file(path: Path, data: bytes) -> None:
    """Let *path* hold *data*: on the medium, before it takes the place of what was there.

    Raises `OSError`; what was there is there, then.
    """
    with replacing_file(path) as new:
        new.write_bytes(data)


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """A file to be written beside *path*, which takes its place once it is on the medium.

    Raises `OSError`. If anything is raised, it is removed, and what was there is there.
    """
    new = path.with_name(f"{path.name}.new")
    try:
        yield new
        sync_path(new)
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    sync_path(path.parent)


def append_json_lines(path: Path, *rows: dict[str, Any]) -> None:
    """Append *rows*, all of them or none. Raises `OSError`."""
    data = b"".join(
        json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n" for row in rows
    )
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(file).st_size
        # What a full disk cut off must not spoil these lines too.
        if _torn(path, size):
            data = b"\n" + data
        if os.write(file, data) < len(data):
            with suppress(OSError):  # a file that may only be appended to: a line is torn
                os.ftruncate(file, size)
            raise OSError(f"{path.name} could not be written to its end")
        os.fsync(file)
    finally:
        os.close(file)


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """All that was written, the oldest first; lines that were torn are left out."""
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(row, dict):
                    yield row
    except FileNotFoundError:
        return


def _torn(path: Path, size: int) -> bool:
    if not size:
        return False
    with path.open("rb") as reader:
        reader.seek(-1, os.SEEK_END)
        return reader.read(1) != b"\n"


_LOCK: Final = "lock"


class LockedFolder:
    """A new folder *path* among the system's temporary ones, until `remove` or this process ends.

    Its name begins with *prefix*, as those do that are swept before. Raises `OSError`.
    """

    def __init__(self, prefix: str) -> None:
        _sweep(Path(tempfile.gettempdir()), prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        # Locked before it has its name: nobody may find it free.
        self._lock = (self.path / f"{_LOCK}.new").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.replace(self.path / f"{_LOCK}.new", self.path / _LOCK)

    def remove(self) -> None:
        """Remove the folder and what is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _sweep(folder: Path, prefix: str) -> None:
    """Remove what processes of ours that have ended left in *folder*."""
    for path in folder.glob(f"{prefix}*"):
        if path.is_symlink():
            continue
        lock = _free_lock(path / _LOCK)
        if lock is not None:
            with lock:
                shutil.rmtree(path, ignore_errors=True)


def _free_lock(path: Path) -> IO[bytes] | None:
    """Take the lock of a folder, unless somebody has it, or it is none of ours."""
    try:
        lock = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
    except OSError:
        return None
    try:
        if os.fstat(lock.fileno()).st_uid == os.getuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
    except OSError:
        pass
    lock.close()
    return None


TEMPORARY_PREFIX: Final = "scrapy-spider-suite-"


class TemporaryFolder(LockedFolder):
    """See `LockedFolder`. Raises `SettingsError` where it cannot be made."""

    def __init__(self) -> None:
        try:
            super().__init__(TEMPORARY_PREFIX)
        except OSError as error:
            raise SettingsError(
                f"there is no temporary folder to crawl in ({error}): set JOBDIR, or TMPDIR"
            ) from error


def lock_file(file: BinaryIO, *, wait: bool = False) -> bool:
    """Lock *file* (flock); False if another process has it locked, and it is not to *wait*."""
    try:
        flock(file, LOCK_EX | (0 if wait else LOCK_NB))
    except BlockingIOError:
        return False
    return True


LOCK_NAME: Final = "lock"


def lock_folder(folder: Path) -> int:
    """Take the store in *folder* for this process; closing what is returned gives it back.

    Raises `JobInUseError`, `StoreWriteError`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreWriteError(f"{folder}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise JobInUseError(f"{folder} is open in another process, or twice in this one") from error
    return fd
