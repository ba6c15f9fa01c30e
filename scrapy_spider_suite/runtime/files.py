"""Files that are never seen half written, not even after a power failure; locks, JSON lines."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from functools import partial
from io import BytesIO, FileIO
from pathlib import Path
from typing import IO, Any, BinaryIO, Final

from scrapy_spider_suite.errors import JobInUseError, SettingsError, StoreWriteError

LOCK_NAME: Final = "lock"
TEMPORARY_PREFIX: Final = "scrapy-spider-suite-"
_COPIED: Final = 1 << 20  # bytes that are copied at once
_LAST: Final = 4_096  # bytes of the end of a file in which the last line is looked for


def sync_path(path: Path) -> None:
    """Sync the file *path*, or the names in the folder *path*. Raises `OSError`."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_synced(path: Path, *data: bytes) -> None:
    """Write and sync the file *path*, but not its name. Raises `OSError`."""
    with path.open("wb") as file:
        file.writelines(data)
        file.flush()
        os.fsync(file.fileno())


def write_all(file: int | BinaryIO | BytesIO | FileIO, data: bytes | bytearray) -> None:
    """Write all of *data* to the unbuffered *file*. Raises `OSError`; a part may be written."""
    write = partial(os.write, file) if isinstance(file, int) else file.write
    view = memoryview(data)
    while view:
        view = view[write(view) :]


def replace_file(path: Path, data: bytes) -> None:
    """Replace the content of *path*, durably, or raise `OSError`."""
    with replacing_file(path) as new:
        new.write_bytes(data)


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """A file beside *path* to be written; it replaces *path*, durably, at the end.

    Raises `OSError`. After any exception the new file is removed, and *path* is unchanged.
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


def copy_file(path: Path, to: Path) -> None:
    """Copy the file *path*, with its times; holes stay holes. Raises `OSError`."""
    with path.open("rb", buffering=0) as source, to.open("wb", buffering=0) as target:
        size, end = os.fstat(source.fileno()).st_size, 0
        while end < size:
            try:
                start = os.lseek(source.fileno(), end, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # there are no more data
                    break
                raise
            end = min(size, os.lseek(source.fileno(), start, os.SEEK_HOLE))
            source.seek(start)
            target.seek(start)
            while (left := end - source.tell()) > 0 and (data := source.read(min(left, _COPIED))):
                write_all(target, data)
        target.truncate(size)
    shutil.copystat(path, to)


def append_json_lines(path: Path, *rows: dict[str, Any]) -> None:
    """Append *rows*, all or none, and sync them. Raises `OSError`."""
    data = b"".join(
        json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n" for row in rows
    )
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(file).st_size
        # What a full disk cut off must not spoil these lines too.
        if size and os.pread(file, 1, size - 1) != b"\n":
            data = b"\n" + data
        if os.write(file, data) < len(data):
            with suppress(OSError):  # a file that may only be appended to: a line is torn
                os.ftruncate(file, size)
            raise OSError(f"{path.name} could not be written to its end")
        os.fsync(file)
    finally:
        os.close(file)


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of *path*, without torn lines; nothing if there is no file."""
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


def last_line(path: Path) -> str:
    """The last line of the log *path* that is not empty; ``nothing`` without one."""
    with path.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST))
        lines = log.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")


def lock_file(file: int | IO[Any], *, wait: bool = False, shared: bool = False) -> bool:
    """Lock *file* (flock) while it is open; return False if another process has it locked.

    *wait*: until it is free. Raises `OSError`.
    """
    try:
        flock(file, (LOCK_SH if shared else LOCK_EX) | (0 if wait else LOCK_NB))
    except BlockingIOError:
        return False
    return True


@contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` into a `StoreWriteError` that names the file, or else *path*."""
    try:
        yield
    except OSError as error:
        raise StoreWriteError(f"{error.filename or path}: {error.strerror}") from error


def lock_folder(folder: Path) -> int:
    """Lock the store in *folder* for this process, until the returned descriptor is closed.

    Raises `JobInUseError`, `StoreWriteError`.
    """
    with store_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with suppress(OSError):
        if lock_file(fd):
            return fd
    os.close(fd)
    raise JobInUseError(f"{folder} is open in another process, or twice in this one")


class LockedFolder:
    """A new temporary folder *path*, until `remove` or the end of the process. Raises `OSError`.

    It holds a file in it locked: the next folder of the same *prefix* removes those with free
    locks.
    """

    def __init__(self, prefix: str) -> None:
        _sweep(Path(tempfile.gettempdir()), prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        # Locked before it has its name: nobody may find it free.
        self._lock = (self.path / f"{LOCK_NAME}.new").open("w")
        lock_file(self._lock, wait=True)
        os.replace(self.path / f"{LOCK_NAME}.new", self.path / LOCK_NAME)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _sweep(folder: Path, prefix: str) -> None:
    for path in folder.glob(f"{prefix}*"):
        if path.is_symlink():
            continue
        with suppress(OSError):
            number = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(number, "rb") as lock:
                if os.fstat(number).st_uid == os.getuid() and lock_file(lock):
                    shutil.rmtree(path, ignore_errors=True)


class TemporaryFolder(LockedFolder):
    """The folder of a crawl without a job directory. Raises `SettingsError`."""

    def __init__(self) -> None:
        try:
            super().__init__(TEMPORARY_PREFIX)
        except OSError as error:
            why = f"there is no temporary folder to crawl in ({error}): set JOBDIR, or TMPDIR"
            raise SettingsError(why) from error
