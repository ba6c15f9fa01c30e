"""Whether answers come from the addresses on which their requests were booked.

The suite's download handler connects there and nowhere else. Others may look a name up again, and
find it elsewhere: the system's name servers know other names than those of SUITE_DNS_SERVERS, or
the name was moved in between (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import logging
from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.http import Response

from scrapy_spider_suite.crawl.requests import hostname
from scrapy_spider_suite.exceptions import PrivateAddressRefused
from scrapy_spider_suite.fetch.resolver import suite_resolver

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)


class Comparing:
    """One per crawl."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._said = False

    def check(self, request: Request, booked: str | None, response: Response) -> None:
        """Count *response* if it came from another address than the one that was *booked*.

        Raises `PrivateAddressRefused` if nothing of its host may come from there.
        """
        actual = response.ip_address
        if not booked or actual is None or ipaddress.ip_address(booked) == actual:
            return
        if request.meta.get("proxy"):  # the address is the proxy's; an attempt before had none
            return
        self._crawler.stats.inc_value("suite/address/mismatch")
        if not self._said:
            self._said = True
            logger.warning(
                "%s was booked on %s and fetched from %s: the download handler does not connect "
                "where it is told to, so the delays of addresses may not hold (further ones are "
                "only counted: suite/address/mismatch)", request, booked, actual,
            )  # fmt: skip
        host = hostname(request)
        why = suite_resolver(self._crawler).policy.refuses(str(actual), host)
        if why is not None:
            raise PrivateAddressRefused(f"{host}: {why}", answered=True)
