"""The side of whoever asks: leave an action, and wait for its answer.

If no crawl uses the job, whoever asks carries the action out himself, holding the job meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from scrapy_spider_suite.errors import JobError, SuiteError
from scrapy_spider_suite.operate.actions import FIRST, Action, ActionFolder, Answer, new_id
from scrapy_spider_suite.operate.executors.action_runner import ActionRunner
from scrapy_spider_suite.operate.job_target import job_at_rest
from scrapy_spider_suite.operate.verbs import APPLY, URGENT
from scrapy_spider_suite.store.job_directory import JobFile

_POLL = 0.05
_TRY = 0.5
"""Seconds between two looks at whether the crawl has ended meanwhile."""


def ask_job(
    folder: Path, verb: str, arguments: Mapping[str, Any], *, who: str, why: str = "",
    urls: Iterable[str] | None = None, wait: float = 30.0, id: str | None = None,
) -> Answer | None:  # fmt: skip
    """Have *verb* carried out on the job of *folder*; None if nobody did within *wait* seconds.

    It stays in the folder then, under *id*, and is carried out later. Raises `ActionError`,
    `OSError` (the lock of a job at rest is not ours), and `JobError`s, also for a job at rest in
    which nothing could be written for *wait* seconds.
    """
    job = JobFile.read(folder)
    if job is None:
        raise JobError(f"{folder.parent} holds no job of scrapy-spider-suite")
    id = id or new_id(urgent=verb in URGENT)
    action = Action(id, verb, dict(arguments), job.id, who, time.time(), why)
    actions = ActionFolder(folder)
    try:
        actions.leave(action, urls)
    except OSError as error:
        raise JobError(f"{actions.path} cannot be written: {error.strerror}") from error
    deadline, try_at = time.monotonic() + wait, 0.0
    while True:
        answer = actions.collect(action.id)
        now = time.monotonic()
        if answer is not None or now > deadline:
            return answer
        if now >= try_at:
            try_at = now + _TRY
            try:
                if _carried_out(folder, job.id, action.id, deadline):
                    continue
            except (SuiteError, OSError):
                with suppress(OSError):
                    actions.remove(action.id)  # it was refused: it must not be done some day
                raise
        time.sleep(_POLL)


def ask_future_job(folder: Path, verb: str, *, who: str, why: str) -> None:
    """Have *verb* carried out by the crawl that begins a job in *folder*, before all else.

    Raises `JobError`.
    """
    action = Action(new_id(urgent=True), verb, {}, FIRST, who, time.time(), why)
    try:
        folder.parent.mkdir(exist_ok=True)
        folder.mkdir(exist_ok=True)
        ActionFolder(folder).leave(action)
    except OSError as error:
        raise JobError(f"{folder} cannot be written: {error.strerror}") from error


def _carried_out(folder: Path, job: str, id: str, deadline: float) -> bool:
    """Carry out what waits in *folder*, unless a crawl is using the job; whether it was done.

    While nothing can be written, it is tried again until *deadline* or the answer to *id*.
    """
    with job_at_rest(folder) as site:
        if site is None:
            return False
        operator = ActionRunner(site, job, APPLY)
        operator.look()
        while operator.busy or (operator.stuck and not ActionFolder(folder).answered(id)):
            if operator.stuck:
                if time.monotonic() > deadline:
                    raise JobError(f"{folder.parent} cannot be written to: {operator.stuck}")
                time.sleep(_POLL)
            operator.look()
    return True
