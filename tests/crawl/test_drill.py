"""Operating a crawl that runs, from a complaint to another machine; the benchmark
`drill` is the same at full size."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.drill import SMALL, Drill
from support.drill_checks import Findings


@pytest.mark.slow
@pytest.mark.long
def test_the_drill_of_an_operator(tmp_path: Path) -> None:
    """Block, evidence, refetch, drop, unblock, snapshot, resume elsewhere, audit log."""
    drill = Drill(SMALL, tmp_path)
    drill.run()
    assert Findings(drill).all() == []
