"""The suite's own distributions, built as a release of it would be."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_SOURCES = (
    "LICENSE", "README.md", "pyproject.toml", "scrapy_spider_suite", "setup.cfg",
)  # fmt: skip


def build(folder: Path) -> tuple[Path, Path]:
    """Build the source distribution, and out of it the wheel, in *folder*; return their paths."""
    tree = folder / "tree"
    tree.mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__")
    for name in _SOURCES:
        path = _ROOT / name
        if path.is_dir():
            shutil.copytree(path, tree / name, ignore=ignored)
        else:
            shutil.copy(path, tree)
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(folder), str(tree)],
        check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    [source], [wheel] = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return source, wheel
