"""The declarations of all settings, by what they are about; `SuiteSettings` has all of them.

Other processes that crawl with this one: which part each has, and how they meet.

What is made of pages that were there before.

Budgets, the end, and what stops a crawl before it does harm.

Which links are followed, and which spellings of URLs are one.

Names, addresses, connections; robots.txt and cookies.

What is kept of the pages that are fetched, and under which names.

How often hosts and addresses are asked, and how often anew what failed.

When pages that were fetched are fetched again.

What runs, and what comes next.

What a job keeps, and how.

What is written down of a crawl.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scrapy_spider_suite.analysis.link_stats import TABLES
from scrapy_spider_suite.frontier.outcomes import OUTCOMES, Retry, State
from scrapy_spider_suite.settings import values
from scrapy_spider_suite.settings import values as v
from scrapy_spider_suite.settings.declarations import (
    FIXED,
    FREE,
    FROM_NOW_ON,
    Derived,
    Profile,
    setting,
)
from scrapy_spider_suite.settings.project import ProjectSettings
from scrapy_spider_suite.settings.values import (
    RedisUrl,
    Secret,
    address,
    assignment,
    grace,
    line,
    name,
    place,
    redis_or_file,
    redis_url,
    secret,
)
from scrapy_spider_suite.urls.normalizer import WORDS


@dataclass(frozen=True, kw_only=True)
class Agents:
    """Other processes that crawl with this one: which part each has, and how they meet."""

    cluster: Literal["", "peers", "lan"] = setting(
        v.choice("", "peers", "lan"), "", FIXED,
        "Whether this process is one agent of several that are one crawl: 'peers' meet in the "
        "Redis of SUITE_REDIS_URL under SUITE_CRAWL_NAME, and hand hosts to each other; 'lan' are "
        "those of SUITE_AGENTS, and exchange URLs over UDP, without Redis. Empty: it crawls alone.",
    )
    assignment: str = setting(
        assignment(), "ring", FIXED,
        "Which agent has a URL: 'ring' by consistent hashing of its host, 'url-sum' and "
        "'host-parity' as KSpider and Tarantula, or the import path of a class.",
    )
    agent_grace: float | None = setting(
        grace(), 900.0, FIXED,
        "How long the hosts of an agent that is gone wait for it before others take them, in "
        "seconds, or 'forever'. All agents have the same.",
    )
    agent_weight: float = setting(
        v.number(0.1, 10.0), 1.0, FREE,
        "The part of the crawl that this agent has, beside those of the others.",
    )
    agent_address: str = setting(
        address(), "", FREE,
        "Where other agents reach this one: an address, or address:port. Empty: the address from "
        "which it reaches Redis, and a port that is free.",
    )
    agents: tuple[str, ...] = setting(
        v.texts(), (), FREE,
        "All agents of a 'lan', this one too, each as name=address:port.",
    )
    cluster_key: Secret | None = setting(
        secret(), None, FREE,
        "What the agents of a crawl know and nobody else does, 16 characters or more: they "
        "authenticate each other by it. 'lan' needs one; 'peers' draw one, and keep it in Redis.",
    )
    shared_seeds: bool = setting(
        v.boolean(), True, FREE,
        "Every agent is given the same seeds: each takes its own and leaves the others alone. "
        "False: an agent sends what belongs to others on to them.",
    )
    handover_dir: Path | None = setting(
        v.folder(), None, FREE,
        "A folder that all agents share, through which hosts are handed over; empty: over TCP, to "
        "SUITE_AGENT_ADDRESS.",
    )
    handover_rate: int = setting(
        v.size(), 16 << 20, FREE,
        "Bytes by second that an agent hands over at most; 0 has no bound.",
    )
    outbox_rows: int = setting(
        v.integer(1, unit="rows"), 10_000_000, FREE,
        "The crawl pauses while so many rows wait for other agents, each a request or up to 50 "
        "links of a page, until they have taken a tenth; a row takes 0.1 to 0.8 KB of the disk.",
    )
    ledger: RedisUrl | Path | None = setting(
        redis_or_file(), None, FREE,
        "Where this crawl and others keep one politeness for hosts and addresses that they share: "
        "the URL of a Redis, or a file for the processes of one machine. Empty: it has its own.",
    )


@dataclass(frozen=True, kw_only=True)
class Duplicates:
    """What is made of pages that were there before."""

    duplicates: tuple[str, ...] = setting(
        v.choices("payload", "structure", "near"), (), FROM_NOW_ON,
        "By what pages are compared with those that were there before: their bytes (in packs a "
        "duplicate is a revisit record then, without its body), what they say without mark-up and "
        "numbers, and nearly that.",
    )
    follow_duplicates: bool = setting(
        v.boolean(), True, FROM_NOW_ON,
        "Follow the links of pages that are duplicates by one of SUITE_DUPLICATES.",
    )
    near_memory: int = setting(
        v.size(1 << 20), 16 << 20, FREE,
        "Memory for pages that others may nearly repeat, 7,700 in a MiB; the oldest are forgotten.",
    )


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Budgets, the end, and what stops a crawl before it does harm."""

    # Budgets and the end
    host_max_pages: int = setting(
        v.integer(0, unit="pages"), 0, FROM_NOW_ON, "Most pages of one host; 0 is no limit."
    )
    host_max_depth: int = setting(
        v.integer(0, unit="links"), 0, FROM_NOW_ON,
        "Links followed in bulk: how many links a page may be away from the first page of its "
        "host; links from other hosts are always followed. 0 is no limit.",
    )
    domain_max_pages: int = setting(
        v.integer(0, unit="pages"), 0, FROM_NOW_ON,
        "Most pages of one registered domain, all its hosts together; 0 is no limit.",
    )
    domain_max_hosts: int = setting(
        v.integer(0, unit="hosts"), 0, FROM_NOW_ON,
        "Most hosts of one registered domain, those met first; 0 is no limit.",
    )
    max_pages: int = setting(
        v.integer(0, unit="pages"), 0, FREE,
        "Close with the reason 'max_pages' when the job has so many pages; 0 is no limit.",
    )
    max_bytes: int = setting(
        v.size(), 0, FREE,
        "Close with the reason 'max_bytes' when the job has received so much; 0 is no limit.",
    )
    max_time: float = setting(
        v.duration(), 0.0, FREE,
        "Close with the reason 'max_time' when the job has run for so long, all its runs "
        "together; 0 is no limit.",
    )
    max_bandwidth: int = setting(
        v.size(), 0, FREE,
        "Most bytes a second that are received, on average; pages wait for it before they are "
        "asked for. 0 is no limit.",
    )
    body_max: int = setting(
        v.size(), 0, FROM_NOW_ON,
        "Bytes of a page's body after which reading stops; the page is flagged 'truncated'. 0 "
        "reads it to its end.",
    )
    media_types: tuple[str, ...] = setting(
        v.media_types(), (), FROM_NOW_ON,
        "Broad profile: media types of pages that are wanted, with * for any; others are not read "
        "beyond their head. Empty reads all.",
    )
    max_wait: float = setting(
        # Of the default back-off, more than the 1,280 s before the tenth attempt, after which a
        # host that never answers is given up, and less than the 2,560 s after it.
        v.duration(), 1800.0, FREE,
        "Close with the reason 'waiting' when only hosts remain that must wait longer than this; "
        "0 waits for ever.",
    )
    idle: Literal["finish", "wait"] = setting(
        v.choice("finish", "wait"), "finish", FREE,
        "What to do when nothing is left: end, or wait for URLs from outside.",
    )
    stop_timeout: float = setting(
        v.duration(), 20.0, FREE,
        "Longest time that a stop waits for requests that are under way.",
    )

    # Guards
    min_free: int = setting(
        v.size(), 64 << 20, FREE,
        "Pause while a disk that is written to has less room than this, and than the store needs "
        "to merge its files; 0 goes on until the disk is full.",
        broad=256 << 20,
    )
    stall_timeout: float = setting(
        v.duration(), 0.0, FREE,
        "End the process when its event loop has stood still for so long, and the crawl when "
        "nothing was fetched for so long although hosts are ready; 0 never does.",
        broad=900.0,
    )
    exit_codes: bool = setting(
        v.boolean(), False, FREE,
        "Let the exit code of the scrapy command tell how the crawl ended.",
        broad=True,
    )


