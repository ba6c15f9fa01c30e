"""All settings of the suite, in eleven groups; each is a field of `SettingsTable`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scrapy_spider_suite.frontier.outcomes import Event, Retry, State
from scrapy_spider_suite.settings import values as v
from scrapy_spider_suite.settings.declarations import (
    FIXED,
    FREE,
    FROM_NOW_ON,
    Derived,
    Profile,
    SettingGroup,
    live_setting,
    setting,
)
from scrapy_spider_suite.settings.project import ProjectSettings
from scrapy_spider_suite.settings.values import RedisUrl, Secret
from scrapy_spider_suite.urls.normalizer import OPTION_WORDS
from scrapy_spider_suite.urls.traps import DETECTORS

START = SettingGroup("Start", "getting-started.md")
POLITENESS = SettingGroup("Politeness", "politeness.md")
FAILURES = SettingGroup("Failures and retries", "broad-crawls.md")
BACK_OFF = FAILURES._replace(page="politeness.md")
BUDGETS = SettingGroup("Budgets, end, guards", "running.md")
CAPS = BUDGETS._replace(page="broad-crawls.md")
WATCHING = BUDGETS._replace(page="watching.md")
FILTERS = SettingGroup("Filters and scope", "filters.md")
URLS = SettingGroup("URLs and traps", "traps.md")
NORMAL_FORM = URLS._replace(page="normal-form.md")
ORDER = SettingGroup("Order, phases, revisits", "orders.md")
REVISITS = ORDER._replace(page="revisits.md")
JOB = SettingGroup("Job and memory", "jobs.md")
NETWORK = SettingGroup("Network", "politeness.md")
KEPT = SettingGroup("What is kept", "packs.md")
AGENTS = SettingGroup("Agents", "cluster.md")

FRONT_PAGE = (
    "host_delay", "ip_delay", "overrides", "follow", "seeds", "schedule_filter", "host_max_pages",
    "max_pages", "packs_dir", "cluster",
)  # fmt: skip
"""The ten settings that a newcomer meets first."""

LINK_TABLES = (
    "links", "hosts", "out", "external", "statuses", "types", "languages", "sizes", "anchors",
)  # fmt: skip
"""The tables of link statistics (`analysis.link_stats`)."""

_MAY_PASS = tuple(event.value for event in Event if event.outcome.retry is Retry.STORE)
_MAY_FAIL = tuple(
    event.value for event in Event
    if event.outcome.state is State.FAILED or event.outcome.retry is Retry.STORE
)  # fmt: skip


def _host_concurrency(project: ProjectSettings, given: Mapping[str, Any]) -> int:
    # One where the project asked for a pause between requests and for no number.
    if project.concurrency_was_set or given.get("host_delay", project.download_delay) == 0:
        return project.concurrent_requests_per_domain
    return 1


_DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class SettingsTable:
    """Every setting of the suite, in eleven groups; a field is a setting."""

    # Start
    profile: Profile = setting(
        START, v.choice("auto", "spider", "broad"), "auto", FIXED,
        "The kind of crawl. spider: an existing spider keeps its ways. broad: many hosts are "
        "crawled in bulk. auto: broad for a BroadSpider and with SUITE_FOLLOW, else spider.",
        page="broad-crawls.md",
    )
    enabled: bool = setting(
        START, v.boolean, True, FIXED,
        "Switches the add-on on or off. A job that was begun with it on cannot go on without it.",
    )
    follow: bool = setting(
        START, v.boolean, False, FROM_NOW_ON,
        "Follow every link of every page in bulk, whatever the spider is.",
        page="broad-crawls.md",
    )
    seeds: tuple[str, ...] = setting(
        START, v.texts, (), FREE,
        "URLs, host names, files of them, and @URLs of such files. A spider's start() adds more.",
        page="seeds.md",
    )
    sitemaps: Literal["off", "robots", "all"] = setting(
        START, v.choice("off", "robots", "all"), "off", FROM_NOW_ON,
        "Broad profile: read sitemaps. robots: those that a host's robots.txt names. all: also "
        "those with the usual names, where robots.txt names no sitemap.",
        page="sitemaps.md",
    )
    crawl_name: str = setting(
        START, v.name, "", FREE,
        "The name of the crawl, which its packs carry; empty is the spider's name. All agents of "
        "a crawl have the same.",
        page="packs.md",
    )
    operator: str = setting(
        START, v.line, "", FREE,
        "The person or institution that crawls. The first record of each pack names it, beside "
        "the contact in USER_AGENT.",
        page="packs.md",
    )
    from_header: bool = setting(
        START, v.boolean, False, FREE,
        "Send the e-mail address in SUITE_OPERATOR, or else in USER_AGENT, as the From header.",
        broad=True, page="politeness.md",
    )

    # Politeness
    host_delay: float = live_setting(
        POLITENESS, v.duration(),
        Derived("DOWNLOAD_DELAY", lambda project, given: project.download_delay), FREE,
        "Least pause between the end of a request to a host and the start of the next.",
        # Never less polite than the project wants to be; Scrapy's template sets one second.
        broad=Derived("4, or DOWNLOAD_DELAY if that is longer",
                      lambda project, given: max(4.0, project.download_delay)),
    )
    ip_delay: float = live_setting(
        POLITENESS, v.duration(),
        # Scrapy keeps its delay by address, not by host, when it counts requests by address.
        Derived("0", lambda project, given:
                project.download_delay if project.concurrent_requests_per_ip else 0.0), FREE,
        "Least pause between the end of a request to an IP address and the start of the next.",
        broad=0.5,
    )
    host_concurrency: int = live_setting(
        POLITENESS, v.integer(1, 1000, "requests"),
        Derived(
            "CONCURRENT_REQUESTS_PER_DOMAIN if the project sets it or there is no host delay, "
            "else 1", _host_concurrency,
        ),
        FREE, "Most requests to one host at the same time.",
        broad=1,
    )
    ip_concurrency: int = live_setting(
        POLITENESS, v.integer(0, 1000, "requests"),
        # Without a delay of addresses there is no bound to keep; with one, the careful number.
        Derived("0; 1 with SUITE_IP_DELAY", lambda project, given:
                project.concurrent_requests_per_ip or int(bool(given.get("ip_delay")))),
        FREE, "Most requests to one IP address at the same time; 0 is no limit.",
        broad=1,
    )
    adjust_requests: bool = setting(
        POLITENESS, v.boolean, True, FREE,
        "Have fewer than CONCURRENT_REQUESTS under way, down to a tenth, while answers are slow, "
        "or requests are lost, beyond what is usual in the crawl.",
        page="broad-crawls.md",
    )
    requests_per_visit: int = live_setting(
        POLITENESS, v.integer(1, 20, "requests"), 1, FREE,
        "Most requests to a host in one visit, without a pause. For servers of your own.",
    )
    overrides: Path | None = setting(
        POLITENESS, v.file, None, FREE,
        "A file of exceptions by host, .domain and CIDR. It is read again whenever it changes.",
        page="overrides.md",
    )
    rate_ledger: RedisUrl | Path | None = setting(
        POLITENESS, v.redis_or_file, None, FREE,
        "Where several crawls keep the delays of hosts and addresses that they share: a Redis by "
        "its URL, or a file of one machine. Empty: the crawl has its own.",
    )

    # Failures and retries
    backoff_base: float = live_setting(
        BACK_OFF, v.duration(), 5.0, FREE,
        "First pause of a host after a 429, a 503, a timeout or a failed connection. Each further "
        "failure in a row doubles it.",
    )
    backoff_max: float = live_setting(
        BACK_OFF, v.duration(), 3600.0, FREE,
        "Longest pause that such failures lead to.",
    )
    dead_host_failures: int = live_setting(
        BACK_OFF, v.integer(1, unit="failures"), 10, FROM_NOW_ON,
        "Failed connections in a row after which a host is given up.",
    )
    retry_times: int = live_setting(
        FAILURES, v.integer(0, unit="retries"), 5, FROM_NOW_ON,
        "How often a URL from a link is tried again before it has failed.",
    )
    retry_failed_after: float = live_setting(
        FAILURES, v.duration(), 0.0, FROM_NOW_ON,
        "Try a failed URL anew if a link leads to it this long after the failure; 0 never does.",
    )
    retry_failed: tuple[str, ...] = live_setting(
        FAILURES, v.choices(*_MAY_FAIL), _MAY_PASS, FROM_NOW_ON,
        "The reasons of failures that SUITE_RETRY_FAILED_AFTER holds for. 'host_dead' also gives "
        "the host another chance.",
    )

    # Budgets, end, guards
    host_max_pages: int = live_setting(
        CAPS, v.integer(0, unit="pages"), 0, FROM_NOW_ON,
        "Most pages of one host; 0 is no limit.",
    )
    host_max_depth: int = live_setting(
        CAPS, v.integer(0, unit="links"), 0, FROM_NOW_ON,
        "Links followed in bulk: most links between a page and the first page of its host. Links "
        "from other hosts are always followed. 0 is no limit.",
    )
    domain_max_pages: int = live_setting(
        CAPS, v.integer(0, unit="pages"), 0, FROM_NOW_ON,
        "Most pages of one registered domain, of all its hosts together; 0 is no limit.",
    )
    domain_max_hosts: int = live_setting(
        CAPS, v.integer(0, unit="hosts"), 0, FROM_NOW_ON,
        "Most hosts of one registered domain: the hosts found first. 0 is no limit.",
    )
    max_pages: int = live_setting(
        CAPS, v.integer(0, unit="pages"), 0, FREE,
        "Close the crawl ('max_pages') when the job has this many pages; 0 is no limit.",
    )
    max_bytes: int = live_setting(
        CAPS, v.size(), 0, FREE,
        "Close the crawl ('max_bytes') when the job has received this much; 0 is no limit.",
    )
    max_time: float = live_setting(
        CAPS, v.duration(), 0.0, FREE,
        "Close the crawl ('max_time') when all runs of the job last this long; 0 is no limit.",
    )
    max_bandwidth: int = live_setting(
        CAPS, v.size(), 0, FREE,
        "Most bytes received per second, on average; requests wait for it. 0 is no limit.",
    )
    body_max: int = live_setting(
        CAPS, v.size(), 0, FROM_NOW_ON,
        "Most bytes of a body that are read; a longer page is flagged 'truncated'. 0 reads all.",
    )
    max_wait: float = live_setting(
        # Of the default back-off, more than the 1,280 s before the tenth attempt, after which a
        # host that never answers is given up, and less than the 2,560 s after it.
        BUDGETS, v.duration(), 1800.0, FREE,
        "Close the crawl ('waiting') when all hosts must wait longer than this; 0 never does.",
    )
    when_done: Literal["finish", "wait"] = live_setting(
        BUDGETS, v.choice("finish", "wait"), "finish", FREE,
        "When no URL is left: finish ends the crawl, wait waits for URLs from outside.",
    )
    stop_timeout: float = live_setting(
        BUDGETS, v.duration(), 20.0, FREE,
        "Longest time that a stop waits for requests in progress.",
    )
    min_free: int = live_setting(
        BUDGETS, v.size(), 64 << 20, FREE,
        "Pause while a disk in use has less room than this, or less than the store needs to merge "
        "its files. 0 goes on until the disk is full.",
        broad=256 << 20,
    )
    stall_timeout: float = live_setting(
        BUDGETS, v.duration(), 0.0, FREE,
        "End the process when its event loop has stood still for this long. End the crawl when no "
        "page came for this long although hosts are ready. 0 never does.",
        broad=900.0,
    )
    alert_url: Secret | None = setting(
        WATCHING, v.webhook, None, FREE,
        "Where alerts are posted as JSON, when they begin and when they end. Empty: they are only "
        "lines of the log.",
    )
    metrics_file: Path | None = setting(
        WATCHING, v.file_to_be, None, FREE,
        "A file for a node exporter of Prometheus, such as crawl.prom, written every 15 seconds. "
        "Each crawl has its own. An agent adds its name: crawl.a1.prom.",
    )
    exit_codes: bool = setting(
        BUDGETS, v.boolean, False, FREE,
        "Let the exit code of the scrapy command tell how the crawl ended.",
        broad=True,
    )

    # Filters and scope
    schedule_filter: str = live_setting(
        FILTERS, v.filter_for("schedule"), "", FROM_NOW_ON,
        "Which links and requests may enter the queue; seeds always may.",
    )
    fetch_filter: str = live_setting(
        FILTERS, v.filter_for("fetch"), "", FROM_NOW_ON,
        "Which pages may be fetched, checked before the request; others fail ('filtered').",
    )
    parse_filter: str = live_setting(
        FILTERS, v.filter_for("parse"), "", FROM_NOW_ON,
        "Which answers go to callbacks and have their links followed; other answers are done.",
    )
    follow_filter: str = live_setting(
        FILTERS, v.filter_for("follow"), "", FROM_NOW_ON,
        "Links followed in bulk: which links of pages are followed.",
    )
    store_filter: str = live_setting(
        FILTERS, v.filter_for("store"), "", FROM_NOW_ON,
        "Of which answers the items go to the pipelines.",
    )
    countries: Path | None = setting(
        FILTERS, v.file, None, FREE,
        "Countries of addresses, for filters: a file of 'network,country' or 'first,last,country'.",
    )
    media_types: tuple[str, ...] = live_setting(
        FILTERS, v.media_types, (), FROM_NOW_ON,
        "Broad profile: media types of pages that are wanted, with * for any. Of other types the "
        "head alone is read. Empty reads all.",
        page="broad-crawls.md",
    )

    # URLs and traps
    normal_form: tuple[str, ...] = setting(
        NORMAL_FORM, v.choices(*OPTION_WORDS), (), FIXED,
        "Broad profile: further spellings of URLs that count as one URL, for all hosts.",
    )
    drop_parameters: tuple[str, ...] = setting(
        NORMAL_FORM, v.parameters, (), FIXED,
        "Broad profile: query parameters that are left out of URLs.",
    )
    url_rules: tuple[str, ...] = setting(
        NORMAL_FORM, v.url_rules, (), FIXED,
        "Broad profile: rules of SUITE_NORMAL_FORM and SUITE_DROP_PARAMETERS by host and .domain.",
    )
    normalizer: str = setting(
        NORMAL_FORM, v.import_path, "", FIXED,
        "Broad profile: a callable of the project, or a class of one. It gets every URL and "
        "returns the URL to use, or None to drop it.",
    )
    prefer_https: bool = setting(
        NORMAL_FORM, v.boolean, False, FROM_NOW_ON,
        "Broad profile: use one of http and https, and one of names with and without www. It does "
        "so for hosts whose answers show that both are the same.",
    )
    traps: tuple[str, ...] = live_setting(
        URLS, v.choices(*DETECTORS), (), FROM_NOW_ON,
        "Links followed in bulk: the detectors of traps that are on. fail refuses the URLs that a "
        "detector finds, last puts them after the host's others.",
        broad=tuple(each for each in DETECTORS if each != "numbers=fail"),
    )
    guess_urls: Literal["none", "ancestors", "siblings", "both"] = setting(
        URLS, v.choice("none", "ancestors", "siblings", "both"), "none", FROM_NOW_ON,
        "Links followed in bulk: also try URLs without a link. ancestors: the folders above a "
        "page. siblings: the pages whose numbers are one more or one less.",
    )
    compare_pages: tuple[str, ...] = setting(
        URLS, v.choices("payload", "structure", "near"), (), FROM_NOW_ON,
        "How pages are compared with earlier pages. payload: by their bytes; a duplicate has a "
        "revisit record in packs. structure: by text without mark-up and numbers. near: by nearly "
        "the same text.",
        page="duplicates.md",
    )
    follow_duplicates: bool = setting(
        URLS, v.boolean, True, FROM_NOW_ON,
        "Follow the links of pages that are duplicates by SUITE_COMPARE_PAGES.",
        page="duplicates.md",
    )

    # Order, phases, revisits
    order: Literal["breadth-first", "bottom-up", "best-first"] = setting(
        ORDER, v.choice("breadth-first", "bottom-up", "best-first"), "breadth-first", FIXED,
        "Which URL of a host comes next among URLs of one priority: the first found, the "
        "left-most leaf of its paths, the best SUITE_SCORE.",
    )
    score: str | Path = setting(
        ORDER, v.import_path_or_file, "", FROM_NOW_ON,
        "For best-first: a function of a URL, its depth and the page with the link, which returns "
        "a number; the highest comes first. Or a file with a URL or host, a tab and a number a "
        "line, such as `scrapy packs graph DIR --rank` writes.",
    )
    window: Literal["none", "top", "leaf"] = setting(
        ORDER, v.choice("none", "top", "leaf"), "none", FROM_NOW_ON,
        "A sliding window chooses what is in memory. top: a number of hosts, with a URL of each. "
        "leaf: a number of leaves of every host, row by row. Slower than none.",
    )
    window_size: int = setting(
        ORDER, v.integer(1, unit="hosts or leaves"), 100, FROM_NOW_ON,
        "Hosts of the top window, or leaves of each host's leaf window.",
    )
    phases: int = setting(
        ORDER, v.integer(1, 10_000, "phases"), 1, FROM_NOW_ON,
        "Number of parts of the hosts. Each phase visits one part; the others wait on disk.",
    )
    phase_seconds: float = setting(
        ORDER, v.duration(1.0), 300.0, FROM_NOW_ON,
        "How long a phase lasts, by the wall clock.",
    )
    phase_guard: float = setting(
        ORDER, v.duration(), 0.0, FROM_NOW_ON,
        "The last seconds of a phase, in which no visit begins and requests in progress end.",
    )
    revisit: Literal["off", "fixed", "adaptive"] = setting(
        REVISITS, v.choice("off", "fixed", "adaptive"), "off", FROM_NOW_ON,
        "Fetch pages again while the crawl runs; it does not end by itself then. fixed: each page "
        "after the same time. adaptive: so often that most pages stay fresh.",
    )
    revisit_interval: float = live_setting(
        REVISITS, v.duration(0.1), 7 * _DAY, FROM_NOW_ON,
        "Time after which a page is fetched again; with adaptive, on average.",
    )
    revisit_least: float = setting(
        REVISITS, v.duration(0.1), 3600.0, FROM_NOW_ON,
        "adaptive: the shortest time after which a page is fetched again.",
    )
    revisit_most: float = setting(
        REVISITS, v.duration(0.1), 90 * _DAY, FROM_NOW_ON,
        "adaptive: the longest time after which a page is fetched again. It holds for pages that "
        "are not worth a visit, too, which may change their ways.",
    )
    revisit_weight: float = setting(
        REVISITS, v.number(0.0, 1.0), 0.2, FREE,
        "The share of all fetches for pages that are due again, while new pages wait.",
    )

    # Job and memory
    seen_store: Literal["trie", "sieve", "plain"] = setting(
        JOB, v.choice("trie", "sieve", "plain"), "trie", FROM_NOW_ON,
        "How a crawl knows the URLs that it has seen. trie: URLs that are done are compressed, to "
        "a third of the room. sieve: fingerprints; links wait to be compared many at a time. "
        "plain: a row of the database for each URL.",
        page="seen.md",
    )
    sieve_bits: Literal["64", "128"] = setting(
        JOB, v.choice("64", "128"), "128", FIXED,
        "Bits of a fingerprint in a sieve. More bits take more room; fewer URLs count as one.",
        page="seen.md",
    )
    commit_survives: Literal["process", "power"] = setting(
        JOB, v.choice("process", "power"), "process", FREE,
        "What a commit survives: the end of the process, or a power failure too (slower).",
    )
    memory: int = setting(
        JOB, v.size(1 << 20), 64 << 20, FREE,
        "Memory for hosts that are kept ready; other hosts wait on disk. Caches of seen URLs and "
        "pages take up to half as much beside it.",
    )
    require_durable: bool = setting(
        JOB, v.boolean, False, FROM_NOW_ON,
        "Refuse requests that cannot be stored, instead of keeping them in memory.",
    )
    storable: tuple[str, ...] = setting(
        JOB, v.dotted_paths, (), FROM_NOW_ON,
        "Classes that requests in the job directory may hold, beside the built-in ones.",
    )

    # Network
    dns_servers: tuple[tuple[str, int], ...] = setting(
        NETWORK, v.name_servers, (), FREE,
        "Name servers to ask. Empty asks as the system does: hosts file, search domains.",
    )
    dns_ttl_max: float = setting(
        NETWORK, v.duration(), 86_400.0, FREE,
        "Longest time that an address is kept, whatever its time to live is.",
    )
    ip_family: Literal["any", "4", "6"] = setting(
        NETWORK, v.choice("any", "4", "6"), "any", FREE,
        "Which addresses are used: both, IPv4 or IPv6."
    )
    allow_private_addresses: bool | tuple[str, ...] = setting(
        NETWORK, v.hosts_or_networks, False, FREE,
        "Allow connections to private addresses: all, none, or a list of hosts and networks.",
    )
    redis_url: RedisUrl | None = setting(
        NETWORK, v.redis_url, None, FREE,
        "The Redis of the suite; agents need it. Empty: pushed seeds and items use the Redis in "
        "the settings of scrapy-redis (REDIS_URL, REDIS_HOST, REDIS_PARAMS, ...).",
        page="cluster.md",
    )

    # What is kept
    packs_dir: Path | None = setting(
        KEPT, v.folder, None, FREE,
        "A folder for packs: WARC records of all answers, with robots.txt. Empty keeps none.",
    )
    packs_format: Literal["lzo", "gz", "zst"] = setting(
        KEPT, v.choice("lzo", "gz", "zst"), "lzo", FREE,
        "How packs are compressed. lzo is fast and groups records; every tool that reads WARC "
        "opens gz; FastWARC opens zst.",
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
        KEPT, v.remote_folder, "", FREE,
        "A place for closed packs, as fsspec writes it: 's3://bucket/folder'. Empty uploads none.",
    )
    packs_keep: bool = setting(
        KEPT, v.boolean, True, FREE,
        "Keep packs here after their upload; their indexes always stay.",
    )
    index: bool = setting(
        KEPT, v.boolean, False, FREE,
        "Index the texts of packed pages for `scrapy packs search`, in a process of its own.",
        page="search.md",
    )
    read_links: Literal["eager", "on-demand"] = setting(
        KEPT, v.choice("eager", "on-demand"), "eager", FROM_NOW_ON,
        "Links followed in bulk: when the links of a page are read. on-demand reads them out of "
        "its pack, when its host's queue runs low or too few hosts are left.",
        page="on-demand.md",
    )
    items_dir: Path | None = setting(
        KEPT, v.folder, None, FREE,
        "A folder for item packs: items as compressed lines of JSON. With JOBDIR each item is "
        "there exactly once, after kills too. Empty keeps none.",
        page="items.md",
    )
    page_items: bool = setting(
        KEPT, v.boolean, False, FREE,
        "Let pages be items. With links followed in bulk every page is one; only pages with a "
        "PageItem are packed and counted.",
        page="items.md",
    )
    link_stats: tuple[str, ...] = setting(
        KEPT, v.choices(*LINK_TABLES), (), FROM_NOW_ON,
        "Statistics of the links of pages that are done. The job keeps them, exact after kills.",
        page="links.md",
    )
    fetch_log: bool | Path = setting(
        KEPT, v.switch_or_folder, True, FREE,
        "Where the fetch log is kept. True: in the job directory, if there is one. False: nowhere.",
        page="evidence.md",
    )
    fetch_log_max: int = live_setting(
        KEPT, v.size(0), 0, FREE,
        "Size of the whole fetch log beyond which its oldest files are removed; 0 removes none.",
        page="evidence.md",
    )
    quiet_log: bool = live_setting(
        KEPT, v.boolean, False, FREE,
        "Count repeated log lines and tracebacks; leave out tracebacks of network errors.",
        broad=True, page="running.md",
    )

    # Agents
    cluster: Literal["", "peers", "lan", "shared-queue"] = setting(
        AGENTS, v.choice("", "peers", "lan", "shared-queue"), "", FIXED,
        "How several processes are agents of one crawl. peers meet in SUITE_REDIS_URL under "
        "SUITE_CRAWL_NAME, and hand hosts to each other. lan: the SUITE_AGENTS exchange URLs over "
        "UDP, without Redis. shared-queue: fetchers take runs of URLs from SUITE_REDIS_URL and "
        "SUITE_RUNS_DIR, and own nothing. Empty: the process crawls alone.",
    )
    runs_dir: str = setting(
        AGENTS, v.remote_folder, "", FREE,
        "The folder of a shared-queue, the same for all its fetchers: a path, or a URL that fsspec "
        "knows. Empty: runs, beside JOBDIR.",
    )
    run_queues: tuple[str, ...] = setting(
        AGENTS, v.weights, ("bulk=1", "one-off=5"), FREE,
        "The queues of a shared-queue, 8 at most, and the share of runs that each is given while "
        "others have runs, too. Links go to bulk. The fetcher that starts last sets the weights.",
    )
    checkpoint_interval: float = setting(
        AGENTS, v.duration(), 5.0, FREE,
        "How often a fetcher of a shared-queue reports what it has done. After a kill these pages "
        "are fetched again. With SUITE_PACKS_UPLOAD each report ends a pack.",
    )
    agent_name: str = setting(
        AGENTS, v.name, "", FREE,
        "The name of this process in its crawl, which its packs carry; empty is the machine's "
        "name. Two agents that run at the same time need two names.",
    )
    url_server: str = setting(
        AGENTS, v.address, "", FREE,
        "Where other programs pop URLs and report what came of them, over HTTP, such as "
        "127.0.0.1:7080; without a port it takes a free one. They fetch; the crawl itself fetches "
        "robots.txt, and what goes through Scrapy's engine.",
        page="url-server.md",
    )
    assignment: str = setting(
        AGENTS, v.assignment, "ring", FIXED,
        "Which agent has a URL. ring: consistent hashing of its host. url-sum and host-parity: as "
        "KSpider and Tarantula. Or the import path of a class.",
    )
    agent_grace: float | None = setting(
        AGENTS, v.grace_period, 900.0, FIXED,
        "How long hosts wait for a lost agent, or 'forever'. All agents have the same value.",
    )
    agent_weight: float = setting(
        AGENTS, v.number(0.1, 10.0), 1.0, FREE,
        "The share of the crawl that this agent has, relative to other agents.",
    )
    agent_address: str = setting(
        AGENTS, v.address, "", FREE,
        "Where other agents reach this agent: an address, or address:port. Empty: the address "
        "from which it reaches Redis, and a free port.",
    )
    agents: tuple[str, ...] = setting(
        AGENTS, v.texts, (), FREE,
        "All agents of a 'lan', this agent too, each as name=address:port.",
    )
    cluster_key: Secret | None = setting(
        AGENTS, v.secret, None, FREE,
        "The key by which the agents of a crawl authenticate each other, 16 characters or more. "
        "lan needs it; peers draw one and keep it in Redis.",
    )
    shared_seeds: bool = setting(
        AGENTS, v.boolean, True, FREE,
        "Every agent is given the same seeds: each takes its own and drops the rest. False: an "
        "agent sends seeds that belong to other agents on to them.",
    )
    handover_dir: Path | None = setting(
        AGENTS, v.folder, None, FREE,
        "A shared folder, through which hosts are handed over. Empty: TCP, to SUITE_AGENT_ADDRESS.",
    )
    handover_rate: int = live_setting(
        AGENTS, v.size(), 16 << 20, FREE,
        "Most bytes per second that an agent hands over; 0 is no limit.",
    )
