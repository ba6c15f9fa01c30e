"""A Scrapy project of its own in a folder, crawled by the ``scrapy`` command as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support import forks
from support.forks import LEAN

_ROOT = Path(__file__).resolve().parents[2]
SCRAPY = "import sys; from scrapy.cmdline import execute; execute(['scrapy', *sys.argv[1:]])"


class Project:
    """A project with the suite's add-on and the spiders of `support.spiders`."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        package = folder / "project"
        package.mkdir(parents=True)
        (folder / "scrapy.cfg").write_text("[settings]\ndefault = project.settings\n")
        (package / "__init__.py").write_text("")
        given = {
            "ADDONS": {"scrapy_spider_suite.Addon": 500}, "SPIDER_MODULES": ["support.spiders"],
            "USER_AGENT": "suite-tests/1.0 (+https://tests.example/)", "EXTENSIONS_BASE": LEAN,
            **settings,
        }  # fmt: skip
        lines = [f"{name} = {value!r}\n" for name, value in given.items()]
        (package / "settings.py").write_text("".join(lines))

    def scrapy(
        self, *arguments: str, prefix: tuple[str, ...] = (), timeout: float = 60.0, **settings: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run ``scrapy`` with *arguments* and ``-s`` *settings*, behind the command *prefix*."""
        line = [*arguments, *(f"-s{name}={value}" for name, value in settings.items())]
        if not prefix:
            return scrapy(self.folder, *line, timeout=timeout)
        return subprocess.run(
            [*prefix, sys.executable, "-m", "scrapy", *line], cwd=self.folder, env=environment(),
            capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip


def scrapy(
    folder: Path, *arguments: str, timeout: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run ``scrapy`` in *folder* to its end.

    Raises `subprocess.TimeoutExpired` after *timeout* seconds, and kills it.
    """
    return forks.run(SCRAPY, *arguments, folder=folder, environment=environment(), timeout=timeout)


def environment() -> dict[str, str]:
    """Ours, with the package and the tests' helpers to be imported."""
    path = [str(_ROOT), str(_ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
