"""A crawl that cannot be begun or resumed: one line, a code, nothing destroyed (bad input)."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.projects import Project
from support.small_disks import make_read_only, tmpfs
from support.webs import FakeWebProcess

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.runtime.refusal import ExitCode
from scrapy_spider_suite.settings.declarations import setting_name
from scrapy_spider_suite.settings.suite import DECLARATIONS, SuiteSettings
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.testing import FakeWebConfig

pytestmark = pytest.mark.slow

Run = Callable[..., "subprocess.CompletedProcess[str]"]
_MAY_CHANGE = ("lock", "LOG")


class Half:
    """A project, the in-vitro web that it crawls, and a job that is half done."""

    def __init__(self, folder: Path, web: FakeWebProcess) -> None:
        self.web = web
        self.project = Project(
            folder / "project", SUITE_DNS_SERVERS=f"127.0.0.1:{web.ready.dns_port}",
            SUITE_ALLOW_PRIVATE_ADDRESSES=["127.0.0.0/8"], SUITE_HOST_DELAY=0.01,
            SUITE_IP_DELAY=0, LOG_LEVEL="INFO",
        )  # fmt: skip
        self.job = folder / "job"
        ended = self.crawl(self.job, CLOSESPIDER_PAGECOUNT=10)
        assert ended.returncode == ExitCode.WORK_LEFT, ended.stderr

    def crawl(self, job: Path, spider: str = "bulk", **settings: Any) -> Any:
        """Begin or resume the job in the folder *job*."""
        seed = self.web.ready.seeds[0]
        argument = f"seeds={seed}" if spider == "bulk" else f"start={seed}"
        return self.project.scrapy("crawl", spider, "-a", argument, JOBDIR=str(job), **settings)

    def copy(self, folder: Path) -> Path:
        """A copy of the job."""
        return Path(shutil.copytree(self.job, folder / "job"))


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Half]:
    """See `Half`."""
    with FakeWebProcess(FakeWebConfig(hosts=5, pages=10, degree=4)) as web:
        yield Half(tmp_path_factory.mktemp("half"), web)


def contents(folder: Path) -> dict[str, str]:
    """A digest of each file but those that an attempt may write to."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(_MAY_CHANGE)
    }


def refused(
    ended: subprocess.CompletedProcess[str], *words: str, code: ExitCode = ExitCode.REFUSED
) -> None:
    """Check that the crawl was refused with one line, which holds *words*, and with *code*."""
    lines = ended.stderr.splitlines()
    if len(lines) > 1:  # the log had been set up, and says more
        lines = [line for line in lines if " CRITICAL: " in line]
    assert len(lines) == 1, ended.stderr[-3000:]
    assert "Traceback" not in ended.stderr
    assert " ERROR: " not in ended.stderr
    for word in words:
        assert word in lines[0]
    assert ended.returncode == code


# Settings

_SECRET = {"alert_url", "cluster_key", "redis_url"}
"""Whose value may hold a password, and is not shown."""


