"""Follows packs: ``python -m scrapy_spider_suite.search.follow FOLDER``, a process of its own.

Finding out what pages say takes milliseconds each, which no crawl has. It writes a line of JSON for
each batch that was news, and ends when its standard input has and everything is read; so it does
not outlive by long what started it. SIGTERM ends it after what it has at hand.

With ``--rebuild`` it makes the index anew, and ends; with ``--wait`` it waits so many seconds for
another process that writes, instead of coming again later.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Final

from scrapy_spider_suite.errors import SearchBusyError, SuiteError
from scrapy_spider_suite.search.batch import Progress
from scrapy_spider_suite.search.follower import Follower

NICENESS: Final = 5
PAUSE: Final = 2.0
"""Seconds after which packs are looked at again that had nothing new."""
PATIENCE: Final = 60.0
"""Seconds that a page may take, see `Journal`."""


def follow(
    follower: Follower, ending: threading.Event, stopped: threading.Event, wait: float
) -> None:
    """Read batches until there is nothing left and *ending* is set, or *stopped* is.

    Raises `SearchBusyError` (another process still writes after *wait* seconds) and `OSError`.
    """
    behind = 0
    while not stopped.is_set():
        last = ending.is_set()
        try:
            progress = follower.step(wait)
        except SearchBusyError:
            if last:
                raise
            ending.wait(PAUSE)
            continue
        if progress != Progress(behind=behind):
            tell(progress)
        behind = progress.behind
        if progress.more:
            continue
        if last:
            return
        ending.wait(PAUSE)


def tell(progress: Progress) -> None:
    """Write what a batch came to."""
    print(json.dumps(asdict(progress)), flush=True)


def main(arguments: list[str]) -> int:
    """Follow, or make the index anew."""
    parser = argparse.ArgumentParser(prog="follow")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rebuild", action="store_true")
    parser.add_argument("--wait", type=float, default=0.0)
    options = parser.parse_args(arguments)
    os.nice(NICENESS)
    ending, stopped = threading.Event(), threading.Event()

    def stop(*_: object) -> None:
        stopped.set()
        ending.set()

    def listen() -> None:
        # Not through sys.stdin, whose lock Python wants as it ends.
        while os.read(0, 4096):
            pass
        ending.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    threading.Thread(target=listen, daemon=True).start()
    follower = Follower(options.folder, stop=stopped.is_set, patience=PATIENCE)
    try:
        if options.rebuild:
            follower.rebuild(tell, options.wait)
        else:
            follow(follower, ending, stopped, options.wait)
    except (SuiteError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
