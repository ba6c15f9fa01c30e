"""The findings of each rule of a crawl about a URL, for ``why`` and ``test``."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from scrapy_spider_suite.crawl.crawl_policy import FILTER_SETTINGS, FilterSet, policy_fields
from scrapy_spider_suite.crawl.gate import CAP_UNITS
from scrapy_spider_suite.crawl.queue import traps
from scrapy_spider_suite.crawl.robots import RobotsStore
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.fetch.address_rules import AddressPolicy, literal_address
from scrapy_spider_suite.frontier import robots_rules
from scrapy_spider_suite.frontier.entries import Entry, Flag, host_key
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.workbench import WaitCount, WaitReason, add_up
from scrapy_spider_suite.operate.job_target import BLOCKS, paused_by, stored_blocks
from scrapy_spider_suite.operate.terms import CrawlTerms
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.declarations import setting_name
from scrapy_spider_suite.store.counters import Counters, domain_row
from scrapy_spider_suite.store.host_queues import NEVER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rows import HostRecord
from scrapy_spider_suite.urls.filters import Fact, LinkFacts, Stage
from scrapy_spider_suite.urls.hosts import OutOfScope, Scope
from scrapy_spider_suite.urls.normalize import Unusable, host_of, parse_reference
from scrapy_spider_suite.urls.traps import (
    Trap,
    TrapRefusal,
    folders,
    path_and_query,
    sorted_query,
    trap_of_url,
)

_MEANING = {
    Stage.SCHEDULE: "it is not queued", Stage.FETCH: "it is not fetched",
    Stage.PARSE: "its page is not parsed", Stage.FOLLOW: "links to it are not taken",
    Stage.STORE: "its items are not stored",
}  # fmt: skip
_UNUSABLE = {
    Unusable.NOT_HTTP: "no web address: its scheme is neither http nor https",
    Unusable.MALFORMED: "no web address: it cannot be parsed as a URL",
}
_REASONS = {
    OutOfScope.TOO_DEEP: ("DEPTH_LIMIT", "deeper than links are followed"),
    OutOfScope.TOO_LONG: ("URLLENGTH_LIMIT", "longer than URLs may be"),
}
MINING = "mining"  # the rule that gives up guessed URLs
_PARSER = "scrapy.robotstxt.ProtegoRobotParser"  # in whose place the suite judges


class Judgement(StrEnum):
    FETCH = "fetch"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Finding:
    """The judgement of one *rule*: *why* in words, and *where* the rule is laid down."""

    rule: str
    judgement: Judgement
    why: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.rule}: {self.why}{f' [{self.where}]' if self.where else ''}"


def decisive(findings: list[Finding]) -> Finding:
    """The first finding that refuses, else the first that delays."""
    for judgement in (Judgement.REFUSE, Judgement.WAIT):
        for finding in findings:
            if finding.judgement is judgement:
                return finding
    return Finding("nothing", Judgement.FETCH, "nothing stands in the way")


class UrlJudge:
    """Asks the rules of the job of *reader*, or of a crawl by *terms* that is to begin.

    *addresses* are the known addresses of hosts.
    """

    def __init__(
        self, terms: CrawlTerms, reader: StoreReader | None,
        addresses: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        settings = terms.settings
        self._terms = terms
        self._wall = time.time()
        self._known = addresses or {}
        self._scope = Scope(
            terms.domains, settings.project.depth_limit, settings.project.urllength_limit
        )
        self._addresses = AddressPolicy(settings.allow_private_addresses)
        self._policy, self._filters = Policy(**policy_fields(settings)), FilterSet()
        try:
            self._policy.overrides = terms.overrides()
        except SettingsError as error:
            print(f"scrapy frontier: {error}: judged without its rules", file=sys.stderr)
        try:
            self._filters = terms.filters()
        except SettingsError as error:
            print(f"scrapy frontier: {error}: judged without filters", file=sys.stderr)
        self._store = None
        if reader is None:
            return
        self._store = store = reader.store
        self._stats = traps.TrapStats(store)
        self._traps = traps.Traps(
            store, self._policy, self._stats, lambda identity: False, self._has_values
        )
        self._miner = traps.UrlMiner(self._stats, lambda identity: False)
        self._robots = RobotsStore(store.kv("robots"))
        for name, _ in store.kv("trusted").items():
            self._addresses.trust(name.decode())
        for each in stored_blocks(store.kv(BLOCKS)):
            each.put_into(self._policy)

    def findings(self, url: str, depth: int = 1, entry: Entry | None = None) -> list[Finding]:
        """The findings of all rules about *url*, *depth* links from a seed (0: a seed itself).

        *entry* is the URL in the queue, if it is there.
        """
        normal = parse_reference(url, None)
        if isinstance(normal, Unusable):
            return [Finding("normal form", Judgement.REFUSE, _UNUSABLE[normal], "urls/normalize")]
        host = host_of(normal)
        record = self._record(host)
        return [
            *self._check_scope(normal, host, depth),
            *self._check_filters(normal, host, depth, entry),
            *self._check_traps(normal, host, depth), *self._check_budgets(host, record),
            *self._check_address(host), *self._check_blocks(normal, host),
            *self._check_robots(normal, host), *self._check_clock(host, record),
        ]  # fmt: skip

    def at_its_turn(self, entry: Entry) -> list[Finding]:
        """The findings about the pending *entry*, for which the scope is not asked again."""
        excuses = {"robots": Flag.NO_ROBOTS, "address": Flag.PROXIED}
        found = [
            each for each in self.findings(entry.url, 0, entry)
            if not entry.flags & excuses.get(each.rule, 0)
        ]  # fmt: skip
        return [*self._check_traps_at_its_turn(entry), *found]

    def _check_traps_at_its_turn(self, entry: Entry) -> Iterator[Finding]:
        if self._store is None or entry.flags & traps.ASKED_FOR:
            return
        if self._miner.gave_up(entry):
            yield self._refuse(MINING, "guessed, and too many like it are not there",
                               "SUITE_GUESS_URLS")  # fmt: skip
        elif (refusal := self._traps.waited_in(entry.url, entry.host)) is not None:
            yield self._trap_finding(refusal)

    def put_last(self, entry: Entry) -> Finding | None:
        """Why a trap puts the pending *entry* after the others of its host, if one does."""
        # Its priority fell with each of its folders that had had its share, the first one first.
        fell = 0 if entry.flags & traps.ASKED_FOR else round(-entry.priority / traps.BEHIND)
        if self._store is None or fell <= 0:
            return None
        path = path_and_query(entry.url)
        if fell >= traps.LAST // traps.BEHIND:
            space = self._traps.numbered(entry.url, self._stats.get(entry.host))
            return self._trap_finding(TrapRefusal(Trap.NUMBERS, space or path), Judgement.FETCH)
        crowded = [*folders(path.partition("?")[0])][-fell:]
        refusals = [TrapRefusal(Trap.PREFIX, each) for each in crowded[:1]]
        return self._trap_finding(refusals[0], Judgement.FETCH) if refusals else None

    def _refuse(self, rule: str, why: str, setting: str) -> Finding:
        return Finding(rule, Judgement.REFUSE, why, self._terms.where(setting))

    def _trap_finding(
        self, refusal: TrapRefusal, judgement: Judgement = Judgement.REFUSE
    ) -> Finding:
        why = str(refusal) if refusal.trap is Trap.PREFIX else f"a trap: {refusal}"
        where = self._terms.where("SUITE_TRAPS", refusal.trap.value)
        return Finding("trap", judgement, why, where)

    def _check_scope(self, url: str, host: str, depth: int) -> Iterator[Finding]:
        # Only links are checked: a seed is meant as it is.
        reason = self._scope.refuses(url, host, depth) if depth else None
        opened = self._filters.by_stage.get(Stage.SCHEDULE)
        if reason in _REASONS:
            name, why = _REASONS[reason]
            yield self._refuse("scope", why, name)
        elif reason is not None and (opened is None or not opened.needs(Fact.BEYOND)):
            why = f"{host} is not among the allowed domains"
            where = f"allowed_domains of {self._terms.spider}"
            yield Finding("scope", Judgement.REFUSE, why, where)

    def _check_filters(
        self, url: str, host: str, depth: int, entry: Entry | None
    ) -> Iterator[Finding]:
        """Filters that need a response are judged as far as they agree for all responses."""
        off_site = self._scope.refuses(url, host, 0) is OutOfScope.OFF_SITE
        subject = LinkFacts("", depth, int(off_site), self._address(host))
        known = {Fact.DEPTH, Fact.BEYOND, *([Fact.ADDRESS] if subject.address else [])}
        if entry is not None:
            subject.via, subject.depth = entry.referrer, entry.depth
            subject.beyond = entry.hops_outside
            known.add(Fact.VIA)
        for stage, found in self._filters.by_stage.items():
            # Seeds, and URLs in the queue, are past these two.
            if not depth and stage in (Stage.SCHEDULE, Stage.FOLLOW):
                continue
            where = self._terms.where(setting_name(FILTER_SETTINGS[stage]))
            try:
                wanted, said = found.verdict(url, subject, known)
            except Exception as error:  # an atom of the project's own
                why = f"the filter fails at it ({error!r})"
            else:
                if wanted is not False:
                    continue
                why = " and ".join(map(str, said)) or "the filter is FALSE"
                if said:
                    where += f", line {said[0].atom.line}, column {said[0].atom.column}"
            fetched = stage in (Stage.PARSE, Stage.STORE)
            judgement = Judgement.FETCH if fetched else Judgement.REFUSE
            yield Finding(f"{stage.value} filter", judgement, f"{_MEANING[stage]}: {why}", where)

    def _check_traps(self, url: str, host: str, depth: int) -> Iterator[Finding]:
        if not depth or not self._policy.traps.any:
            return
        betrayed = trap_of_url(url, self._policy.traps, time.gmtime(self._wall).tm_year)
        refusal = None if betrayed is None else TrapRefusal(betrayed)
        if refusal is None and self._store is not None:
            refusal = self._permuted(url, host) or self._traps.closed(url, host)
        if refusal is not None:
            yield self._trap_finding(refusal)

    def _permuted(self, url: str, host: str) -> TrapRefusal | None:
        """A known URL that differs from *url* in the order of its query only."""
        store, query = self._store, sorted_query(url)
        if store is None or not self._policy.traps.permuted or "&" not in url:
            return None
        if store.state(host_key(host) + url.encode()) is not None:
            return None
        for each in self._queries(f"{url.partition('?')[0]}?", host):
            if sorted_query(each) == query:
                return TrapRefusal(Trap.PERMUTED, each)
        return None

    def _has_values(self, space: str, parameters: list[str]) -> bool:
        """Whether the job knows URLs that begin with *space* with each of *parameters*."""
        missing = set(parameters)
        for each in self._queries(space, host_of(space)):
            missing.difference_update(each[len(space) :].split("&"))
            if not missing:
                return True
        return False

    def _queries(self, space: str, host: str) -> Iterator[str]:
        """The URLs of *host* that begin with *space*, as far as the job knows them."""
        if self._store is None:
            return
        for name, _ in self._store.states(host_key(host), space.encode()):
            url = name.decode("utf-8", "replace")
            if not url.startswith(space):
                break
            yield url
        if self._store.archive is not None:
            yield from self._store.archive.urls.iter(space)

    def _check_budgets(self, host: str, record: HostRecord) -> Iterator[Finding]:
        terms, policy = self._terms, self._policy
        if record.dead and record.dead != Event.BUDGET.value:
            why = f"the host was given up: {Event(record.dead).outcome.meaning}"
            failed = record.dead == Event.HOST_DEAD.value
            where = terms.where("SUITE_DEAD_HOST_FAILURES") if failed else ""
            yield Finding("given up", Judgement.REFUSE, why, where)
        budget = policy.max_pages(host, self._address(host))
        if budget and record.done >= budget:
            rules = [rule for name, _, rule in self.rules(host) if name == "max_pages"]
            where = str(rules[0]) if rules else terms.where("SUITE_HOST_MAX_PAGES")
            done = counted(record.done, f"page of {host} is done", f"pages of {host} are done")
            yield Finding("budget", Judgement.REFUSE, f"{done}, of at most {budget}", where)
        if self._store is None:
            return
        name, domain = domain_row(self._store, host)
        if policy.domain_max_pages and domain.pages >= policy.domain_max_pages:
            why = counted(domain.pages, f"page of {name} is done", f"pages of {name} are done")
            yield self._refuse("budget", why, "SUITE_DOMAIN_MAX_PAGES")
        known = record.counted or not policy.domain_max_hosts
        if not known and domain.hosts >= policy.domain_max_hosts:
            why = f"{name} has {counted(domain.hosts, 'other host')}"
            yield self._refuse("budget", why, "SUITE_DOMAIN_MAX_HOSTS")
        pages = Counters.load(self._store).done
        if 0 < policy.job_max_pages <= pages:
            why = f"the job has {counted(pages, 'page')}"
            yield Finding("budget", Judgement.WAIT, why, terms.where("SUITE_MAX_PAGES"))

    def _check_address(self, host: str) -> Iterator[Finding]:
        address = self._address(host)
        why = self._addresses.why_refused(address, host) if address else None
        if why is not None:
            yield self._refuse("address", why, "SUITE_ALLOW_PRIVATE_ADDRESSES")

    def _check_blocks(self, url: str, host: str) -> Iterator[Finding]:
        policy, wall = self._policy, self._wall
        of_visit = policy.exclusion_of_visit(host, self._address(host), wall)
        for found in filter(None, (of_visit, policy.exclusion_of_url(url, host, wall))):
            left = found.until - wall
            until = f", for {display_duration(left)} more" if found.until < NEVER else ""
            why = f"{found.why}{until}{': ' if found.reason else ''}{found.reason}"
            yield Finding("blocked", Judgement.WAIT, why, str(found.rule))

    def _check_robots(self, url: str, host: str) -> Iterator[Finding]:
        rule = self._policy.obeys_robots(host, self._address(host))
        if not (self._terms.values.get("ROBOTSTXT_OBEY") if rule is None else rule):
            where = self._terms.where("ROBOTSTXT_OBEY")
            if rule is not None:
                where = next(str(r) for n, _, r in self.rules(host) if n == "robots")
            yield Finding("robots", Judgement.FETCH, "robots.txt is not obeyed", where)
            return
        rules = self.robots(robots_rules.origin_of(url))
        if rules is None:
            yield Finding("robots", Judgement.FETCH, "robots.txt is not known: it is read first")
            return
        values = self._terms.values
        project = values.get("ROBOTSTXT_USER_AGENT") or values.get("USER_AGENT") or "*"
        agent = self._policy.user_agent(host, self._address(host)) or str(project)
        where = f"robots.txt of {rules.origin}, {self._age(rules)}"
        parser = values.get("ROBOTSTXT_PARSER") or _PARSER
        if parser != _PARSER and rules.verdict is robots_rules.RobotsVerdict.RULES:
            yield Finding("robots", Judgement.FETCH, f"{parser} decides, not asked here", where)
        elif rules.allowed(url, agent):
            yield Finding("robots", Judgement.FETCH, f"allowed to {agent!r}", where)
        elif rules.verdict is robots_rules.RobotsVerdict.DISALLOW_FOR_NOW:
            why = "robots.txt cannot be had, so nothing is allowed for now"
            yield Finding("robots", Judgement.WAIT, why, where)
        else:
            text = rules.body.decode("utf-8-sig", "ignore")
            line = robots_rules.deciding_line(text, agent, url)
            said = "" if line is None else f" by line {line[0]}: {line[1]}"
            yield Finding("robots", Judgement.REFUSE, f"forbidden to {agent!r}{said}", where)

    def _check_clock(self, host: str, record: HostRecord) -> Iterator[Finding]:
        who = "" if self._store is None else paused_by(self._store.kv("control"))
        if who:
            yield Finding("paused", Judgement.WAIT, "the crawl is paused", who)
        left = record.next_fetch - self._wall
        if left > 0 and record.next_fetch < NEVER and not record.dead:
            why = f"{record.why or 'its delay'}, the next visit is in {display_duration(left)}"
            name = "DOWNLOAD_SLOTS" if host in self._policy.slots else "SUITE_HOST_DELAY"
            where = "" if record.why else self._terms.where(name)
            yield Finding("clock", Judgement.WAIT, why, where)

    def rules(self, host: str) -> list[tuple[str, object, object]]:
        """The overrides and blocks for *host*: name, value, rule."""
        return [*self._policy.explain(host, self._address(host))]

    def robots(self, origin: str) -> robots_rules.RobotsRules | None:
        """The rules last read from *origin*, however old."""
        return None if self._store is None else self._robots.last(origin)

    def one_at_a_time(self, host: str, record: HostRecord) -> bool:
        """Whether no visit to *host* begins before the one before it has ended."""
        return bool(record.crawl_delay) or self._policy.for_host(host).concurrency == 1

    def _age(self, rules: robots_rules.RobotsRules) -> str:
        status = "no answer" if rules.status is None else f"status {rules.status}"
        fetched, checked = (
            f"{display_duration(self._wall - when)} ago"
            for when in (rules.fetched_at, rules.checked_at)
        )
        read = f"read {fetched}"
        if rules.unreachable_since is not None:
            stale = rules.verdict is robots_rules.RobotsVerdict.RULES
            read = f"last asked {checked}{f'; what it said before was {read}' if stale else ''}"
        left = self.robots_left(rules)
        if left == math.inf:
            return f"{status}, {read}"
        again = f"asked again in {display_duration(left)}" if left else "to be asked again"
        return f"{status}, {read}, {again}"

    def robots_left(self, rules: robots_rules.RobotsRules) -> float:
        """Seconds until *rules* may be asked for again; ``inf`` if their host has no next visit."""
        record = self._record(host_of(rules.origin))
        if record.dead or record.next_fetch >= NEVER:
            return math.inf
        again = record.next_fetch if rules.silent else max(record.next_fetch, rules.expires_at)
        return max(0.0, again - self._wall)

    def describe(self, rules: robots_rules.RobotsRules) -> str:
        return f"{rules.verdict.name.lower().replace('_', ' ')}: {self._age(rules)}"

    def _record(self, host: str) -> HostRecord:
        return HostRecord() if self._store is None else self._store.record(host) or HostRecord()

    def _address(self, host: str) -> str:
        return literal_address(host) or self._known.get(host, "")


def display_duration(seconds: float) -> str:
    for unit, length in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def end_in_words(trend: str, seconds: float | None) -> str:
    """When the crawl ends, by `CrawlPace.seconds_left` or by a cap; *seconds* None: not known."""
    if trend == "grows":
        return "the queue grows"
    if trend == "empty":
        return "the queue is empty"
    if seconds is None:
        return "no end in sight"
    by = f", by {setting_name(trend)}" if trend in CAP_UNITS else ""
    return f"about {display_duration(seconds)}{by}"


def wait_rows(counts: Iterable[WaitCount], wall: float) -> list[dict[str, Any]]:
    """*counts* as JSON for commands; ``next_visit`` is in seconds from *wall*, the time now."""
    return [
        {
            "reason": each.reason.value, "hosts": each.hosts,
            "next_visit": None if each.next_visit is None
            else round(max(0.0, each.next_visit - wall), 1),
        }
        for each in counts
    ]  # fmt: skip


def waits_in_status(status: Mapping[str, Any]) -> list[WaitCount]:
    return wait_counts(status.get("waits", ()), 0.0)


def wait_counts(rows: Iterable[Mapping[str, Any]], wall: float) -> list[WaitCount]:
    """The sum of the counts in *rows* of one agent or several; see `wait_rows`."""
    return add_up(
        WaitCount(
            WaitReason(row["reason"]), row["hosts"],
            None if row["next_visit"] is None else wall + row["next_visit"],
        )
        for row in rows
    )  # fmt: skip


def wait_summary(counts: Iterable[WaitCount], wall: float) -> str:
    """How many hosts wait, by reason and with the next time of each; *wall* is the time now."""
    hosts, ready, reasons = 0, 0, list[str]()
    for each in counts:
        if each.reason is WaitReason.READY:
            ready += each.hosts
            continue
        left = 0.0 if each.next_visit is None else each.next_visit - wall
        soon = f" (next in {display_duration(left)})" if left >= 1.0 else ""
        reasons.append(f"{each.hosts:,} {each.reason}{soon}")
        hosts += each.hosts
    words = counted(hosts, "host waits", "hosts wait")
    if reasons:
        words += f": {', '.join(reasons)}"
    return f"{words}; {counted(ready, 'host is', 'hosts are')} ready" if ready else words
