"""A list that is read beside a crawl, cut by a kill and gone on with: the benchmark, small."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any

import pytest
from support.forks import Fork
from support.projects import environment
from support.webs import FakeWebProcess

from benchmarks import seeds
from benchmarks.report import ROOT, Report

_SCRIPT = "import json, sys; from benchmarks.seeds import crawl; crawl(*json.loads(sys.argv[1]))"


class _Popen(Fork):
    """A fork in the place of the benchmark's own process."""

    def __init__(self, command: list[str], **_: Any) -> None:
        told, telling = os.pipe()
        self.stdout = open(told, encoding="utf-8")  # noqa: SIM115
        with open(telling, "wb") as out, TemporaryFile() as errors:
            super().__init__(_SCRIPT, command[-1:], ROOT, environment(), out, errors)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.wait()
        self.stdout.close()


@pytest.mark.slow
def test_killed_in_the_middle_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job holds each of the seeds once, and its check finds nothing wrong."""
    monkeypatch.setattr(seeds, "FakeWebProcess", FakeWebProcess)
    monkeypatch.setattr(seeds, "subprocess", SimpleNamespace(Popen=_Popen, PIPE=None))
    report = Report("seeds", "")
    sound = seeds.measure(report, 10_000, 2_000, small=True, job=tmp_path / "job")
    assert sound, [*report.text, (tmp_path / "log").read_text()[-3000:]]
    assert [line.split()[0] for line in report.text[1:3]] == ["killed", "resumed"]
    assert any("the job holds 10,000 of 10,000 seeds" in line for line in report.text)
