"""A host taken out of a job at rest; what is left is looked for in ``test_packs_redact_job``."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_jobs import VIA, Made

from scrapy_spider_suite.control import sweeping
from scrapy_spider_suite.control.sweeping import sweep
from scrapy_spider_suite.job.directory import FOLDER
from scrapy_spider_suite.storage.reader import StoreReader
from scrapy_spider_suite.storage.rocks import RocksStore


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
    monkeypatch.setattr(sweeping, "_BACKLOG", 5)
    folder = tmp_path / "job" / FOLDER
    swept = sweep(folder, VIA.split("/")[2], "me", "", 30.0)
    assert swept.referrers == 40
    assert swept.left == []
    assert sum(sizes) > 40
    assert max(sizes) < 20
    with StoreReader(folder) as reader:
        assert list(reader.check()) == []
        assert {entry.url for entry in reader.store.all_rows()} == set(urls)
        assert {entry.referrer for entry in reader.store.all_rows()} == {""}
