"""A host taken out of a job at rest; what is left is looked for in ``test_packs_redact_job``."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.jobs import VIA, Made

from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.revisit_rules import Mode, RevisitPolicy, Validators
from scrapy_spider_suite.operate import job_redaction
from scrapy_spider_suite.operate.executors.one_job import ask_job
from scrapy_spider_suite.operate.job_redaction import redact_job
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.revisit_plans import ROWS, PackedBody, RevisitPlans, plan_of
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import pack_row


def test_rows_of_others_are_changed_a_batch_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many the host has led to: they do not wait in memory all together."""
    made = Made(tmp_path / "job")
    urls = [f"http://h{number}.test/" for number in range(40)]
    for url in urls:
        made.find(url)
    made.close()
    sizes, honest = [], RocksStore.flush

    def flush(store: RocksStore) -> None:
        sizes.append(store.backlog)
        honest(store)

    monkeypatch.setattr(RocksStore, "flush", flush)
    monkeypatch.setattr(job_redaction, "_BACKLOG", 5)
    folder = tmp_path / "job" / FOLDER
    swept = redact_job(folder, VIA.split("/")[2], "me", "", 30.0, ask_job)
    assert swept.referrers == 40
    assert swept.left == []
    assert sum(sizes) > 40
    assert max(sizes) < 20
    with StoreReader(folder) as reader:
        assert list(reader.check()) == []
        assert {entry.url for entry in reader.store.all_rows()} == set(urls)
        assert {entry.referrer for entry in reader.store.all_rows()} == {""}


def test_plans_of_others(tmp_path: Path) -> None:
    """They forget where their page was found, and under which URL its body was packed."""
    made = Made(tmp_path / "job")
    revisits = RevisitPlans(made.store.kv(ROWS), RevisitPolicy(mode=Mode.FIXED))
    entries = [Entry("a.test", f"http://a.test/{number}", referrer=referrer)
               for number, referrer in enumerate((VIA, VIA, "http://b.test/"))]  # fmt: skip
    for entry, packed in zip(entries, ("http://a.test/0", VIA, "http://b.test/"), strict=True):
        revisits.visited(
            entry.url.encode(), made.wall, b"digest", Validators(), host=entry.host,
            packed=PackedBody(packed, made.wall, "sha1:X"), row=pack_row(entry),
        )  # fmt: skip
    revisits.save()
    made.close()
    folder = tmp_path / "job" / FOLDER
    swept = redact_job(folder, VIA.split("/")[2], "me", "", 30.0, ask_job)
    assert (swept.referrers, swept.left) == (2, [])
    with StoreReader(folder) as reader:
        plans = [plan_of(reader.store.kv(ROWS), entry.url.encode()) for entry in entries]
    found = [(plan.entry().referrer, plan.packed and plan.packed.url) for plan in plans if plan]
    assert found == [("", "http://a.test/0"), ("", None), ("http://b.test/", "http://b.test/")]
