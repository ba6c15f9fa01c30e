"""One rank a folder: a module imports from its own folder and from lower ranks only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import scrapy_spider_suite

ROOT = Path(scrapy_spider_suite.__file__).parent
PACKAGE = ROOT.name

# Lowest first; what stands in one line has one rank and imports nothing of its neighbours.
RANKS = """
errors
testing exceptions signals url_client __init__
runtime
urls
frontier
settings
seen
store
fetch
packs
items
analysis
crawl/queue
crawl
cluster
operate
operate/verbs
operate/executors
dashboard
dupefilter downloader
downloadermiddlewares pipelines
extensions
scheduler
spiders linkextractors
spidermiddlewares
commands
profiles
addon fakeweb
"""
RANK = {name: rank for rank, line in enumerate(RANKS.split("\n")) for name in line.split()}
# The local web measures the suite from outside, so it knows nothing of it but its errors.
ALONE = {"testing": {"testing", "errors"}}
# These decide, and touch no world: `now` is an argument, so a crawl can run in virtual time.
PURE = {"frontier", "urls"}
WORLD = {"asyncio", "redis", "rocksdict", "scrapy", "socket", "subprocess", "threading", "time",
         "twisted"}  # fmt: skip

MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


def folder_of(module: str) -> str:
    """Return ``crawl/queue``, ``store`` or ``errors`` for the dotted name of a module."""
    parts = module.split(".")[1:]
    path = "/".join(parts)
    while path and path not in RANK and path not in ALONE:
        path = path.rpartition("/")[0]
    return path or (parts[0] if parts else "__init__")


def imported(path: Path) -> Iterator[str]:
    """Yield modules of the package that *path* imports: in functions, for types, by strings."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the way they go"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if re.fullmatch(rf"{PACKAGE}(\.\w+)+", node.value) else []
        for name in names:
            while name and name not in MODULES:
                name = name.rpartition(".")[0]
            if name:
                yield name


def test_imports_go_down() -> None:
    """Imports for types, in functions and of modules that strings name count, too."""
    wrong = set()
    for module, path in MODULES.items():
        own = folder_of(module)
        for other in map(folder_of, imported(path)):
            if own in ALONE:
                right = other in ALONE[own]
            elif own == "__init__":
                right = True
            elif other not in RANK or own not in RANK:
                right = other == own
            else:
                right = other == own or RANK[other] < RANK[own]
            if not right:
                wrong.add(f"{module.removeprefix(PACKAGE + '.')} -> {other}")
    assert sorted(wrong) == []


def test_pure_folders_touch_no_world() -> None:
    for module, path in MODULES.items():
        if folder_of(module) in PURE:
            nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
            names = {alias.name.partition(".")[0] for node in nodes
                     if isinstance(node, ast.Import) for alias in node.names}  # fmt: skip
            names |= {(node.module or "").partition(".")[0] for node in nodes
                      if isinstance(node, ast.ImportFrom)}  # fmt: skip
            assert not names & WORLD, module

