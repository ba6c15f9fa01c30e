"""benchmarks/search.py, small: what was crawled is found, and is what was served."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_benchmark_runs() -> None:
    """Every page is indexed at the end of the crawl."""
    script = Path(__file__).parents[3] / "benchmarks" / "search.py"
    done = subprocess.run(
        [sys.executable, str(script), "--small"], capture_output=True, text=True, check=True
    )
    crawled = re.search(r"^(\d+) answers .* (\d+) pages indexed .* behind 0 bytes", done.stdout,
                        re.MULTILINE)  # fmt: skip
    assert crawled is not None, done.stdout
    assert crawled[1] == crawled[2]
    assert int(crawled[1]) >= 150
    assert "not what was served: 0 of" in done.stdout
