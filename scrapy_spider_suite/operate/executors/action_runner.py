"""Carries actions out in portions, and answers once the result is durable."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scrapy_spider_suite.errors import ActionError, StoreWriteError, SuiteError
from scrapy_spider_suite.operate.actions import FIRST, Action, ActionFolder, Answer, AuditLog
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.operate.verb import PORTION, WAITING, Apply, Work

logger = logging.getLogger(__name__)

_AT_ONCE = 100
"""Answers that are given in one go: some milliseconds."""
_TRY = 10.0
"""Seconds between two tries to give an answer."""
_CARRIED_OUT = b"carried out "
"""Begins the key of an answer in the job; it is written with the last portion of its action."""
_SAID = 2_000
"""Characters that are left of an answer that is too long."""


@dataclass(slots=True)
class _PendingAnswer:
    """An answer that is to be given, and whether it is in the audit log already."""

    action: Action | str
    answer: Answer
    audited: bool = False


class AnswerQueue:
    """Those to the actions on *site*, whose *folder* they are left in."""

    def __init__(self, site: JobTarget, folder: ActionFolder) -> None:
        self._site = site
        self._folder = folder
        self._audit = AuditLog(site.folder)
        self._unsaid: list[_PendingAnswer] = []
        self._failed: list[_PendingAnswer] = []
        self._try_at = 0.0  # when those that failed are tried again
        self._complained = False
        self._trouble = ""

    @property
    def more(self) -> bool:
        """Whether any can be given now."""
        return bool(self._unsaid)

    @property
    def left(self) -> bool:
        """Whether any is to be given."""
        return bool(self._unsaid or self._failed)

    @property
    def trouble(self) -> str:
        """Why some cannot be given now; empty: they can."""
        return self._trouble if self._failed else ""

    def conclude(self, action: Action | str, answer: Answer) -> None:
        """Have *answer* given to *action*, or to the file of that id, which is none."""
        try:
            answer.to_bytes()
        except ActionError:
            answer = Answer(answer.id, answer.ok, answer.said[:_SAID], {"cut_short": True})
        if isinstance(action, Action):
            self._site.kv.put(_mark(action.id), answer.to_bytes())
        self._unsaid.append(_PendingAnswer(action, answer))

    def was_carried_out(self, action: Action) -> bool:
        """Whether *action* was, by an operator that could not answer; its answer is given then."""
        done = self._site.kv.get(_mark(action.id))
        if done is None:
            return False
        answer = Answer.from_bytes(done)
        self._unsaid.append(_PendingAnswer(action, answer, self._is_audited(action.id)))
        return True

    def _is_audited(self, id: str) -> bool:
        try:
            return any(row.get("id") == id for row in self._audit.rows())
        except OSError:
            return False

    def due(self, now: float) -> bool:
        """Whether `say` has anything to do."""
        return bool(self._unsaid) or (bool(self._failed) and now >= self._try_at)

    def say(self, now: float) -> None:
        """Write some answers down, together, and give them; all that they say is durable."""
        batch = self._unsaid[:_AT_ONCE]
        del self._unsaid[:_AT_ONCE]
        if now >= self._try_at:
            batch, self._failed = [*self._failed, *batch], []
        try:
            self._write_down([each for each in batch if not each.audited])
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
        self._failed += batch
        self._try_at = self._site.now() + _TRY
        self.complain(error)

    def complain(self, error: OSError) -> None:
        """Say once that the folder cannot be used; it is tried again."""
        if not self._complained:
            logger.error("actions cannot be read or answered now: %s", error)
        self._complained = True
        self._trouble = f"it cannot be answered: {error}"

    def _write_down(self, batch: list[_PendingAnswer]) -> None:
        if not batch:
            return
        rows = [(each.action, each.answer) for each in batch]
        self._audit.append(rows, self._site.wall(), f"process {os.getpid()}")
        for each in batch:
            each.audited = True
            action, answer = each.action, each.answer
            if isinstance(action, str):
                logger.warning("action %s: %s", action[:80], answer.said)
                continue
            reason = f" ({action.why})" if action.why else ""
            logger.info("%s, asked by %s%s: %s", action.verb, action.who, reason, answer.said)

    def _give(self, action: Action | str, answer: Answer) -> None:
        self._folder.answer(answer)
        if isinstance(action, str):
            self._folder.mark_refused(action)
            return
        if not self._folder.remove(action.id):
            self._folder.retract(action.id)  # it was taken back: nobody comes for it
        self._site.kv.delete(_mark(action.id))

    def forget_what_is_gone(self) -> None:
        """Of actions that whoever asked took back there is nothing left to answer."""
        waiting = {_mark(id) for id in self._folder.waiting()}
        for key, _ in self._site.kv.items(_CARRIED_OUT):
            if key not in waiting:
                self._site.kv.delete(key)


def _mark(id: str) -> bytes:
    return _CARRIED_OUT + os.fsencode(id)


_SWEEP = 3600.0
_READ = 100
"""Actions that are read at a time: some milliseconds."""
_ABREAST = 8
"""Long actions that are under way at a time, beside those that wait: each has a file open."""


@dataclass(slots=True)
class _Task:
    """An action; *work* is None until it is begun, and if it has to be begun anew."""

    action: Action
    verb: Apply
    work: Work | None = None
    waiting: bool = False


class ActionRunner:
    """Carries out *verbs* on *site*, the job with the id *job*."""

    def __init__(self, site: JobTarget, job: str, verbs: Mapping[str, Apply]) -> None:
        self._site = site
        self._job = job
        self._verbs = verbs
        self._folder = ActionFolder(site.folder)
        self._answers = AnswerQueue(site, self._folder)
        self._taken: set[str] = set()
        self._unread = False
        self._works: deque[_Task] = deque()
        self._line: deque[_Task] = deque()
        self._swept = 0.0
        self._faulty: set[str] = set()
        self._durable = True
        self._trouble = "it cannot be written"

    @property
    def busy(self) -> bool:
        """Whether there is more to be done at once."""
        return bool(self._works or self._line or self._unread or self._answers.more)

    @property
    def stuck(self) -> str:
        """Why it cannot go on, since something cannot be written now; empty: it can."""
        held = self.busy or self._answers.left
        return self._answers.trouble or (self._trouble if held and not self._durable else "")

    @property
    def waits(self) -> bool:
        """Whether anything is left to be carried out; what cannot be read keeps no crawl open."""
        try:
            return self.busy or any(id not in self._taken for id in self._folder.waiting())
        except OSError as error:
            self._answers.complain(error)
            return False

    def look(self, seconds: float = PORTION) -> None:
        """Carry out what is new, and for about so many *seconds* what takes longer."""
        self._see_to(self._site.look)
        try:
            self._look(self._site.wall(), seconds)
        except OSError as error:  # a folder that is no folder, or not ours
            self._answers.complain(error)

    def _see_to(self, step: Callable[[], None]) -> None:
        """Let the site do a *step*: a fault there must not keep the crawl from its work."""
        try:
            step()
        except Exception:  # whatever it is
            if step.__name__ not in self._faulty:
                logger.exception("blocks cannot be put in force, or taken out, now")
            self._faulty.add(step.__name__)
        else:
            self._faulty.discard(step.__name__)

    def _look(self, wall: float, seconds: float) -> None:
        new = [id for id in self._folder.waiting() if id not in self._taken]
        for id in new[:_READ]:
            self._take(id, wall)
        self._unread = len(new) > _READ
        self._see_to(self._site.settle)
        self._go_on(self._site.now() + seconds)
        if self._answers.due(self._site.now()) and self._committed():
            self._answers.say(self._site.now())
        if wall > self._swept + _SWEEP:
            self._swept = wall
            self._folder.sweep(wall)
            self._answers.forget_what_is_gone()
            self._taken.intersection_update(self._folder.waiting())

    def _take(self, id: str, wall: float) -> None:
        if self._folder.is_answered(id):
            self._taken.add(id)
            self._folder.remove(id)  # a kill came between the two
            return
        try:
            action = self._folder.read(id)
        except ActionError as error:
            if not self._folder.may_be_half_written(id, wall):
                self._taken.add(id)
                answer = Answer(id, False, f"this is no action: {error}")
                self._answers.conclude(id, answer)
            return
        self._taken.add(id)
        self._begin(action)

    def _begin(self, action: Action) -> None:
        verb = self._verbs.get(action.verb)
        if self._answers.was_carried_out(action):
            return
        if action.job not in (self._job, FIRST):
            self._refuse(action, "the action was left for another job, or for one that was here "
                         "before")  # fmt: skip
        elif verb is None:
            known = ", ".join(self._verbs)
            self._refuse(action, f"there is no verb {action.verb[:80]!r}; known: {known}")
        elif not self._step(task := _Task(action, verb)):
            self._line.append(task)

    def _refuse(self, action: Action, why: str) -> None:
        self._answers.conclude(action, Answer(action.id, False, why))

    # What takes longer

    def _go_on(self, until: float) -> None:
        waiting = 0
        while (self._works or self._line) and self._committed():
            self._begin_next()
            if waiting >= len(self._works):
                return  # all of them wait for something else
            task = self._works.popleft()
            if not self._step(task):
                self._works.append(task)
            waiting = waiting + 1 if task.waiting else 0
            if self._site.now() >= until:
                return

    def _begin_next(self) -> None:
        while self._line and sum(not task.waiting for task in self._works) < _ABREAST:
            task = self._line.popleft()
            if self._folder.is_pending(task.action.id):
                self._works.append(task)
            else:
                self._refuse(task.action, "it was taken back before it was begun")

    def _step(self, task: _Task) -> bool:
        """Carry out *task*, or its next portion; whether it is over."""
        action, task.waiting = task.action, False
        try:
            if task.work is not None:
                task.waiting = next(task.work) is WAITING
                return False
            begun = task.verb(self._site, action)
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
        self._answers.conclude(action, answer)
        return True

    def _committed(self) -> bool:
        self._see_to(self._site.settle)
        try:
            self._durable = self._site.commit()
        except StoreWriteError as error:
            self._trouble = str(error)
            self._durable = False
        return self._durable
