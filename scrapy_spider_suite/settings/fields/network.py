"""Names, addresses, connections; robots.txt and cookies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scrapy_spider_suite.settings import addresses
from scrapy_spider_suite.settings import values as v
from scrapy_spider_suite.settings.declarations import FREE, setting
from scrapy_spider_suite.settings.scrapyredis import RedisUrl, redis_url


@dataclass(frozen=True, kw_only=True)
class Network:
    """Names, addresses, connections; robots.txt and cookies."""

    # Names, addresses, connections
    dns_servers: tuple[tuple[str, int], ...] = setting(
        addresses.name_servers(), (), FREE,
        "Name servers to ask; empty asks as the system does (hosts file, search domains).",
    )
    dns_timeout: float = setting(
        v.duration(0.1), 10.0, FREE, "Longest time to wait for a name's address."
    )
    dns_ttl_min: float = setting(
        v.duration(), 600.0, FREE,
        "Least time that an address is kept, whatever its time to live.",
    )
    dns_ttl_max: float = setting(
        v.duration(), 86_400.0, FREE,
        "Longest time that an address is kept, whatever its time to live.",
    )
    dns_negative_ttl: float = setting(
        v.duration(), 300.0, FREE, "How long it is kept that a name has no address."
    )
    dns_cache_size: int = setting(
        v.integer(1, unit="names"), 100_000, FREE, "Most names whose addresses are kept."
    )
    ip_family: Literal["any", "4", "6"] = setting(
        v.choice("any", "4", "6"), "any", FREE, "Which addresses are used: both, IPv4 or IPv6."
    )
    allow_private_addresses: bool | tuple[str, ...] = setting(
        addresses.hosts_or_networks(), False, FREE,
        "Whether, or to which hosts and networks, connections to private addresses are made.",
    )
    idle_connections: int = setting(
        v.integer(0, unit="connections"), 0, FREE,
        "Most connections kept open without a request; 0 is a quarter of the open-file limit.",
    )
    redis_url: RedisUrl | None = setting(
        redis_url(), None, FREE,
        "The Redis of the suite. Empty is, for pushed seeds and items, the one that the settings "
        "of scrapy-redis name (REDIS_URL, REDIS_HOST, REDIS_PARAMS, ...); agents need it.",
    )

    # Robots and cookies
    robots_ttl: float = setting(
        v.duration(1.0), 86_400.0, FREE, "How long a robots.txt is used before it is read again."
    )
    robots_cache_size: int = setting(
        v.integer(1, unit="origins"), 10_000, FREE,
        "Most robots.txt kept in memory; the others stay on disk.",
    )
    cookies_max_bytes: int = setting(
        v.size(), 4096, FREE, "Broad profile: most bytes of cookies kept for one host."
    )
    cookies_max_hosts: int = setting(
        v.integer(1, unit="hosts"), 10_000, FREE, "Broad profile: most hosts with cookies kept."
    )
