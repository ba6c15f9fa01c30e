"""Checks of the machine at the start of a crawl."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from scrapy_spider_suite.operate.disk_guard import in_units
from scrapy_spider_suite.runtime.text import counted

ROOT = Path("/")
_NO_LIMIT = 1 << 60
"""Control groups of the first version say "no limit" by a number near 2^63."""


class MemoryLimit(NamedTuple):
    """A limit in bytes, and what sets it."""

    limit: int
    by: str


def memory_limit(root: Path = ROOT) -> MemoryLimit | None:
    """The least of what the control groups and the machine allow; None if neither is known."""
    found = [*_group_limits(root), *_machine(root)]
    return min(found, default=None)


def _group_limits(root: Path) -> Iterator[MemoryLimit]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be that outside, and what is inside be mounted at the base.
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(base):
                break
            limit = _number(folder / name)
            if limit is not None and limit < _NO_LIMIT:
                yield MemoryLimit(limit, "the control group")


def _machine(root: Path) -> Iterator[MemoryLimit]:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemTotal" and value.split()[:1]:
            yield MemoryLimit(int(value.split()[0]) << 10, "the machine")


class ConnectionTable(NamedTuple):
    """The table of connections that the firewall follows."""

    used: int
    limit: int


def connection_table(root: Path = ROOT) -> ConnectionTable | None:
    """How full that table is; None where connections are not followed."""
    folder = root / "proc/sys/net/netfilter"
    limit = _number(folder / "nf_conntrack_max")
    if not limit:
        return None
    return ConnectionTable(_number(folder / "nf_conntrack_count") or 0, limit)


def _number(path: Path) -> int | None:
    """The number in the file *path*; None if there is none, or it says ``max``."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


_ESCAPE = re.compile(r"\\([0-7]{3})")
_MEMORY = frozenset({"tmpfs", "ramfs"})
_NETWORK = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs",
    "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs",
})  # fmt: skip


class Mount(NamedTuple):
    """The file system at *point*."""

    point: Path
    type: str
    read_only: bool

    @property
    def in_memory(self) -> bool:
        """Whether what it holds takes memory."""
        return self.type in _MEMORY

    @property
    def remote(self) -> bool:
        """Whether it is on another machine."""
        return self.type in _NETWORK


def mount_of(path: Path, root: Path = Path("/")) -> Mount | None:
    """The mount that *path*, which need not exist yet, is on; None where that cannot be told.

    *root* is where ``proc`` is looked for.
    """
    try:
        lines = (root / "proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    real = path.resolve()
    found = None
    for line in lines:
        mount = _read(line)
        if mount is None or not real.is_relative_to(mount.point):
            continue
        # A later mount at the same point hides an earlier one.
        if found is None or len(mount.point.parts) >= len(found.point.parts):
            found = mount
    return found


def _read(line: str) -> Mount | None:
    here, _, there = line.partition(" - ")
    fields, system = here.split(" "), there.split(" ")
    if len(fields) < 6 or len(system) < 3:
        return None
    point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])
    options = {*fields[5].split(","), *system[2].split(",")}
    return Mount(Path(point), system[0], "ro" in options)


SCRAPY_QUEUE: Final = "requests.queue"
_STATE, _INFO = "active.json", "info.json"
_NUMBER = 4
"""Bytes of a number in a LIFO queue, big-endian."""


def count_pending(jobdir: Path) -> int:
    """Return how many requests wait in Scrapy's queue of *jobdir*; 0 if there is no queue.

    As Scrapy wrote it when it ended: after a kill the files give a smaller number, as to Scrapy.
    """
    return sum(_counts(jobdir / SCRAPY_QUEUE))


def _counts(folder: Path) -> Iterator[int]:
    for path in folder.rglob("*"):
        try:
            if path.name == _INFO:
                size = json.loads(path.read_bytes())["size"]
                yield size if isinstance(size, int) else 0
            elif path.is_file() and path.name != _STATE and not (path.parent / _INFO).exists():
                with path.open("rb") as file:
                    yield int.from_bytes(file.read(_NUMBER))
        except (OSError, ValueError, KeyError, TypeError):  # no queue of Scrapy's
            continue


_OTHER_FILES = 320
"""Files beside connections: the store keeps up to 256 open."""
_PROCESS = 192 << 20
"""Bytes for Python, Scrapy and their pages under way."""
_REMEMBERED = 120
"""Seconds for which a firewall follows a connection that was closed (nf_conntrack's TIME_WAIT)."""
_FULL = 0.8
_CLOCK = 60.0
"""Seconds that a clock may be set back without a word."""


