"""The benchmarks of the sieve and the cache, small: what they say of themselves holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lines_of(script: str) -> list[list[str]]:
    """The words of each line that a benchmark prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), "--small"],
        capture_output=True, text=True, timeout=600, cwd=ROOT, check=True,
    )  # fmt: skip
    return [line.split() for line in done.stdout.splitlines()]


def test_growth() -> None:
    """Nothing is lost or found twice, which the script checks itself; a URL takes 16 bytes."""
    known, *_, disk = lines_of("sieve.py")[-1]
    assert known == "240,000"
    assert 16 < float(disk) < 16.2


def test_the_cache_beside_two_sets() -> None:
    """With enough memory for all, both know what was there before."""
    *_, ours, theirs = lines_of("seen_cache.py")
    assert ours[:2] == ["FingerprintCache", "64"]
    assert ours[2] == theirs[2]


@pytest.mark.slow
def test_links_in_a_crawl() -> None:
    """Each way fetches every page once, which the script checks itself; one line for each."""
    *_, plain, trie, sieve = lines_of("sifting.py")
    assert [each[:2] for each in (plain, trie, sieve)] == [
        [kind, "3,000"] for kind in ("plain", "trie", "sieve")
    ]
    assert float(plain[3]) == float(trie[3]) == 0.0 < float(sieve[3])