@dataclass(frozen=True, kw_only=True)
class Links:
    """Which links are followed, and which spellings of URLs are one."""

    # Filters
    schedule_filter: str = setting(
        v.filter_for("schedule"), "", FROM_NOW_ON,
        "Which links and requests may enter the queue; seeds always may.",
    )
    fetch_filter: str = setting(
        v.filter_for("fetch"), "", FROM_NOW_ON,
        "Which pages may be fetched, asked just before; the others fail ('filtered').",
    )
    parse_filter: str = setting(
        v.filter_for("parse"), "", FROM_NOW_ON,
        "Which answers go to their callbacks and have their links followed; the others are done.",
    )
    follow_filter: str = setting(
        v.filter_for("follow"), "", FROM_NOW_ON,
        "Which links of pages are taken, where links are followed in bulk.",
    )
    store_filter: str = setting(
        v.filter_for("store"), "", FROM_NOW_ON,
        "Of which answers the items go to the pipelines.",
    )
    countries: Path | None = setting(
        v.file(), None, FREE,
        "A file that says in which country addresses are, for filters: lines of 'network,country' "
        "or 'first,last,country'.",
    )

    # Traps, and what nobody linked to
    trap_length: int = setting(
        v.integer(0, unit="characters"), 0, FROM_NOW_ON,
        "Links followed in bulk: longer URLs are taken for a trap; 0 takes none for one.",
        broad=1024,
    )
    trap_segments: int = setting(
        v.integer(0, unit="segments"), 0, FROM_NOW_ON,
        "Links followed in bulk: paths of more segments are taken for a trap; 0: none are.",
        broad=24,
    )
    trap_repeats: int = setting(
        v.integer(0, unit="times"), 0, FROM_NOW_ON,
        "Links followed in bulk: a path that holds one segment more often is taken for a trap; "
        "0: none is.",
        broad=4,
    )
    trap_calendar: int = setting(
        v.integer(0, 200, "years"), 0, FROM_NOW_ON,
        "Links followed in bulk: dates in URLs that are further ahead are taken for a trap; 0: "
        "none are.",
        broad=10,
    )
    trap_permuted: bool = setting(
        v.boolean(), False, FROM_NOW_ON,
        "Links followed in bulk: whether a URL whose query has the parameters of another in "
        "another order is taken for a trap.",
        broad=True,
    )
    trap_query: int = setting(
        v.integer(0, 10_000, "pages"), 0, FROM_NOW_ON,
        "Links followed in bulk: when so many pages of one path, whose queries combine values that "
        "others of it had, said nothing new and led to nothing new but more of the kind, its "
        "combinations are a trap; 0: none are.",
        broad=64,
    )
    trap_sessions: int = setting(
        v.integer(0, 10_000, "pages"), 0, FROM_NOW_ON,
        "Links followed in bulk: when so many pages of a host said the same with another session "
        "id, each page is fetched with one of them only; 0: with all.",
        broad=8,
    )
    trap_same: int = setting(
        v.integer(0, 10_000, "pages"), 0, FROM_NOW_ON,
        "Links followed in bulk: when so many pages of one pattern, folder or host have said what "
        "earlier ones said, with hardly a new one between, it is a trap; 0: none is.",
        broad=24,
    )
    trap_numbers: bool = setting(
        v.boolean(), False, FROM_NOW_ON,
        "Links followed in bulk: whether pages that differ from earlier ones in numbers alone are "
        "such a trap, too; if not, URLs like theirs come after the host's others.",
    )
    trap_hosts: int = setting(
        v.integer(0, 10_000, "hosts"), 0, FROM_NOW_ON,
        "Links followed in bulk: when the first pages of so many hosts of a registered domain have "
        "said what those of others said, further hosts of it are a trap; 0: none are.",
        broad=24,
    )
    trap_prefix: int = setting(
        v.integer(0, 100, "percent"), 0, FROM_NOW_ON,
        "Links followed in bulk: URLs below a folder that has had this share of a large host, or "
        "of its SUITE_HOST_MAX_PAGES, come after the host's others; 0: none do.",
        broad=50,
    )
    mine: Literal["none", "ancestors", "siblings", "both"] = setting(
        v.choice("none", "ancestors", "siblings", "both"), "none", FROM_NOW_ON,
        "Links followed in bulk: also try the folders above a page, or the pages whose numbers are "
        "one more or one less, although nobody linked to them.",
    )
    mine_max: int = setting(
        v.integer(1, unit="URLs"), 100, FROM_NOW_ON, "Most such URLs of one host."
    )

    # URLs
    normal_form: tuple[str, ...] = setting(
        v.choices(*WORDS), (), FIXED,
        "Broad profile: which further spellings of URLs are taken for one, for all hosts.",
    )
    drop_parameters: tuple[str, ...] = setting(
        v.parameters(), (), FIXED, "Broad profile: query parameters that are left out of URLs."
    )
    url_rules: tuple[str, ...] = setting(
        v.url_rules(), (), FIXED,
        "Broad profile: exceptions from these two by host and .domain, a rule a line.",
    )
    normalizer: str = setting(
        v.import_path(), "", FIXED,
        "Broad profile: a callable of the project's own, or a class of such, that is given every "
        "URL and returns the one to take for it, None to drop it.",
    )
    prefer_https: bool = setting(
        v.boolean(), False, FROM_NOW_ON,
        "Broad profile: take links to http for https, and those with www. for those without, or "
        "the other way round, for hosts whose answers show that they are the same.",
    )


