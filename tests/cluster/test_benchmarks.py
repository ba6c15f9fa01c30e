"""The benchmarks of many agents, small: those that judge what they see find nothing wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("agents.py", "host-parity  2 agents"), ("messages.py", "UDP"), ("ledger.py",
        "redis     4"),
        ("handovers.py", "URLs of 111 hosts"),
    ],
)  # fmt: skip
def test_a_benchmark(script: str, said: str) -> None:
    """Each page once, each message once, no fetch without its grant, nothing lost on the way."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), "--small"], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert said in done.stdout
