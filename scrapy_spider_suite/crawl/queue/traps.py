"""Traps of a job: evidence by host, duplicate domains, session URLs, mined URLs.

A link into a known trap is refused where it is found, and no row is written for it. URLs that
wait in a trap fail at their turn.
"""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from urllib.parse import unquote

import msgpack  # type: ignore[import-untyped]
import xxhash

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.frontier.entries import Entry, Flag, state_key
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.store.rocks_store import Store
from scrapy_spider_suite.store.rows import HostRecord
from scrapy_spider_suite.urls import traps as url_traps
from scrapy_spider_suite.urls.hosts import registered_domain
from scrapy_spider_suite.urls.normalize import host_of, normalize
from scrapy_spider_suite.urls.page_digests import (
    NEWS,
    RecentNumbers,
    content_hash,
    content_pieces,
    content_start,
)
from scrapy_spider_suite.urls.traps import HostTrapStats, Session, Trap, TrapLimits, TrapRefusal

logger = logging.getLogger(__name__)

_SUSPECTS = 20_000  # counted domains; a full table is cleared
_DOMAINS_MAX = 100_000  # stored duplicate domains, the last ones
_DOMAIN = b"."  # first byte of a duplicate domain's key; no host begins with a dot


class DuplicateDomains:
    """The duplicate domains of a job, in *kv*. *domains*: each of them, to be read only."""

    def __init__(self, kv: KV) -> None:
        self._kv = kv
        self._suspects: dict[str, int] = {}
        self.domains = dict.fromkeys(key[1:].decode() for key, _ in kv.items(_DOMAIN))

    def count_first_page(self, domain: str, limit: int, *, same: bool) -> None:
        """Count the first page of a host, the *same* as another's or not."""
        count = self._suspects.get(domain, 0)
        count = count + 1 if same else count - url_traps.NEW_PAGE_WEIGHT
        if count <= 0:
            self._suspects.pop(domain, None)
            return
        if len(self._suspects) >= _SUSPECTS:
            self._suspects.clear()
        self._suspects[domain] = count
        if count >= limit and domain not in self.domains:
            if len(self.domains) >= _DOMAINS_MAX:
                self.forget(next(iter(self.domains)))
            self.domains[domain] = None
            self._kv.put(_DOMAIN + domain.encode(), b"")

    def forget(self, domain: str) -> bool:
        self._suspects.pop(domain, None)
        if domain not in self.domains:
            return False
        del self.domains[domain]
        self._kv.delete(_DOMAIN + domain.encode())
        return True


FAMILY = "traps"
_MOST = 2_000  # host statistics in memory, 100 KiB each at most
_CACHE = 50_000  # hosts cached as unknown


class TrapStats:
    def __init__(self, store: Store) -> None:
        self._kv = store.kv(FAMILY)
        self._known: dict[str, HostTrapStats] = {}
        self._unknown: set[str] = set()
        self._touched: set[str] = set()

    def get(self, host: str) -> HostTrapStats | None:
        """None if nothing is known of *host*. Raises `JobDamagedError`."""
        found = self._known.get(host)
        if found is not None or host in self._unknown:
            return found
        row = self._kv.get(host.encode())
        if row is not None:
            return self._keep(host, unpack(host, row))
        if len(self._unknown) >= _CACHE:
            self._unknown.clear()
        self._unknown.add(host)
        return None

    def closed(self, hosts: set[str]) -> set[str]:
        """Those of *hosts* where something is closed. Raises `JobDamagedError`."""
        found = set()
        for host in hosts - self._unknown:
            if (stats := self.get(host)) is not None and stats.closed:
                found.add(host)
        return found

    def learn(self, host: str) -> HostTrapStats:
        stats = self.get(host)
        # One of which nothing is left is false, and is the one that is remembered all the same.
        return self.change(host, HostTrapStats() if stats is None else stats)

    def change(self, host: str, stats: HostTrapStats) -> HostTrapStats:
        if host not in self._known:
            self._unknown.discard(host)
            self._keep(host, stats)
        self._touched.add(host)
        return stats

    def report(self, host: str, found: TrapRefusal | None, limits: TrapLimits) -> None:
        if found is None or [*self.learn(host).closed.values()].count(found.trap) > 1:
            return
        fate = "come last (SUITE_TRAPS: same, numbers)"
        if found.trap is not Trap.NUMBERS or limits.numbers:
            fate = (
                f"are given up (SUITE_TRAPS: {found.trap}); `scrapy frontier retry {host} "
                "--reason trap` brings back those that were queued"
            )
        logger.info("%s: %s; further URLs like these %s", host, found, fate)

    def _keep(self, host: str, stats: HostTrapStats) -> HostTrapStats:
        if len(self._known) >= _MOST:
            self.save()
            self._known.clear()
        self._known[host] = stats
        return stats

    def save(self) -> None:
        for host in self._touched:
            stats = self._known[host]
            if len(stats):
                self._kv.put(host.encode(), pack(stats))
            else:
                self._kv.delete(host.encode())
        self._touched.clear()

    def forget(self, host: str) -> None:
        self._known.pop(host, None)
        self._touched.discard(host)
        self._unknown.discard(host)
        self._kv.delete(host.encode())
        for key, _ in self._kv.items(page_rows(host)):
            self._kv.delete(key)


