"""The traps of a job: which links lead into one, what its pages teach, what waits in it in vain.

A link into a trap is refused where it is found, and no row is written of it: a trap that was found
cannot fill the disk. What waited there already fails at its turn, in the row that it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from scrapy_spider_suite.frontier.entries import Entry, Flag
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.storage.grounds import FAMILY, Grounds
from scrapy_spider_suite.storage.records import HostRecord, state_key
from scrapy_spider_suite.storage.store import Store
from scrapy_spider_suite.urls.domains import registered_domain
from scrapy_spider_suite.urls.likeness import Recent, likeness
from scrapy_spider_suite.urls.normalize import host_of
from scrapy_spider_suite.urls.permutations import Permutations
from scrapy_spider_suite.urls.traps import (
    FRESH,
    Ground,
    Refusal,
    Trap,
    combination,
    harmless,
    key_of,
    look,
)

_FEW = 1_000
"""URLs of a host, and of a folder, below which no folder has too large a share."""
_BEHIND = 1 << 24
"""What a crowded folder takes off the priority of what lies in it."""
_SUSPECTS = 20_000
"""Domains of which it is counted how many hosts said the same; beyond that all are forgotten."""
_FARMS = 100_000
"""Farms that are remembered, the last ones."""
_FARM = b"."
"""Begins the key of a farm; no host begins with a dot."""
# Plain integers: operators of flags are Python code.
_ASKED_FOR = int(Flag.USER | Flag.START | Flag.DONT_FILTER)


class Traps:
    """See the module. *met* counts what was refused, failed or put last, in this run."""

    def __init__(
        self, store: Store, policy: Policy, grounds: Grounds, known: Callable[[bytes], bool]
    ) -> None:
        self.met: Counter[Trap] = Counter()
        self._policy = policy
        self._limits, self._year = policy.traps, 0
        self._harmless = harmless(policy.traps, 0)
        self._known = known
        self._store = store
        self._grounds = grounds
        self._recent = Recent()
        self._orders = Permutations()
        self._kv = store.kv(FAMILY)
        self._suspects: dict[str, int] = {}
        self._farms = dict.fromkeys(key[1:].decode() for key, _ in self._kv.items(_FARM))

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
        if limits.permuted and "&" in url and self._orders.met(url):
            return Refusal(Trap.PERMUTED)
        return self.closed(url, host)

    def closed(self, url: str, host: str) -> Refusal | None:
        """Which trap, known by what was found there, the normal *url* on *host* lies in."""
        ground = self._grounds.get(host)
        refusal = None if ground is None else ground.refuses(url)
        if refusal is None and self._farms:
            refusal = self._farmed(host)
        if refusal is not None and getattr(self._policy.traps, refusal.trap):
            return refusal
        return None

    def _farmed(self, host: str) -> Refusal | None:
        domain = registered_domain(host)
        if domain not in self._farms:
            return None
        record = self._store.record(host)
        new = record is None or not record.attempts
        return Refusal(Trap.HOSTS, domain) if new else None

    def holds(self, entry: Entry) -> bool:
        """Whether *entry*, at its turn, lies in a trap; counted. Never what was asked for."""
        if entry.flags & _ASKED_FOR or not self._policy.traps.any:
            return False
        refusal = self.waited_in(entry.url, entry.host)
        if refusal is None:
            return False
        self.met[refusal.trap] += 1
        return True

    def waited_in(self, url: str, host: str) -> Refusal | None:
        """Which trap the normal *url* on *host*, which is pending, has waited in.

        Pages with session ids stay: otherwise none of them might be fetched at all.
        """
        refusal = self.closed(url, host)
        return None if refusal is None or refusal.trap is Trap.SESSIONS else refusal

    # Learning

    def take(self, entry: Entry, record: HostRecord) -> None:
        """*entry* is new and about to be queued at the host with *record*: count it.

        Its priority falls if its folders have had their share.
        """
        limits = self._policy.traps
        if entry.flags & _ASKED_FOR or not limits.any:
            return
        url, host = entry.url, entry.host
        if limits.prefix:
            budget = self._policy.max_pages(host)
            least = min(_FEW, budget // 10) if budget else _FEW
            if record.pending + record.done + record.failed >= least:
                share, room = limits.prefix, _FEW
                if budget:  # what was not counted may all have lain there
                    share, room = 0, max(0, budget * limits.prefix // 100 - least)
                crowded = self._grounds.learn(host).crowded(url, share, room)
                entry.priority -= crowded * _BEHIND
                self.met[Trap.PREFIX] += bool(crowded)
        if limits.sessions and ("=" in url or "/(" in url):
            ground = self._grounds.get(host) or Ground()
            if ground.took(url, limits):
                self._grounds.change(host, ground)

    def saw(
        self, url: str, host: str, body: bytes, links: Collection[str], *, first: bool
    ) -> None:
        """A page was fetched: *body*, at *url* on *host*, of which it is the *first* or not.

        *links* are those that it has, whether they are followed or not.
        """
        limits = self._policy.traps
        if limits.query and "?" in url:
            self._saw_query(url, host, limits.query, links)
        if not (limits.same or limits.hosts):
            return
        number = likeness(body, host)
        if not number:
            return
        if limits.same:
            same = self._recent.meets(host, number)
            if same or self._grounds.get(host) is not None:
                self._grounds.learn(host).saw(url, limits.same, same=same)
        domain = registered_domain(host)
        if limits.hosts and first and domain != host:
            self._saw_host(domain, limits.hosts, same=self._recent.meets(f".{domain}", number))

    def _saw_query(self, url: str, host: str, limit: int, links: Collection[str]) -> None:
        path, parameters = combination(url)
        space = f"{url.partition('?')[0]}?"
        # All of them are met: no short cut.
        news = [each for each in parameters if not self._recent.meets(space, key_of("", each))]
        if news or len(parameters) < 2:
            return
        elsewhere = [link for link in links if not link.startswith(space)]
        if len(links) - len(elsewhere) < 2:
            return  # its links were taken away, or it leads to no more of the kind
        vain = not any(map(self._is_new, elsewhere))
        if vain or self._grounds.get(host) is not None:
            self._grounds.learn(host).combined(path, limit, vain=vain)

    def _is_new(self, url: str) -> bool:
        return not self._known(state_key(host_of(url), url))

    def _saw_host(self, domain: str, limit: int, *, same: bool) -> None:
        count = self._suspects.get(domain, 0)
        count = count + 1 if same else count - FRESH
        if count <= 0:
            self._suspects.pop(domain, None)
            return
        if len(self._suspects) >= _SUSPECTS:
            self._suspects.clear()
        self._suspects[domain] = count
        if count >= limit and domain not in self._farms:
            if len(self._farms) >= _FARMS:
                oldest = next(iter(self._farms))
                del self._farms[oldest]
                self._kv.delete(_FARM + oldest.encode())
            self._farms[domain] = None
            self._kv.put(_FARM + domain.encode(), b"")
