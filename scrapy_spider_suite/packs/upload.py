"""Uploads packs through `fsspec`, one or as they are closed, and checks them.

Where incomplete files are visible (folder, SFTP) a pack is sent under another name, read back and
renamed. In an object store size and, if named, MD5 are compared.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from scrapy_spider_suite.errors import PackError, PackUploadError
from scrapy_spider_suite.packs import pack_file
from scrapy_spider_suite.packs.cdxj import file_identity
from scrapy_spider_suite.packs.folder_index import build_index, is_indexed, lock_indexes
from scrapy_spider_suite.packs.warc import warc_date
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.runtime.remote_folder import PART, RemoteFolder, error_line

logger = logging.getLogger(__name__)

_STEP: Final = 1 << 20


class UploadTarget:
    """A folder on another file system; *url* as fsspec has it. Raises `PackError`: unknown URL."""

    def __init__(self, url: str) -> None:
        try:
            self._folder = RemoteFolder(url)
        except ImportError as error:
            what = "fsspec is not installed: pip install 'scrapy-spider-suite[upload]'"
            raise PackError(what if error.name == "fsspec" else str(error)) from error
        except ValueError as error:
            raise PackError(str(error)) from error
        self.url = self._folder.url

    def send(self, pack: Path, now: float) -> pack_file.Uploaded:
        """Upload the index of *pack*, then *pack*, replacing files of that name.

        *now*: seconds since the epoch. Raises `PackUploadError` (the upload is uncertain) and
        `OSError` (unreadable here).
        """
        index = pack_file.index_path(pack)
        sums = [_sum_of(path.open("rb")) for path in (index, pack)]
        with self._connected(pack) as (system, folder):
            for path, (size, md5) in zip((index, pack), sums, strict=True):
                self._put(system, path, f"{folder}/{path.name}", size, md5)
        return pack_file.Uploaded(self.place(pack), *sums[1], warc_date(now))

    def require_elsewhere(self, folder: Path) -> None:
        """Raise `PackError` if the target is *folder* itself."""
        there = self._folder.local_path()
        if there is not None and there.resolve() == folder.resolve():
            raise PackError("the packs are in that folder: name another one")

    def place(self, pack: Path) -> str:
        return f"{self.url}/{pack.name}"

    def require_free(self, pack: Path) -> None:
        """Raise `PackUploadError` if a file with other bytes has the name of *pack* there."""
        with self._connected(pack) as (system, folder):
            name = f"{folder}/{pack.name}"
            if not system.exists(name):
                return
            sums = system.info(name)["size"], _sum_of(system.open(name, "rb"))[1]
            if sums != _sum_of(pack.open("rb")):
                raise PackUploadError("another file of that name is there: two agents must not "
                                      "have one SUITE_AGENT_NAME")  # fmt: skip

    @contextmanager
    def _connected(self, pack: Path) -> Iterator[tuple[Any, str]]:
        try:
            with self._folder.connected() as connected:
                yield connected
        except Exception as error:  # each library of a file system has errors of its own
            what = error_line(f"could not be uploaded to {self.url}", error)
            raise PackUploadError(f"{pack.name} {what}") from error

    def _put(self, system: Any, path: Path, target: str, size: int, md5: str) -> None:
        folder = self._folder
        name = target if folder.is_store else f"{target}{PART}"
        system.put_file(str(path), name)
        _require_sent(system, name, size, md5, read=not folder.is_store)
        if folder.is_store:
            return
        folder.rename(system, name, target)
        if system.exists(name):
            raise PackUploadError(f"it cannot be renamed: {name} is still there")
        _require_sent(system, target, size, md5, read=not folder.renames)


def upload_pack(
    pack: Path, target: UploadTarget, now: float, *, keep: bool
) -> pack_file.Uploaded | None:
    """Upload *pack*, mark it, and delete it unless *keep*. None: another process has it, or it has
    changed: try again. Raises as `UploadTarget.send`.
    """
    with pack.open("rb") as file:
        if not files.lock_file(file):
            return None
        before = file_identity(pack.stat())
        if not (pack_file.index_path(pack).exists() if keep else is_indexed(pack)):
            with lock_indexes(pack.parent, wait=True):
                if not _is_still(pack, before):
                    return None
                build_index(pack)
        if pack_file.upload_url(pack) != target.place(pack):
            target.require_free(pack)
            pack_file.mark_uploaded(pack, pack_file.Uploaded(target.place(pack)))
        done = pack_file.find_upload(pack)
        if done is None or (done.size, done.md5) != _sum_of(pack.open("rb")):
            done = target.send(pack, now)
        with lock_indexes(pack.parent, wait=True):
            if not _is_still(pack, before):
                return None
            pack_file.mark_uploaded(pack, done)
            if not keep:
                pack.unlink()
                files.sync_path(pack.parent)
        return done


def _is_still(pack: Path, before: tuple[int, int, int]) -> bool:
    with suppress(FileNotFoundError):
        return file_identity(pack.stat()) == before
    return False


def _require_sent(system: Any, name: str, size: int, md5: str, *, read: bool) -> None:
    system.invalidate_cache()
    info, there = system.info(name), ""
    raw = info.get("md5Hash") or getattr(info.get("content_settings"), "content_md5", None)
    if raw:
        there = (base64.b64decode(raw) if isinstance(raw, str) else bytes(raw)).hex()
    elif read:
        there = _sum_of(system.open(name, "rb"))[1]
    if info["size"] != size or (there and there != md5):
        system.rm_file(name)
        raise PackUploadError(f"what arrived is not what was sent: {info['size']} bytes of "
                              f"{size}, MD5 {there or '-'}, not {md5}")  # fmt: skip


def _sum_of(file: BinaryIO) -> tuple[int, str]:
    size, found = 0, hashlib.md5(usedforsecurity=False)
    with file:
        while data := file.read(_STEP):
            size += len(data)
            found.update(data)
    return size, found.hexdigest()


_LONGEST: Final = 300.0


class UploadThread:
    """Uploads the packs of *agent* in *folder*, the oldest first. *report* is called in the thread
    with each pack and its upload or error.
    """

    def __init__(
        self, folder: Path, agent: str, target: UploadTarget, *, keep: bool,
        report: Callable[[Path, pack_file.Uploaded | Exception], None],
        rest: Callable[[threading.Event, float | None], object] = threading.Event.wait,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._agent = agent
        self._target = target
        self._keep = keep
        self._report = report
        self._rest = rest
        self._closed, self._ending = threading.Event(), threading.Event()
        self._failed: Counter[Path] = Counter()
        self._thread = threading.Thread(target=self._run, name="uploads", daemon=True)
        self._thread.start()

    def notify(self) -> None:
        self._closed.set()

    def finish(self, timeout: float) -> list[Path]:
        """Upload the rest within *timeout* seconds, failed packs once more; return what is left."""
        self._ending.set()
        self._closed.set()
        self._thread.join(timeout)
        return self.left()

    def left(self) -> list[Path]:
        with suppress(OSError):  # the folder is gone, and they with it
            return pack_file.packs_to_upload(
                self._folder, self._agent, keep=self._keep, target=self._target.url
            )
        return []

    def _run(self) -> None:
        while True:
            self._closed.clear()
            last = self._ending.is_set()
            wait = self._round()
            if last:
                return
            self._rest(self._closed if wait is None else self._ending, wait)

    def _round(self) -> float | None:
        left = self.left()
        for path in sorted(left, key=lambda path: (self._failed[path], path)):
            try:
                done = upload_pack(path, self._target, time.time(), keep=self._keep)
            except (PackError, OSError) as error:
                # Others come before it next time: it may be this one alone.
                self._failed[path] += 1
                self._report(path, error)
                return min(_LONGEST, 2.0 ** min(9, self._failed.total()))
            if done is None:
                return 1.0
            self._failed.clear()
            self._report(path, done)
        return None
