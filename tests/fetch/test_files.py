"""The limit of open files, in processes of their own, since it cannot be raised again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import scrapy_spider_suite

pytest.importorskip("resource", reason="no such limit on this system")

SCRIPT = """
import resource
from scrapy_spider_suite.fetch.connections import raise_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(raise_file_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(("soft", "hard"), [(100, 300), (300, 300)])
def test_the_soft_limit_goes_up_to_the_hard_one(soft: int, hard: int) -> None:
    """A program that was started with fewer files than it may have takes them."""
    script = SCRIPT.format(soft=soft, hard=hard)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(Path(scrapy_spider_suite.__file__).parents[1])},
    )
    assert done.stdout.split() == [str(hard), str(hard)]