@pytest.mark.parametrize("name", sorted(DECLARATIONS))
def test_every_setting_refuses_nonsense(name: str) -> None:
    """A value that makes no sense is refused in one line that names setting, value, allowed."""
    from scrapy.settings import Settings

    bad = "\0 nonsense!"
    with pytest.raises(SettingsError) as refusal:
        SuiteSettings.from_settings(Settings({setting_name(name): bad}))
    message = str(refusal.value)
    shown = "" if name in _SECRET else f" = {bad!r}"
    assert message.startswith(f"{setting_name(name)}{shown}: expected ")
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("SUITE_HOST_DELAY", "soon", ["SUITE_HOST_DELAY = 'soon'", "10m"]),
        ("SUITE_REQUESTS_PER_VISIT", "21", ["SUITE_REQUESTS_PER_VISIT = '21'", "from 1 to 20"]),
        ("SUITE_HOST_DELY", "1", ["SUITE_HOST_DELY", "did you mean SUITE_HOST_DELAY?"]),
        ("SUITE_OVERRIDES", "nowhere.txt", ["SUITE_OVERRIDES", "nowhere.txt"]),
        ("SUITE_REVISIT_LEAST", "91d", ["SUITE_REVISIT_LEAST", "SUITE_REVISIT_MOST"]),
        ("SUITE_FOLLOW", "maybe", ["SUITE_FOLLOW = 'maybe'", "True or False"]),
        ("CONCURRENT_REQUESTS", "many", ["CONCURRENT_REQUESTS = 'many'"]),
    ],
)
def test_bad_setting(
    half: Half, setting: str, value: str, words: list[str], tmp_path: Path
) -> None:
    """The crawl does not begin, and no job directory is made."""
    refused(half.crawl(tmp_path / "job", **{setting: value}), *words)
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("text", ["a.test delay=soon\n", "a.test\n", "10.0.0.0/99 delay=1", "\xff"])
def test_bad_overrides_file(half: Half, text: str, tmp_path: Path) -> None:
    """The line of the file is named."""
    path = tmp_path / "overrides.txt"
    path.write_bytes(text.encode("latin-1"))
    refused(half.crawl(tmp_path / "job", SUITE_OVERRIDES=str(path)), "overrides.txt")


def test_a_delay_of_the_overrides_that_outlasts_the_lease(half: Half, tmp_path: Path) -> None:
    """The next owner of a host could not keep it; nobody has to be there to find that out."""
    path = tmp_path / "overrides.txt"
    path.write_text("a.test delay=500\n")
    settings = {
        "SUITE_CLUSTER": "peers", "SUITE_REDIS_URL": "redis://127.0.0.1:1/0",
        "SUITE_AGENT_GRACE": 300, "SUITE_OVERRIDES": str(path), "DOWNLOAD_TIMEOUT": 60,
    }  # fmt: skip
    refused(
        half.crawl(tmp_path / "job", **settings), "SUITE_AGENT_GRACE = 300.0: expected 590 or more",
        "500 s for the longest delay",
    )


def test_bad_seeds_file(half: Half, tmp_path: Path) -> None:
    """A file of seeds that is not there ends the crawl, with exit code 2."""
    ended = half.project.scrapy(
        "crawl", "bulk", "-a", "seeds=nowhere.txt", JOBDIR=str(tmp_path / "job")
    )
    refused(ended, "nowhere.txt")


def test_seeds_that_were_read_need_not_be_there(half: Half, tmp_path: Path) -> None:
    """A job whose start() ran to its end does without its file of seeds."""
    job, seeds = tmp_path / "job", tmp_path / "seeds.txt"
    seeds.write_text(half.web.ready.seeds[0] + "\n")

    def crawl(**settings: Any) -> Any:
        return half.project.scrapy(
            "crawl", "bulk", "-a", f"seeds={seeds}", JOBDIR=str(job), **settings
        )

    assert crawl(CLOSESPIDER_PAGECOUNT=5).returncode == ExitCode.WORK_LEFT
    seeds.unlink()
    ended = crawl(CLOSESPIDER_PAGECOUNT=5)
    assert ended.returncode == ExitCode.WORK_LEFT, ended.stderr


# Job directories


def test_job_in_use(half: Half, tmp_path: Path) -> None:
    """The line says who holds it."""
    job = half.copy(tmp_path)
    with (job / FOLDER / "lock").open("r+") as lock:
        lock.write("process 4711")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = contents(job)
        refused(half.crawl(job), "in use by process 4711", code=ExitCode.IN_USE)
    assert contents(job) == before


def test_job_of_a_newer_release(half: Half, tmp_path: Path) -> None:
    """A newer data format is left alone."""
    job = half.copy(tmp_path)
    path = job / FOLDER / "job.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 999}))
    before = contents(job)
    refused(half.crawl(job), "data format 999", "upgrade scrapy-spider-suite")
    assert contents(job) == before


def test_job_of_another_spider(half: Half, tmp_path: Path) -> None:
    """Two spiders do not share a job."""
    job = half.copy(tmp_path)
    before = contents(job)
    refused(half.crawl(job, "ordinary"), "belongs to spider 'bulk'", "JOBDIR")
    assert contents(job) == before


