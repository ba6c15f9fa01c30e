"""What a drill must have shown, each read from the server's log, the answers and the audit log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.testing import Arrival, gaps
from support.drill import COMPLAINS, LEAVES, Drill, Said
from support.polite_crawls import TOLERANCE, elsewhere, pages_of

IN_FORCE = 2.0
"""Seconds after which a block must hold."""
ACTS = frozenset({"block", "refetch", "drop", "unblock", "snapshot"})


class Findings:
    """Looks through *drill*, which has run. Each check yields what is wrong."""

    def __init__(self, drill: Drill) -> None:
        self.drill = drill
        self.complains = drill.host(COMPLAINS)
        self.leaves = drill.host(LEAVES)
        self.first = [a for a in drill.arrivals if a.start < drill.stopped]
        self.second = [a for a in drill.arrivals if a.start >= drill.stopped]

    @cached_property
    def audit(self) -> list[Any]:
        """The audit log of the first crawl's job."""
        return self.drill.desk.ask(self.drill.job, "audit", "--limit", "0").rows

    def all(self) -> list[str]:
        """Everything that is wrong."""
        checks: tuple[Callable[[], Iterable[str]], ...] = (
            self.nothing_after_the_block, self.evidence, self.delays, self.refetched,
            self.nothing_twice, self.dropped, self.resumed, self.audited,
        )  # fmt: skip
        return [f"{check.__name__}: {wrong}" for check in checks for wrong in check()]

    def _done(self, said: Said) -> Any:
        """The line of the audit log for *said*."""
        (row,) = (
            row for row in self.audit
            if row["verb"] == said.verb and said.began <= row["when"] <= said.ended
        )  # fmt: skip
        return row

    def _between(self, host: str) -> tuple[float, float]:
        """From when to when *host* was blocked: given and answered, taken back."""
        blocked = next(s for s in self.drill.desk.said if s.arguments[:2] == ("block", host))
        freed = [s for s in self.drill.desk.said if s.arguments[:2] == ("unblock", host)]
        return self._done(blocked)["done"], freed[0].began if freed else float("inf")

    # Blocked

    def after_the_block(self, host: str) -> list[float]:
        """How long after the block was said to hold requests to *host* began, until unblocked."""
        since, until = self._between(host)
        return [a.start - since for a in Drill.of(host, self.drill.arrivals)
                if since < a.start < until]  # fmt: skip

    def nothing_after_the_block(self) -> Iterator[str]:
        """No request to a blocked host, of whatever kind; before, there were some of each."""
        for host in (self.complains, self.leaves):
            late = [seconds for seconds in self.after_the_block(host) if seconds > IN_FORCE]
            if late:
                yield f"{len(late)} requests to {host}, the last {max(late):.1f} s later"
        since, until = self._between(self.complains)
        arrivals = Drill.of(self.complains, self.drill.arrivals)
        for when, some in (
            ("before", [a for a in arrivals if a.start < since]),
            ("afterwards", [a for a in arrivals if a.start > until]),
        ):
            missing = {"page", "robots", "image"} - {kind(a) for a in some}
            if missing:
                yield f"{when} nothing was fetched of {missing}: this shows nothing"
        if until - since < self.drill.plan.robots_ttl:
            yield f"blocked for {until - since:.1f} s only: no robots.txt was due"

    # Evidence

    def evidence(self) -> Iterator[str]:
        """Each request that the server saw is a line, and nothing else is."""
        _, until = self._between(self.complains)
        seen = Counter(
            (self.drill.url(a), str(a.status))
            for a in Drill.of(self.complains, self.first) if a.start < until
        )  # fmt: skip
        told = Counter((row["url"], str(row["status"])) for row in self.drill.evidence)
        yield from (f"not told: {each}" for each in (seen - told))
        yield from (f"not seen: {each}" for each in (told - seen))

    # Delays

    def delays(self) -> Iterator[str]:
        """All were kept, and the host that complained is visited at longer ones."""
        plan = self.drill.plan
        yield from plan.size.too_early(elsewhere(self.first))
        again = replace(plan.size, host_delay=plan.resumed_delay)
        yield from again.too_early(elsewhere(self.drill.arrivals))
        _, until = self._between(self.complains)
        arrivals = Drill.of(self.complains, self.drill.arrivals)
        for some, delay in (
            ([a for a in arrivals if a.start < until], plan.quick),
            ([a for a in arrivals if a.start >= until], plan.longer),
        ):
            least = gaps(some)[self.complains]
            if least.smallest < delay - TOLERANCE:
                yield f"{least.smallest:.3f} s instead of {delay} s: {least.pair}"

    # Fetched again

    def refetched(self) -> Iterator[str]:
        """Each of them once more, and before what else waited for its host."""
        said = self.drill.asked("refetch")
        if said.row["urls"] != self.drill.plan.refetched:
            yield f"answered: {said.row}"
        since, wanted = self._done(said)["done"], set(self.drill.refetched)
        hosts: dict[str, list[str]] = {}
        for arrival in sorted(pages_of(self.first)):
            if arrival.start > since:
                hosts.setdefault(arrival.host, []).append(self.drill.url(arrival))
        again = Counter(url for urls in hosts.values() for url in urls if url in wanted)
        early = {self.drill.url(a) for a in self.first if said.began < a.start <= since}
        for url in wanted - early:
            if again[url] != 1:
                yield f"{url} was fetched {again[url]} times more"
        for host, urls in hosts.items():
            last = max((n for n, url in enumerate(urls) if url in wanted), default=0)
            others = [url for url in urls[:last] if url not in wanted]
            # One was out already.
            if len(others) > 1:
                yield f"{host}: {len(others)} others came first: {others[:3]}"

    # Nothing twice, nothing lost

    def nothing_twice(self) -> Iterator[str]:
        """No page is fetched twice but those that were to be."""
        allowed = Counter(self.drill.refetched)
        pages = (a for a in pages_of(self.first) if a.status not in (429, 503))
        for url, times in Counter(map(self.drill.url, pages)).items():
            if times > 1 + allowed[url]:
                yield f"{url} was fetched {times} times"

    def resumed(self) -> Iterator[str]:
        """The copy goes on where the snapshot was taken, to the end; all agrees."""
        drill = self.drill
        if drill.reasons != ["shutdown", "waiting"]:
            yield f"the crawls ended with {drill.reasons}"
        done = {url for url, state in drill.at_snapshot.items() if state == "done"}
        if not done:
            yield "nothing was done in the snapshot"
        fetched = set(map(drill.url, pages_of(self.second)))
        yield from (f"{url} was done, and fetched again" for url in sorted(done & fetched)[:5])
        pages = {
            url for url in drill.web.web.reachable(obey_robots=True)
            if drill.web.web.locate(url)[0] != LEAVES
        }  # fmt: skip
        yield from (f"{url} was lost" for url in sorted(pages - fetched - done)[:5])
        with StoreReader(drill.copy / FOLDER) as reader:
            left = {name for name, record in reader.store.records() if record.pending}
        if left - {self.leaves}:
            yield f"left: {sorted(left)[:5]}"

    # Dropped

    def dropped(self) -> Iterator[str]:
        """The receipt tells of all that was fetched there; nothing of it is left."""
        receipt = self.drill.asked("drop", 1).row
        seen = {
            a.path for a in pages_of(Drill.of(self.leaves, self.first)) if a.status < 400
        }  # fmt: skip
        if (receipt["done"], receipt["failed"], receipt["robots"]) != (len(seen), 0, 1):
            yield f"{len(seen)} pages were fetched; the receipt says {receipt}"
        left = [row for row in self.drill.left_again if row["state"] != "pending"]
        if left:
            yield f"left: {left[:3]}"

    # The audit log

    def audited(self) -> Iterator[str]:
        """Every answer is there, with who and why, and nothing else."""
        acts = [said for said in self.drill.desk.said if _acts(said)]
        if [row["verb"] for row in self.audit] != [said.verb for said in acts]:
            yield f"verbs: {[row['verb'] for row in self.audit]}"
            return
        for said, row in zip(acts, self.audit, strict=True):
            why = said.arguments[said.arguments.index("--why") + 1]
            if row["why"] != why or not row["who"] or row["ok"] != (said.code == 0):
                yield f"{said.arguments}: {row}"
            if said.verb != "snapshot":
                answer = {"ok": row["ok"], "said": row["said"], **row["facts"]}
                if answer != said.row:
                    yield f"{said.arguments} was answered {said.row}, written down {answer}"
        copied = self.drill.desk.ask(self.drill.copy, "audit", "--limit", "0").rows
        if copied != self.audit:
            yield f"the copy's audit log has {len(copied)} lines"

    # Figures

    def figures(self) -> Iterator[str]:
        """How long each command took, what came of some, and when the loop was blocked."""
        for said in self.drill.desk.said:
            words = " ".join(each.rpartition("/")[2] for each in said.arguments[:2])
            line = f"{words[:60]:60} {said.ended - said.began:6.2f} s"
            if _acts(said):
                row = self._done(said)
                line += f", {row['done'] - row['when']:6.3f} s from asking to done"
            yield line
        for host in (self.complains, self.leaves):
            late = max([0.0, *self.after_the_block(host)])
            yield f"{host}: last request {late:.3f} s after its block was in force"
        receipt = self.drill.asked("drop", 1).row
        yield f"{len(self.drill.evidence)} lines of evidence; {receipt['said']}"
        for job, name in ((self.drill.job, "first"), (self.drill.copy, "second")):
            stalls = self.drill.stalls(job)
            blocked = f"the loop was blocked for more than 50 ms {len(stalls)} times"
            yield f"{name} crawl: {blocked}{', longest' if stalls else ''}"
            for when, seconds in sorted(stalls, key=lambda stall: -stall[1])[:5]:
                yield f"    {seconds * 1000:.0f} ms, {self._meanwhile(when)}"
        yield f"{len(self.first)} requests to the first crawl, {len(self.second)} to the second"

    def _meanwhile(self, when: float) -> str:
        """What was being asked at *when* (wall)."""
        done = [row["verb"] for row in self.audit if row["when"] <= when <= row["done"] + 0.1]
        what = f"while {done[0]} was carried out" if done else "while nothing was asked"
        return f"{when - self.first[0].start:.1f} s after the first request, {what}"


def _acts(said: Said) -> bool:
    return said.verb in ACTS and "--dry-run" not in said.arguments


def kind(arrival: Arrival) -> str:
    """What was asked for."""
    if arrival.path == "/robots.txt":
        return "robots"
    return "image" if arrival.path.startswith("/img") else "page"
