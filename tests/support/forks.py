"""Crawls as forks of one process that has imported Scrapy and the suite.

That takes most of the time of a short crawl. A fork is a process as any other otherwise: it has its
own reactor, threads and files, and ends with its own exit code.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from pkgutil import walk_packages
from tempfile import TemporaryFile
from typing import Any, BinaryIO, NoReturn

from scrapy.settings.default_settings import EXTENSIONS_BASE

LEAN = {name: order for name, order in EXTENSIONS_BASE.items() if ".remote_control." not in name}
"""Scrapy's extensions without one whose imports, which None does not spare, take a fifth of the
time in which a short crawl begins and ends."""
_OF_COMMANDS = ("cluster", "commands", "operate")


class Fork:
    """A process that was forked; its methods are those of `subprocess.Popen`."""

    def __init__(
        self, script: str, arguments: Sequence[str], folder: Path, environment: dict[str, str],
        out: BinaryIO, errors: BinaryIO,
    ) -> None:  # fmt: skip
        """Run *script* in *folder*, in an *environment*; what it prints goes to two files."""
        told, telling = os.pipe()
        self._told = open(told, "rb", buffering=0)  # noqa: SIM115
        with TemporaryFile("w+") as order:
            json.dump([script, list(arguments), str(folder), environment], order)
            order.flush()
            files = [order.fileno(), out.fileno(), errors.fileno(), telling]
            try:
                socket.send_fds(_forking(), [b"."], files)
            finally:
                os.close(telling)
        self.pid = int(self._told.read(8))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        return self._code(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; raises `subprocess.TimeoutExpired` after *timeout* seconds."""
        code = self._code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _code(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            self.returncode = int(self._told.read(8))
            self._told.close()
        return self.returncode


def run(
    script: str, *arguments: str, folder: Path, environment: dict[str, str], timeout: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Fork for *script* and wait for its end; raises as `subprocess.run` does, and kills it."""
    with TemporaryFile() as out, TemporaryFile() as errors:
        process = Fork(script, arguments, folder, environment, out, errors)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        out.seek(0)
        errors.seek(0)
        said = [each.read().decode() for each in (out, errors)]
    return subprocess.CompletedProcess([*arguments], code, *said)


@cache
def _forking() -> socket.socket:
    """The way to the process that forks; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(theirs.fileno())], pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve(orders: socket.socket) -> str | None:
    """Fork for each order; the script to be run in a fork, None when there are no more orders."""
    ends: dict[int, int] = {}

    def tell(*_: object) -> None:
        while ends:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:  # another signal came within this call: all have been told
                return
            if not pid:
                return
            end = ends.pop(pid)
            with suppress(BrokenPipeError):  # nobody waits for it
                os.write(end, b"%8d" % os.waitstatus_to_exitcode(status))
            os.close(end)

    signal.signal(signal.SIGCHLD, tell)
    while True:
        more, files, *_ = socket.recv_fds(orders, 1, 4)
        if not more:
            return None
        order, *outputs, end = files
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        if not (pid := os.fork()):
            for each in (end, *ends.values()):
                os.close(each)
            orders.close()
            return _begun(order, outputs)
        for each in (order, *outputs):
            os.close(each)
        os.write(end, b"%8d" % pid)
        ends[pid] = end
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def _begun(order: int, outputs: list[int]) -> str:
    """Make this process what the file *order* wants; the script."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    with open(order) as file:
        file.seek(0)
        script, arguments, folder, environment = json.load(file)
    for number, output in enumerate(outputs, 1):
        os.dup2(output, number)
        os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    sys.argv = ["-c", *arguments]
    path = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:1] = ["", *(each for each in path if each not in sys.path[1:])]
    random.seed()
    return str(script)


def _prepare() -> None:
    """Do what a crawl, an agent or a command does before it begins, all of which stays."""
    metadata.version = cache(metadata.version)  # a crawl asks for those of twenty packages
    from scrapy.settings import default_settings as scrapys
    from scrapy.utils import versions

    from scrapy_spider_suite import profiles
    from scrapy_spider_suite.cluster import assignment
    from scrapy_spider_suite.extensions import job_history
    from scrapy_spider_suite.urls import hosts

    listed = [each for kind in profiles.COMPONENTS.values() for each in kind]
    paths = [
        *scrapys.DOWNLOADER_MIDDLEWARES_BASE, *scrapys.SPIDER_MIDDLEWARES_BASE, *EXTENSIONS_BASE,
        *profiles.CLASSES.values(), profiles.HANDLER, *(each.path for each in listed),
        "scrapy.crawler.Crawler", "scrapy.core.downloader.handlers.http11.HTTP11DownloadHandler",
        "scrapy_spider_suite.addon.Addon", "scrapy_spider_suite.spiders.BroadSpider",
        "scrapy_spider_suite.testing.cli.main", "scrapy.cmdline.execute", "uvloop.Loop",
    ]  # fmt: skip
    for path in paths:
        import_module(path.rpartition(".")[0])
    for package in ("scrapy.commands", *(f"scrapy_spider_suite.{name}" for name in _OF_COMMANDS)):
        for module in walk_packages(import_module(package).__path__, f"{package}."):
            with suppress(ImportError):  # of what is not installed
                import_module(module.name)
    assert "twisted.internet.reactor" not in sys.modules
    hosts.load_suffixes()
    assignment.fingerprint(assignment.load_assignment("ring"))
    metadata.entry_points()
    versions.get_versions()
    for name in job_history._PACKAGES:
        job_history._version(name)
    gc.collect()
    gc.freeze()


def _run(script: str) -> NoReturn:
    """Run *script* as ``python -c`` does, and end the process.

    Nothing takes the modules apart that were there before: that costs a third of a short crawl.
    What the script has made is collected, so that it can complain; what was there before stays
    exempt, as a crawl would not leave it: to walk that costs another third. So nothing is frozen
    any more, but what is young counts as old from then on.
    """
    vars(gc).update(freeze=lambda: gc.collect(1), unfreeze=lambda: None)
    names: dict[str, Any] = {"__name__": "__main__"}
    code = 0
    try:
        exec(compile(script, "-c", "exec"), names)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        code = int(ended.code or 0) if not isinstance(ended.code, str) else 1
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    names.clear()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _prepare()
    script = _serve(socket.socket(fileno=int(sys.argv[1])))
    if script is not None:
        _run(script)