def test_job_with_another_fixed_setting(half: Half, tmp_path: Path) -> None:
    """What a job cannot change is named with both values, and the way out."""
    job = half.copy(tmp_path)
    path = job / FOLDER / "job.json"
    described = json.loads(path.read_text())
    described["settings"]["order"] = "bottom-up"
    path.write_text(json.dumps(described))
    before = contents(job)
    told = "SUITE_ORDER was 'bottom-up' and is 'breadth-first'"
    refused(half.crawl(job), told, "set it back", "JOBDIR")
    assert contents(job) == before


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _garble(path: Path) -> None:
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(byte ^ 0x5A for byte in data[middle : middle + 64])
    path.write_bytes(data)


DAMAGES = {"cut": _cut, "garbled": _garble, "removed": Path.unlink}


@pytest.mark.parametrize("how", sorted(DAMAGES))
@pytest.mark.parametrize(
    "file", ["job.json", "files.json", "store/CURRENT", "store/MANIFEST-*", "store/*.sst"]
)
def test_damaged_job(half: Half, file: str, how: str, tmp_path: Path) -> None:
    """What cannot be read is refused and left as it is."""
    if (file, how) == ("files.json", "removed"):
        pytest.skip("that is how a job looks after an unclean end")
    job = half.copy(tmp_path)
    for path in (job / FOLDER).glob(file):
        DAMAGES[how](path)
    before = contents(job)
    refused(half.crawl(job), "JOBDIR", code=ExitCode.DAMAGED)
    assert contents(job) == before


@pytest.mark.parametrize("how", sorted(DAMAGES))
def test_damage_that_does_no_harm(half: Half, how: str, tmp_path: Path) -> None:
    """What is written anew each time may be lost: the job is resumed."""
    job = half.copy(tmp_path)
    for file in ("lock", "status.json", "store/OPTIONS-*", "store/IDENTITY"):
        for path in (job / FOLDER).glob(file):
            DAMAGES[how](path)
    _finish(half, job)


def _finish(half: Half, job: Path) -> None:
    ended = half.crawl(job)
    assert ended.returncode == 0, ended.stderr
    assert "'finish_reason': 'finished'" in ended.stderr or "(finished)" in ended.stderr
    with StoreReader(job / FOLDER) as reader:
        assert list(reader.check()) == []
        counters = reader.counters()
    assert counters.pending == 0
    assert counters.done == len(set(half.web.web.reachable()))


@pytest.mark.parametrize("torn", [7, 200])
def test_torn_log_is_accepted(half: Half, torn: int, tmp_path: Path) -> None:
    """A log without its last bytes is what a power failure leaves: the job goes on."""
    job = tmp_path / "job"
    # Killed: what is in the log alone has not been written to tables.
    seed = half.web.ready.seeds[0]
    with pytest.raises(subprocess.TimeoutExpired):
        half.project.scrapy(
            "crawl", "bulk", "-a", f"seeds={seed}", JOBDIR=str(job), SUITE_HOST_DELAY=1, timeout=3
        )
    for path in (job / FOLDER / "store").glob("*.log"):
        path.write_bytes(path.read_bytes()[:-torn])
    _finish(half, job)


# Read-only


@pytest.mark.parametrize("begun", [True, False], ids=["resume", "begin"])
def test_read_only(half: Half, begun: bool, tmp_path: Path) -> None:
    """A job directory that cannot be written to is refused."""
    with tmpfs(tmp_path / "disk", "64m") as disk:
        job = half.copy(disk) if begun else disk / "job"
        make_read_only(disk)
        before = contents(disk)
        refused(half.crawl(job), "JOBDIR", "Read-only file system")
        assert contents(disk) == before


def test_job_directory_is_a_file(half: Half, tmp_path: Path) -> None:
    """A file in the place of the directory is named."""
    (tmp_path / "job").write_text("mine")
    refused(half.crawl(tmp_path / "job"), "JOBDIR", str(tmp_path / "job"))
    assert (tmp_path / "job").read_text() == "mine"
