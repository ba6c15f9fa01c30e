"""An agent of ``scrapy cluster up``: ``scrapy``, with words that its command line does not show.

Everybody on the machine may read a command line, and settings and arguments hold passwords under
any name. So those that ``up`` was given come through a pipe, which leaves nothing behind.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

from scrapy.cmdline import execute


def told(words: Iterable[str]) -> bytes:
    """*words* as they come through the pipe."""
    return json.dumps(list(words)).encode()


if __name__ == "__main__":
    execute([*sys.argv, *json.loads(sys.stdin.buffer.read())])
