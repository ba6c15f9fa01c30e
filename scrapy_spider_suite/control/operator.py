"""The operator: carries out what is left in the action folder, answers, and writes it down.

A verb is a function of the site and the action. What it returns is the answer; one that has much
to do is a generator, which yields between portions and returns the answer at its end. Each portion
is committed by itself, and keeps in the job how far it has come: an action that a kill cut off is
carried on by whoever uses the job next.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from scrapy_spider_suite.control.actions import Action, Answer
from scrapy_spider_suite.control.audit import AuditLog
from scrapy_spider_suite.control.folder import ActionFolder
from scrapy_spider_suite.control.site import Site
from scrapy_spider_suite.errors import ActionError, StoreWriteError, SuiteError

logger = logging.getLogger(__name__)

Result = tuple[str, dict[str, Any]]
Work = Generator[None, None, Result]
Verb = Callable[[Site, Action], Result | Work]

PORTION = 0.015
"""Seconds for which a crawl may be kept from its work at a time."""
_SWEEP = 3600.0
_TRY = 10.0
"""Seconds between two tries to give an answer."""
_CARRIED_OUT = b"carried out "
"""Begins the key of an answer in the job; it is written with the last portion of its action."""
_SAID = 2_000
"""Characters that are left of an answer that is too long."""


@dataclass(slots=True)
class _Unsaid:
    """An answer that is to be given, and whether it is in the audit log already."""

    action: Action | str
    answer: Answer
    audited: bool = False


class Operator:
    """Carries out *verbs* on *site*, the job with the id *job*."""

    def __init__(self, site: Site, job: str, verbs: Mapping[str, Verb]) -> None:
        self._site = site
        self._job = job
        self._verbs = verbs
        self._folder = ActionFolder(site.folder)
        self._audit = AuditLog(site.folder)
        self._taken: set[str] = set()
        self._works: list[tuple[Action, Work]] = []
        self._unsaid: list[_Unsaid] = []
        self._say_at = 0.0  # when that is tried again, if it failed
        self._swept = 0.0
        self._complained = False
        self._faulty = False
        self._durable = True
        self._trouble = "it cannot be written"

    @property
    def busy(self) -> bool:
        """Whether there is more of an action to be carried out."""
        return bool(self._works)

    @property
    def stuck(self) -> str:
        """Why it cannot go on, since something cannot be written now; empty: it can."""
        return self._trouble if self._unsaid or (self.busy and not self._durable) else ""

    @property
    def waits(self) -> bool:
        """Whether anything is left to be carried out; what cannot be read keeps no crawl open."""
        try:
            return self.busy or any(id not in self._taken for id in self._folder.waiting())
        except OSError as error:
            self._complain(error)
            return False

    def look(self, seconds: float = PORTION) -> None:
        """Carry out what is new, and for about so many *seconds* what takes longer."""
        self._look_at_the_site()
        try:
            self._look(self._site.wall(), seconds)
        except OSError as error:  # a folder that is no folder, or not ours
            self._complain(error)

    def _look_at_the_site(self) -> None:
        try:
            self._site.look()
        except Exception:  # a fault there must not keep the crawl from its work
            if not self._faulty:
                logger.exception("blocks that are over cannot be taken out now")
            self._faulty = True
        else:
            self._faulty = False

    def _look(self, wall: float, seconds: float) -> None:
        for id in self._folder.waiting():
            if id not in self._taken:
                self._take(id, wall)
        self._go_on(self._site.now() + seconds)
        if self._unsaid and self._site.now() >= self._say_at and self._committed():
            self._say()
        if wall > self._swept + _SWEEP:
            self._swept = wall
            self._folder.sweep(wall)
            self._forget_what_is_gone()

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
                self._conclude(id, Answer(id, False, f"this is no action: {error}"))
            return
        self._taken.add(id)
        self._begin(action)

    def _begin(self, action: Action) -> None:
        verb = self._verbs.get(action.verb)
        done = self._site.kv.get(_mark(action.id))
        if done is not None:  # by an operator that could not answer
            answer = Answer.from_bytes(done)
            self._unsaid.append(_Unsaid(action, answer, self._is_audited(action.id)))
        elif action.job != self._job:
            said = "the action was left for another job, or for one that was here before"
            self._conclude(action, Answer(action.id, False, said))
        elif verb is None:
            said = f"there is no verb {action.verb[:80]!r}; known: {', '.join(self._verbs)}"
            self._conclude(action, Answer(action.id, False, said))
        else:
            self._attempt(action, lambda: verb(self._site, action))

    def _attempt(self, action: Action, step: Callable[[], Result | Work | None]) -> bool:
        """Run one *step* of *action*; True if that was its last one."""
        try:
            result = step()
        except StopIteration as end:
            result = end.value
        except StoreWriteError as error:
            self._durable, self._trouble = False, str(error)
            return False  # said elsewhere; it is tried again
        except SuiteError as error:
            self._conclude(action, Answer(action.id, False, str(error)))
            return True
        except Exception as error:  # a fault in a verb must not end the crawl
            logger.exception("the action %s failed", action.verb)
            self._conclude(action, Answer(action.id, False, f"it failed: {error!r}"))
            return True
        if isinstance(result, tuple):
            self._conclude(action, Answer(action.id, True, *result))
            return True
        if result is not None:
            self._works.append((action, result))
        return False

    def _go_on(self, until: float) -> None:
        """Portions of the first action that has more to do, one batch each."""
        while self._works and self._committed():
            action, work = self._works[0]
            if self._attempt(action, lambda work=work: next(work)):  # type: ignore[misc]
                self._works.pop(0)
            if self._site.now() >= until:
                return

    def _committed(self) -> bool:
        try:
            self._durable = self._site.commit()
        except StoreWriteError as error:
            self._trouble = str(error)
            self._durable = False
        return self._durable

    # Answers

    def _conclude(self, action: Action | str, answer: Answer) -> None:
        try:
            answer.to_bytes()
        except ActionError:
            answer = Answer(answer.id, answer.ok, answer.said[:_SAID], {"cut_short": True})
        if isinstance(action, Action):
            self._site.kv.put(_mark(action.id), answer.to_bytes())
        self._unsaid.append(_Unsaid(action, answer))

    def _is_audited(self, id: str) -> bool:
        try:
            return any(row.get("id") == id for row in self._audit.rows())
        except OSError:
            return False

    def _forget_what_is_gone(self) -> None:
        """Of actions that whoever asked took back there is nothing left to answer."""
        waiting = {_mark(id) for id in self._folder.waiting()}
        for key, _ in self._site.kv.items(_CARRIED_OUT):
            if key not in waiting:
                self._site.kv.delete(key)

    def _say(self) -> None:
        """Write answers down and give them; what the disk has no room for is kept."""
        left = []
        for each in self._unsaid:
            try:
                self._write_down(each)
                self._give(each.action, each.answer)
            except OSError as error:
                left.append(each)
                self._complain(error)
                self._say_at = self._site.now() + _TRY
            else:
                self._complained = False
        self._unsaid = left

    def _write_down(self, each: _Unsaid) -> None:
        """Once for each, however often giving the answer is tried."""
        if each.audited:
            return
        action, answer = each.action, each.answer
        self._audit.append(action, answer, self._site.wall(), f"process {os.getpid()}")
        each.audited = True
        if isinstance(action, str):
            logger.warning("action %s: %s", action[:80], answer.said)
            return
        reason = f" ({action.why})" if action.why else ""
        logger.info("%s, asked by %s%s: %s", action.verb, action.who, reason, answer.said)

    def _complain(self, error: OSError) -> None:
        """Say once that the folder cannot be used; it is tried again."""
        if not self._complained:
            logger.error("actions cannot be read or answered now: %s", error)
        self._complained = True
        self._trouble = f"it cannot be answered: {error}"

    def _give(self, action: Action | str, answer: Answer) -> None:
        self._folder.answer(answer)
        if isinstance(action, str):
            self._folder.put_aside(action)
            return
        self._folder.remove(action.id)
        self._site.kv.delete(_mark(action.id))


def _mark(id: str) -> bytes:
    return _CARRIED_OUT + os.fsencode(id)
