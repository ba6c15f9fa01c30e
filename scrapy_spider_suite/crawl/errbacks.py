"""Errbacks of failed downloads: Scrapy shows what they yield to no spider middleware.

So nobody could say that a request came from one, and not from the operator, whose requests may go
to private addresses. Here each such errback leaves a note in its context, which the engine's tasks
for its output inherit.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from scrapy import Request

from scrapy_spider_suite.storage.leases import Lease

_FAILED: ContextVar[Lease | None] = ContextVar("FAILED", default=None)


def note_errback(request: Request, lease: Lease) -> None:
    """Have it noted when the errback of *request*, whose download has failed, is called."""
    errback = request.errback
    if errback is None:
        return

    def noted(failure: Any) -> Any:
        request.errback = errback  # copies of the request are to have the spider's own
        _FAILED.set(lease)
        return errback(failure)

    request.errback = noted


def in_errback() -> bool:
    """Whether what runs is an errback, or takes what one has yielded."""
    lease = _FAILED.get()
    # Later tasks have inherited the note, too: of a page that is over by then.
    return lease is not None and not lease.settled
