"""Real HTML sites: documentation packages of Debian, unpacked into a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Site:
    """One site: the packages that hold it, its folder, and the page to start from."""

    name: str
    packages: tuple[str, ...]
    folder: str
    start: str


SITES = (
    Site("cmake.test", ("cmake-doc", "cmake-data"), "usr/share/doc/cmake-data/html", "index.html"),
    Site(
        "postgresql.test", ("postgresql-doc-15",), "usr/share/doc/postgresql-doc-15/html",
        "bookindex.html",
    ),
    Site("python.test", ("python3.11-doc",), "usr/share/doc/python3.11/html", "contents.html"),
    Site(
        "django.test", ("python-django-doc",), "usr/share/doc/python-django-doc/html",
        "contents.html",
    ),
    Site("gimp.test", ("gimp-help-en",), "usr/share/gimp/2.0/help/en", "index.html"),
    Site("git.test", ("git-doc",), "usr/share/doc/git-doc", "git.html"),
)  # fmt: skip


def unpack_sites(folder: Path, sites: Sequence[Site] = SITES) -> dict[str, Path]:
    """Download and unpack *sites* below *folder*; return the folder of each.

    Skips the test where there is no Debian, except on CI.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        if os.environ.get("CI"):
            pytest.fail("apt-get and dpkg-deb are needed to fetch the documentation packages")
        pytest.skip("needs apt-get and dpkg-deb to fetch Debian's documentation packages")
    packages = [package for site in sites for package in site.packages]
    done = subprocess.run(
        ["apt-get", "download", *packages], cwd=folder, capture_output=True, text=True, check=False
    )
    archives = list(folder.glob("*.deb"))
    if done.returncode or len(archives) < len(packages):
        if os.environ.get("CI"):
            pytest.fail(f"apt-get download failed: {done.stderr[-500:]}")
        pytest.skip("apt-get download failed: run `apt-get update`, or no network")
    for archive in archives:
        subprocess.run(["dpkg-deb", "-x", str(archive), str(folder / "root")], check=True)
        archive.unlink()
    return {site.name: folder / "root" / site.folder for site in sites}
