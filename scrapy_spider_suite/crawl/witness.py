"""What the gate says of each fetch, and to whom.

A fetch begins when the gate gives a request the wire and ends with the answer, an error or a cut:
robots.txt, media, redirects and retries are fetches like any other. What the gate never let on to
the wire (forbidden by robots.txt, without an address, answered by a cache) is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from scrapy import Request
from scrapy.http import Response

from scrapy_spider_suite.storage.leases import Lease

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


class Fetched(NamedTuple):
    """One fetch that is over.

    *lease* is None for what has no visit (robots.txt, media, a component's own). One of *response*
    and *error* is not None. *ended* is in seconds since the epoch, *seconds* is how long it took.
    """

    request: Request
    lease: Lease | None
    response: Response | None
    error: BaseException | None
    ended: float
    seconds: float


Witness = Callable[[Fetched], None]

_witnesses: WeakKeyDictionary[Crawler, list[Witness]] = WeakKeyDictionary()


def call_witness(crawler: Crawler, witness: Witness) -> None:
    """Have *witness* told of every fetch of *crawler*, as it ends; it must not raise."""
    _witnesses.setdefault(crawler, []).append(witness)


async def witnessed(
    crawler: Crawler,
    request: Request,
    lease: Lease | None,
    transfer: Coroutine[object, object, Response],
) -> Response:
    """Await *transfer*, the fetch of *request*, and have it witnessed whatever becomes of it."""
    witnesses = _witnesses.get(crawler)
    if witnesses is None:
        return await transfer
    began = time.monotonic()
    response: Response | None = None
    error: BaseException | None = None
    try:
        response = await transfer
        return response
    except BaseException as raised:
        error = raised
        raise
    finally:
        seconds = time.monotonic() - began
        fetched = Fetched(request, lease, response, error, time.time(), seconds)
        for witness in witnesses:
            witness(fetched)