@dataclass(frozen=True, kw_only=True)
class Network:
    """Names, addresses, connections; robots.txt and cookies."""

    # Names, addresses, connections
    dns_servers: tuple[tuple[str, int], ...] = setting(
        values.name_servers(), (), FREE,
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
        values.hosts_or_networks(), False, FREE,
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


@dataclass(frozen=True, kw_only=True)
class Pages:
    """What is kept of the pages that are fetched, and under which names."""

    packs_dir: Path | None = setting(
        v.folder(), None, FREE,
        "A folder for packs: every answer, robots.txt, redirects and errors included, as WARC "
        "records. Empty keeps none.",
    )
    packs_format: Literal["lzo", "gz", "zst"] = setting(
        v.choice("lzo", "gz", "zst"), "lzo", FREE,
        "How packs are compressed: lzo is fast and groups records; gz is what every tool that "
        "reads WARC opens, zst what FastWARC does.",
    )
    packs_size: int = setting(
        v.size(1 << 20), 1 << 30, FREE, "Size at which a pack is closed and another one begun."
    )
    packs_age: float = setting(
        v.duration(), 3600.0, FREE,
        "Age at which a pack is closed and another one begun; 0 closes none for its age.",
    )
    packs_upload: str = setting(
        place(), "", FREE,
        "Where closed packs are brought to, as fsspec has it, such as 's3://bucket/folder'; empty "
        "uploads none.",
    )
    packs_keep: bool = setting(
        v.boolean(), True, FREE,
        "Whether packs stay here when they have been uploaded; their indexes always do.",
    )
    index: bool = setting(
        v.boolean(), False, FREE,
        "Have a process beside the crawl index the texts of the pages in SUITE_PACKS_DIR, for "
        "`scrapy packs search`.",
    )
    extract: Literal["eager", "on-demand"] = setting(
        v.choice("eager", "on-demand"), "eager", FROM_NOW_ON,
        "Where links are followed in bulk: when those of a page are read. With on-demand, out of "
        "its pack, when the queue of its host runs low or too few hosts are left.",
    )
    items_dir: Path | None = setting(
        v.folder(), None, FREE,
        "A folder for item packs: the items that spiders yield, as compressed lines of JSON, each "
        "exactly once over kills with a JOBDIR. Empty keeps none.",
    )
    items_format: Literal["gz", "zst"] = setting(
        v.choice("gz", "zst"), "gz", FREE,
        "How item packs are compressed; they are closed as SUITE_PACKS_SIZE and _AGE say.",
    )
    page_items: bool = setting(
        v.boolean(), False, FREE,
        "Let pages be items: where links are followed in bulk every page is one, and pages are "
        "packed and counted only of which there was a PageItem.",
    )
    link_stats: tuple[str, ...] = setting(
        v.choices(*TABLES), (), FROM_NOW_ON,
        "Which link statistics are kept of the pages that are done: rows of the job, exact over "
        "kills.",
    )
    crawl_name: str = setting(
        name(), "", FREE,
        "The name of the crawl, which its packs bear; empty is the spider's. The agents of one "
        "crawl share it.",
    )
    agent_name: str = setting(
        name(), "", FREE,
        "The name of this process among those of its crawl, which its packs bear; empty is the "
        "machine's. No two that run at the same time have the same.",
    )
    operator: str = setting(
        line(), "", FREE,
        "Who crawls, a person or an institution: the first record of each pack says so, beside "
        "the contact that USER_AGENT gives.",
    )
    from_header: bool = setting(
        v.boolean(), False, FREE,
        "Send the e-mail address in SUITE_OPERATOR, or else in USER_AGENT, as the From header of "
        "all requests.",
        broad=True,
    )


_MAY_FAIL = tuple(
    event.value for event, outcome in OUTCOMES.items()
    if outcome.state is State.FAILED or outcome.retry is Retry.STORE
)  # fmt: skip
_MAY_PASS = tuple(
    event.value for event, outcome in OUTCOMES.items() if outcome.retry is Retry.STORE
)


def _host_concurrency(project: ProjectSettings, given: Mapping[str, Any]) -> int:
    """As many as the project asked for; one where it only asked for a pause between requests."""
    if project.concurrency_was_set or given.get("host_delay", project.download_delay) == 0:
        return project.concurrent_requests_per_domain
    return 1


def _broad_delay(project: ProjectSettings, given: Mapping[str, Any]) -> float:
    """Never less polite than the project wants to be; Scrapy's template sets one second."""
    return max(4.0, project.download_delay)


def _ip_concurrency(project: ProjectSettings, given: Mapping[str, Any]) -> int:
    """Without a promise for addresses there is none to keep; with one, the careful number."""
    return project.concurrent_requests_per_ip or (1 if given.get("ip_delay") else 0)


def _ip_delay(project: ProjectSettings, given: Mapping[str, Any]) -> float:
    """Scrapy keeps its delay by address, not by host, when it counts requests by address."""
    return project.download_delay if project.concurrent_requests_per_ip else 0.0


@dataclass(frozen=True, kw_only=True)
class Politeness:
    """How often hosts and addresses are asked, and how often anew what failed."""

    host_delay: float = setting(
        v.duration(), Derived("DOWNLOAD_DELAY", lambda project, given: project.download_delay),
        FREE, "Least pause between the end of a request to a host and the start of the next.",
        broad=Derived("4, or DOWNLOAD_DELAY if that is longer", _broad_delay),
    )
    ip_delay: float = setting(
        v.duration(), Derived("0", _ip_delay), FREE,
        "Least pause between the end of a request to an IP address and the start of the next.",
        broad=0.5,
    )
    host_concurrency: int = setting(
        v.integer(1, 1000, "requests"),
        Derived(
            "CONCURRENT_REQUESTS_PER_DOMAIN if the project sets it or there is no host delay, "
            "else 1", _host_concurrency),
        FREE, "Most requests to one host at the same time.", broad=1,
    )
    ip_concurrency: int = setting(
        v.integer(0, 1000, "requests"), Derived("0; 1 with SUITE_IP_DELAY", _ip_concurrency),
        FREE, "Most requests to one IP address at the same time; 0 is no limit.", broad=1,
    )
    ipv6_prefix: int = setting(
        v.integer(16, 128, "bits"), 64, FREE,
        "How many leading bits of an IPv6 address count as one address.",
    )
    burst: int = setting(
        v.integer(1, 20, "requests"), 1, FREE,
        "Most requests to a host in one visit, one after the other without a pause; for one's "
        "own servers.",
    )
    overrides: Path | None = setting(
        v.file(), None, FREE,
        "A file of exceptions by host, .domain and CIDR, read again whenever it changes.",
    )
    backoff_base: float = setting(
        v.duration(), 5.0, FREE,
        "First pause of a host after a 429, a 503, a timeout or a failed connection; each "
        "further one in a row doubles it.",
    )
    backoff_max: float = setting(
        v.duration(), 3600.0, FREE, "Longest pause that such failures grow to."
    )
    dead_host_failures: int = setting(
        v.integer(1, unit="failures"), 10, FROM_NOW_ON,
        "Failed connections in a row after which a host is given up.",
    )
    retry_times: int = setting(
        v.integer(0, unit="retries"), 5, FROM_NOW_ON,
        "How often a URL that the frontier found is tried again before it has failed.",
    )

    retry_failed_after: float = setting(
        v.duration(), 0.0, FROM_NOW_ON,
        "Let a URL that failed be tried anew when a link leads there so long afterwards; 0 never "
        "does.",
    )
    retry_failed: tuple[str, ...] = setting(
        v.choices(*_MAY_FAIL), _MAY_PASS, FROM_NOW_ON,
        "The reasons of such failures; 'host_dead' gives the host another chance, too.",
    )


_DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Revisits:
    """When pages that were fetched are fetched again."""

    revisit: Literal["off", "fixed", "adaptive"] = setting(
        v.choice("off", "fixed", "adaptive"), "off", FROM_NOW_ON,
        "Whether pages are fetched again, for as long as the crawl runs, which does not end by "
        "itself then: never, each after so long, or so often as keeps most of them fresh with as "
        "many fetches.",
    )
    revisit_interval: float = setting(
        v.duration(0.1), 7 * _DAY, FROM_NOW_ON,
        "After how long a page is fetched again; with `adaptive`, on average.",
    )
    revisit_least: float = setting(
        v.duration(0.1), 3600.0, FROM_NOW_ON,
        "With `adaptive`: after how long at least.",
    )
    revisit_most: float = setting(
        v.duration(0.1), 90 * _DAY, FROM_NOW_ON,
        "With `adaptive`: after how long at most, of pages too that are not worth it, so that "
        "it is found out if they change their ways.",
    )
    revisit_prior: float = setting(
        v.duration(0.1), 30 * _DAY, FROM_NOW_ON,
        "With `adaptive`: how long the median page stays as it is; what is not known yet of a "
        "page is taken from that.",
    )
    revisit_weight: float = setting(
        v.share(), 0.2, FREE,
        "The part of all fetches that pages which are due again have where new pages wait, too.",
    )


@dataclass(frozen=True, kw_only=True)
class Running:
    """What runs, and what comes next."""

    # What runs
    enabled: bool = setting(
        v.boolean(), True, FIXED,
        "Whether the add-on does anything at all; of a job that was begun with it nothing else can "
        "go on.",
    )
    profile: Profile = setting(
        v.choice("auto", "spider", "broad"), "auto", FIXED,
        "Keep an existing spider's ways (spider), or crawl many hosts in bulk (broad); auto is "
        "broad for a BroadSpider and with SUITE_FOLLOW, else spider.",
    )
    follow: bool = setting(
        v.boolean(), False, FROM_NOW_ON,
        "Follow every link of every page in bulk, whatever the spider.",
    )

    seeds: tuple[str, ...] = setting(
        v.texts(), (), FREE,
        "URLs, host names, files of them, and @URLs of such files, to begin with; for a spider "
        "beside what its start() yields.",
    )

    # What comes next
    order: Literal["breadth-first", "bottom-up", "best-first"] = setting(
        v.choice("breadth-first", "bottom-up", "best-first"), "breadth-first", FIXED,
        "Which URL of a host comes next among those of one priority: the first that was found, the "
        "left-most leaf of its paths, or that of the best SUITE_SCORE.",
    )
    score: str = setting(
        v.import_path(), "", FROM_NOW_ON,
        "For best-first: a function that is given a URL, its depth and the page that led there, "
        "and returns a number; the highest comes first.",
    )
    scores: Path | None = setting(
        v.file(), None, FROM_NOW_ON,
        "For best-first, instead of a function: a file with a URL or host, a tab and a number a "
        "line, such as `scrapy packs graph DIR --rank` writes; a URL without one has that of the "
        "host it was found on.",
    )
    window: Literal["none", "top", "leaf"] = setting(
        v.choice("none", "top", "leaf"), "none", FROM_NOW_ON,
        "Let a sliding window choose what is in memory: so many hosts, a URL of each (top), or so "
        "many leaves of every host, row by row (leaf). Slower than none.",
    )
    window_size: int = setting(
        v.integer(1, unit="hosts or leaves"), 100, FROM_NOW_ON,
        "Hosts of the top window, or leaves of each host's leaf window.",
    )
    phases: int = setting(
        v.integer(1, 10_000, "phases"), 1, FROM_NOW_ON,
        "Visit a part of the hosts at a time, of so many parts; the others are on disk meanwhile.",
    )
    phase_seconds: float = setting(
        v.duration(1.0), 300.0, FROM_NOW_ON, "How long a phase lasts, by the clock on the wall.",
    )
    phase_guard: float = setting(
        v.duration(), 0.0, FROM_NOW_ON,
        "At the end of a phase, for so long no visit begins: those that are out have time to end.",
    )

    sitemaps: Literal["off", "robots", "all"] = setting(
        v.choice("off", "robots", "all"), "off", FROM_NOW_ON,
        "Broad profile: read the sitemaps that a host's robots.txt names (robots), and look for "
        "them by their usual names where it names none (all).",
    )


@dataclass(frozen=True, kw_only=True)
class Store:
    """What a job keeps, and how."""

    seen: Literal["trie", "sieve", "plain"] = setting(
        v.choice("trie", "sieve", "plain"), "trie", FROM_NOW_ON,
        "How it is known what was seen: URLs that are done in a compressed trie, a third of the "
        "room; fingerprints of them in a sieve, where links wait to be compared many at a time; "
        "or each with a row of the database. What is in a trie or a sieve stays there.",
    )
    seen_cache: int = setting(
        v.size(), 16 << 20, FREE,
        "Memory for fingerprints of what was seen a moment ago, 16 bytes each; 0 has none.",
    )
    sieve_bits: Literal["64", "128"] = setting(
        v.choice("64", "128"), "128", FIXED,
        "Bits of a fingerprint in a sieve: less room on disk, or less risk that two are taken for "
        "one.",
    )
    sieve_waiting: int = setting(
        v.integer(1024, unit="URLs"), 1 << 17, FREE,
        "URLs that a sieve holds in memory before it merges them with those on disk.",
    )
    sync: Literal["process", "power"] = setting(
        v.choice("process", "power"), "process", FREE,
        "What a commit survives: the end of the process, or a power failure too (slower).",
    )
    workbench_memory: int = setting(
        v.size(1 << 20), 64 << 20, FREE,
        "Memory for hosts that are kept ready; the others wait on disk.",
    )
    require_durable: bool = setting(
        v.boolean(), False, FROM_NOW_ON,
        "Refuse requests that cannot be stored, instead of keeping them in memory.",
    )
    storable: tuple[str, ...] = setting(
        v.dotted_paths(), (), FROM_NOW_ON,
        "Classes, beside the built-in ones, that requests in the job directory may hold.",
    )


@dataclass(frozen=True, kw_only=True)
class Watching:
    """What is written down of a crawl."""

    fetch_log: bool | Path = setting(
        v.switch_or_folder(), True, FREE,
        "Where the fetch log is kept: True is in the job directory (without one there is none), "
        "False is nowhere.",
    )
    fetch_log_size: int = setting(
        v.size(1 << 20), 64 << 20, FREE,
        "Size at which a file of the fetch log is closed and compressed.",
    )
    fetch_log_max: int = setting(
        v.size(0), 0, FREE,
        "Size of the whole fetch log beyond which its oldest files are removed; 0: none are.",
    )
    quiet_log: bool = setting(
        v.boolean(), False, FREE,
        "Fold the engine's repeated log lines and repeated tracebacks into counts, and leave out "
        "tracebacks of network errors.",
        broad=True,
    )
