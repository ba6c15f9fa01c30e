"""Every setting of the suite, declared once and read in one place.

A setting is a field of :class:`SuiteSettings`: the field ``host_delay`` is the setting
``SUITE_HOST_DELAY``. Its declaration says what is allowed, the default in either profile, the
kind and the meaning; the documentation's table is made from the same declarations. Values are
read by :meth:`SuiteSettings.from_settings`; no other module of the core reads Scrapy's settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.outcomes import OUTCOMES, Retry, State
from scrapy_spider_suite.settings import values as v
from scrapy_spider_suite.settings.declarations import (
    KEY,
    Change,
    Derived,
    Kind,
    Profile,
    Row,
    Setting,
    full_name,
    plain,
    read_given,
    setting,
    words,
)
from scrapy_spider_suite.settings.project import ProjectSettings
from scrapy_spider_suite.urls.options import WORDS

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

FREE, FROM_NOW_ON, FIXED = Kind.FREE, Kind.FROM_NOW_ON, Kind.FIXED


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
class SuiteSettings:
    """All settings of one crawl, read, checked and complete.

    Durations are floats of seconds, sizes ints of bytes. Frozen; two crawls in one process have
    one each.
    """

    project: ProjectSettings
    """Those of Scrapy's own settings that the suite takes as inputs."""

    # What runs
    enabled: bool = setting(
        v.boolean(), True, FREE, "Whether the add-on does anything at all."
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
    window: Literal["none", "top", "leaf"] = setting(
        v.choice("none", "top", "leaf"), "none", FROM_NOW_ON,
        "Let a sliding window choose what is in memory: so many hosts, a URL of each (top), or so "
        "many leaves of every host, row by row (leaf). Slower than none.",
    )
    window_size: int = setting(
        v.integer(1, unit="hosts or leaves"), 100, FROM_NOW_ON,
        "Hosts of the top window, or leaves of each host's leaf window.",
    )

    sitemaps: Literal["off", "robots", "all"] = setting(
        v.choice("off", "robots", "all"), "off", FROM_NOW_ON,
        "Broad profile: read the sitemaps that a host's robots.txt names (robots), and look for "
        "them by their usual names where it names none (all).",
    )

    # Politeness
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

    # Budgets and the end
    host_max_pages: int = setting(
        v.integer(0, unit="pages"), 0, FROM_NOW_ON, "Most pages of one host; 0 is no limit."
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
        "others of it had, led to nothing new but more of the kind, its combinations are a trap; "
        "0: none are. It may close forums that number their pages in a second parameter.",
    )
    trap_sessions: int = setting(
        v.integer(0, 200, "session ids"), 0, FROM_NOW_ON,
        "Links followed in bulk: a page that comes with more session ids is a trap; 0: none is. "
        "It may close sites that name their pages by tokens called sid or session.",
    )
    trap_same: int = setting(
        v.integer(0, 10_000, "pages"), 0, FROM_NOW_ON,
        "Links followed in bulk: when so many pages of one pattern, folder or host have said what "
        "earlier ones said, with hardly a new one between, it is a trap; 0: none is.",
        broad=24,
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

    # Store
    seen: Literal["trie", "plain"] = setting(
        v.choice("trie", "plain"), "trie", FROM_NOW_ON,
        "How URLs that are done are kept: in a compressed trie, a third of the room, or each with "
        "a row of the database. What is in a trie stays there.",
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

    # Names, addresses, connections
    dns_servers: tuple[tuple[str, int], ...] = setting(
        v.name_servers(), (), FREE,
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
        v.hosts_or_networks(), False, FREE,
        "Whether, or to which hosts and networks, connections to private addresses are made.",
    )
    idle_connections: int = setting(
        v.integer(0, unit="connections"), 0, FREE,
        "Most connections kept open without a request; 0 is a quarter of the open-file limit.",
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

    # Watching
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

    @classmethod
    def from_settings(
        cls, settings: BaseSettings, spidercls: type[Spider] | Spider | None = None
    ) -> SuiteSettings:
        """Read and check all settings for a crawl of *spidercls*, a spider class or spider.

        Raises:
            SettingsError: a value is not allowed, or a ``SUITE_`` name is unknown; in one line.
        """
        given = read_given(DECLARATIONS, settings)
        project = ProjectSettings.from_settings(settings, spidercls)
        given["profile"] = profile = _profile(given, spidercls)
        complete: dict[str, Any] = dict(given)
        for name, declared in DECLARATIONS.items():
            default = declared.default(profile)
            if isinstance(default, Derived):
                default = default.rule(project, given)
            complete.setdefault(name, default)
        result = cls(project=project, **complete)
        _refuse_contradictions(result, _is_broad(spidercls))
        return result

    def changed(self, name: str, raw: object) -> tuple[SuiteSettings, str]:
        """These settings with another value for *name*, and the name of that field.

        The text ``default`` gives it the default of the profile. Raises `SettingsError`.
        """
        field = find_setting(name)
        value: Any = DECLARATIONS[field].default(self.profile)
        if raw != "default":
            value = read_given(DECLARATIONS, {name: raw})[field]
        elif isinstance(value, Derived):
            others = {each: getattr(self, each) for each in DECLARATIONS if each != field}
            value = value.rule(self.project, others)
        result = replace(self, **{field: value})
        _refuse_contradictions(result, broad_spider=False)
        return result, field

    def as_stored(self) -> dict[str, object]:
        """Return the settings as plain values, to be kept with the job and compared by `diff`."""
        return {name: plain(getattr(self, name)) for name in DECLARATIONS}

    def diff(self, stored: Mapping[str, object]) -> list[Change]:
        """Compare with what :meth:`as_stored` gave when the job was begun.

        A setting that only one release of the two knows is no difference, unless what the older
        one wrote has one of its values.
        """
        stored = _IMPLIED | dict(stored)
        return [
            Change(full_name(name), plain(stored[name]), new, DECLARATIONS[name].kind)
            for name, new in self.as_stored().items()
            if name in stored and plain(stored[name]) != new
        ]

    def as_table(self) -> list[Row]:
        """Return one row for each setting, in the order of declaration, with this crawl's value."""
        return [
            Row(
                full_name(name),
                words(getattr(self, name)),
                declared.type.unit,
                declared.kind.value,
                declared.type.allowed,
                words(declared.spider),
                words(declared.broad),
                declared.meaning,
            )
            for name, declared in DECLARATIONS.items()
        ]


DECLARATIONS: Mapping[str, Setting] = {
    field.name: field.metadata[KEY] for field in fields(SuiteSettings) if KEY in field.metadata
}
"""Every setting's declaration, by its name without the prefix, in lower case."""

_IMPLIED: dict[str, object] = {
    "order": "breadth-first", "normal_form": (), "drop_parameters": (), "url_rules": (),
    "normalizer": "",
}  # fmt: skip
"""What the releases that had no such setting did."""

_cache: WeakKeyDictionary[Crawler, SuiteSettings] = WeakKeyDictionary()


def suite_settings(crawler: Crawler) -> SuiteSettings:
    """Return the settings of *crawler*'s crawl, read once as soon as they can no longer change.

    Raises:
        SettingsError: as :meth:`SuiteSettings.from_settings`.
    """
    if crawler not in _cache:
        spider = crawler.spider or crawler.spidercls
        read = SuiteSettings.from_settings(crawler.settings, spider)
        if not crawler.settings.frozen:
            return read
        _cache[crawler] = read
    return _cache[crawler]


def find_setting(name: str) -> str:
    """The field of `SuiteSettings` that ``SUITE_…`` *name* sets. Raises `SettingsError`."""
    field = next((each for each in DECLARATIONS if full_name(each) == name), None)
    if field is None:
        read_given(DECLARATIONS, {name: None})  # knows which it could have been
        raise SettingsError(f"{name} is no setting of the suite")
    return field


def replace_settings(crawler: Crawler, settings: SuiteSettings) -> None:
    """Let *crawler* have other *settings* from now on."""
    _cache[crawler] = settings


def suite_enabled(settings: BaseSettings) -> bool:
    """Return whether the add-on is to do anything; reads nothing but ``SUITE_ENABLED``.

    Raises:
        SettingsError: its value is not allowed.
    """
    name = full_name("enabled")
    return bool(read_given(DECLARATIONS, {name: settings[name]}).get("enabled", True))


def _profile(given: Mapping[str, Any], spidercls: type[Spider] | Spider | None) -> Profile:
    """Resolve ``auto``: a spider class says by its ``suite_profile`` what it is made for."""
    broad = given.get("follow") or _is_broad(spidercls)
    asked = given.get("profile", "auto")
    return "broad" if asked == "broad" or (asked == "auto" and broad) else "spider"


def _is_broad(spidercls: type[Spider] | Spider | None) -> bool:
    return getattr(spidercls, "suite_profile", None) == "broad"


def _refuse_contradictions(s: SuiteSettings, broad_spider: bool) -> None:
    """Refuse values that are each allowed but make no sense together."""
    if broad_spider and s.profile == "spider":
        raise SettingsError.of("SUITE_PROFILE", "spider", "'auto' or 'broad' for a BroadSpider")
    if s.follow and s.profile == "spider":
        raise SettingsError("SUITE_FOLLOW = True: expected SUITE_PROFILE to be 'auto' or 'broad'")
    if s.ip_delay and not s.ip_concurrency:
        raise SettingsError.of("SUITE_IP_CONCURRENCY", 0, "1 or more while SUITE_IP_DELAY is set")
    if (s.order == "best-first") is not bool(s.score):
        expected = "an import path with" if not s.score else "'' but for"
        raise SettingsError.of("SUITE_SCORE", s.score, f"{expected} SUITE_ORDER = 'best-first'")
    if s.window == "leaf" and s.order != "bottom-up":
        # The leaves of a trie stand in no other order.
        raise SettingsError.of("SUITE_ORDER", s.order, "'bottom-up' with SUITE_WINDOW = 'leaf'")
    if s.dns_ttl_min > s.dns_ttl_max:
        allowed = f"at most SUITE_DNS_TTL_MAX, which is {s.dns_ttl_max:g}"
        raise SettingsError.of("SUITE_DNS_TTL_MIN", s.dns_ttl_min, allowed)
    if s.backoff_base > s.backoff_max:
        allowed = f"at most SUITE_BACKOFF_MAX, which is {s.backoff_max:g}"
        raise SettingsError.of("SUITE_BACKOFF_BASE", s.backoff_base, allowed)
