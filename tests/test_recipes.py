"""The recipes of docs/running.md are what supervisors accept."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scrapy_spider_suite.guards.exitcodes import ExitCode

PAGE = (Path(__file__).parents[1] / "docs" / "running.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The page's only block in *language*."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """Not a word on it; the program and the user of the example are not here."""
    unit = tmp_path / "news.service"
    text = block("ini").replace("/srv/news/.venv/bin/scrapy", sys.executable)
    unit.write_text(text.replace("User=crawler\n", "").replace("/srv/news", str(tmp_path)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "news.service" not in done.stderr
    assert done.returncode == 0, done.stderr


def _codes(text: str) -> set[int]:
    return set(map(int, re.findall(r"\d+", text)))


def test_nobody_starts_a_crawl_again_that_a_person_must_look_at() -> None:
    """Refusals and damage end the restarts; a stall or an interruption does not."""
    (prevented,) = re.findall(r"^RestartPreventExitStatus=(.*)$", block("ini"), re.MULTILINE)
    (failed,) = re.findall(r"values: \[(.*)\]", block("yaml"))
    person = {ExitCode.NOT_STARTED, ExitCode.REFUSED, ExitCode.DAMAGED}
    assert _codes(failed) == person
    assert _codes(prevented) == person


@pytest.mark.parametrize(("age", "code"), [(5, 0), (4_000, 1)])
def test_the_probe_sees_an_old_status(age: int, code: int, tmp_path: Path) -> None:
    """It is the shell's and Python's own words that have to be right."""
    (probe,) = re.findall(r'command: \["python", "-c", "(.*)"\]', block("yaml"))
    status = tmp_path / "status.json"
    status.touch()
    when = status.stat().st_mtime - age
    os.utime(status, (when, when))
    program = probe.replace("/job/suite/status.json", str(status))
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == code
