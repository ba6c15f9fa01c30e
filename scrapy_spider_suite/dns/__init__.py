"""Names to addresses: an asynchronous resolver, its cache, and which addresses may be connected to.

Knows nothing of Scrapy; :mod:`scrapy_spider_suite.crawl.resolving` gives each crawler its resolver.

* :mod:`.addresses`: pure. What kind of address is this, may this crawl use it, how is it paced?
* :mod:`.cache`: pure. A bounded map whose values expire; the clock is an argument.
* :mod:`.limits`, :mod:`.outcome`: pure. The bounds; what a look-up ends in and how long it holds.
* :mod:`.channel`: the name servers and the hosts file, through c-ares, on the running event loop.
* :mod:`.succession`: one channel after another.
* :mod:`.resolver`: puts them together; the only one that the rest of the suite talks to.
"""

from __future__ import annotations

from scrapy_spider_suite.dns.addresses import AddressPolicy, literal_address, pacing_key
from scrapy_spider_suite.dns.limits import ResolverLimits, ResolverStatistics
from scrapy_spider_suite.dns.resolver import Resolution, Resolver

__all__ = [
    "AddressPolicy",
    "Resolution",
    "Resolver",
    "ResolverLimits",
    "ResolverStatistics",
    "literal_address",
    "pacing_key",
]
