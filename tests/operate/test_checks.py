"""What is wrong with a machine, from files as Linux has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scrapy_spider_suite.operate import machine as machine_module
from scrapy_spider_suite.operate.machine import (
    MemoryLimit,
    find_mount,
    machine_findings,
    memory_limit,
)
from scrapy_spider_suite.store.rocks_store import RocksStore

G = 1 << 30
MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /tmp rw,nosuid - tmpfs tmpfs rw,size=1G
24 22 0:40 / /mnt/far\\040away rw shared:2 master:7 - nfs4 server:/export rw,vers=4.2
25 22 8:2 / /mnt/old rw - ext4 /dev/sdb rw
26 25 0:50 / /mnt/old ro - overlay none rw
27 22 8:3 / /mnt/frozen rw - ext4 /dev/sdc ro
nonsense
"""


def machine(root: Path, **files: Any) -> Path:
    """A machine with these *files*, by their paths with ``__`` for ``/``."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))
    return root


@pytest.fixture
def linux(tmp_path: Path) -> Path:
    """A machine with 8 GiB, these mounts, no limits and no firewall."""
    return machine(
        tmp_path, proc__self__mountinfo=MOUNTS, proc__self__cgroup="0::/\n",
        proc__meminfo="MemTotal:        8388608 kB\nMemFree: 1 kB\n",
    )  # fmt: skip


Find = Callable[..., list[str]]


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch, linux: Path) -> Find:
    """The findings about a crawl, on that machine; the time is 60."""

    def found(
        *, root: Path = linux, concurrency: int = 100, files: int = 1024, memory: int = 64 << 20,
        job: str = "/srv/job", temporary: str = "", last_write: float | None = 50.0,
    ) -> list[str]:  # fmt: skip
        monkeypatch.setattr(machine_module, "raise_file_limit", lambda: files)
        monkeypatch.setattr(machine_module, "read_status", lambda folder: {"when": last_write})
        monkeypatch.setattr(machine_module, "time", SimpleNamespace(time=lambda: 60.0))
        monkeypatch.setattr(
            machine_module, "tempfile", SimpleNamespace(gettempdir=lambda: temporary)
        )
        crawl: Any = SimpleNamespace(
            store=object.__new__(RocksStore),
            settings=SimpleNamespace(
                memory=memory, project=SimpleNamespace(concurrent_requests=concurrency)
            ),
            job=None if temporary else SimpleNamespace(
                path=Path(job), folder=Path(job), resumed=False
            ),
        )  # fmt: skip
        return list(machine_findings(crawl, root))

    return found


def test_nothing_is_wrong(find: Find, tmp_path: Path) -> None:
    """Then nothing is said; where nothing can be told neither (macOS)."""
    assert find() == []
    assert find(root=tmp_path / "elsewhere") == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"concurrency": 500}, ["open files: 1024", "CONCURRENT_REQUESTS = 500", "1076"]),
        ({"memory": 9 * G // 2}, ["the machine allows 8G", "may need 9.1G"]),
        ({"job": "/mnt/far away/job"}, ["another machine (nfs4 at /mnt/far away)"]),
        ({"job": "/tmp/job"}, ["JOBDIR = '/tmp/job' is in memory (tmpfs)"]),
        ({"temporary": "/tmp"}, ["temporary folder /tmp is in memory"]),
        ({"last_write": 3_660.0}, ["the clock is 3600 s behind"]),
    ],
)
def test_one_line_for_each_thing(wrong: dict[str, Any], words: list[str], find: Find) -> None:
    """It says what is wrong and what to do."""
    (line,) = find(**wrong)
    for word in words:
        assert word in line


def test_a_small_step_of_the_clock_is_nothing(find: Find) -> None:
    """Nor is a job that was never written to."""
    assert find(last_write=100.0) == []
    assert find(last_write=None) == []


@pytest.mark.parametrize(
    ("path", "type_"),
    [
        ("/srv", "ext4"), ("/tmp/a/b", "tmpfs"), ("/tmpfoo", "ext4"),
        ("/mnt/old/x", "overlay"),  # the later one at the same place
    ],
)  # fmt: skip
def test_mounts(path: str, type_: str, linux: Path) -> None:
    """The innermost mount holds, by whole names."""
    mount = find_mount(Path(path), linux)
    assert mount is not None
    assert mount.type == type_


def test_control_groups(linux: Path) -> None:
    """The least limit on the way up holds; ``max`` is none."""
    machine(
        linux, proc__self__cgroup="0::/a.slice/b.scope\n",
        **{"sys__fs__cgroup__a.slice__memory.max": 2 * G,
           "sys__fs__cgroup__a.slice__b.scope__memory.max": "max\n"},
    )  # fmt: skip
    assert memory_limit(linux) == MemoryLimit(2 * G, "the control group")


def test_a_container_sees_its_own_group(linux: Path) -> None:
    """Its path may be that outside, where nothing is mounted inside."""
    machine(
        linux, proc__self__cgroup="0::/docker/0123\n", **{"sys__fs__cgroup__memory.max": 3 * G}
    )
    assert memory_limit(linux) == MemoryLimit(3 * G, "the control group")


def test_tracked_connections(linux: Path, find: Find) -> None:
    """A table that is nearly full, or will not do for two minutes of this crawl."""
    folder = "proc__sys__net__netfilter__nf_conntrack"
    machine(linux, **{f"{folder}_max": "65536\n", f"{folder}_count": "100\n"})
    assert find() == []
    (line,) = find(concurrency=600, files=10_000)
    assert "follows 100 of at most 65536" in line
    assert "may come to 72000 more" in line
    machine(linux, **{f"{folder}_count": 60_000})
    (line,) = find()
    assert "follows 60000 of at most 65536" in line


def test_a_control_group_that_is_too_small(linux: Path, find: Find) -> None:
    """It is named, rather than the machine, which has more."""
    machine(linux, proc__self__cgroup="0::/jobs\n", **{"sys__fs__cgroup__jobs__memory.max": G})
    (line,) = find(memory=G // 2)
    assert "the control group allows 1G" in line
