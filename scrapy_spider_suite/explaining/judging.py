"""What would become of a URL if it were found now: every question on its way, and who decides.

The same rules as in a crawl (scope, budgets, blocks, robots.txt, clocks) are asked one after the
other, with what a job has stored; nothing is fetched, and no name is looked up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from scrapy_spider_suite.control.pausing import paused_by
from scrapy_spider_suite.crawl.filters import FilterSet
from scrapy_spider_suite.crawl.robots import RobotsStore
from scrapy_spider_suite.explaining.filtered import refusals
from scrapy_spider_suite.explaining.terms import Terms
from scrapy_spider_suite.explaining.trapped import Ruling, TrapJudge, in_words
from scrapy_spider_suite.fetch.address_rules import AddressPolicy, literal_address
from scrapy_spider_suite.frontier.entries import Entry, Flag
from scrapy_spider_suite.frontier.outcomes import OUTCOMES, Event
from scrapy_spider_suite.frontier.policy import Exclusion, Policy
from scrapy_spider_suite.frontier.robots_rules import (
    RobotsRules,
    RobotsVerdict,
    deciding_line,
    origin_of,
)
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.store.counters import Counters, domain_row
from scrapy_spider_suite.store.host_queues import NEVER
from scrapy_spider_suite.store.rows import HostRecord
from scrapy_spider_suite.urls.filters import Fact, LinkFacts, Stage
from scrapy_spider_suite.urls.normalize import Unusable, host_of, parse_reference
from scrapy_spider_suite.urls.scope import OutOfScope, Scope
from scrapy_spider_suite.urls.traps import TrapRefusal, trap_of_url

if TYPE_CHECKING:
    from scrapy_spider_suite.store.rocks_store import RocksStore

_UNUSABLE = {
    Unusable.NOT_HTTP: "no web address: its scheme is neither http nor https",
    Unusable.MALFORMED: "no web address: it cannot be parsed as a URL",
}
_REASONS = {
    OutOfScope.TOO_DEEP: ("DEPTH_LIMIT", "deeper than links are followed"),
    OutOfScope.TOO_LONG: ("URLLENGTH_LIMIT", "longer than URLs may be"),
}
_PARSER = "scrapy.robotstxt.ProtegoRobotParser"  # in whose place the suite judges


class Judgement(StrEnum):
    """What a rule says of a URL."""

    FETCH = "fetch"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one *rule* says: *why* in words, and *where* that is laid down."""

    rule: str
    judgement: Judgement
    why: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.rule}: {self.why}{f' [{self.where}]' if self.where else ''}"


def decisive(findings: list[Finding]) -> Finding:
    """The finding that settles it: the first that refuses, else the first that has it wait."""
    for judgement in (Judgement.REFUSE, Judgement.WAIT):
        for finding in findings:
            if finding.judgement is judgement:
                return finding
    return Finding("nothing", Judgement.FETCH, "nothing stands in the way")


