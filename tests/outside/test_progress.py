"""How a broad crawl goes, in one line: on a terminal all the time, in the log once an interval."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.names import STATUS_FILE, Setting
from support.projects import Project, scrapy
from support.running_crawl import until
from support.terminals import on_terminal
from support.webs import FakeWebProcess

from scrapy_spider_suite.testing import FakeWebConfig

pytestmark = pytest.mark.slow

CLEAR = "\r\x1b[K"
COLUMNS = 80
OWN = """
from scrapy.extensions.logstats import LogStats

class Own(LogStats):
    pass
"""


@pytest.fixture(scope="module")
def web() -> Iterator[FakeWebProcess]:
    """A web of a few hosts, which takes some seconds."""
    with FakeWebProcess(FakeWebConfig(hosts=5, pages=10, degree=4)) as web:
        yield web


def project_of(web: FakeWebProcess, folder: Path, **settings: Any) -> list[str]:
    """A project in *folder* that crawls *web*; what ``scrapy`` is told to do it."""
    settings = {
        Setting.DNS_SERVERS: f"127.0.0.1:{web.ready.dns_port}", Setting.IP_DELAY: 0,
        Setting.ALLOW_PRIVATE_ADDRESSES: ["127.0.0.0/8"], Setting.HOST_DELAY: 0.4,
        "LOGSTATS_INTERVAL": 1, "LOG_LEVEL": "INFO", **settings,
    }  # fmt: skip
    made = Project(folder, **settings)
    (folder / "project" / "own.py").write_text(OWN)
    return [
        "crawl", "bulk", "-a", f"seeds={web.ready.seeds[0]}",
        "--output", str(made.folder / "none.jsonl"),
    ]  # fmt: skip


def test_on_a_terminal(web: FakeWebProcess, tmp_path: Path) -> None:
    """The line stays while nothing is printed, fits its width, and is the only one."""
    command = project_of(web, tmp_path)
    code, shown = on_terminal(command, tmp_path, COLUMNS)
    assert code == 0, shown[-3000:]
    assert "Crawled " not in shown
    pieces = [piece.rstrip("\r\n") for piece in shown.split(CLEAR)[1:]]
    progress = [piece for piece in pieces if re.fullmatch(r"[\d,]+ pages? \(.*", piece)]
    assert len(set(progress)) >= 3
    assert max(map(len, progress)) < COLUMNS
    # A record that is not printed wipes nothing: after what is printed the line is there again.
    assert pieces.count("") <= 2, shown[-3000:]


def test_in_the_log(web: FakeWebProcess, tmp_path: Path) -> None:
    """In the place of Scrapy's line, whose stats stay; with pages, bytes, queue, hosts, an end."""
    command = project_of(web, tmp_path, LOG_FILE="log")
    code, _ = on_terminal(command, tmp_path)
    log = (tmp_path / "log").read_text()
    assert code == 0, log[-3000:]
    assert "Crawled " not in log
    assert "'responses_per_minute'" in log
    lines = re.findall(
        r"INFO: [\d,]+ pages? \([\d.,]+/s, [\d.,]+ (?:B|kB|MB|GB)/s\), "
        r"[\d,]+ URLs? to go \((.*?)\), \d+ under way; [\d,]+ hosts? waits?.*; [\d,]+ failed", log,
    )  # fmt: skip
    assert len(lines) >= 2, log[-3000:]
    ends = r"about \d+ (s|min|h|d)|the queue grows|no end in sight|the queue is empty"
    assert all(re.fullmatch(ends, each) for each in lines), lines


def test_a_line_of_the_projects_own_is_kept(web: FakeWebProcess, tmp_path: Path) -> None:
    """The project asked for it."""
    extensions = {"scrapy.extensions.logstats.LogStats": None, "project.own.Own": 0}
    command = project_of(web, tmp_path, LOG_FILE="log", EXTENSIONS=extensions)
    code, _ = on_terminal(command, tmp_path)
    log = (tmp_path / "log").read_text()
    assert code == 0, log[-3000:]
    assert "Crawled " in log


def paused(web: FakeWebProcess, folder: Path, why: str, **settings: Any) -> str:
    """What a terminal shows of a crawl that begins paused, and ends after some seconds."""
    job = ["-j", str(folder / "job")]
    command = project_of(web, folder, JOBDIR=str(folder / "job"), **settings)
    done = scrapy(folder, "frontier", "pause", "--who", "anna", "--why", why, *job)
    assert done.returncode == 0, done.stderr
    with ThreadPoolExecutor(1) as beside:
        shown = beside.submit(on_terminal, command, folder, COLUMNS)
        try:
            until((folder / "job" / STATUS_FILE).exists)
            time.sleep(3.0)
        finally:
            scrapy(folder, "frontier", "resume", *job)
        code, text = shown.result(60)
    assert code == 0, text[-3000:]
    return text


@pytest.mark.parametrize(
    ("why", "expected"),
    [
        ("night", "paused by the operator (anna: night), 0 pages ("),
        ("night, " * 20, "paused by the operator (anna), 0 pages ("),
        ("\x1b[2Jnight\n", "paused by the operator (anna: \\x1b[2Jnight"),
    ],
)
def test_a_pause_on_a_terminal(
    web: FakeWebProcess, tmp_path: Path, why: str, expected: str
) -> None:
    """It comes first, as in ``status``, with its reason where that fits; no more when it is over.
    """
    pieces = [piece.rstrip("\r\n") for piece in paused(web, tmp_path, why).split(CLEAR)[1:]]
    progress = [piece for piece in pieces if " pages " in piece and "\n" not in piece]
    assert progress[0].startswith(expected), progress
    assert not progress[-1].startswith("paused"), progress
    assert max(map(len, progress)) < COLUMNS


def test_a_pause_in_the_log(web: FakeWebProcess, tmp_path: Path) -> None:
    """It comes first there too, with its reason."""
    paused(web, tmp_path, "night", LOG_FILE="log")
    log = (tmp_path / "log").read_text()
    lines = re.findall(r"INFO: ((?:paused .*)?[\d,]+ pages \(.*)", log)
    assert lines[0].startswith("paused by the operator (anna: night); 0 pages ("), log[-3000:]
    assert not lines[-1].startswith("paused"), log[-3000:]
