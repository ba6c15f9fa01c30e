"""The public names that tests from outside use: a rename edits this table, and no assertion.

A test in ``tests/outside`` knows the suite by its command line, its files, its log, a server's log
and exit codes. Settings, stats, import paths and finish reasons it takes from here.
"""

from __future__ import annotations


class Setting:
    """Settings of the suite."""

    AGENTS = "SUITE_AGENTS"
    AGENT_GRACE = "SUITE_AGENT_GRACE"
    AGENT_NAME = "SUITE_AGENT_NAME"
    ALERT_URL = "SUITE_ALERT_URL"
    ALLOW_PRIVATE_ADDRESSES = "SUITE_ALLOW_PRIVATE_ADDRESSES"
    BACKOFF_BASE = "SUITE_BACKOFF_BASE"
    CLUSTER = "SUITE_CLUSTER"
    CLUSTER_KEY = "SUITE_CLUSTER_KEY"
    CRAWL_NAME = "SUITE_CRAWL_NAME"
    DEAD_HOST_FAILURES = "SUITE_DEAD_HOST_FAILURES"
    DNS_SERVERS = "SUITE_DNS_SERVERS"
    DNS_TIMEOUT = "DNS_TIMEOUT"
    DNS_TTL_MAX = "SUITE_DNS_TTL_MAX"
    DUPLICATES = "SUITE_COMPARE_PAGES"
    ENABLED = "SUITE_ENABLED"
    EXIT_CODES = "SUITE_EXIT_CODES"
    FETCH_LOG = "SUITE_FETCH_LOG"
    FOLLOW = "SUITE_FOLLOW"
    FROM_HEADER = "SUITE_FROM_HEADER"
    HOST_CONCURRENCY = "SUITE_HOST_CONCURRENCY"
    HOST_DELAY = "SUITE_HOST_DELAY"
    HOST_MAX_DEPTH = "SUITE_HOST_MAX_DEPTH"
    HOST_MAX_PAGES = "SUITE_HOST_MAX_PAGES"
    IDLE = "SUITE_WHEN_DONE"
    INDEX = "SUITE_INDEX"
    IP_CONCURRENCY = "SUITE_IP_CONCURRENCY"
    IP_DELAY = "SUITE_IP_DELAY"
    ITEMS_DIR = "SUITE_ITEMS_DIR"
    LINK_STATS = "SUITE_LINK_STATS"
    MAX_PAGES = "SUITE_MAX_PAGES"
    MAX_WAIT = "SUITE_MAX_WAIT"
    METRICS_FILE = "SUITE_METRICS_FILE"
    MIN_FREE = "SUITE_MIN_FREE"
    OPERATOR = "SUITE_OPERATOR"
    PACKS_DIR = "SUITE_PACKS_DIR"
    PACKS_UPLOAD = "SUITE_PACKS_UPLOAD"
    PAGE_ITEMS = "SUITE_PAGE_ITEMS"
    PROFILE = "SUITE_PROFILE"
    QUIET_LOG = "SUITE_QUIET_LOG"
    REDIS_URL = "SUITE_REDIS_URL"
    RETRY_TIMES = "SUITE_RETRY_TIMES"
    SEEDS = "SUITE_SEEDS"
    SEEN = "SUITE_SEEN_STORE"
    TRAPS = "SUITE_TRAPS"


class Constant:
    """Constants that a test makes shorter."""

    WATCH_PERIOD = "scrapy_spider_suite.extensions.watch.PERIOD"


class Component:
    """Import paths of what a project names in its settings or imports."""

    ADDON = "scrapy_spider_suite.Addon"
    BROAD_SPIDER = "scrapy_spider_suite.spiders.BroadSpider"
    COOKIES = "scrapy_spider_suite.downloadermiddlewares.cookies.HostCookiesMiddleware"
    DOWNLOADER = "scrapy_spider_suite.downloader.PoliteDownloader"
    HOST_USER_AGENT = "scrapy_spider_suite.downloadermiddlewares.useragent.HostUserAgentMiddleware"
    INDEX_PIPELINE = "scrapy_spider_suite.pipelines.IndexPipeline"
    ITEM_PACK_PIPELINE = "scrapy_spider_suite.pipelines.ItemPackPipeline"
    LINK_STATS_PIPELINE = "scrapy_spider_suite.pipelines.LinkStatsPipeline"
    PAGES = "scrapy_spider_suite.spidermiddlewares.pages.PageMiddleware"
    PAGE_ITEMS = "scrapy_spider_suite.spidermiddlewares.pages.PageItemMiddleware"
    PAGE_OUTPUT = "scrapy_spider_suite.spidermiddlewares.pages.PageOutputMiddleware"
    PAGE_PACK_PIPELINE = "scrapy_spider_suite.pipelines.PagePackPipeline"
    PRIVATE_ADDRESS_ERROR = "scrapy_spider_suite.errors.PrivateAddressError"
    ROBOTS = "scrapy_spider_suite.downloadermiddlewares.robotstxt.RobotsMiddleware"
    SCHEDULER = "scrapy_spider_suite.scheduler.FrontierScheduler"
    SIEVE_DUPEFILTER = "scrapy_spider_suite.dupefilter.SieveDupeFilter"
    SUITE_ERROR = "scrapy_spider_suite.errors.SuiteError"
    TRIE_DUPEFILTER = "scrapy_spider_suite.dupefilter.TrieDupeFilter"


class Stat:
    """Stats that a crawl ends with."""

    ADDRESS_MISMATCH = "suite/address/mismatch"
    OUTCOME = "suite/outcome/"  # and how requests ended


class Reason:
    """Finish reasons, beside Scrapy's own."""

    NO_PAGES = "no_pages"


STATUS_FILE = "suite/status.json"
"""The status of the last second, in a job directory."""

FIRST_PASS = "scrapy_spider_suite.store.seen_transfer._LEAST"
"""How many pages are done before URLs are compressed for the first time."""

SEEN_FOLDER = "suite/seen"
"""Compressed URLs, in a job directory."""
