"""What the packaging files promise each other."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEST_COMMAND = "python3 -m venv .venv && .venv/bin/pip install -q tox && .venv/bin/tox -p all"

TOOLS = {"test", "dev"}
"""Extras for those who work on the suite: the others are for parts of it."""


def read(name: str) -> configparser.ConfigParser:
    """Read one of the root's ini files."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / name)
    return parser


def versions(lines: str, operator: str) -> dict[str, str]:
    """Return name and version of each requirement in *lines*."""
    return dict(re.findall(rf"^([\w-]+){operator}([\d.]+)", lines, re.MULTILINE))


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", ".ci/run"])
def test_there_is_one_test_command(name: str) -> None:
    """What the README tells a stranger is what runs on every submission."""
    assert TEST_COMMAND in (ROOT / name).read_text(encoding="utf-8").splitlines()


def test_the_oldest_dependencies_are_the_ones_tested() -> None:
    """The lower bounds of setup.cfg are the pins of the environment ``oldest``."""
    allowed = versions(read("setup.cfg")["options"]["install_requires"], ">=")
    tested = versions(read("tox.ini")["testenv:oldest"]["deps"], "==")
    assert allowed.keys() == tested.keys()
    for name, version in allowed.items():
        assert f"{tested[name]}.".startswith(f"{version}."), name


def imported() -> set[str]:
    """Return the top-level names of everything that the package imports, its own parts apart."""
    names: set[str] = set()
    for path in (ROOT / "scrapy_spider_suite").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"scrapy_spider_suite"}


def test_what_is_imported_is_required_and_nothing_else() -> None:
    """A library that a dependency happens to bring along may go with its next release."""
    distributions = packages_distributions()
    needed = {re.sub("[._]", "-", distributions[name][0].lower()) for name in imported()}
    config = read("setup.cfg")
    required = {name.lower() for name in versions(config["options"]["install_requires"], ">=")}
    extras = config["options.extras_require"]
    lines = "\n".join(extras[name] for name in extras.keys() - TOOLS)
    assert needed - {name.lower() for name in versions(lines, ">=")} == required


def test_who_crawls_alone_needs_no_client_for_redis() -> None:
    """It is an extra: what every crawl imports does without."""
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "import scrapy_spider_suite.addon, scrapy_spider_suite.scheduler\n"
        "import scrapy_spider_suite.downloader, scrapy_spider_suite.spiders\n"
        "import scrapy_spider_suite.cluster.agent, scrapy_spider_suite.commands.frontier"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
