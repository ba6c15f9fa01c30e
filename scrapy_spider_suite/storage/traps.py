"""The traps of a job: which links lead into one, what its pages teach, what waits in it in vain.

A link into a trap is refused where it is found, and no row is written of it: a trap that was found
cannot fill the disk. What waited there already fails at its turn, in the row that it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from urllib.parse import unquote

import xxhash

from scrapy_spider_suite.frontier.entries import Entry, Flag, state_key
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.storage.farms import Farms
from scrapy_spider_suite.storage.grounds import FAMILY, Grounds
from scrapy_spider_suite.storage.standins import StandIns
from scrapy_spider_suite.store.interface import Store
from scrapy_spider_suite.store.rows import HostRecord
from scrapy_spider_suite.urls.hosts import registered_domain
from scrapy_spider_suite.urls.normalize import host_of, normalize
from scrapy_spider_suite.urls.page_digests import NEWS, Recent, likeness, pieces
from scrapy_spider_suite.urls.traps import (
    FOUND,
    FRESH,
    Ground,
    Refusal,
    Trap,
    harmless,
    key_of,
    look,
)
from scrapy_spider_suite.urls.url_spaces import (
    Permutations,
    Session,
    combination,
    names_of,
    session_of,
)

_FEW = 1_000
"""URLs of a host, and of a folder, below which no folder has too large a share."""
BEHIND = 1 << 24
"""What a crowded folder takes off the priority of what lies in it."""
LAST = BEHIND << 2
"""What URLs lose whose pages differ in numbers alone: they come after those of crowded folders."""
_REOPENED = 10_000
"""Hosts of which it is remembered that something was opened again; beyond that none is."""
_SAMPLED = (Trap.QUERY, Trap.SESSIONS)
"""Traps of which a few URLs are let through, to see whether they still are."""
_CALM = 64
"""Pages of a host after which, if nothing is wrong with them, only some are compared."""
_ONE_IN = 4
"""Pages of such a host of which one is compared with the others."""
_LEAST_LINKS = 2
"""Links to more queries of its path that a page of an endless search has."""
# Plain integers: operators of flags are Python code.
ASKED_FOR = int(Flag.USER | Flag.START | Flag.DONT_FILTER)


class Traps:
    """See the module. *met* counts what was refused, failed or put last; None: from 0 on.

    *has_values* says whether pages at a URL up to its "?" had each of some parameters with its
    value; None asks what was met of late.
    """

    def __init__(
        self, store: Store, policy: Policy, grounds: Grounds, known: Callable[[bytes], bool],
        has_values: Callable[[str, list[str]], bool] | None = None,
        met: Counter[Trap] | None = None,
    ) -> None:  # fmt: skip
        self.met: Counter[Trap] = Counter() if met is None else met
        self._policy = policy
        self._limits, self._year = policy.traps, 0
        self._harmless = harmless(policy.traps, 0)
        self._known = known
        self._has_values = has_values or self._recalls
        self._store = store
        self._grounds = grounds
        self._recent, self._said = Recent(), Recent()
        self._orders = Permutations()
        self.reopened: set[str] = set()
        """Hosts where something was closed and is not any more, in this run."""
        self._farms = Farms(store.kv(FAMILY))
        self._stand_ins = StandIns(store.kv(FAMILY), grounds)

    # Asking

    def passed(self, urls: list[str], year: int) -> list[str]:
        """Those of the normal *urls*, links of a page, that are followed in *year*; counted."""
        limits = self._policy.traps
        if not limits.any:
            return urls
        if limits is not self._limits or year != self._year:
            self._limits, self._year = limits, year
            self._harmless = harmless(limits, year)
        is_harmless, orders = self._harmless, bool(limits.permuted)
        kept, host, origin, suspect = [], "", " ", False
        for url in urls:
            if not url.startswith(origin):  # most links of a page lead to its own host
                host, origin = host_of(url), url[: url.index("/", 8) + 1]
                suspect = self._is_suspect(host)
            if not suspect and not (orders and "&" in url) and is_harmless(url):
                kept.append(url)
                continue
            refusal = self.refuses(url, host, year)
            if refusal is None:
                kept.append(url)
            else:
                self.met[refusal.trap] += 1
        return kept

    def _is_suspect(self, host: str) -> bool:
        """Whether any trap was found on *host*, or it is one of a farm."""
        ground = self._grounds.get(host)
        found = ground is not None and bool(ground.closed)
        return found or (bool(self._farms) and registered_domain(host) in self._farms)

    def refuses(self, url: str, host: str, year: int) -> Refusal | None:
        """Why a link to the normal *url* on *host* is not followed in *year*; None if it is."""
        limits = self._policy.traps
        trap = look(url, limits, year)
        if trap is not None:
            return Refusal(trap)
        if limits.permuted and self._orders.knows_other(url):
            return Refusal(Trap.PERMUTED)
        refusal = self.closed(url, host)
        return None if refusal is None or self._lets_through(url, host, refusal) else refusal

    def closed(self, url: str, host: str) -> Refusal | None:
        """Which trap, known by what was found there, the normal *url* on *host* lies in."""
        ground = self._grounds.get(host)
        refusal = None
        if ground is not None and ground.closed:
            refusal = self._by_ground(url, host, ground)
        if refusal is None and self._farms and self._policy.traps.hosts:
            refusal = self._farmed(host)
        return refusal

    def _by_ground(self, url: str, host: str, ground: Ground) -> Refusal | None:
        limits = self._policy.traps
        if limits.same and (space := ground.same_space(url)) is not None:
            return Refusal(Trap.SAME, space)
        if limits.numbers and (space := self.numbered(url, ground)) is not None:
            return Refusal(Trap.NUMBERS, space)
        if limits.sessions and (page := self._stand_ins.other(url, host)) is not None:
            return Refusal(Trap.SESSIONS, page)
        if limits.query and "&" in url:
            path, parameters = combination(url)
            if ground.combines_in_vain(path, names_of(parameters)):
                space = f"{url.partition('?')[0]}?"
                if self._has_values(space, parameters):
                    return Refusal(Trap.QUERY, path)
        return None

    def numbered(self, url: str, ground: Ground | None) -> str | None:
        """The space of *url* on *ground* whose pages differ in numbers alone; None: there is none.
        """
        if ground is None or not ground.closed or not self._policy.traps.same:
            return None
        return ground.same_space(url, Trap.NUMBERS)

    def _recalls(self, space: str, parameters: list[str]) -> bool:
        """Whether pages of *space* had each of these *parameters*, with its value."""
        return all(self._recent.knows(space, key_of("", each)) for each in parameters)

    def _lets_through(self, url: str, host: str, refusal: Refusal) -> bool:
        """Whether the normal *url* is followed all the same, to see whether it still is a trap."""
        if refusal.trap not in _SAMPLED:
            return False
        ground = self._grounds.learn(host)
        return ground.is_sample(url) or ground.sample(url, *refusal)

    def _farmed(self, host: str) -> Refusal | None:
        domain = registered_domain(host)
        if domain not in self._farms:
            return None
        record = self._store.record(host)
        new = record is None or not record.attempts
        return Refusal(Trap.HOSTS, domain) if new else None

    def holds(self, entry: Entry) -> bool:
        """Whether *entry*, at its turn, lies in a trap; counted. Never what was asked for."""
        if entry.flags & ASKED_FOR or not self._policy.traps.any:
            return False
        refusal = self.waited_in(entry.url, entry.host)
        if refusal is not None and not self._lets_through(entry.url, entry.host, refusal):
            self.met[refusal.trap] += 1
            return True
        if self._policy.traps.sessions:
            self._stand_ins.claim(entry.url, entry.host)
        return False

    def waited_in(self, url: str, host: str) -> Refusal | None:
        """Which trap the normal *url* on *host*, which is pending, has waited in."""
        if self._policy.traps.permuted and self._orders.knows_other(url):
            return Refusal(Trap.PERMUTED)
        return self.closed(url, host)

    def frees(self, url: str, host: str) -> bool:
        """Whether the normal *url* on *host*, which failed in a trap, lies in none any more."""
        return host in self.reopened and self.closed(url, host) is None

    # Learning

    def take(self, entry: Entry, record: HostRecord) -> None:
        """*entry* is new and about to be queued at the host with *record*: count it.

        Its priority falls if its folders have had their share, or pages like it differ in numbers
        alone.
        """
        limits = self._policy.traps
        url, host = entry.url, entry.host
        if limits.permuted and "&" in url:
            self._orders.note(url)
        if entry.flags & ASKED_FOR or not limits.any:
            return
        if limits.sessions:
            self._stand_ins.claim(url, host)
        if self.numbered(url, self._grounds.get(host)) is not None:
            entry.priority -= LAST
            self.met[Trap.NUMBERS] += 1
        if limits.prefix:
            budget = self._policy.max_pages(host)
            least = min(_FEW, budget // 10) if budget else _FEW
            if record.pending + record.done + record.failed >= least:
                share, room = limits.prefix, _FEW
                if budget:  # what was not counted may all have lain there
                    share, room = 0, max(0, budget * limits.prefix // 100 - least)
                crowded = self._grounds.learn(host).crowded(url, share, room)
                entry.priority -= crowded * BEHIND
                if crowded:
                    self.met[Trap.PREFIX] += 1

    def was_known(self, url: str) -> None:
        """The normal *url* was found, and is known already."""
        if "&" in url and self._policy.traps.permuted:
            self._orders.note(url)

    def concluded(self, entry: Entry, event: Event) -> None:
        """*entry* has ended with *event*."""
        if self._policy.traps.sessions:
            self._stand_ins.concluded(entry, event)

    def saw(
        self, url: str, host: str, body: bytes, links: Collection[str], *, pages: int,
        repeats: bool = False,
    ) -> None:  # fmt: skip
        """A page was fetched: *body*, at *url* on *host*, of which *pages* others were.

        *links* are those that it has, whether they are followed or not. *repeats*: another page of
        *host* was the same, by what somebody else has compared.
        """
        limits = self._policy.traps
        if limits.query and "?" in url:
            self._saw_query(url, host, body, links)
        if limits.sessions and (session := session_of(url)) is not None:
            self._saw_session(url, host, body, session)
        number = None
        if limits.same and (repeats or self._is_compared(url, host, pages)):
            number = likeness(body, host)
            if number:
                same = self._recent.meets(host, number) or repeats
                if same or self._grounds.get(host) is not None:
                    exactly = same and self._recent.meets(host, likeness(body, host, numbers=True))
                    ground = self._grounds.learn(host)
                    found = ground.saw(url, limits.same, same=same, exactly=exactly)
                    self._grounds.report(host, found, limits)
        if limits.hosts and not pages:
            self._saw_first(host, body, number)

    def _saw_first(self, host: str, body: bytes, number: int | None) -> None:
        """The first page of *host* was fetched: *body*, and its likeness if that is known."""
        domain = registered_domain(host)
        # Most domains have one host: there is nothing to compare its first page with.
        if domain == host or not self._recent.meets(".", key_of("domain", domain)):
            return
        number = likeness(body, host) if number is None else number
        if number:
            same = self._recent.meets(f".{domain}", number)
            self._farms.saw(domain, self._policy.traps.hosts, same=same)

    def _is_compared(self, url: str, host: str, pages: int) -> bool:
        """Whether a page is compared with others of its *host*, which costs more than its links.

        The first few never are. Later, where nothing was ever the same, one in four is.
        """
        if pages < _CALM:
            return pages >= self._policy.traps.same // 3
        ground = self._grounds.get(host)
        known = ground is not None and ground.suspects(url)
        return known or xxhash.xxh3_64_intdigest(url.encode()) % _ONE_IN == 0

    def _saw_query(self, url: str, host: str, body: bytes, links: Collection[str]) -> None:
        path, parameters = combination(url)
        space = f"{url.partition('?')[0]}?"
        # All of them are met: no short cut.
        numbers = [key_of("", each) for each in parameters]
        new = [number for number in numbers if not self._recent.meets(space, number)]
        if new or len(parameters) < 2 or not links:
            return  # what has no links may have had them taken away
        news = self._said.learns(space, pieces(body, host))
        worth = FRESH if news >= NEWS else 0
        if any(self._leads_on(link, space, host) for link in links):
            worth = FOUND
        if worth and self._grounds.get(host) is None:
            return
        onward = sum(link.startswith(space) for link in links) >= _LEAST_LINKS
        limit, names = self._policy.traps.query, names_of(parameters)
        ground = self._learning(host, fresh=worth > 0)
        if ground.combined(path, names, limit, worth, onward=onward):
            self._grounds.report(host, Refusal(Trap.QUERY, path), self._policy.traps)

    def _leads_on(self, link: str, space: str, host: str) -> bool:
        """Whether *link*, of a page of *space* on *host*, is new, and more than a combination."""
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
        fresh = self._said.learns(f"{host}{session.page}", pieces(body, host)) >= NEWS
        new_id = not met(host, key_of("with id", url))
        if not met(host, key_of("page", session.page)) or not new_id:
            return
        if not fresh or self._grounds.get(host) is not None:
            ground, limit = self._learning(host, fresh=fresh), self._policy.traps.sessions
            if ground.repeated(session.name, limit, vain=not fresh):
                found = Refusal(Trap.SESSIONS, session.page)
                self._grounds.report(host, found, self._policy.traps)

    def _learning(self, host: str, *, fresh: bool) -> Ground:
        """The ground of *host*, to be told of a page; something may open if it is *fresh*."""
        ground = self._grounds.learn(host)
        if fresh and ground.closed:
            self._reopened(host)
        return ground

    def sent_on(self, entry: Entry, target: str) -> None:
        """*entry* leads on to *target*: many that lead to the same are no pages of their own."""
        limit, host = self._policy.traps.same, entry.host
        url = normalize(entry.url) if limit else None  # a spider's may be spelt otherwise
        if url is None or _path_of(target) == _path_of(url):
            return  # by another scheme or another name of the host, to itself
        same = self._recent.meets(host, key_of("target", target))
        if same or self._grounds.get(host) is not None:
            found = self._grounds.learn(host).sent_on(url, limit, same=same)
            self._grounds.report(host, found, self._policy.traps)

    def reopen(self, host: str) -> bool:
        """Open what is closed on *host* and of its domain; whether anything was."""
        ground, domain = self._grounds.get(host), registered_domain(host)
        found = ground is not None and bool(ground.closed)
        if found:
            self._grounds.learn(host).reopen()
            self._reopened(host)
        return self._farms.forget(domain) or found

    def _reopened(self, host: str) -> None:
        if len(self.reopened) >= _REOPENED:
            self.reopened.clear()
        self.reopened.add(host)


def _path_of(url: str) -> str:
    """What follows the host and its slash in *url*."""
    return url.partition("://")[2].partition("/")[2]
