"""Has a verb done on one job: by its running crawl or, if no crawl uses it, by this process."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scrapy_spider_suite.errors import ActionError, JobError, StoreWriteError, SuiteError
from scrapy_spider_suite.operate.actions import (
    FIRST,
    Action,
    ActionFolder,
    Answer,
    AuditLog,
    new_id,
    whoami,
)
from scrapy_spider_suite.operate.job_target import JobTarget, job_at_rest
from scrapy_spider_suite.operate.verb import (
    PORTION,
    WAITING,
    AnswerIsNoError,
    Apply,
    Found,
    Invocation,
    JobVerb,
    Work,
)
from scrapy_spider_suite.operate.verbs import actions, find_verb
from scrapy_spider_suite.store.job_directory import FOLDER, JobFile

logger = logging.getLogger(__name__)

_POLL = 0.05
_ASK = 0.5  # seconds between two looks at whether the crawl has ended meanwhile
_AT_ONCE = 100  # answers that are given in one go: some milliseconds
_RETRY = 10.0  # seconds between two tries to give an answer
_CARRIED_OUT = b"carried out "
"""Begins the key of an answer in the job; it is written with the last portion of its action."""
_SAID = 2_000  # characters that are left of an answer that is too long
_SWEEP = 3600.0
_READ = 100  # actions that are read at a time: some milliseconds
_ABREAST = 8
"""Long actions that are under way at a time, beside those that wait: each has a file open."""


@dataclass(slots=True)
class _PendingAnswer:
    action: Action
    answer: Answer
    audited: bool = False


class AnswerQueue:
    """Answers to the actions in *folder* on *target*: written to the audit log, then given."""

    def __init__(self, target: JobTarget, folder: ActionFolder) -> None:
        self.fresh: list[_PendingAnswer] = []  # can be given now
        self.failed: list[_PendingAnswer] = []  # could not be given, and are tried again
        self.trouble = ""
        self._target = target
        self._folder = folder
        self._audit = AuditLog(target.folder)
        self._try_at = 0.0
        self._complained = False

    def add(self, action: Action, answer: Answer) -> None:
        """Queue the *answer* to *action*."""
        try:
            data = answer.to_bytes()
        except ActionError:
            answer = Answer(answer.id, answer.ok, answer.said[:_SAID], {"cut_short": True})
            data = answer.to_bytes()
        self._target.kv.put(_answer_key(action.id), data)
        self.fresh.append(_PendingAnswer(action, answer))

    def add_stored(self, action: Action) -> bool:
        """Queue the answer that an earlier process could not give; False if there is none."""
        done = self._target.kv.get(_answer_key(action.id))
        if done is None:
            return False
        audited = any(row.get("id") == action.id for row in self._audit.rows())
        self.fresh.append(_PendingAnswer(action, Answer.from_bytes(done), audited))
        return True

    def due(self, now: float) -> bool:
        return bool(self.fresh) or (bool(self.failed) and now >= self._try_at)

    def give(self, now: float) -> None:
        """Write some answers to the audit log, together, then give them."""
        batch = self.fresh[:_AT_ONCE]
        del self.fresh[:_AT_ONCE]
        if now >= self._try_at:
            batch, self.failed = [*self.failed, *batch], []
        try:
            if fresh := [each for each in batch if not each.audited]:
                self._write_down(fresh)
        except OSError as error:
            self._fail(batch, error)
            return
        for each in batch:
            try:
                self._give(each.action, each.answer)
            except OSError as error:
                self._fail([each], error)
            else:
                self._complained = False

    def _fail(self, batch: list[_PendingAnswer], error: OSError) -> None:
        self.failed += batch
        self._try_at = self._target.now() + _RETRY
        self.complain(error)

    def complain(self, error: OSError) -> None:
        if not self._complained:
            logger.error("actions cannot be read or answered now: %s", error)
        self._complained = True
        self.trouble = f"it cannot be answered: {error}"

    def _write_down(self, batch: list[_PendingAnswer]) -> None:
        rows = [(each.action, each.answer) for each in batch]
        self._audit.append(rows, self._target.wall(), f"process {os.getpid()}")
        for each in batch:
            each.audited = True
        for action, answer in rows:
            reason = f" ({action.why})" if action.why else ""
            logger.info("%s, asked by %s%s: %s", action.verb, action.who, reason, answer.said)

    def _give(self, action: Action, answer: Answer) -> None:
        self._folder.answer(answer)
        if not self._folder.remove(action.id):
            self._folder.retract(action.id)  # it was taken back: no asker waits
        self._target.kv.delete(_answer_key(action.id))

    def forget_withdrawn(self) -> None:
        waiting = {_answer_key(id) for id in self._folder.waiting()}
        for key, _ in self._target.kv.items(_CARRIED_OUT):
            if key not in waiting:
                self._target.kv.delete(key)


def _answer_key(id: str) -> bytes:
    return _CARRIED_OUT + os.fsencode(id)


@dataclass(slots=True)
class _Task:
    """An action; *work* is None until it is begun, and if it has to be begun anew."""

    action: Action
    verb: Apply
    work: Work | None = None
    waiting: bool = False


class ActionRunner:
    """Carries out *verbs* on *target*, in portions; answers once a result is durable."""

    def __init__(self, target: JobTarget, job: str, verbs: Mapping[str, Apply]) -> None:
        self._target = target
        self._job = job
        self._verbs = verbs
        self._folder = ActionFolder(target.folder)
        self._answers = AnswerQueue(target, self._folder)
        self._known: set[str] = set()  # ids
        self._unread = False
        self._running: deque[_Task] = deque()
        self._queued: deque[_Task] = deque()
        self._swept = 0.0
        self._durable = True
        self._trouble = "it cannot be written"

    @property
    def busy(self) -> bool:
        return bool(self._running or self._queued or self._unread or self._answers.fresh)

    @property
    def stuck(self) -> str:
        """The write error that stops it; empty: none."""
        if self._answers.failed:
            return self._answers.trouble
        return self._trouble if self.busy and not self._durable else ""

    @property
    def waits(self) -> bool:
        """Whether an action is left to be carried out; unreadable ones keep no crawl open."""
        try:
            return self.busy or any(id not in self._known for id in self._folder.waiting())
        except OSError as error:
            self._answers.complain(error)
            return False

    def poll(self, seconds: float = PORTION) -> None:
        """Read new actions, and carry actions out for about so many *seconds*."""
        self._target.apply_changes()
        try:
            self._poll(self._target.wall(), seconds)
        except OSError as error:  # a folder that is no folder, or not ours
            self._answers.complain(error)

    def _poll(self, wall: float, seconds: float) -> None:
        new = [id for id in self._folder.waiting() if id not in self._known]
        for id in new[:_READ]:
            self._read(id)
        self._unread = len(new) > _READ
        self._work(self._target.now() + seconds)
        if self._answers.due(self._target.now()) and self._committed():
            self._answers.give(self._target.now())
        if wall > self._swept + _SWEEP:
            self._swept = wall
            self._folder.sweep(wall)
            self._answers.forget_withdrawn()
            self._known.intersection_update(self._folder.waiting())

    def _read(self, id: str) -> None:
        self._known.add(id)
        if self._folder.is_answered(id):
            self._folder.remove(id)  # a kill came between the two
            return
        try:
            action = self._folder.read(id)
        except (ActionError, OSError) as error:  # none of ours, or taken back
            logger.warning("action %s is not carried out: %s", id[:80], error)
            return
        if self._answers.add_stored(action):
            return
        verb = self._verbs.get(action.verb)
        if action.job not in (self._job, FIRST):
            self._refuse(action, "the action was left for another job, or for one that was here "
                         "before")  # fmt: skip
        elif verb is None:
            known = ", ".join(self._verbs)
            self._refuse(action, f"there is no verb {action.verb[:80]!r}; known: {known}")
        elif not self._step(task := _Task(action, verb)):
            self._queued.append(task)

    def _refuse(self, action: Action, why: str) -> None:
        self._answers.add(action, Answer(action.id, False, why))

    def _work(self, until: float) -> None:
        waiting = 0
        while (self._running or self._queued) and self._committed():
            self._begin_next()
            if waiting >= len(self._running):
                return  # all of them wait for something else
            task = self._running.popleft()
            if not self._step(task):
                self._running.append(task)
            waiting = waiting + 1 if task.waiting else 0
            if self._target.now() >= until:
                return

    def _begin_next(self) -> None:
        while self._queued and sum(not task.waiting for task in self._running) < _ABREAST:
            task = self._queued.popleft()
            if self._folder.is_pending(task.action.id):
                self._running.append(task)
            else:
                self._refuse(task.action, "it was taken back before it was begun")

    def _step(self, task: _Task) -> bool:
        """Carry out *task*, or its next portion; True: it is done."""
        action, task.waiting = task.action, False
        try:
            if task.work is not None:
                task.waiting = next(task.work) is WAITING
                return False
            begun = task.verb(self._target, action)
            if not isinstance(begun, tuple):
                task.work = begun
                return False
            answer = Answer(action.id, True, *begun)
        except StopIteration as end:
            answer = Answer(action.id, True, *end.value)
        except StoreWriteError as error:
            # Begun anew once writing works again, from where its progress was kept.
            self._durable, self._trouble, task.work = False, str(error), None
            return False
        except SuiteError as error:
            answer = Answer(action.id, False, str(error))
        except Exception as error:  # a fault in a verb must not end the crawl
            logger.exception("the action %s failed", action.verb)
            answer = Answer(action.id, False, f"it failed: {error!r}")
        self._answers.add(action, answer)
        return True

    def _committed(self) -> bool:
        self._target.apply_changes()
        try:
            self._durable = self._target.commit()
        except StoreWriteError as error:
            self._trouble = str(error)
            self._durable = False
        return self._durable


def run_on_job(verb: JobVerb, call: Invocation) -> int:
    """Do *verb* as *call* says, on the job directory that it names; return the exit code."""
    if verb.run_with is not None:
        return verb.run_with(call, ask_job)
    question = verb.plan(call)
    if verb.look is not None and verb.looks(call.options):
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
    job = JobFile.require(folder)
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
        answer = left.pop_answer(action.id)
        now = time.monotonic()
        if answer is not None or now > deadline:
            return answer
        if now >= try_at:
            try_at = now + _ASK
            try:
                if _carried_out(folder, job.id, action.id, deadline):
                    continue
            except (SuiteError, OSError):
                with suppress(OSError):
                    left.remove(action.id)  # it was refused: it must not be done some day
                raise
        time.sleep(_POLL)


def _ask_future_job(folder: Path, verb: str, who: str, why: str) -> None:
    action = Action(new_id(urgent=True), verb, {}, FIRST, who, time.time(), why)
    try:
        folder.parent.mkdir(exist_ok=True)
        folder.mkdir(exist_ok=True)
        ActionFolder(folder).submit(action)
    except OSError as error:
        raise JobError(f"{folder} cannot be written: {error.strerror}") from error


def _carried_out(folder: Path, job: str, id: str, deadline: float) -> bool:
    """Carry out the actions in *folder*, until *deadline* if it is full; False: a crawl has it."""
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
