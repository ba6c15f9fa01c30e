"""The in-vitro web in a process of its own, so that it takes no time from a crawl."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from threading import Thread

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.testing.arrivals import Arrival, read_arrivals
from scrapy_spider_suite.testing.config import FakeWebConfig, Ready
from scrapy_spider_suite.testing.synthetic_graph import SyntheticWeb

_START_SECONDS = 30.0
_STOP_SECONDS = 10.0


class FakeWebProcess:
    """Starts the web in a child, which ends with this process. `arrivals` needs a log file.

    *inside*: a command that runs the child, such as ``ip netns exec NAME``.
    """

    def __init__(self, config: FakeWebConfig, inside: Sequence[str] = ()) -> None:
        self.config = config
        self._inside = inside
        self.ready: Ready
        self.web: SyntheticWeb
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> Ready:
        """Start the child and wait until it answers.

        Raises `SettingsError` with the child's message.
        """
        paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]
        with TemporaryFile() as complaints:
            self._child = subprocess.Popen(
                [
                    *(*self._inside, sys.executable, "-m", "scrapy_spider_suite.testing"),
                    *("--config", self.config.to_json(), "--with-parent", "--json"),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            )
            try:
                self.ready = Ready.from_json(_first_line(self._child))
            except ValueError:
                self.stop()
                complaints.seek(0)
                said = complaints.read().decode("utf-8", "replace").strip()
                raise SettingsError(said or "the in-vitro web did not start") from None
        served = dataclasses.replace(self.config, addresses=self.ready.addresses)
        self.web = SyntheticWeb(served, self.ready.ports)
        return self.ready

    @property
    def pid(self) -> int:
        if self._child is None:
            raise RuntimeError("the in-vitro web is not running")
        return self._child.pid

    def stop(self) -> None:
        """End the child, which writes its logs; kill it after 10 s."""
        child, self._child = self._child, None
        if child is None:
            return
        with child:
            child.terminate()
            try:
                child.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()

    def arrivals(self) -> list[Arrival]:
        """Return the log: all of it after `stop`, before up to half a second ago.

        Raises `SettingsError`: no log file.
        """
        if self.config.log is None:
            raise SettingsError.of("log", None, "a file, to read the arrivals of a process")
        return list(read_arrivals(self.config.log))

    def __enter__(self) -> FakeWebProcess:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def _first_line(child: subprocess.Popen[bytes]) -> str:
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    output = child.stdout
    if output is None:
        return ""
    Thread(target=lambda: lines.put(output.readline()), daemon=True).start()
    with contextlib.suppress(queue.Empty):
        return lines.get(timeout=_START_SECONDS).decode("utf-8")
    child.kill()
    return ""
