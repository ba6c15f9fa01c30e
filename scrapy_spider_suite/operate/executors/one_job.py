"""Has a verb done on one job: by its running crawl or, if no crawl uses it, by this process."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from scrapy_spider_suite.errors import JobError, SuiteError
from scrapy_spider_suite.operate.actions import FIRST, Action, ActionFolder, Answer, new_id, whoami
from scrapy_spider_suite.operate.executors.action_runner import ActionRunner
from scrapy_spider_suite.operate.job_target import job_at_rest
from scrapy_spider_suite.operate.verb import (
    AnswerIsNoError,
    Found,
    Invocation,
    JobVerb,
)
from scrapy_spider_suite.operate.verbs import actions, find_verb
from scrapy_spider_suite.store.job_directory import FOLDER, JobFile

_POLL = 0.05
_TRY = 0.5
"""Seconds between two looks at whether the crawl has ended meanwhile."""


def run_on_job(verb: JobVerb, call: Invocation) -> int:
    """Do *verb* as *call* says, on the job directory that it names; return the exit code."""
    if verb.run_with is not None:
        return verb.run_with(call, ask_job)
    question = verb.plan(call)
    if verb.look is not None and (verb.apply is None or question.counts):
        try:
            return verb.show(call, Found({"": verb.look(call, question)}))
        except AnswerIsNoError as error:
            print(error, file=sys.stderr)
            return 1
    options = call.options
    who, folder = options.who or whoami(), Path(str(call.jobdir)) / FOLDER
    if question.future_job and JobFile.read(folder) is None:
        _ask_future_job(folder, verb.name, who, options.why)
        said = f"{call.jobdir} holds no job yet: {question.future_job}"
        print(json.dumps({"ok": True, "said": said}) if call.json else said)
        return 0
    answer = ask_job(
        call.folder(), verb.name, question.arguments, who=who, why=options.why,
        urls=question.lines, wait=options.wait,
    )  # fmt: skip
    if answer is None:
        print(f"scrapy frontier: no answer within {options.wait:g} s; it stays asked",
              file=sys.stderr)  # fmt: skip
        return 3
    return verb.say(call, answer)


def ask_job(
    folder: Path, verb: str, arguments: Mapping[str, Any], *, who: str, why: str = "",
    urls: Iterable[str] | None = None, wait: float = 30.0, id: str | None = None,
) -> Answer | None:  # fmt: skip
    """Have *verb* carried out on the job of *folder*; None: no answer within *wait* seconds.

    Then the action *id* stays in the folder. Raises `ActionError`, `OSError` (the lock of a job at
    rest is not ours), and `JobError`s, also if nothing could be written for *wait* seconds.
    """
    job = JobFile.read(folder)
    if job is None:
        raise JobError(f"{folder.parent} holds no job of scrapy-spider-suite")
    known = find_verb(verb)
    id = id or new_id(urgent=known is not None and known.urgent)
    action = Action(id, verb, dict(arguments), job.id, who, time.time(), why)
    left = ActionFolder(folder)
    try:
        left.submit(action, urls)
    except OSError as error:
        raise JobError(f"{left.path} cannot be written: {error.strerror}") from error
    deadline, try_at = time.monotonic() + wait, 0.0
    while True:
        answer = left.take_answer(action.id)
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
                    left.remove(action.id)  # it was refused: it must not be done some day
                raise
        time.sleep(_POLL)


def _ask_future_job(folder: Path, verb: str, who: str, why: str) -> None:
    """Have *verb* carried out first by the crawl that will begin a job in *folder*."""
    action = Action(new_id(urgent=True), verb, {}, FIRST, who, time.time(), why)
    try:
        folder.parent.mkdir(exist_ok=True)
        folder.mkdir(exist_ok=True)
        ActionFolder(folder).submit(action)
    except OSError as error:
        raise JobError(f"{folder} cannot be written: {error.strerror}") from error


def _carried_out(folder: Path, job: str, id: str, deadline: float) -> bool:
    """Carry out the actions in *folder*; False: a crawl is using the job.

    While nothing can be written, retry until *deadline* or the answer to *id*.
    """
    with job_at_rest(folder) as target:
        if target is None:
            return False
        runner = ActionRunner(target, job, actions())
        runner.poll()
        while runner.busy or (runner.stuck and not ActionFolder(folder).is_answered(id)):
            if runner.stuck:
                if time.monotonic() > deadline:
                    raise JobError(f"{folder.parent} cannot be written to: {runner.stuck}")
                time.sleep(_POLL)
            runner.poll()
    return True
