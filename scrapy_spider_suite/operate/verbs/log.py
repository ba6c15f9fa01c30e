"""The manifest of a crawl: all that whoever cites it, or repeats it, has to know."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from scrapy_spider_suite.errors import JobError
from scrapy_spider_suite.operate.actions import AuditLog
from scrapy_spider_suite.store.job_directory import JobFile, JobHistory
from scrapy_spider_suite.store.job_reader import StoreReader

FORMAT: Final = 1
_COUNTS: Final = ("done", "failed", "filtered", "bytes")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return that of the job whose ``suite`` folder is *folder*. Raises `JobError`s."""
    job = JobFile.read(folder)
    if job is None:
        raise JobError(f"{folder.parent} holds no job of scrapy-spider-suite")
    with StoreReader(folder) as reader:
        counters = reader.counters()
    return manifest(folder, job, {name: int(getattr(counters, name)) for name in _COUNTS})


def manifest(folder: Path, job: JobFile, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return that of the *job* in the ``suite`` folder *folder*; docs/jobs.md says what is in it.

    *counts*: those of the job as a whole.
    """
    runs: dict[str, dict[str, Any]] = {}
    found: dict[str, list[dict[str, Any]]] = {"settings": [], "filters": [], "seeds": []}
    lists = {"settings": "settings", "changed": "settings", "filter": "filters", "seeds": "seeds"}
    for row in JobHistory(folder).rows():
        event, run, when = row.pop("event", ""), row.get("run", ""), row.get("when")
        if event == "begun":
            del row["when"]
            runs[run] = {**row, "begun": when, "ended": None, "reason": None, "counts": None}
        elif event == "ended" and run in runs:
            runs[run] |= {"ended": when, "reason": row.get("reason"), "counts": row.get("counts")}
        elif event in lists:
            found[lists[event]].append(row)
    return {
        "manifest": FORMAT,
        "job": job.id,
        "copy_of": job.origin or None,
        "spider": job.spider,
        "created": job.created,
        "counts": dict(counts),
        "runs": list(runs.values()),
        **found,
        "actions": list(AuditLog(folder).rows()),
    }
