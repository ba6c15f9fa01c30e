"""Jobs of older data formats.

A crawl upgrades its job as it starts, and this does it beforehand. The number in ``job.json`` is
raised first: from then on no older release, which would take the new rows for damage, opens the
job. What is done to the store after that can be done again: whoever opens it next, after a kill,
does what is left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from scrapy_spider_suite.errors import JobDamagedError, JobError, JobInUseError
from scrapy_spider_suite.operate.actions import Action, Answer, AuditLog, new_id
from scrapy_spider_suite.operate.job_target import job_at_rest, take_job_lock
from scrapy_spider_suite.store import job_directory
from scrapy_spider_suite.store.job_directory import JobFile
from scrapy_spider_suite.store.rows import FORMAT

CHANGES: Mapping[int, str] = {
    2: (
        "reasons of pending URLs, pages that failed URLs came from, blocks, tags of seeds, "
        "tallies, and hosts and pages by registered domain, which are counted once"
    ),
    3: (
        "the archive of URLs that are done, the order of the queues, how deep pages are and how "
        "far beyond the scope, the referrer policies of links, and what is known of traps, twins "
        "and sitemaps"
    ),
}
"""What came with each data format."""


def upgrade(
    folder: Path, *, dry_run: bool = False, who: str = "", why: str = ""
) -> tuple[int, list[str]]:
    """Give the job of the ``suite`` folder *folder* the present data format.

    Its audit log says *who* had that done, and *why*. Returns the format that the job had, and
    what it lacked. Raises `JobError`s and `OSError`.
    """
    with (folder / "lock").open("a+") as lock:
        if not take_job_lock(lock):
            raise JobInUseError(f"{folder.parent} is in use: its crawl has upgraded it")
        job = JobFile.read(folder)
        if job is None:
            raise JobError(f"{folder.parent} holds no job of scrapy-spider-suite")
        changes = [CHANGES[number] for number in range(job.format + 1, FORMAT + 1)]
        if dry_run or not changes:
            return job.format, changes
        if damage := job_directory.find_damage(folder / "store"):
            raise JobDamagedError(f"the store in {folder / 'store'} is damaged: {damage}")
        replace(job, format=FORMAT).write(folder)
        _write_down(folder, job, who, why)
    with job_at_rest(folder) as site:
        if site is not None:  # else a crawl has just been started, which does the rest
            site.commit()
    return job.format, changes


def _write_down(folder: Path, job: JobFile, who: str, why: str) -> None:
    now = time.time()
    action = Action(new_id(), "upgrade", {}, job.id, who, now, why)
    said = f"the data format was {job.format} and is {FORMAT}"
    answer = Answer(action.id, True, said, {"before": job.format, "format": FORMAT})
    AuditLog(folder).append([(action, answer)], now, f"process {os.getpid()}")
