"""``scrapy frontier settings``: the settings of the suite."""

from __future__ import annotations

from pathlib import Path

from scrapy_spider_suite.operate.verb import Invocation, Verb
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.store.job_directory import FOLDER, JobFile


def _run(call: Invocation) -> int:
    job = JobFile.read(Path(call.jobdir) / FOLDER) if call.jobdir else None
    settings = call.settings.copy()
    if job is not None and settings.get("SUITE_PROFILE", "auto") == "auto":
        # There is no spider here that would say which it is.
        settings.set("SUITE_PROFILE", job.settings.get("profile"), priority="project")
    rows = [row._asdict() for row in SuiteSettings.from_settings(settings).as_table()]
    if job is not None:
        for row in rows:
            row["job"] = job.settings.get(row["name"].removeprefix("SUITE_").lower())
    columns = ("name", "value", "unit", "kind", *(("job",) if job else ()), "meaning")
    call.table(rows, columns)
    return 0


VERBS = (
    Verb(
        "settings", "the settings of the suite, and those that the job was last run with", _run,
        examples=("settings -j crawls/news",), needs_job=False,
    ),
)  # fmt: skip
