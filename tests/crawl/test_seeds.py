"""A list that is read beside a crawl, cut by a kill and gone on with: the benchmark, small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_killed_in_the_middle_and_resumed() -> None:
    """The job holds each of the seeds once, and its check finds nothing wrong."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "seeds", "--small"], capture_output=True, text=True,
        timeout=600, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "the job holds 10,000 of 10,000 seeds" in done.stdout
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["killed", "resumed"]
