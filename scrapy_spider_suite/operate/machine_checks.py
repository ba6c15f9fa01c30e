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
    found = [MemoryLimit(limit, "the control group") for limit in _group_limits(root)]
    for line in _lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        if name == "MemTotal" and value.split()[:1]:
            found.append(MemoryLimit(int(value.split()[0]) << 10, "the machine"))
    return min(found, default=None)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []


def _group_limits(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/self/cgroup"):
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
                yield limit


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
    point: Path
    type: str
    read_only: bool


def mount_of(path: Path, root: Path = ROOT) -> Mount | None:
    """The mount that *path*, which need not exist yet, is on; None where that cannot be told."""
    real = path.resolve()
    found = None
    for line in _lines(root / "proc/self/mountinfo"):
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


def _queued_requests(folder: Path) -> Iterator[int]:
    """Yield how many requests wait in each file of Scrapy's queue *folder*.

    As Scrapy wrote it when it ended: after a kill the files give a smaller number, as to Scrapy.
    """
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
    """A line for each fault; *root* is the parent of ``proc`` and ``sys``."""
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
    folder = root / "proc/sys/net/netfilter"
    limit = _number(folder / "nf_conntrack_max")
    if not limit:
        return  # connections are not followed
    used = _number(folder / "nf_conntrack_count") or 0
    if used > limit * _FULL:
        yield (
            f"connections: the firewall's table is nearly full, {used} of {limit}; "
            "raise net.netfilter.nf_conntrack_max"
        )
    elif limit < crawl.concurrency * _REMEMBERED:
        yield (
            f"connections: the firewall follows at most {limit}, and each for {_REMEMBERED} "
            f"s after its end; CONCURRENT_REQUESTS = {crawl.concurrency} may come to "
            f"{crawl.concurrency * _REMEMBERED}; raise net.netfilter.nf_conntrack_max"
        )


def _folders(crawl: CrawlNeeds, root: Path) -> Iterator[str]:
    job = None if crawl.job is None else mount_of(crawl.job, root)
    if job is not None and job.type in _NETWORK:
        yield (
            f"JOBDIR = {str(crawl.job)!r} is on another machine ({job.type} at {job.point}): it is "
            "slow, and its locks and writes may not hold; use a local disk"
        )
    if job is not None and job.type in _MEMORY:
        yield f"JOBDIR = {str(crawl.job)!r} is in memory ({job.type}): it ends with the machine"
    temporary = None if crawl.temporary is None else mount_of(crawl.temporary, root)
    if temporary is not None and temporary.type in _MEMORY:
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
    if crawl.job is None or not crawl.begins:
        return  # the run that began the job has said it
    left = sum(_queued_requests(crawl.job / SCRAPY_QUEUE))
    if left:
        yield (
            f"the job directory: {SCRAPY_QUEUE} holds {counted(left, 'request')} of Scrapy's own "
            "scheduler, pickled, which the suite does not read; finish that crawl with "
            "SUITE_ENABLED = False, or use another JOBDIR for this one"
        )
