"""The sieve as it grows: benchmarks/sieve.py shows it for 100 million, this that it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_growth() -> None:
    """Nothing is lost or found twice, which the script checks itself; a URL takes 16 bytes."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "sieve.py"), "--small"],
        capture_output=True, text=True, timeout=120, cwd=ROOT, check=True,
    )  # fmt: skip
    *_, last = done.stdout.splitlines()
    known, *_, disk = last.split()
    assert known == "240,000"
    assert 16 < float(disk) < 16.2