def page_rows(host: str) -> bytes:
    """The key prefix of the rows that say which URL stands for a page of *host*."""
    return host.encode() + b"\0"


def pack(stats: HostTrapStats) -> bytes:
    closed = {key: trap.value for key, trap in stats.closed.items()}
    packed: bytes = msgpack.packb([stats.counts, closed, stats.mined])
    return packed


def unpack(host: str, row: bytes) -> HostTrapStats:
    """What `pack` packed for *host*. Raises `JobDamagedError` for anything else."""
    stats = HostTrapStats()
    try:
        counts, closed, mined = msgpack.unpackb(row, strict_map_key=False)
        stats.counts = {
            str(kind): {int(key): int(count) for key, count in each.items()}
            for kind, each in counts.items()
        }
        stats.closed = {int(key): Trap(name) for key, name in closed.items()}
        stats.mined = int(mined)
    except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
        raise JobDamagedError(f"what is known of traps at {host} is no row ({error})") from error
    return stats


PRIORITY = -1_000  # priority of mined URLs: below that of links
MISSES_MAX = 8  # misses in a folder after which nothing more is mined there
_MISSES_OF_HOST = 24
_HIT = 2  # misses that a hit makes up for
_MINERS: dict[str, tuple[Callable[[str], list[str]], ...]] = {
    "none": (), "ancestors": (url_traps.ancestors,), "siblings": (url_traps.siblings,),
    "both": (url_traps.ancestors, url_traps.siblings),
}  # fmt: skip
_TOLD = {Event.SUCCESS: -_HIT, Event.NOT_STORED: -_HIT, Event.NOT_THERE: 1, Event.REPLACED: 1}
"""What each event adds to the misses: unknown pages are often redirected to a known one."""


class UrlMiner:
    """*known* says whether a state key is known. *found* counts URLs tried, hits and misses."""

    def __init__(self, stats: TrapStats, known: Callable[[bytes], bool]) -> None:
        self.found: Counter[str] = Counter()
        self._stats = stats
        self._known = known

    def mine(
        self, page: Entry, kind: str, most: int, wanted: Callable[[str], bool]
    ) -> Iterator[Entry]:
        """Unknown *wanted* URLs by that of *page*, *most* of a host; *kind*: SUITE_GUESS_URLS."""
        for mined in _MINERS[kind]:
            for url in mined(page.url):
                stats = self._stats.get(page.host)
                if stats is not None and stats.mined >= most:
                    return
                if self._misses(page.host, url) or not wanted(url):
                    continue
                if self._known(state_key(page.host, url)):
                    continue
                self._stats.learn(page.host).mined += 1
                self.found["tried"] += 1
                yield Entry(
                    page.host, url, priority=PRIORITY, depth=page.depth + 1,
                    flags=Flag.SPECULATIVE, referrer=page.url,
                )  # fmt: skip

    def _misses(self, host: str, url: str) -> bool:
        stats = self._stats.get(host)
        return stats is not None and (
            stats.count("missed", url_traps.guess_folder(url)) >= MISSES_MAX
            or stats.count("missed", "") >= _MISSES_OF_HOST
        )

    def gave_up(self, entry: Entry) -> bool:
        return bool(entry.flags & Flag.SPECULATIVE) and self._misses(entry.host, entry.url)

    def concluded(self, entry: Entry, event: Event) -> None:
        told = _TOLD.get(event)
        if told is None:
            return
        self.found["hits" if told < 0 else "misses"] += 1
        stats = self._stats.learn(entry.host)
        for folder in (url_traps.guess_folder(entry.url), ""):
            stats.add("missed", folder, told)


