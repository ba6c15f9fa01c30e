"""Every setting of the suite, declared once, in eleven groups; a field of `SettingsTable` each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scrapy_spider_suite.analysis.link_stats import TABLES
from scrapy_spider_suite.frontier.outcomes import OUTCOMES, Retry, State
from scrapy_spider_suite.settings import values as v
from scrapy_spider_suite.settings.declarations import (
    FIXED,
    FREE,
    FROM_NOW_ON,
    Derived,
    Group,
    Profile,
    setting,
)
from scrapy_spider_suite.settings.project import ProjectSettings
from scrapy_spider_suite.settings.values import RedisUrl, Secret
from scrapy_spider_suite.urls.normalizer import WORDS
from scrapy_spider_suite.urls.traps import DETECTORS

START = Group("Start", "getting-started.md")
POLITENESS = Group("Politeness", "politeness.md")
FAILURES = Group("Failures and retries", "outcomes.md")
BUDGETS = Group("Budgets, end, guards", "running.md")
FILTERS = Group("Filters and scope", "filters.md")
URLS = Group("URLs and traps", "traps.md")
ORDER = Group("Order, phases, revisits", "orders.md")
JOB = Group("Job and memory", "jobs.md")
NETWORK = Group("Network", "politeness.md")
KEPT = Group("What is kept", "packs.md")
AGENTS = Group("Agents", "cluster.md")

FRONT_PAGE = (
    "host_delay", "ip_delay", "overrides", "follow", "seeds", "schedule_filter", "host_max_pages",
    "max_pages", "packs_dir", "cluster",
)  # fmt: skip
"""The ten settings that a newcomer meets first."""

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


_DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class SettingsTable:
    """Every setting of the suite, in eleven groups; a field is a setting."""

    # Start
    profile: Profile = setting(
        START, v.choice("auto", "spider", "broad"), "auto", FIXED,
        "Keep an existing spider's ways (spider), or crawl many hosts in bulk (broad); auto is "
        "broad for a BroadSpider and with SUITE_FOLLOW, else spider.",
        page="broad-crawls.md",
    )
    enabled: bool = setting(
        START, v.boolean(), True, FIXED,
        "Whether the add-on does anything at all; of a job that was begun with it nothing else can "
        "go on.",
    )
    follow: bool = setting(
        START, v.boolean(), False, FROM_NOW_ON,
        "Follow every link of every page in bulk, whatever the spider.",
        page="broad-crawls.md",
    )
    seeds: tuple[str, ...] = setting(
        START, v.texts(), (), FREE,
        "URLs, host names, files of them, and @URLs of such files, to begin with; for a spider "
        "beside what its start() yields.",
        page="seeds.md",
    )
    sitemaps: Literal["off", "robots", "all"] = setting(
        START, v.choice("off", "robots", "all"), "off", FROM_NOW_ON,
        "Broad profile: read the sitemaps that a host's robots.txt names (robots), and look for "
        "them by their usual names where it names none (all).",
        page="sitemaps.md",
    )
    crawl_name: str = setting(
        START, v.name(), "", FREE,
        "The name of the crawl, which its packs bear; empty is the spider's. The agents of one "
        "crawl share it.",
        page="packs.md",
    )
    operator: str = setting(
        START, v.line(), "", FREE,
        "Who crawls, a person or an institution: the first record of each pack says so, beside "
        "the contact that USER_AGENT gives.",
        page="packs.md",
    )
    from_header: bool = setting(
        START, v.boolean(), False, FREE,
        "Send the e-mail address in SUITE_OPERATOR, or else in USER_AGENT, as the From header of "
        "all requests.",
        broad=True, page="politeness.md",
    )

    # Politeness
    host_delay: float = setting(
        POLITENESS, v.duration(),
        Derived("DOWNLOAD_DELAY", lambda project, given: project.download_delay), FREE,
        "Least pause between the end of a request to a host and the start of the next.",
        broad=Derived("4, or DOWNLOAD_DELAY if that is longer", _broad_delay),
        live=True,
    )
    ip_delay: float = setting(
        POLITENESS, v.duration(), Derived("0", _ip_delay), FREE,
        "Least pause between the end of a request to an IP address and the start of the next.",
        broad=0.5, live=True,
    )
    host_concurrency: int = setting(
        POLITENESS, v.integer(1, 1000, "requests"),
        Derived(
            "CONCURRENT_REQUESTS_PER_DOMAIN if the project sets it or there is no host delay, "
            "else 1", _host_concurrency),
        FREE, "Most requests to one host at the same time.", broad=1,
        live=True,
    )
    ip_concurrency: int = setting(
        POLITENESS, v.integer(0, 1000, "requests"),
        Derived("0; 1 with SUITE_IP_DELAY", _ip_concurrency),
        FREE, "Most requests to one IP address at the same time; 0 is no limit.", broad=1,
        live=True,
    )
    requests_per_visit: int = setting(
        POLITENESS, v.integer(1, 20, "requests"), 1, FREE,
        "Most requests to a host in one visit, one after the other without a pause; for one's "
        "own servers.",
        live=True,
    )
    overrides: Path | None = setting(
        POLITENESS, v.file(), None, FREE,
        "A file of exceptions by host, .domain and CIDR, read again whenever it changes.",
        page="overrides.md",
    )
    rate_ledger: RedisUrl | Path | None = setting(
        POLITENESS, v.redis_or_file(), None, FREE,
        "Where this crawl and others keep one politeness for hosts and addresses that they share: "
        "the URL of a Redis, or a file for the processes of one machine. Empty: it has its own.",
        page="cluster.md",
    )

    # Failures and retries
    backoff_base: float = setting(
        FAILURES, v.duration(), 5.0, FREE,
        "First pause of a host after a 429, a 503, a timeout or a failed connection; each "
        "further one in a row doubles it.",
        live=True,
    )
    backoff_max: float = setting(
        FAILURES, v.duration(), 3600.0, FREE, "Longest pause that such failures grow to.",
        live=True,
    )
    dead_host_failures: int = setting(
        FAILURES, v.integer(1, unit="failures"), 10, FROM_NOW_ON,
        "Failed connections in a row after which a host is given up.",
        live=True,
    )
    retry_times: int = setting(
        FAILURES, v.integer(0, unit="retries"), 5, FROM_NOW_ON,
        "How often a URL that the frontier found is tried again before it has failed.",
        live=True,
    )
    retry_failed_after: float = setting(
        FAILURES, v.duration(), 0.0, FROM_NOW_ON,
        "Let a URL that failed be tried anew when a link leads there so long afterwards; 0 never "
        "does.",
        live=True,
    )
    retry_failed: tuple[str, ...] = setting(
        FAILURES, v.choices(*_MAY_FAIL), _MAY_PASS, FROM_NOW_ON,
        "The reasons of such failures; 'host_dead' gives the host another chance, too.",
        live=True,
    )

    # Budgets, end, guards
    host_max_pages: int = setting(
        BUDGETS, v.integer(0, unit="pages"), 0, FROM_NOW_ON,
        "Most pages of one host; 0 is no limit.",
        live=True,
    )
    host_max_depth: int = setting(
        BUDGETS, v.integer(0, unit="links"), 0, FROM_NOW_ON,
        "Links followed in bulk: how many links a page may be away from the first page of its "
        "host; links from other hosts are always followed. 0 is no limit.",
        live=True,
    )
    domain_max_pages: int = setting(
        BUDGETS, v.integer(0, unit="pages"), 0, FROM_NOW_ON,
        "Most pages of one registered domain, all its hosts together; 0 is no limit.",
        live=True,
    )
    domain_max_hosts: int = setting(
        BUDGETS, v.integer(0, unit="hosts"), 0, FROM_NOW_ON,
        "Most hosts of one registered domain, those met first; 0 is no limit.",
        live=True,
    )
    max_pages: int = setting(
        BUDGETS, v.integer(0, unit="pages"), 0, FREE,
        "Close with the reason 'max_pages' when the job has so many pages; 0 is no limit.",
        live=True,
    )
    max_bytes: int = setting(
        BUDGETS, v.size(), 0, FREE,
        "Close with the reason 'max_bytes' when the job has received so much; 0 is no limit.",
        live=True,
    )
    max_time: float = setting(
        BUDGETS, v.duration(), 0.0, FREE,
        "Close with the reason 'max_time' when the job has run for so long, all its runs "
        "together; 0 is no limit.",
        live=True,
    )
    max_bandwidth: int = setting(
        BUDGETS, v.size(), 0, FREE,
        "Most bytes a second that are received, on average; pages wait for it before they are "
        "asked for. 0 is no limit.",
        live=True,
    )
    body_max: int = setting(
        BUDGETS, v.size(), 0, FROM_NOW_ON,
        "Bytes of a page's body after which reading stops; the page is flagged 'truncated'. 0 "
        "reads it to its end.",
        live=True,
    )
    max_wait: float = setting(
        # Of the default back-off, more than the 1,280 s before the tenth attempt, after which a
        # host that never answers is given up, and less than the 2,560 s after it.
        BUDGETS, v.duration(), 1800.0, FREE,
        "Close with the reason 'waiting' when only hosts remain that must wait longer than this; "
        "0 waits for ever.",
        live=True,
    )
    when_done: Literal["finish", "wait"] = setting(
        BUDGETS, v.choice("finish", "wait"), "finish", FREE,
        "What to do when nothing is left: end, or wait for URLs from outside.",
    )
    stop_timeout: float = setting(
        BUDGETS, v.duration(), 20.0, FREE,
        "Longest time that a stop waits for requests that are under way.",
        live=True,
    )
    min_free: int = setting(
        BUDGETS, v.size(), 64 << 20, FREE,
        "Pause while a disk that is written to has less room than this, and than the store needs "
        "to merge its files; 0 goes on until the disk is full.",
        broad=256 << 20, live=True,
    )
    stall_timeout: float = setting(
        BUDGETS, v.duration(), 0.0, FREE,
        "End the process when its event loop has stood still for so long, and the crawl when "
        "nothing was fetched for so long although hosts are ready; 0 never does.",
        broad=900.0, live=True,
    )
    exit_codes: bool = setting(
        BUDGETS, v.boolean(), False, FREE,
        "Let the exit code of the scrapy command tell how the crawl ended.",
        broad=True,
    )

    # Filters and scope
    schedule_filter: str = setting(
        FILTERS, v.filter_for("schedule"), "", FROM_NOW_ON,
        "Which links and requests may enter the queue; seeds always may.",
        live=True,
    )
    fetch_filter: str = setting(
        FILTERS, v.filter_for("fetch"), "", FROM_NOW_ON,
        "Which pages may be fetched, asked just before; the others fail ('filtered').",
        live=True,
    )
    parse_filter: str = setting(
        FILTERS, v.filter_for("parse"), "", FROM_NOW_ON,
        "Which answers go to their callbacks and have their links followed; the others are done.",
        live=True,
    )
    follow_filter: str = setting(
        FILTERS, v.filter_for("follow"), "", FROM_NOW_ON,
        "Which links of pages are taken, where links are followed in bulk.",
        live=True,
    )
    store_filter: str = setting(
        FILTERS, v.filter_for("store"), "", FROM_NOW_ON,
        "Of which answers the items go to the pipelines.",
        live=True,
    )
    countries: Path | None = setting(
        FILTERS, v.file(), None, FREE,
        "A file that says in which country addresses are, for filters: lines of 'network,country' "
        "or 'first,last,country'.",
    )
    media_types: tuple[str, ...] = setting(
        FILTERS, v.media_types(), (), FROM_NOW_ON,
        "Broad profile: media types of pages that are wanted, with * for any; others are not read "
        "beyond their head. Empty reads all.",
        live=True,
    )

    # URLs and traps
    normal_form: tuple[str, ...] = setting(
        URLS, v.choices(*WORDS), (), FIXED,
        "Broad profile: which further spellings of URLs are taken for one, for all hosts.",
        page="normal-form.md",
    )
    drop_parameters: tuple[str, ...] = setting(
        URLS, v.parameters(), (), FIXED,
        "Broad profile: query parameters that are left out of URLs.",
        page="normal-form.md",
    )
    url_rules: tuple[str, ...] = setting(
        URLS, v.url_rules(), (), FIXED,
        "Broad profile: exceptions from these two by host and .domain, a rule a line.",
        page="normal-form.md",
    )
    normalizer: str = setting(
        URLS, v.import_path(), "", FIXED,
        "Broad profile: a callable of the project's own, or a class of such, that is given every "
        "URL and returns the one to take for it, None to drop it.",
        page="normal-form.md",
    )
    prefer_https: bool = setting(
        URLS, v.boolean(), False, FROM_NOW_ON,
        "Broad profile: take links to http for https, and those with www. for those without, or "
        "the other way round, for hosts whose answers show that they are the same.",
        page="normal-form.md",
    )
    traps: tuple[str, ...] = setting(
        URLS, v.choices(*DETECTORS), (), FROM_NOW_ON,
        "Links followed in bulk: the detectors of traps that are on. fail refuses the URLs that a "
        "detector finds, last puts them after the host's others.",
        broad=tuple(each for each in DETECTORS if each != "numbers=fail"), live=True,
    )
    guess_urls: Literal["none", "ancestors", "siblings", "both"] = setting(
        URLS, v.choice("none", "ancestors", "siblings", "both"), "none", FROM_NOW_ON,
        "Links followed in bulk: also try the folders above a page, or the pages whose numbers are "
        "one more or one less, although nobody linked to them.",
    )
    compare_pages: tuple[str, ...] = setting(
        URLS, v.choices("payload", "structure", "near"), (), FROM_NOW_ON,
        "By what pages are compared with those that were there before: their bytes (in packs a "
        "duplicate is a revisit record then, without its body), what they say without mark-up and "
        "numbers, and nearly that.",
        page="duplicates.md",
    )
    follow_duplicates: bool = setting(
        URLS, v.boolean(), True, FROM_NOW_ON,
        "Follow the links of pages that are duplicates by one of SUITE_COMPARE_PAGES.",
        page="duplicates.md",
    )

    # Order, phases, revisits
    order: Literal["breadth-first", "bottom-up", "best-first"] = setting(
        ORDER, v.choice("breadth-first", "bottom-up", "best-first"), "breadth-first", FIXED,
        "Which URL of a host comes next among those of one priority: the first that was found, the "
        "left-most leaf of its paths, or that of the best SUITE_SCORE.",
    )
    score: str | Path = setting(
        ORDER, v.import_path_or_file(), "", FROM_NOW_ON,
        "For best-first: a function of a URL, its depth and the page that led there, which returns "
        "a number; the highest comes first. Or a file with a URL or host, a tab and a number a "
        "line, such as `scrapy packs graph DIR --rank` writes.",
    )
    window: Literal["none", "top", "leaf"] = setting(
        ORDER, v.choice("none", "top", "leaf"), "none", FROM_NOW_ON,
        "Let a sliding window choose what is in memory: so many hosts, a URL of each (top), or so "
        "many leaves of every host, row by row (leaf). Slower than none.",
    )
    window_size: int = setting(
        ORDER, v.integer(1, unit="hosts or leaves"), 100, FROM_NOW_ON,
        "Hosts of the top window, or leaves of each host's leaf window.",
    )
    phases: int = setting(
        ORDER, v.integer(1, 10_000, "phases"), 1, FROM_NOW_ON,
        "Visit a part of the hosts at a time, of so many parts; the others are on disk meanwhile.",
    )
    phase_seconds: float = setting(
        ORDER, v.duration(1.0), 300.0, FROM_NOW_ON,
        "How long a phase lasts, by the clock on the wall.",
    )
    phase_guard: float = setting(
        ORDER, v.duration(), 0.0, FROM_NOW_ON,
        "At the end of a phase, for so long no visit begins: those that are out have time to end.",
    )
    revisit: Literal["off", "fixed", "adaptive"] = setting(
        ORDER, v.choice("off", "fixed", "adaptive"), "off", FROM_NOW_ON,
        "Whether pages are fetched again, for as long as the crawl runs, which does not end by "
        "itself then: never, each after so long, or so often as keeps most of them fresh with as "
        "many fetches.",
        page="revisits.md",
    )
    revisit_interval: float = setting(
        ORDER, v.duration(0.1), 7 * _DAY, FROM_NOW_ON,
        "After how long a page is fetched again; with `adaptive`, on average.",
        live=True, page="revisits.md",
    )
    revisit_least: float = setting(
        ORDER, v.duration(0.1), 3600.0, FROM_NOW_ON,
        "With `adaptive`: after how long at least.",
        page="revisits.md",
    )
    revisit_most: float = setting(
        ORDER, v.duration(0.1), 90 * _DAY, FROM_NOW_ON,
        "With `adaptive`: after how long at most, of pages too that are not worth it, so that "
        "it is found out if they change their ways.",
        page="revisits.md",
    )
    revisit_weight: float = setting(
        ORDER, v.share(), 0.2, FREE,
        "The part of all fetches that pages which are due again have where new pages wait, too.",
        page="revisits.md",
    )

    # Job and memory
    seen_store: Literal["trie", "sieve", "plain"] = setting(
        JOB, v.choice("trie", "sieve", "plain"), "trie", FROM_NOW_ON,
        "How it is known what was seen: URLs that are done in a compressed trie, a third of the "
        "room; fingerprints of them in a sieve, where links wait to be compared many at a time; "
        "or each with a row of the database. What is in a trie or a sieve stays there.",
        page="seen.md",
    )
    sieve_bits: Literal["64", "128"] = setting(
        JOB, v.choice("64", "128"), "128", FIXED,
        "Bits of a fingerprint in a sieve: less room on disk, or less risk that two are taken for "
        "one.",
        page="seen.md",
    )
    commit_survives: Literal["process", "power"] = setting(
        JOB, v.choice("process", "power"), "process", FREE,
        "What a commit survives: the end of the process, or a power failure too (slower).",
    )
    memory: int = setting(
        JOB, v.size(1 << 20), 64 << 20, FREE,
        "Memory for hosts that are kept ready; the others wait on disk.",
    )
    require_durable: bool = setting(
        JOB, v.boolean(), False, FROM_NOW_ON,
        "Refuse requests that cannot be stored, instead of keeping them in memory.",
    )
    storable: tuple[str, ...] = setting(
        JOB, v.dotted_paths(), (), FROM_NOW_ON,
        "Classes, beside the built-in ones, that requests in the job directory may hold.",
    )

    # Network
    dns_servers: tuple[tuple[str, int], ...] = setting(
        NETWORK, v.name_servers(), (), FREE,
        "Name servers to ask; empty asks as the system does (hosts file, search domains).",
    )
    dns_ttl_max: float = setting(
        NETWORK, v.duration(), 86_400.0, FREE,
        "Longest time that an address is kept, whatever its time to live.",
    )
    ip_family: Literal["any", "4", "6"] = setting(
        NETWORK, v.choice("any", "4", "6"), "any", FREE,
        "Which addresses are used: both, IPv4 or IPv6."
    )
    allow_private_addresses: bool | tuple[str, ...] = setting(
        NETWORK, v.hosts_or_networks(), False, FREE,
        "Whether, or to which hosts and networks, connections to private addresses are made.",
    )
    redis_url: RedisUrl | None = setting(
        NETWORK, v.redis_url(), None, FREE,
        "The Redis of the suite. Empty is, for pushed seeds and items, the one that the settings "
        "of scrapy-redis name (REDIS_URL, REDIS_HOST, REDIS_PARAMS, ...); agents need it.",
    )

    # What is kept
    packs_dir: Path | None = setting(
        KEPT, v.folder(), None, FREE,
        "A folder for packs: every answer, robots.txt, redirects and errors included, as WARC "
        "records. Empty keeps none.",
    )
    packs_format: Literal["lzo", "gz", "zst"] = setting(
        KEPT, v.choice("lzo", "gz", "zst"), "lzo", FREE,
        "How packs are compressed: lzo is fast and groups records; gz is what every tool that "
        "reads WARC opens, zst what FastWARC does.",
    )
    packs_size: int = setting(
        KEPT, v.size(1 << 20), 1 << 30, FREE,
        "Size at which a pack is closed and another one begun."
    )
    packs_age: float = setting(
        KEPT, v.duration(), 3600.0, FREE,
        "Age at which a pack is closed and another one begun; 0 closes none for its age.",
    )
    packs_upload: str = setting(
        KEPT, v.place(), "", FREE,
        "Where closed packs are brought to, as fsspec has it, such as 's3://bucket/folder'; empty "
        "uploads none.",
    )
    packs_keep: bool = setting(
        KEPT, v.boolean(), True, FREE,
        "Whether packs stay here when they have been uploaded; their indexes always do.",
    )
    index: bool = setting(
        KEPT, v.boolean(), False, FREE,
        "Have a process beside the crawl index the texts of the pages in SUITE_PACKS_DIR, for "
        "`scrapy packs search`.",
        page="search.md",
    )
    read_links: Literal["eager", "on-demand"] = setting(
        KEPT, v.choice("eager", "on-demand"), "eager", FROM_NOW_ON,
        "Where links are followed in bulk: when those of a page are read. With on-demand, out of "
        "its pack, when the queue of its host runs low or too few hosts are left.",
        page="on-demand.md",
    )
    items_dir: Path | None = setting(
        KEPT, v.folder(), None, FREE,
        "A folder for item packs: the items that spiders yield, as compressed lines of JSON, each "
        "exactly once over kills with a JOBDIR. Empty keeps none.",
        page="items.md",
    )
    page_items: bool = setting(
        KEPT, v.boolean(), False, FREE,
        "Let pages be items: where links are followed in bulk every page is one, and pages are "
        "packed and counted only of which there was a PageItem.",
        page="items.md",
    )
    link_stats: tuple[str, ...] = setting(
        KEPT, v.choices(*TABLES), (), FROM_NOW_ON,
        "Which link statistics are kept of the pages that are done: rows of the job, exact over "
        "kills.",
        page="links.md",
    )
    fetch_log: bool | Path = setting(
        KEPT, v.switch_or_folder(), True, FREE,
        "Where the fetch log is kept: True is in the job directory (without one there is none), "
        "False is nowhere.",
        page="evidence.md",
    )
    fetch_log_max: int = setting(
        KEPT, v.size(0), 0, FREE,
        "Size of the whole fetch log beyond which its oldest files are removed; 0: none are.",
        live=True, page="evidence.md",
    )
    quiet_log: bool = setting(
        KEPT, v.boolean(), False, FREE,
        "Fold the engine's repeated log lines and repeated tracebacks into counts, and leave out "
        "tracebacks of network errors.",
        broad=True, live=True, page="running.md",
    )

    # Agents
    cluster: Literal["", "peers", "lan"] = setting(
        AGENTS, v.choice("", "peers", "lan"), "", FIXED,
        "Whether this process is one agent of several that are one crawl: 'peers' meet in the "
        "Redis of SUITE_REDIS_URL under SUITE_CRAWL_NAME, and hand hosts to each other; 'lan' are "
        "those of SUITE_AGENTS, and exchange URLs over UDP, without Redis. Empty: it crawls alone.",
    )
    agent_name: str = setting(
        AGENTS, v.name(), "", FREE,
        "The name of this process among those of its crawl, which its packs bear; empty is the "
        "machine's. No two that run at the same time have the same.",
    )
    assignment: str = setting(
        AGENTS, v.assignment(), "ring", FIXED,
        "Which agent has a URL: 'ring' by consistent hashing of its host, 'url-sum' and "
        "'host-parity' as KSpider and Tarantula, or the import path of a class.",
    )
    agent_grace: float | None = setting(
        AGENTS, v.grace(), 900.0, FIXED,
        "How long the hosts of an agent that is gone wait for it before others take them, in "
        "seconds, or 'forever'. All agents have the same.",
    )
    agent_weight: float = setting(
        AGENTS, v.number(0.1, 10.0), 1.0, FREE,
        "The part of the crawl that this agent has, beside those of the others.",
    )
    agent_address: str = setting(
        AGENTS, v.address(), "", FREE,
        "Where other agents reach this one: an address, or address:port. Empty: the address from "
        "which it reaches Redis, and a port that is free.",
    )
    agents: tuple[str, ...] = setting(
        AGENTS, v.texts(), (), FREE,
        "All agents of a 'lan', this one too, each as name=address:port.",
    )
    cluster_key: Secret | None = setting(
        AGENTS, v.secret(), None, FREE,
        "What the agents of a crawl know and nobody else does, 16 characters or more: they "
        "authenticate each other by it. 'lan' needs one; 'peers' draw one, and keep it in Redis.",
    )
    shared_seeds: bool = setting(
        AGENTS, v.boolean(), True, FREE,
        "Every agent is given the same seeds: each takes its own and leaves the others alone. "
        "False: an agent sends what belongs to others on to them.",
    )
    handover_dir: Path | None = setting(
        AGENTS, v.folder(), None, FREE,
        "A folder that all agents share, through which hosts are handed over; empty: over TCP, to "
        "SUITE_AGENT_ADDRESS.",
    )
    handover_rate: int = setting(
        AGENTS, v.size(), 16 << 20, FREE,
        "Bytes by second that an agent hands over at most; 0 has no bound.",
        live=True,
    )
