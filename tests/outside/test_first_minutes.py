"""A newcomer's first minutes: the README's first command, and how the pages install the suite."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.projects import environment, scrapy

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def first_command() -> list[str]:
    """The arguments of ``scrapy`` in the first command of the README."""
    line = next(
        line for line in (ROOT / "README.md").read_text().splitlines() if "bin/scrapy" in line
    )
    assert "cd example_project" in line
    return re.split(r"bin/scrapy\s+", line)[1].strip(" )").split()


@pytest.mark.slow
def test_the_first_command_shows_what_it_made(tmp_path: Path) -> None:
    """It leaves a job, packs and items; three commands that it prints show them from anywhere."""
    project = shutil.copytree(ROOT / "example_project", tmp_path / "example_project")
    done = scrapy(project, *first_command(), "-a", "hosts=20", "-a", "pages=3")
    assert done.returncode == 0, done.stderr
    assert re.search(r"60 pages?\b.* \d+ s\b", done.stderr.partition("Closing spider")[0])
    commands = re.findall(r"^  (\S.*)$", done.stdout, re.MULTILINE)
    assert len(commands) == 3, done.stdout
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shown = [
        subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, env=environment() | {"PATH": path},
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout
        for command in commands
    ]  # fmt: skip
    job, packs, items = shown
    assert re.search(r"^done +60$", job, re.MULTILINE), job
    assert re.search(r"\.warc\.lzo +\d\d ", packs), packs
    assert all(json.loads(line)["title"] for line in items.splitlines())
    assert len(items.splitlines()) == 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_installs_the_suite_from_an_index(page: Path) -> None:
    """Nothing is published yet: each command installs from a clone or from a wheel file."""
    commands = re.findall(r"pip install ([^`|\n]*)", page.read_text())
    wrong = [each for each in commands if re.search(r"(?<![/\w])'?scrapy-spider-suite\b", each)]
    assert wrong == []


def test_the_readme_says_that_nothing_is_on_an_index() -> None:
    """In one sentence, so that nobody looks for the name there."""
    assert re.search(r"[^.]*package index[^.]*\.", (ROOT / "README.md").read_text())
