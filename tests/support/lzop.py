"""The lzop program and liblzo2, installed or unpacked from Debian's packages."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

PACKAGES = ("lzop", "liblzo2-2")


class Lzop:
    """The program *binary*; *libraries* is the folder of its library, None if it is installed."""

    def __init__(self, binary: str, libraries: Path | None) -> None:
        self._binary = binary
        self._libraries = libraries
        environment = {} if libraries is None else {"LD_LIBRARY_PATH": str(libraries)}
        self._environment = {**os.environ, **environment}

    def __call__(self, *arguments: str | Path) -> bytes:
        """Run it and return what it prints. Raises `AssertionError` with its complaint."""
        done = subprocess.run(
            [self._binary, *map(str, arguments)],
            env=self._environment,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def test(self, path: Path) -> None:
        """Have ``lzop -t`` check *path*, sums and end mark."""
        self("-t", path)

    def library(self) -> ModuleType:
        """Return what stands for ``python-lzo``. The process has liblzo2 from now on."""
        folder = self._libraries
        return _python_lzo(ctypes.CDLL(str(folder / "liblzo2.so.2") if folder else "liblzo2.so.2"))


def find(folder: Path) -> Lzop:
    """Return lzop; it is unpacked below *folder* unless it is installed.

    Skips the test where there is none and no Debian, except on CI.
    """
    if binary := shutil.which("lzop"):
        return Lzop(binary, None)
    done = subprocess.run(
        ["apt-get", "download", *PACKAGES], cwd=folder, capture_output=True, text=True, check=False
    ) if shutil.which("apt-get") else None  # fmt: skip
    archives = list(folder.glob("*.deb"))
    if done is None or done.returncode or len(archives) < len(PACKAGES):
        (pytest.fail if os.environ.get("CI") else pytest.skip)("lzop is not here: apt-get install")
    for archive in archives:
        subprocess.run(["dpkg-deb", "-x", str(archive), str(folder)], check=True)
    library = next(folder.rglob("liblzo2.so.2"))
    return Lzop(str(next(folder.rglob("bin/lzop"))), library.parent)


def _python_lzo(lib: ctypes.CDLL) -> ModuleType:
    module = ModuleType("lzo")
    assert lib.__lzo_init_v2(0x20A0, *([-1] * 9)) == 0

    def compress(data: bytes, level: int, header: bool) -> bytes:
        assert (level, header) == (1, False)
        size = ctypes.c_ulong(len(data) + len(data) // 16 + 67)
        out, memory = ctypes.create_string_buffer(size.value), ctypes.create_string_buffer(1 << 18)
        lib.lzo1x_1_compress(data, ctypes.c_ulong(len(data)), out, ctypes.byref(size), memory)
        return out.raw[: size.value]

    module.compress = compress  # type: ignore[attr-defined]
    return module
