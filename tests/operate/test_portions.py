"""Long actions go in small portions: a crawl waits for one of them at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from support.mappings import Counted

from scrapy_spider_suite.analysis.duplicates import PAYLOADS, STRUCTURES, Original, Originals
from scrapy_spider_suite.crawl.queue.frontier import Frontier
from scrapy_spider_suite.frontier.entries import Entry, host_key
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.revisit_rules import Mode, RevisitPolicy, Validators
from scrapy_spider_suite.operate.actions import Action
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.operate.verbs import actions
from scrapy_spider_suite.operate.verbs.drop import HostDrop
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import pack_row
from scrapy_spider_suite.urls.host_patterns import HostPattern, PatternKind

HOST = "a.test"
URLS = 500
ACTION = Action("1", "drop", {}, "job", "me", 0.0)
MOST = 50
"""URLs in one portion: some milliseconds on a slow machine."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[JobTarget]:
    """A job with many URLs of one host pending."""
    store = RocksStore(tmp_path / "store")
    frontier = Frontier(store, Policy(), now=0.0, wall=0.0, capacity=10)
    frontier.admission.schedule((Entry(HOST, f"http://{HOST}/{n}") for n in range(URLS)), 0.0)
    site = JobTarget(tmp_path, store, frontier)
    site.commit()
    yield site
    store.close()


def portions(site: JobTarget, verb: str, **arguments: Any) -> list[int]:
    """How many URLs were pending before and after each portion of *verb*."""
    work = actions()[verb](site, Action("1", verb, arguments, "job", "me", 0.0))
    assert isinstance(work, Generator)
    pending = [site.frontier.pending]
    for _ in work:
        site.commit()
        pending.append(site.frontier.pending)
    return [*pending, site.frontier.pending]


def test_none_is_large(site: JobTarget) -> None:
    """Failing, trying again, fetching again, forgetting: never more than some URLs in one go."""
    for verb, arguments, before, after in (
        ("block", {"subject": HOST, "drop": True}, URLS, 0),
        ("retry", {"reason": "barred"}, 0, URLS),
        ("block", {"subject": HOST, "drop": True}, URLS, 0),
        ("refetch", {"pattern": HOST}, 0, URLS),
        ("drop", {"subject": HOST}, URLS, 0),
    ):
        counts = portions(site, verb, **arguments)
        assert (counts[0], counts[-1]) == (before, after)
        assert max(abs(late - early) for early, late in pairwise(counts)) <= MOST


def test_plans_of_what_lies_below_a_url(site: JobTarget) -> None:
    """By their URLs and by their fingerprints: a walk over the plans of the host, once."""
    revisits = site.frontier.commit.planner.revisits
    revisits.settings = RevisitPolicy(Mode.FIXED)
    for number in range(200):
        url = f"http://{HOST}/{'ab'[number % 2]}/{number}"
        name = url.encode() if number < 20 else b"\xff%04d" % number
        row = pack_row(Entry(HOST, url))
        revisits.visited(host_key(HOST) + name, 0.0, b"", Validators(), host=HOST, row=row)
    rows = revisits._rows = Counted(revisits._rows)
    reads = [0]
    below = HostPattern(PatternKind.PREFIX, f"http://{HOST}/a/", HOST)
    for _ in HostDrop(site, below, ACTION).forget_plans():
        reads.append(rows.read)
    assert reads[-1] == 10 + 180
    assert max(late - early for early, late in pairwise(reads)) <= MOST
    assert {plan.entry().url[14] for _, plan in revisits.planned()} == {"b"}
    assert len(revisits) == 100


def test_pages_that_others_repeat(site: JobTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are by their digests: some are looked at, then others have a turn."""
    table = Originals(site.store.kv(PAYLOADS))
    for number in range(2_500):
        host = HOST if number % 5 == 0 else "b.test"
        table.add_original(b"%05d" % (number * 7 % 2_500), Original(f"http://{host}/{number}", 0.0))
    site.commit()
    rows = {name: Counted(site.store.kv(name)) for name in (PAYLOADS, STRUCTURES)}
    drop = HostDrop(site, HostPattern(PatternKind.HOST, HOST, HOST), ACTION)
    monkeypatch.setattr(site.store, "kv", rows.__getitem__)
    reads = [0]
    for _ in drop.forget_originals():
        reads.append(rows[PAYLOADS].read)
    assert reads[-1] == 2_500
    assert max(late - early for early, late in pairwise(reads)) <= 1_000
    left = [msgpack.unpackb(data)[0] for _, data in rows[PAYLOADS].items()]
    assert len(left) == 2_000
    assert all(url.startswith("http://b.test/") for url in left)
