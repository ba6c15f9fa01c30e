"""Answers on their way: durable and in the audit log first, then given to whoever asked.

What came of a round of actions is committed together and written to the medium together; what
cannot be given (a full disk, a folder of somebody else) is kept, in the job too, and tried again.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from scrapy_spider_suite.control.actions import Action, Answer
from scrapy_spider_suite.control.audit import AuditLog
from scrapy_spider_suite.control.folder import ActionFolder
from scrapy_spider_suite.control.site import Site
from scrapy_spider_suite.errors import ActionError

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
class _Unsaid:
    """An answer that is to be given, and whether it is in the audit log already."""

    action: Action | str
    answer: Answer
    audited: bool = False


class Answers:
    """Those to the actions on *site*, whose *folder* they are left in."""

    def __init__(self, site: Site, folder: ActionFolder) -> None:
        self._site = site
        self._folder = folder
        self._audit = AuditLog(site.folder)
        self._unsaid: list[_Unsaid] = []
        self._failed: list[_Unsaid] = []
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
        self._unsaid.append(_Unsaid(action, answer))

    def was_carried_out(self, action: Action) -> bool:
        """Whether *action* was, by an operator that could not answer; its answer is given then."""
        done = self._site.kv.get(_mark(action.id))
        if done is None:
            return False
        answer = Answer.from_bytes(done)
        self._unsaid.append(_Unsaid(action, answer, self._is_audited(action.id)))
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

    def _fail(self, batch: list[_Unsaid], error: OSError) -> None:
        self._failed += batch
        self._try_at = self._site.now() + _TRY
        self.complain(error)

    def complain(self, error: OSError) -> None:
        """Say once that the folder cannot be used; it is tried again."""
        if not self._complained:
            logger.error("actions cannot be read or answered now: %s", error)
        self._complained = True
        self._trouble = f"it cannot be answered: {error}"

    def _write_down(self, batch: list[_Unsaid]) -> None:
        """Once for each, however often giving the answer is tried."""
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
            self._folder.put_aside(action)
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