class SessionUrls:
    def __init__(self, kv: KV, stats: TrapStats) -> None:
        self._kv = kv
        self._stats = stats

    def session(self, url: str, host: str) -> Session | None:
        """The session id in the normal *url* on *host*, if it makes no difference there."""
        stats = self._stats.get(host)
        if stats is None or not stats.closed:
            return None
        session = url_traps.session_of(url)
        known = session is not None and url_traps.space_key("session", session.name) in stats.closed
        return session if known else None

    def other(self, url: str, host: str) -> str | None:
        """The page of *url*, if another URL stands for it."""
        session = self.session(url, host)
        known = None if session is None else self._kv.get(_key(host, session))
        return None if session is None or known in (None, _short(url)) else session.page

    def claim(self, url: str, host: str) -> None:
        session = self.session(url, host)
        if session is not None:
            key = _key(host, session)
            if self._kv.get(key) is None:
                self._kv.put(key, _short(url))

    def concluded(self, entry: Entry, event: Event) -> None:
        session = self.session(entry.url, entry.host)
        if session is not None:
            key = _key(entry.host, session)
            if self._kv.get(key) == _short(entry.url):
                self._kv.delete(key)


def _short(url: str) -> bytes:
    return xxhash.xxh3_64_digest(url.encode())


def _key(host: str, session: Session) -> bytes:
    return page_rows(host) + xxhash.xxh3_64_digest(f"{session.name} {session.page}".encode())


_AUTHORITY_PORT = re.compile(r":\d+$")
_FEW = 1_000  # URLs of a host and folder below which no share is too large
BEHIND = 1 << 24  # priority that URLs in a crowded folder lose
LAST = BEHIND << 2  # priority that URLs in a space of numbers lose
_REOPENED = 10_000  # reopened hosts in memory; a full set is cleared
_SAMPLED = (Trap.QUERY, Trap.SESSIONS)  # traps that a few URLs pass, so that a wrong verdict shows
_CALM = 64  # pages of a host after which only some are compared
_ONE_IN = 4  # pages of such a host of which one is compared with the others
_LEAST_LINKS = 2  # links to more queries of its path that a page of an endless search has
ASKED_FOR = Flag.USER | Flag.START | Flag.DONT_FILTER


