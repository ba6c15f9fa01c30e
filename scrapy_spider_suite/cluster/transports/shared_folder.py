"""Hand-over files over a folder that all agents share, with a folder for each crawl and agent.

There is no key: the folder's owner decides who may write. Content is checked all the same.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from scrapy_spider_suite.cluster.handover.handover_file import (
    PIECE,
    FileReceiver,
    FileTransport,
    HandoverLabel,
    check_room,
    error_text,
    intact_prefix,
    quoted_name,
    read_label,
)
from scrapy_spider_suite.errors import HandoverFileError, SuiteError, TransportError
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.runtime.tasks import cancel_tasks, logged_task
from scrapy_spider_suite.runtime.text import printable

logger = logging.getLogger(__name__)

POLL: Final = 1.0  # seconds between two looks for files
SILENCE: Final = 60.0  # seconds after which a silent receiver counts as away
AGAIN: Final = 60.0  # most seconds until a failed file is tried again
# Behind the id of a file. All but parts appear by renaming.
_PART: Final = ".part"  # its sender writes it
_WHOLE: Final = ".handover"
_TAKING: Final = ".taking"  # its receiver merges it
_KEPT: Final = ".kept"  # the receipt for a file of this agent
_REFUSED: Final = ".refused"  # why a file of this agent was refused
_TEXT: Final = 1_000
_AT_ONCE: Final = 16  # pieces written in one go in a thread: 1 MiB


class FolderTransport(FileTransport):
    """A `FileTransport` of the agent *name* over the shared *folder*."""

    def __init__(
        self, folder: Path, crawl: str, name: str, rate: float = 0.0, *, poll: float = POLL,
        silence: float = SILENCE,
    ) -> None:  # fmt: skip
        super().__init__(rate)
        self._folder = folder / quoted_name(crawl)
        self._own = self._folder / quoted_name(name)
        self._poll, self._silence = poll, silence
        self._tasks: list[asyncio.Task[None]] = []
        self._seen: dict[str, tuple[int, float]] = {}  # when a file was touched, and heard of
        self._later: dict[str, tuple[float, float]] = {}  # failed files: until when, and the wait

    async def start(self, inbox: FileReceiver) -> None:
        await asyncio.to_thread(self._own.mkdir, parents=True, exist_ok=True)
        self.inbox = inbox
        loops = self._receive_all(), self._touch_all()
        self._tasks = [logged_task(loop, "hand-overs") for loop in loops]

    async def close(self) -> None:
        await cancel_tasks(*self._tasks)
        with suppress(OSError):  # unless files lie there
            self._own.rmdir()
            self._folder.rmdir()

    # Sending

    async def deliver(self, path: Path, label: HandoverLabel, address: str) -> None:
        try:
            # A receiver answers before it removes the file: in this order none is sent twice.
            there = await asyncio.to_thread(self._last_touch, label)
            if not there and not await self._is_answered(label):
                await self._copy(path, label)
            await self._wait(label)
        except OSError as error:
            self.counters.broken += 1
            raise TransportError(f"{self._folder}: {error.strerror}") from error
        self.counters.delivered += 1

    async def _wait(self, label: HandoverLabel) -> None:
        loop = asyncio.get_running_loop()
        touched, since = self._seen.get(label.file_id, (0, loop.time()))
        while not await self._is_answered(label):
            now = await asyncio.to_thread(self._last_touch, label)
            if now != touched:
                touched, since = self._seen[label.file_id] = now, loop.time()
                self.signs += 1
            elif loop.time() - since > self._silence:
                self.counters.broken += 1
                raise TransportError(f"{label.receiver} has not looked into its folder of late")
            await asyncio.sleep(self._poll)

    async def _is_answered(self, label: HandoverLabel) -> bool:
        """Whether the receiver has stored the file. Raises `HandoverFileError`: it refused."""
        text = await asyncio.to_thread(_read, self._own / f"{label.file_id}{_REFUSED}")
        if text is not None:
            self.counters.bad += 1
            raise HandoverFileError(f"{label.receiver}: {text}")
        kept = self._own / f"{label.file_id}{_KEPT}"
        return await asyncio.to_thread(_read, kept) is not None

    async def _copy(self, path: Path, label: HandoverLabel) -> None:
        part = self._place(label, _PART)
        whole = part.with_suffix(_WHOLE)
        await asyncio.to_thread(part.parent.mkdir, parents=True, exist_ok=True)
        size = path.stat().st_size
        at = await asyncio.to_thread(intact_prefix, part, label, size)
        check_room(part.parent, size - at)
        async for offset, portion in self._portions(label, at, size, PIECE * _AT_ONCE):
            await asyncio.to_thread(_append, path, part, offset, portion)
        await asyncio.to_thread(_finish, part, whole)

    def withdraw(self, label: HandoverLabel) -> None:
        super().withdraw(label)
        self._seen.pop(label.file_id, None)
        mine = [self._own / f"{label.file_id}{end}" for end in (_KEPT, _REFUSED)]
        for path in (*mine, *(self._place(label, end) for end in (_PART, _WHOLE))):
            with suppress(OSError):
                path.unlink()

    def _last_touch(self, label: HandoverLabel) -> int:
        """Return when the receiver last touched the file, in ns; 0: it is not there."""
        last = 0
        for end in (_WHOLE, _TAKING):
            with suppress(FileNotFoundError):
                found = self._place(label, end).stat(follow_symlinks=False)
                last = max(last, found.st_mtime_ns)
        return last

    def _place(self, label: HandoverLabel, end: str) -> Path:
        return self._folder / quoted_name(label.receiver) / f"{label.file_id}{end}"

    # Receiving

    async def _receive_all(self) -> None:
        while True:
            paths = await self._whole_files()
            stems = {path.stem for path in paths}
            self._later = {stem: each for stem, each in self._later.items() if stem in stems}
            for path in paths:
                await self._try_one(path)
            await asyncio.sleep(self._poll)

    async def _whole_files(self) -> list[Path]:
        def listed() -> list[Path]:
            self._own.mkdir(parents=True, exist_ok=True)
            return sorted(path for path in self._own.iterdir() if path.suffix in (_WHOLE, _TAKING))

        try:
            paths = await asyncio.to_thread(listed)
        except OSError as error:
            self._once.say("folder", f"{self._own}: {error.strerror}")
            return []
        self._once.over("folder")
        return paths

    async def _touch_all(self) -> None:
        while True:
            for path in await self._whole_files():
                # A touched file tells its sender to wait: not after a failure.
                if path.stem not in self._later:
                    with suppress(OSError):
                        await asyncio.to_thread(os.utime, path, follow_symlinks=False)
            await asyncio.sleep(self._silence / 6)

    async def _try_one(self, path: Path) -> None:
        loop = asyncio.get_running_loop()
        until, wait = self._later.get(path.stem, (0.0, 0.0))
        if loop.time() < until:
            return
        try:
            await self._receive(path)
        except Exception as error:
            if isinstance(error, SuiteError | OSError):
                self._once.say("later", f"cannot receive a hand-over file now: {error_text(error)}")
            else:
                logger.exception("hand-over: %s cannot be taken; report this", path.name)
            wait = min(AGAIN, max(2 * wait, self._poll))
            self._later[path.stem] = loop.time() + wait, wait

    async def _receive(self, path: Path) -> None:
        try:
            label = await asyncio.to_thread(read_label, path)
            if label.file_id != path.stem:
                raise HandoverFileError("a hand-over file under the name of another one")
        except HandoverFileError as error:
            self._refuse("bad", error)  # the sender is not known: no answer
            with suppress(OSError):
                path.unlink()
            return
        size = path.stat().st_size
        try:
            # Renamed only after this call: if it raises, the sender can still withdraw the file.
            if not self.inbox.is_stored(label):
                path = await asyncio.to_thread(path.rename, path.with_suffix(_TAKING))
                self._later.pop(path.stem, None)  # its sender waits while it is merged
                await self.inbox.merge(label, path)
        except HandoverFileError as error:
            self._refuse("bad", error)
            await asyncio.to_thread(self._answer, label, _REFUSED, error_text(error))
        else:
            self.counters.received += 1
            self.counters.bytes_in += size
            self._once.over("later")
            await asyncio.to_thread(self._answer, label, _KEPT, label.receiver)
        await asyncio.to_thread(path.unlink, missing_ok=True)

    def _answer(self, label: HandoverLabel, end: str, text: str) -> None:
        place = self._folder / quoted_name(label.sender)
        place.mkdir(parents=True, exist_ok=True)
        files.replace_file(place / f"{label.file_id}{end}", text.encode())


def _read(path: Path) -> str | None:
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with open(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(f"{path.name} is no file")
        return printable(file.read(_TEXT).decode("utf-8", "replace"))[:_TEXT]


def _append(path: Path, to: Path, at: int, size: int) -> None:
    with path.open("rb") as file, to.open("ab") as part:
        if part.tell() != at:
            raise OSError(f"another one writes to {to.name}")
        file.seek(at)
        part.write(file.read(size))


def _finish(part: Path, whole: Path) -> None:
    files.sync_path(part)
    part.replace(whole)
    files.sync_path(whole.parent)
