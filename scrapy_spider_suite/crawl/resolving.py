"""The resolver of each crawler, made from its settings.

The gate, the download handlers and the robots middleware of one crawler must agree on where a host
is, so they share one :class:`~scrapy_spider_suite.dns.Resolver`; two crawlers in one process have
two, each with its own settings and cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from scrapy import signals

from scrapy_spider_suite.dns import AddressPolicy, Resolver, ResolverLimits
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

_RESOLVERS: WeakKeyDictionary[Crawler, Resolver] = WeakKeyDictionary()


def suite_resolver(crawler: Crawler) -> Resolver:
    """Return the resolver of *crawler*, the same one each time; it is closed with the engine.

    Raises:
        SettingsError: a setting is wrong.
    """
    resolver = _RESOLVERS.get(crawler)
    if resolver is None:
        resolver = _RESOLVERS[crawler] = resolver_from(suite_settings(crawler))
        # The resolver outlives the signal manager's weak reference to it: _RESOLVERS holds it.
        crawler.signals.connect(resolver.close, signal=signals.engine_stopped)
    return resolver


def resolver_from(settings: SuiteSettings) -> Resolver:
    """Return a resolver that follows *settings*.

    Raises:
        SettingsError: a setting is wrong.
    """
    return Resolver(
        _policy(settings), _servers(settings), settings.ip_family, _limits(settings)
    )


def reconfigure(resolver: Resolver, settings: SuiteSettings) -> None:
    """Let *resolver* follow other *settings* from now on; whom it trusts stays as it is.

    Raises:
        SettingsError: a setting is wrong.
    """
    resolver.reconfigure(
        _policy(settings), _servers(settings), settings.ip_family, _limits(settings)
    )


def _limits(settings: SuiteSettings) -> ResolverLimits:
    return ResolverLimits(
        ttl_min=settings.dns_ttl_min,
        ttl_max=settings.dns_ttl_max,
        negative_ttl=settings.dns_negative_ttl,
        cache_size=settings.dns_cache_size,
        timeout=settings.dns_timeout,
    )


def _policy(settings: SuiteSettings) -> AddressPolicy:
    try:
        return AddressPolicy(settings.allow_private_addresses)
    except ValueError as error:
        raise SettingsError(f"SUITE_ALLOW_PRIVATE_ADDRESSES: {error}") from None


def _servers(settings: SuiteSettings) -> list[str]:
    return [
        f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        for address, port in settings.dns_servers
    ]
