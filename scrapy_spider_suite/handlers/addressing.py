"""The address of a request, for a handler that is used without the suite's gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.exceptions import CannotResolveHostError

from scrapy_spider_suite.errors import ResolveError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_spider_suite.handlers.wire import Origin


async def addresses_of(crawler: Crawler, request: Request, origin: Origin) -> Sequence[str]:
    """Return the addresses that *request* may be sent to, at least one, in order of preference.

    ``request.meta["suite_address"]``, on which the gate booked the request, is the only one where
    it is set; otherwise the crawl's resolver is asked, which knows literals too.

    Raises:
        CannotResolveHostError: *origin*'s host has no address.
        PrivateAddressError: it has none that is allowed.
    """
    booked: str | None = request.meta.get("suite_address")
    if booked:
        return (booked,)
    from scrapy_spider_suite.crawl.resolving import suite_resolver

    host = f"[{origin.host}]" if ":" in origin.host else origin.host.rstrip(".")
    try:
        return (await suite_resolver(crawler).resolve(host)).addresses
    except ResolveError as error:
        raise CannotResolveHostError(str(error)) from error