class Judge:
    """Asks the rules of one job (or of a crawl to be, without *store*), at *wall* time.

    *addresses* says of hosts where they live, as far as that is known.
    """

    def __init__(
        self, terms: Terms, policy: Policy, store: RocksStore | None, wall: float,
        addresses: Mapping[str, str] | None = None, filters: FilterSet | None = None,
    ) -> None:  # fmt: skip
        settings = terms.settings
        self._terms = terms
        self._policy = policy
        self._store = store
        self._wall = wall
        self._known = addresses or {}
        self._filters = filters or FilterSet()
        self._scope = Scope(
            terms.domains, settings.project.depth_limit, settings.project.urllength_limit
        )
        self._addresses = AddressPolicy(settings.allow_private_addresses)
        self._traps = None if store is None else TrapJudge(terms, policy, store)
        if store is not None:
            self._robots = RobotsStore(store.kv("robots"))
            for name, _ in store.kv("trusted").items():
                self._addresses.trust(name.decode())

    def findings(self, url: str, depth: int = 1, entry: Entry | None = None) -> list[Finding]:
        """What each rule has to say of *url*, found *depth* links from a seed (0: a seed itself).

        *entry* is it in the queue, where it is there already.
        """
        normal = parse_reference(url, None)
        if isinstance(normal, Unusable):
            return [Finding("normal form", Judgement.REFUSE, _UNUSABLE[normal], "urls/normalize")]
        host = host_of(normal)
        record = self._record(host)
        return [
            *self._of_scope(normal, host, depth), *self._of_filters(normal, host, depth, entry),
            *self._of_traps(normal, host, depth),
            *self._of_budgets(host, record),
            *self._of_job(), *self._of_address(host), *self._of_bars(normal, host),
            *self._of_robots(normal, host), *self._of_clock(host, record),
        ]  # fmt: skip

    # Rules

    def at_its_turn(self, entry: Entry) -> list[Finding]:
        """What will be asked of *entry*, which is pending: it is in scope, whatever that is now."""
        excused = {"robots"} if entry.flags & Flag.NO_ROBOTS else set()
        if entry.flags & Flag.PROXIED:
            excused.add("address")
        trapped = None if self._traps is None else self._traps.at_its_turn(entry)
        found = [each for each in self.findings(entry.url, 0, entry) if each.rule not in excused]
        return found if trapped is None else [_refused(trapped), *found]

    def put_last(self, entry: Entry) -> Finding | None:
        """Why *entry*, which is pending, comes after the others of its host, if it does."""
        found = None if self._traps is None else self._traps.put_last(entry)
        if found is None:
            return None
        return Finding(found.rule, Judgement.FETCH, found.why, found.where)

    def _of_scope(self, url: str, host: str, depth: int) -> Iterator[Finding]:
        # It is asked when a link is found: whoever names a seed means it.
        reason = self._scope.refuses(url, host, depth) if depth else None
        opened = self._filters.of.get(Stage.SCHEDULE)
        if reason is None or (
            reason is OutOfScope.OFF_SITE and opened is not None and opened.asks(Fact.BEYOND)
        ):
            return
        if reason is OutOfScope.OFF_SITE:
            why, where = f"{host} is not among the allowed domains", (
                f"allowed_domains of {self._terms.spider}"
            )
        else:
            name, why = _REASONS[reason]
            where = self._terms.where(name)
        yield Finding("scope", Judgement.REFUSE, why, where)

    def _of_filters(
        self, url: str, host: str, depth: int, entry: Entry | None
    ) -> Iterator[Finding]:
        # Seeds, and what is in the queue, are past the first two.
        stages = [stage for stage in Stage if depth or stage not in (Stage.SCHEDULE, Stage.FOLLOW)]
        off_site = self._scope.refuses(url, host, 0) is OutOfScope.OFF_SITE
        subject = LinkFacts("", depth, int(off_site), self._address(host))
        known = {Fact.DEPTH, Fact.BEYOND, *([Fact.ADDRESS] if subject.address else [])}
        if entry is not None:
            subject.via, subject.depth, subject.beyond = entry.referrer, entry.depth, entry.beyond
            known.add(Fact.VIA)
        for each in refusals(self._filters, self._terms, stages, url, subject, known):
            judgement = Judgement.REFUSE if each.final else Judgement.FETCH
            yield Finding(f"{each.stage.value} filter", judgement, each.why, each.where)

    def _of_traps(self, url: str, host: str, depth: int) -> Iterator[Finding]:
        # As for scope: whoever names a seed means it.
        if not depth or not self._policy.traps.any:
            return
        betrayed = trap_of_url(url, self._policy.traps, time.gmtime(self._wall).tm_year)
        if betrayed is not None:
            yield _refused(in_words(self._terms, TrapRefusal(betrayed)))
        elif self._traps is not None and (found := self._traps.of_link(url, host)) is not None:
            yield _refused(found)

    def _of_budgets(self, host: str, record: HostRecord) -> Iterator[Finding]:
        terms, policy = self._terms, self._policy
        if record.dead and record.dead != Event.BUDGET.value:
            why = f"the host was given up: {OUTCOMES[Event(record.dead)].meaning}"
            failed = record.dead == Event.HOST_DEAD.value
            where = terms.where("SUITE_DEAD_HOST_FAILURES") if failed else ""
            yield Finding("given up", Judgement.REFUSE, why, where)
        budget = policy.max_pages(host, self._address(host))
        if budget and record.done >= budget:
            rules = [rule for name, _, rule in self.rules(host) if name == "max_pages"]
            where = str(rules[0]) if rules else terms.where("SUITE_HOST_MAX_PAGES")
            done = counted(record.done, f"page of {host} is done", f"pages of {host} are done")
            why = f"{done}, of at most {budget}"
            yield Finding("budget", Judgement.REFUSE, why, where)
        yield from self._of_domain(host, record)

    def _of_domain(self, host: str, record: HostRecord) -> Iterator[Finding]:
        policy, store = self._policy, self._store
        if store is None:
            return
        name, domain = domain_row(store, host)
        if policy.domain_max_pages and domain.pages >= policy.domain_max_pages:
            why = counted(domain.pages, f"page of {name} is done", f"pages of {name} are done")
            where = self._terms.where("SUITE_DOMAIN_MAX_PAGES")
            yield Finding("budget", Judgement.REFUSE, why, where)
        known = record.counted or not policy.domain_max_hosts
        if not known and domain.hosts >= policy.domain_max_hosts:
            why = f"{name} has {counted(domain.hosts, 'other host')}"
            where = self._terms.where("SUITE_DOMAIN_MAX_HOSTS")
            yield Finding("budget", Judgement.REFUSE, why, where)

    def _of_job(self) -> Iterator[Finding]:
        done = 0 if self._store is None else Counters.load(self._store).done
        if 0 < self._policy.job_max_pages <= done:
            where = self._terms.where("SUITE_MAX_PAGES")
            yield Finding("budget", Judgement.WAIT, f"the job has {counted(done, 'page')}", where)

    def _of_address(self, host: str) -> Iterator[Finding]:
        address = self._address(host)
        why = self._addresses.why_refused(address, host) if address else None
        if why is not None:
            where = self._terms.where("SUITE_ALLOW_PRIVATE_ADDRESSES")
            yield Finding("address", Judgement.REFUSE, why, where)

    def _of_bars(self, url: str, host: str) -> Iterator[Finding]:
        policy, wall = self._policy, self._wall
        for bar in (
            policy.bar_of_visit(host, self._address(host), wall),
            policy.bar_of_url(url, host, wall),
        ):  # fmt: skip
            if bar is not None:
                yield Finding("blocked", Judgement.WAIT, self._until(bar), str(bar.rule))

    def _until(self, bar: Exclusion) -> str:
        left = bar.until - self._wall
        until = f", for {span(left)} more" if left < NEVER - self._wall else ""
        return f"{bar.why}{until}{': ' if bar.reason else ''}{bar.reason}"

    def _of_robots(self, url: str, host: str) -> Iterator[Finding]:
        rule = self._policy.obeys_robots(host, self._address(host))
        if not (self._obeys_robots if rule is None else rule):
            where = self._terms.where("ROBOTSTXT_OBEY")
            if rule is not None:
                where = next(str(r) for n, _, r in self.rules(host) if n == "robots")
            yield Finding("robots", Judgement.FETCH, "robots.txt is not obeyed", where)
            return
        rules = self.robots(origin_of(url))
        if rules is None:
            yield Finding("robots", Judgement.FETCH, "robots.txt is not known: it is read first")
            return
        agent = self._agent(host)
        where = f"robots.txt of {rules.origin}, {self._age(rules)}"
        parser = self._terms.values.get("ROBOTSTXT_PARSER") or _PARSER
        if parser != _PARSER and rules.verdict is RobotsVerdict.RULES:
            yield Finding("robots", Judgement.FETCH, f"{parser} decides, not asked here", where)
        elif rules.allowed(url, agent):
            yield Finding("robots", Judgement.FETCH, f"allowed to {agent!r}", where)
        elif rules.verdict is RobotsVerdict.DISALLOW_FOR_NOW:
            why = "robots.txt cannot be had, so nothing is allowed for now"
            yield Finding("robots", Judgement.WAIT, why, where)
        else:
            text = rules.body.decode("utf-8-sig", "ignore")
            line = deciding_line(text, agent, url)
            said = "" if line is None else f" by line {line[0]}: {line[1]}"
            yield Finding("robots", Judgement.REFUSE, f"forbidden to {agent!r}{said}", where)

    def _of_clock(self, host: str, record: HostRecord) -> Iterator[Finding]:
        who = "" if self._store is None else paused_by(self._store.kv("control"))
        if who:
            yield Finding("paused", Judgement.WAIT, "the crawl is paused", who)
        left = record.next_fetch - self._wall
        if left > 0 and record.next_fetch < NEVER and not record.dead:
            why = f"{record.why or 'its delay'}, the next visit is in {span(left)}"
            name = "DOWNLOAD_SLOTS" if host in self._policy.slots else "SUITE_HOST_DELAY"
            where = "" if record.why else self._terms.where(name)
            yield Finding("clock", Judgement.WAIT, why, where)

    # What they go by

    def rules(self, host: str) -> list[tuple[str, object, object]]:
        """Every override and block for *host*: what it sets, to what, and who said so."""
        return [*self._policy.explain(host, self._address(host))]

    def robots(self, origin: str) -> RobotsRules | None:
        """What is known of the robots.txt of *origin*, however old."""
        return None if self._store is None else self._robots.last(origin)

    def one_at_a_time(self, host: str, record: HostRecord) -> bool:
        """Whether no visit to *host* begins before the one before it has ended."""
        return bool(record.crawl_delay) or self._policy.of_host(host).concurrency == 1

    def _age(self, rules: RobotsRules) -> str:
        status = "no answer" if rules.status is None else f"status {rules.status}"
        read = f"read {self._ago(rules.fetched_at)}"
        if rules.unreachable_since is not None:
            stale = rules.verdict is RobotsVerdict.RULES
            kept = f"; what it said before was {read}" if stale else ""
            read = f"last asked {self._ago(rules.checked_at)}{kept}"
        left = self.robots_left(rules)
        if left == math.inf:
            return f"{status}, {read}"
        again = f"asked again in {span(left)}" if left else "to be asked again"
        return f"{status}, {read}, {again}"

    def _ago(self, when: float) -> str:
        return f"{span(self._wall - when)} ago"

    def robots_left(self, rules: RobotsRules) -> float:
        """Seconds until *rules* may be asked for again; ``inf`` if their host has no next visit."""
        record = self._record(host_of(rules.origin))
        if record.dead or record.next_fetch >= NEVER:
            return math.inf
        return max(0.0, rules.asked_again(record.next_fetch) - self._wall)

    def describe(self, rules: RobotsRules) -> str:
        """*rules* in a line."""
        return f"{rules.verdict.name.lower().replace('_', ' ')}: {self._age(rules)}"

    def _record(self, host: str) -> HostRecord:
        return HostRecord() if self._store is None else self._store.record(host) or HostRecord()

    @property
    def _obeys_robots(self) -> bool:
        return bool(self._terms.values.get("ROBOTSTXT_OBEY"))

    def _agent(self, host: str) -> str:
        values = self._terms.values
        project = values.get("ROBOTSTXT_USER_AGENT") or values.get("USER_AGENT") or "*"
        return self._policy.user_agent(host, self._address(host)) or str(project)

    def _address(self, host: str) -> str:
        """Where *host* lives, "" if that is not known."""
        return literal_address(host) or self._known.get(host, "")


def _refused(by: Ruling) -> Finding:
    return Finding(by.rule, Judgement.REFUSE, by.why, by.where)


def span(seconds: float) -> str:
    """*seconds* in the unit in which a person would say it."""
    for unit, length in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
