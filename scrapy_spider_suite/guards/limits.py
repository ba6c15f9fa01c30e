"""Limits that Linux sets to this process: memory of its control group, tracked connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")
_NO_LIMIT = 1 << 60
"""Control groups of the first version say "no limit" by a number near 2^63."""


class Memory(NamedTuple):
    """A limit in bytes, and what sets it."""

    limit: int
    by: str


def memory_limit(root: Path = ROOT) -> Memory | None:
    """The least of what the control groups and the machine allow; None if neither is known."""
    found = [*_group_limits(root), *_machine(root)]
    return min(found, default=None)


def _group_limits(root: Path) -> Iterator[Memory]:
    """Those of our group and of all above it (cgroups(7))."""
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
                yield Memory(limit, "the control group")


def _machine(root: Path) -> Iterator[Memory]:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemTotal" and value.split()[:1]:
            yield Memory(int(value.split()[0]) << 10, "the machine")


class Tracking(NamedTuple):
    """The table of connections that the firewall follows."""

    used: int
    limit: int


def tracking(root: Path = ROOT) -> Tracking | None:
    """How full that table is; None where connections are not followed."""
    folder = root / "proc/sys/net/netfilter"
    limit = _number(folder / "nf_conntrack_max")
    if not limit:
        return None
    return Tracking(_number(folder / "nf_conntrack_count") or 0, limit)


def _number(path: Path) -> int | None:
    """The number in the file *path*; None if there is none, or it says ``max``."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
