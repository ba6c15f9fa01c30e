"""The recipes of docs/running.md are what supervisors accept."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from scrapy.settings import Settings
from support.projects import Project, environment, scrapy
from support.running_crawl import until

from scrapy_spider_suite.runtime.refusal import ExitCode
from scrapy_spider_suite.settings.suite import SuiteSettings

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


# The container


def instructions() -> list[tuple[str, str]]:
    """The lines of the Dockerfile, as names and arguments."""
    return [(name, rest) for name, _, rest in map(_split, block("dockerfile").splitlines())]


def _split(line: str) -> tuple[str, str, str]:
    return line.partition(" ")


def of_image(name: str) -> str:
    """The arguments of the only instruction of that *name*."""
    (found,) = [rest for each, rest in instructions() if each == name]
    return found


def command_of_image(name: str, job: Path) -> list[str]:
    """The command of an instruction, for the job *job*; it has to be a list: no shell is between.
    """
    words = json.loads(of_image(name).partition("CMD ")[2] or of_image(name))
    assert words[0] == "scrapy"
    return [sys.executable, "-m", *(word.replace("/job", str(job)) for word in words)]


def test_the_image_has_its_user_and_paths() -> None:
    """Instructions are known, in an order that works: what belongs to whom before who it is."""
    names = [name for name, _ in instructions()]
    assert names == [
        "FROM", "RUN", "WORKDIR", "COPY", "RUN", "COPY", "USER", "VOLUME", "STOPSIGNAL",
        "HEALTHCHECK", "ENTRYPOINT",
    ]  # fmt: skip
    made, installed = [rest for name, rest in instructions() if name == "RUN"]
    user, job = of_image("USER"), of_image("VOLUME")
    assert re.search(rf"useradd .*--uid (\d+) {user}\b", made)
    assert made.endswith(f"install -d -o {user} {job}")
    (uid,) = re.findall(r"--uid (\d+)", made)
    assert re.findall(r"runAsUser: (\d+)", block("yaml")) == [uid]
    for line in (made, installed):
        subprocess.run(["sh", "-n", "-c", line], check=True)
    copied = [rest.split() for name, rest in instructions() if name == "COPY"]
    assert copied == [["requirements.txt", "*.whl", "./"], [".", "."]]
    assert "-r requirements.txt" in installed
    for name in ("ENTRYPOINT", "HEALTHCHECK"):
        assert job in of_image(name)
    (silent,) = re.findall(r'"--alive", "(\d+)"', of_image("HEALTHCHECK"))
    assert int(silent) > SuiteSettings.from_settings(
        Settings({"SUITE_PROFILE": "broad"})
    ).stall_timeout


@pytest.mark.slow
@pytest.mark.long
def test_the_image_starts_says_that_it_lives_and_stops(tmp_path: Path) -> None:
    """Its entry point, health check and signal, on a project whose crawl waits for URLs."""
    job = tmp_path / "job"
    project = Project(
        tmp_path / "srv", SPIDER_MODULES=["project.news"], SUITE_WHEN_DONE="wait",
        SUITE_EXIT_CODES=True, TELNETCONSOLE_ENABLED=False,
    )  # fmt: skip
    (project.folder / "project" / "news.py").write_text(
        "import scrapy\n\n\nclass News(scrapy.Spider):\n    name = 'news'\n    start_urls = []\n"
    )
    _, _, _, *check = command_of_image("HEALTHCHECK", job)

    def healthy() -> bool:
        return scrapy(tmp_path, *check).returncode == 0

    assert not healthy()
    crawl = subprocess.Popen(
        command_of_image("ENTRYPOINT", job), cwd=project.folder, env=environment(),
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until((job / "suite" / "status.json").exists)
        assert healthy()
        crawl.send_signal(getattr(signal, of_image("STOPSIGNAL")))
        assert crawl.wait(30) == ExitCode.INTERRUPTED
        assert not healthy()
    finally:
        crawl.kill()
        crawl.wait()
