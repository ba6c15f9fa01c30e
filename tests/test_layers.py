"""Imports go one way, and the deciding core touches no world: no Scrapy, sockets, clocks, files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import scrapy_spider_suite

ROOT = Path(scrapy_spider_suite.__file__).parent
NAME = scrapy_spider_suite.__name__

# What stands lower never imports what stands higher. What is not listed is Scrapy glue.
CORE, SERVICE, GLUE, TOP = range(4)
RANKS = {
    "__version__": CORE,
    "errors": CORE,
    "headers": CORE,
    "durable": CORE,
    "processes": CORE,
    "urls": CORE,
    "frontier": CORE,
    "seen": CORE,
    "agents": SERVICE,
    "cluster": SERVICE,
    "storage": SERVICE,
    "dns": SERVICE,
    "guards": SERVICE,
    "monitor": SERVICE,
    "packs": SERVICE,
    "graph": SERVICE,
    "pages": SERVICE,
    "search": SERVICE,
    "profiles": TOP,
    "addon": TOP,
}
WORLD = {
    "asyncio", "io", "os", "pathlib", "redis", "rocksdict", "scrapy", "shutil", "socket",
    "subprocess", "tempfile", "threading", "time", "twisted",
}  # fmt: skip
FORBIDDEN = {CORE: WORLD, SERVICE: {"scrapy", "twisted"}}
# What was seen is kept in files, and tries are built by a process of their own.
FILES = {"io", "os", "pathlib", "shutil", "subprocess", "tempfile", "threading"}
# The local web measures the suite from outside, so it knows nothing of it but its errors.
ALONE, ITS = "testing", {"testing", "errors"}

MODULES = sorted(ROOT.rglob("*.py"))


def part_of(module: str) -> str:
    """Return ``frontier`` for ``scrapy_spider_suite.frontier.workbench``, "" for the package."""
    return f"{module}..".split(".")[1]


def module_name(path: Path) -> str:
    """Return the dotted name of the module in *path*."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Yield every module that *path* imports, in functions and for types too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the way they go"
            module = node.module or ""
            yield module
            if module == NAME:
                yield from (f"{NAME}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_go_one_way(path: Path) -> None:
    """A part imports from its own rank or below, and the package itself only its add-on."""
    own = part_of(module_name(path))
    rank = RANKS.get(own, GLUE) if own else TOP
    for module in imports(path):
        if module == NAME or not module.startswith(f"{NAME}."):
            continue
        other = part_of(module)
        assert RANKS.get(other, GLUE) <= rank, f"{own} imports {module}"
        assert own != ALONE or other in ITS, f"{own} imports {module}"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_lower_parts_do_not_know_the_world(path: Path) -> None:
    """``now`` is an argument and bytes are handed in, so a crawl can run in virtual time."""
    part = part_of(module_name(path))
    known = {module.partition(".")[0] for module in imports(path)}
    allowed = FILES if part in ("seen", "durable", "processes") else set()
    assert not known & (FORBIDDEN.get(RANKS.get(part, GLUE), set()) - allowed)
