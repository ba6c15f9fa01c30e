"""The operator: carries out what is left in the action folder, answers, and writes it down.

A verb is a function of the site and the action. What it returns is the answer; one that has much
to do is a generator, which yields between portions and returns the answer at its end. Each portion
is committed by itself, and keeps in the job how far it has come: an action that a kill cut off is
carried on by whoever uses the job next.

Short ones are carried out as they are read. Of the others some are under way at a time, in turn,
so that none waits for one that waits itself; the rest stands in line.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from scrapy_spider_suite.control.actions import FIRST, Action, Answer
from scrapy_spider_suite.control.answering import Answers
from scrapy_spider_suite.control.folder import ActionFolder
from scrapy_spider_suite.control.site import Site
from scrapy_spider_suite.errors import ActionError, StoreWriteError, SuiteError

logger = logging.getLogger(__name__)

Result = tuple[str, dict[str, Any]]
Work = Generator[Any, None, Result]
"""Yields nothing, or `WAITING`."""
Verb = Callable[[Site, Action], Result | Work]

PORTION = 0.015
"""Seconds for which a crawl may be kept from its work at a time."""
WAITING: Final = True
"""What a verb yields that has nothing to do before something else has happened."""
_SWEEP = 3600.0
_READ = 100
"""Actions that are read at a time: some milliseconds."""
_ABREAST = 8
"""Long actions that are under way at a time, beside those that wait: each has a file open."""


@dataclass(slots=True)
class _Task:
    """An action; *work* is None until it is begun, and if it has to be begun anew."""

    action: Action
    verb: Verb
    work: Work | None = None
    waiting: bool = False


class Operator:
    """Carries out *verbs* on *site*, the job with the id *job*."""

    def __init__(self, site: Site, job: str, verbs: Mapping[str, Verb]) -> None:
        self._site = site
        self._job = job
        self._verbs = verbs
        self._folder = ActionFolder(site.folder)
        self._answers = Answers(site, self._folder)
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
        if self._folder.answered(id):
            self._taken.add(id)
            self._folder.remove(id)  # a kill came between the two
            return
        try:
            action = self._folder.read(id)
        except ActionError as error:
            if not self._folder.fresh(id, wall):
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
        """Portions of what is under way, in turn, one batch each."""
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
            if self._folder.wanted(task.action.id):
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
