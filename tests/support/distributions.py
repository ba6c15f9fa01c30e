"""The suite's own distributions, built as a release of it would be."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from build import ProjectBuilder
from build.env import DefaultIsolatedEnv

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
    with DefaultIsolatedEnv() as env:  # one for both: it takes as long as they do
        builder = ProjectBuilder.from_isolated_env(env, tree)
        env.install(builder.build_system_requires)
        source = Path(builder.build("sdist", folder))
        with tarfile.open(source) as archive:
            archive.extractall(folder, filter="data")
        unpacked = folder / source.name.removesuffix(".tar.gz")
        wheel = Path(ProjectBuilder.from_isolated_env(env, unpacked).build("wheel", folder))
    return source, wheel
