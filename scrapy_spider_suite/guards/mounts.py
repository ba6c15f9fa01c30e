"""What kind of file system a folder is on, from Linux's ``/proc/self/mountinfo`` (proc(5))."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

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
    """``36 35 98:0 / /mnt rw,noatime master:1 - ext3 /dev/root rw``."""
    here, _, there = line.partition(" - ")
    fields, system = here.split(" "), there.split(" ")
    if len(fields) < 6 or len(system) < 3:
        return None
    point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])
    options = {*fields[5].split(","), *system[2].split(",")}
    return Mount(Path(point), system[0], "ro" in options)