@dataclass(frozen=True, kw_only=True)
class CrawlNeeds:
    """A crawl as far as the machine is concerned.

    Attributes:
        concurrency: most connections in use, *idle* of those kept open beside.
        files: the limit of open files, after it was raised.
        memory: bytes for hosts and for the store together, 0 if neither is bounded.
        job: the job directory, which *begins* with this run or goes on.
        temporary: the folder that is used instead of one.
        last_write: when the job was written to last, in seconds since the epoch, like *now*.
    """

    concurrency: int
    idle: int
    files: int
    memory: int = 0
    job: Path | None = None
    begins: bool = False
    temporary: Path | None = None
    last_write: float | None = None
    now: float = 0.0


def machine_findings(crawl: CrawlNeeds, root: Path = ROOT) -> list[str]:
    """Look at all of it; *root* is where ``proc`` and ``sys`` are looked for."""
    return [
        *_files(crawl),
        *_memory(crawl, root),
        *_connections(crawl, root),
        *_folders(crawl, root),
        *_clock(crawl),
        *_queue(crawl),
    ]


def _files(crawl: CrawlNeeds) -> Iterator[str]:
    needed = crawl.concurrency + crawl.idle + _OTHER_FILES
    if crawl.files < needed:
        yield (
            f"open files: {crawl.files} are allowed, CONCURRENT_REQUESTS = {crawl.concurrency} and "
            f"{counted(crawl.idle, 'idle connection')} may need {needed}; raise the limit "
            "(ulimit -n, LimitNOFILE=)"
        )


def _memory(crawl: CrawlNeeds, root: Path) -> Iterator[str]:
    limit = memory_limit(root) if crawl.memory else None
    needed = crawl.memory + _PROCESS
    if limit is not None and limit.limit < needed:
        yield (
            f"memory: {limit.by} allows {in_units(limit.limit)}, this crawl may need "
            f"{in_units(needed)}; lower SUITE_MEMORY, or raise the limit"
        )


def _connections(crawl: CrawlNeeds, root: Path) -> Iterator[str]:
    table = connection_table(root)
    if table is None:
        return
    if table.used > table.limit * _FULL:
        yield (
            f"connections: the firewall's table is nearly full, {table.used} of {table.limit}; "
            "raise net.netfilter.nf_conntrack_max"
        )
    elif table.limit < crawl.concurrency * _REMEMBERED:
        yield (
            f"connections: the firewall follows at most {table.limit}, and each for {_REMEMBERED} "
            f"s after its end; CONCURRENT_REQUESTS = {crawl.concurrency} may come to "
            f"{crawl.concurrency * _REMEMBERED}; raise net.netfilter.nf_conntrack_max"
        )


def _folders(crawl: CrawlNeeds, root: Path) -> Iterator[str]:
    job = None if crawl.job is None else mount_of(crawl.job, root)
    if job is not None and job.remote:
        yield (
            f"JOBDIR = {str(crawl.job)!r} is on another machine ({job.type} at {job.point}): it is "
            "slow, and its locks and writes may not hold; use a local disk"
        )
    if job is not None and job.in_memory:
        yield f"JOBDIR = {str(crawl.job)!r} is in memory ({job.type}): it ends with the machine"
    temporary = None if crawl.temporary is None else mount_of(crawl.temporary, root)
    if temporary is not None and temporary.in_memory:
        yield (
            f"the temporary folder {crawl.temporary} is in memory ({temporary.type}), and what "
            "waits to be fetched is kept there; set JOBDIR, or TMPDIR to a disk"
        )
    if temporary is not None and temporary.read_only:
        yield f"the temporary folder {crawl.temporary} cannot be written; set JOBDIR, or TMPDIR"


def _clock(crawl: CrawlNeeds) -> Iterator[str]:
    behind = 0.0 if crawl.last_write is None else crawl.last_write - crawl.now
    if behind > _CLOCK:
        yield (
            f"the clock is {behind:.0f} s behind the job's last write: hosts may wait that much "
            "longer, and times in the fetch log go back"
        )


def _queue(crawl: CrawlNeeds) -> Iterator[str]:
    # Whoever goes on with the job has been told.
    left = count_pending(crawl.job) if crawl.job is not None and crawl.begins else 0
    if left:
        yield (
            f"the job directory: {SCRAPY_QUEUE} holds {counted(left, 'request')} of Scrapy's own "
            "scheduler, pickled, which the suite does not read; finish that crawl with "
            "SUITE_ENABLED = False, or use another JOBDIR for this one"
        )
