"""The in-vitro web as a fork: a start by import takes several times as long."""

from __future__ import annotations

import os
import select
import subprocess
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Self

from scrapy_spider_suite import testing
from scrapy_spider_suite.testing import Arrival, Ready, SyntheticWeb
from support.forks import Fork
from support.projects import environment

_SCRIPT = """
import sys
from scrapy_spider_suite.testing.cli import main
sys.exit(main(sys.argv[1:]))
"""
_START_SECONDS = 60.0


class FakeWebProcess(testing.FakeWebProcess):
    """The web in a child, which ends with this process."""

    _fork: Fork | None = None
    _read = -1
    """Bytes of the log that were parsed."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> Ready:
        """Start the child, wait until it answers. Raises `RuntimeError` with its message."""
        told, telling = os.pipe()
        with (
            open(told, "rb") as output, open(telling, "wb") as out,
            TemporaryFile() as complaints,
        ):  # fmt: skip
            options = ["--config", self.config.to_json(), "--with-parent", "--json"]
            self._fork = Fork(_SCRIPT, options, Path.cwd(), environment(), out, complaints)
            out.close()
            begun = select.select([output], [], [], _START_SECONDS)[0]
            line = output.readline() if begun else b""
            if not line:
                self.stop()
                complaints.seek(0)
                raise RuntimeError(complaints.read().decode() or "the in-vitro web did not start")
        self.ready = Ready.from_json(line.decode())
        served = replace(self.config, addresses=self.ready.addresses)
        self.web = SyntheticWeb(served, self.ready.ports)
        return self.ready

    @property
    def pid(self) -> int:
        """Of the child."""
        assert self._fork is not None
        return self._fork.pid

    def stop(self) -> None:
        """End the child, which writes its logs; kill it after 10 s."""
        child, self._fork = self._fork, None
        if child is None:
            return
        child.terminate()
        try:
            child.wait(10.0)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def arrivals(self) -> list[Arrival]:
        """The log; parsed anew only if it has grown, which it does twice a second."""
        log = self.config.log
        size = log.stat().st_size if log is not None else 0
        if size != self._read:
            self._read, self._arrivals = size, super().arrivals()
        return [*self._arrivals]