class Traps:
    """The traps of a job. *met* counts refused, failed and demoted URLs."""

    def __init__(
        self, store: Store, policy: Policy, stats: TrapStats, known: Callable[[bytes], bool],
        has_values: Callable[[str, list[str]], bool] | None = None,
        met: dict[Trap, int] | None = None,
    ) -> None:  # fmt: skip
        self.met: dict[Trap, int] = Counter() if met is None else met
        self._policy = policy
        self._limits, self._year = policy.traps, 0
        self._quick = url_traps.QuickTest(policy.traps, 0)
        self._known = known
        self._has_values = has_values or (
            lambda space, parameters: all(
                self._recent.knows(space, url_traps.space_key("", each)) for each in parameters
            )
        )
        self._store = store
        self.stats = stats
        self.miner = UrlMiner(stats, known)
        self._recent, self._said = RecentNumbers(), RecentNumbers()
        self._orders = url_traps.QueryOrders()
        self.reopened: set[str] = set()
        """Hosts where something was closed and is not any more, in this run."""
        self._duplicate_domains = DuplicateDomains(store.kv(FAMILY))
        self._session_urls = SessionUrls(store.kv(FAMILY), stats)

    def passed(self, urls: list[str], year: int) -> list[str]:
        """Those of the normal *urls*, links of a page, that are followed in *year*; counted."""
        limits = self._policy.traps
        if not limits.any:
            return urls
        if limits is not self._limits or year != self._year:
            self._limits, self._year = limits, year
            self._quick = url_traps.QuickTest(limits, year)
        suspects = self._closed_hosts(urls)
        unordered = limits.permuted and "&" in "".join(urls)
        if not (suspects or unordered) and self._quick.passes(urls):
            return urls
        kept = []
        for url in urls:
            host = host_of(url)
            doubtful = host in suspects or (unordered and "&" in url)
            if not doubtful and self._quick.passes([url]):
                kept.append(url)
                continue
            refusal = self.refuses(url, host, year)
            if refusal is None:
                kept.append(url)
            else:
                self.met[refusal.trap] += 1
        return kept

    def _closed_hosts(self, urls: list[str]) -> set[str]:
        """Of the hosts of *urls*, those where something is closed."""
        if not urls:
            return set()
        origin = urls[0][: urls[0].index("/", 8) + 1]
        others = [url for url in urls if not url.startswith(origin)]  # most lead to their own host
        hosts = {url.split("/", 3)[2] for url in [origin, *others]}
        if ":" in " ".join(hosts):
            hosts = {_AUTHORITY_PORT.sub("", each) for each in hosts}
        found = self.stats.closed(hosts)
        if domains := self._duplicate_domains.domains:
            found |= {host for host in hosts if registered_domain(host) in domains}
        return found

    def refuses(self, url: str, host: str, year: int) -> TrapRefusal | None:
        """Why a link to *url* on *host* is not followed in *year*; None if it is."""
        limits = self._policy.traps
        trap = url_traps.trap_of_url(url, limits, year)
        if trap is not None:
            return TrapRefusal(trap)
        if limits.permuted and self._orders.has_other_order(url):
            return TrapRefusal(Trap.PERMUTED)
        refusal = self.closed(url, host)
        return None if refusal is None or self._lets_through(url, host, refusal) else refusal

    def closed(self, url: str, host: str) -> TrapRefusal | None:
        """Which trap, known by what was found there, the normal *url* on *host* lies in."""
        stats = self.stats.get(host)
        refusal = None
        if stats is not None and stats.closed:
            refusal = self._closed_by_stats(url, host, stats)
        domains = self._duplicate_domains.domains
        if refusal is None and domains and self._policy.traps.hosts:
            domain = registered_domain(host)
            if domain in domains:
                record = self._store.record(host)
                new = record is None or not record.attempts
                refusal = TrapRefusal(Trap.HOSTS, domain) if new else None
        return refusal

    def _closed_by_stats(self, url: str, host: str, stats: HostTrapStats) -> TrapRefusal | None:
        limits = self._policy.traps
        if limits.same and (space := stats.same_space(url)) is not None:
            return TrapRefusal(Trap.SAME, space)
        if limits.numbers and (space := self.numbered(url, stats)) is not None:
            return TrapRefusal(Trap.NUMBERS, space)
        if limits.sessions and (page := self._session_urls.other(url, host)) is not None:
            return TrapRefusal(Trap.SESSIONS, page)
        if limits.query and "&" in url:
            path, parameters = url_traps.split_query(url)
            if stats.combines_in_vain(path, url_traps.sorted_names(parameters)):
                space = f"{url.partition('?')[0]}?"
                if self._has_values(space, parameters):
                    return TrapRefusal(Trap.QUERY, path)
        return None

    def numbered(self, url: str, stats: HostTrapStats | None) -> str | None:
        """The space of *url* whose pages differ in numbers alone, or None."""
        if stats is None or not stats.closed or not self._policy.traps.same:
            return None
        return stats.same_space(url, Trap.NUMBERS)

    def _lets_through(self, url: str, host: str, refusal: TrapRefusal) -> bool:
        # Followed all the same, to see whether it still is a trap.
        if refusal.trap not in _SAMPLED:
            return False
        stats = self.stats.learn(host)
        return bool(stats.count("sample", url)) or stats.sample(url, *refusal)

    def contains(self, entry: Entry) -> bool:
        """Whether *entry*, at its turn, lies in a trap; counted. Never what was asked for."""
        limits = self._policy.traps
        if entry.flags & ASKED_FOR or not limits.any:
            return False
        stats = self.stats.get(entry.host)
        known = self._duplicate_domains.domains or (stats is not None and stats.closed)
        if not known and not (limits.permuted and "&" in entry.url):
            return False
        refusal = self.waited_in(entry.url, entry.host)
        if refusal is not None and not self._lets_through(entry.url, entry.host, refusal):
            self.met[refusal.trap] += 1
            return True
        if limits.sessions:
            self._session_urls.claim(entry.url, entry.host)
        return False

    def waited_in(self, url: str, host: str) -> TrapRefusal | None:
        if self._policy.traps.permuted and self._orders.has_other_order(url):
            return TrapRefusal(Trap.PERMUTED)
        return self.closed(url, host)

    def admit(self, entry: Entry, record: HostRecord) -> None:
        """Count *entry*, new at its host; lower its priority in a crowded folder, among numbers."""
        limits = self._policy.traps
        url, host = entry.url, entry.host
        if limits.permuted and "&" in url:
            self._orders.note(url)
        if entry.flags & ASKED_FOR or not limits.any:
            return
        if limits.sessions:
            self._session_urls.claim(url, host)
        if self.numbered(url, self.stats.get(host)) is not None:
            entry.priority -= LAST
            self.met[Trap.NUMBERS] += 1
        if record.pending >= self.counts_from(host, record):
            entry.priority -= self.count_in_folders(url, host)

    def count_in_folders(self, url: str, host: str) -> int:
        """Count the new *url*; by how much its priority is lower, since its folders are crowded."""
        limit, budget = self._policy.traps.prefix, self._policy.max_pages(host)
        if budget:
            # What was not counted may all have lain there.
            share, room = 0, max(0, budget * limit // 100 - self._uncounted(budget))
        else:
            share, room = limit, _FEW
        crowded = self.stats.learn(host).crowded(url, share, room)
        if crowded:
            self.met[Trap.PREFIX] += 1
        return crowded * BEHIND

    def counts_from(self, host: str, record: HostRecord) -> float:
        """How many URLs of *host* are pending when `count_in_folders` begins to count them."""
        if not self._policy.traps.prefix:
            return math.inf
        return self._uncounted(self._policy.max_pages(host)) - record.done - record.failed

    def admits_links(self, host: str) -> bool:
        """Whether of links to *host* only their folders, and the order of their queries, are to be
        noted in place of `admit`: nothing is closed there.
        """
        stats = self.stats.get(host) if self._policy.traps.any else None
        return stats is None or not stats.closed

    @staticmethod
    def _uncounted(budget: int) -> int:
        # URLs of a host before one is counted.
        return min(_FEW, budget // 10) if budget else _FEW

    def note_known(self, url: str) -> None:
        if "&" in url and self._policy.traps.permuted:
            self._orders.note(url)

    def concluded(self, entry: Entry, event: Event) -> None:
        done = event is not Event.REPLACED and event.outcome.state is State.DONE
        if self._policy.traps.sessions and not done:
            self._session_urls.concluded(entry, event)

    def learn_page(
        self, url: str, host: str, body: bytes, links: Collection[str], *, pages: int,
        repeats: bool = False,
    ) -> None:  # fmt: skip
        """Learn from a page, after *pages* of the host; *repeats*: others found the same."""
        limits = self._policy.traps
        if limits.query and "?" in url:
            self._saw_query(url, host, body, links)
        if limits.sessions and (session := url_traps.session_of(url)) is not None:
            self._saw_session(url, host, body, session)
        number = None
        if limits.same and (repeats or self._is_compared(url, host, body, pages)):
            number = content_hash(body, host)
            if number:
                same = self._recent.meets(host, number) or repeats
                if same or self.stats.get(host) is not None:
                    digest = content_hash(body, host, numbers=True) if same else 0
                    exactly = same and self._recent.meets(host, digest)
                    stats = self.stats.learn(host)
                    found = stats.count_page(url, limits.same, same=same, exactly=exactly)
                    self.stats.report(host, found, limits)
        # Of pages that are taken together none is counted yet: only the first is compared.
        if limits.hosts and not (pages or self._recent.meets(":", url_traps.space_key("", host))):
            self._saw_first(host, body, number)

    def _saw_first(self, host: str, body: bytes, number: int | None) -> None:
        domain = registered_domain(host)
        # Most domains have one host: there is nothing to compare its first page with.
        if domain == host or not self._recent.meets(".", url_traps.space_key("domain", domain)):
            return
        number = content_hash(body, host) if number is None else number
        if number:
            same = self._recent.meets(f".{domain}", number)
            self._duplicate_domains.count_first_page(domain, self._policy.traps.hosts, same=same)

    def _is_compared(self, url: str, host: str, body: bytes, pages: int) -> bool:
        # A comparison costs as much as the links. The first few pages are never compared. Later,
        # where nothing was ever the same, one in four is. And most pages begin with other letters.
        if pages < min(_CALM, self._policy.traps.same // 3):
            return False
        stats = self.stats.get(host)
        known = stats is not None and stats.suspects(url)
        if pages >= _CALM and not known and xxhash.xxh3_64_intdigest(url.encode()) % _ONE_IN:
            return False
        if stats is not None:
            return True
        start = content_start(body, host)
        return not start or self._recent.meets(f"{host}^", start)

    def _saw_query(self, url: str, host: str, body: bytes, links: Collection[str]) -> None:
        path, parameters = url_traps.split_query(url)
        space = f"{url.partition('?')[0]}?"
        # All of them are met: no short cut.
        numbers = [url_traps.space_key("", each) for each in parameters]
        new = [number for number in numbers if not self._recent.meets(space, number)]
        if new or len(parameters) < 2 or not links:
            return  # what has no links may have had them taken away
        news = self._said.learns(space, content_pieces(body, host))
        worth = url_traps.NEW_PAGE_WEIGHT if news >= NEWS else 0
        if any(self._leads_on(link, space, host) for link in links):
            worth = url_traps.NEW_LINK_WEIGHT
        if worth and self.stats.get(host) is None:
            return
        onward = sum(link.startswith(space) for link in links) >= _LEAST_LINKS
        limit, names = self._policy.traps.query, url_traps.sorted_names(parameters)
        stats = self._learning(host, fresh=worth > 0)
        if stats.combined(path, names, limit, worth, onward=onward):
            self.stats.report(host, TrapRefusal(Trap.QUERY, path), self._policy.traps)

    def _leads_on(self, link: str, space: str, host: str) -> bool:
        if host_of(link) != host:
            return False  # out of scope, perhaps, and never known: to share the page elsewhere
        where, _, query = link.partition("?")
        if f"{where}?" == space:
            parameters = query.split("&")
            if len(parameters) > 1 and self._has_values(space, parameters):
                return False
        elif space[space.index("/", 8) : -1] in unquote(query):
            return False  # to come back after a login
        return not self._known(state_key(host, link)) and self.closed(link, host) is None

    def _saw_session(self, url: str, host: str, body: bytes, session: Session) -> None:
        met = self._recent.meets
        body = body.replace(session.token.encode(), b"")
        fresh = self._said.learns(f"{host}{session.page}", content_pieces(body, host)) >= NEWS
        new_id = not met(host, url_traps.space_key("with id", url))
        if not met(host, url_traps.space_key("page", session.page)) or not new_id:
            return
        if not fresh or self.stats.get(host) is not None:
            stats, limit = self._learning(host, fresh=fresh), self._policy.traps.sessions
            if stats.repeated(session.name, limit, vain=not fresh):
                found = TrapRefusal(Trap.SESSIONS, session.page)
                self.stats.report(host, found, self._policy.traps)

    def _learning(self, host: str, *, fresh: bool) -> HostTrapStats:
        stats = self.stats.learn(host)
        if fresh and stats.closed:
            self._reopened(host)
        return stats

    def learn_redirect(self, entry: Entry, target: str) -> None:
        """*entry* redirects to *target*: many redirects to one target are a trap."""
        limit, host = self._policy.traps.same, entry.host
        url = normalize(entry.url) if limit else None  # a spider's may be spelt otherwise
        if url is None or _path_of(target) == _path_of(url):
            return  # by another scheme or another name of the host, to itself
        same = self._recent.meets(host, url_traps.space_key("target", target))
        if same or self.stats.get(host) is not None:
            found = self.stats.learn(host).count_redirect(url, limit, same=same)
            self.stats.report(host, found, self._policy.traps)

    def reopen(self, host: str) -> bool:
        """Open what is closed on *host* and of its domain; whether anything was."""
        stats, domain = self.stats.get(host), registered_domain(host)
        found = stats is not None and bool(stats.closed)
        if found:
            self.stats.learn(host).reopen()
            self._reopened(host)
        return self._duplicate_domains.forget(domain) or found

    def _reopened(self, host: str) -> None:
        if len(self.reopened) >= _REOPENED:
            self.reopened.clear()
        self.reopened.add(host)


def _path_of(url: str) -> str:
    return url.partition("://")[2].partition("/")[2]
