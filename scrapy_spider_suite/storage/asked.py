"""Which of what waits is to be fetched whatever other agents know of its URL."""

from __future__ import annotations

from typing import Final

from scrapy_spider_suite.frontier.entries import Entry, Flag
from scrapy_spider_suite.frontier.outcomes import OUTCOMES, State
from scrapy_spider_suite.store.revisit_plans import Revisits
from scrapy_spider_suite.store.rows import UrlState

# Plain integers: operators of flags are Python code.
_START, _DONT_FILTER = int(Flag.START), int(Flag.DONT_FILTER)
_ENDED: Final = frozenset(
    event for event, outcome in OUTCOMES.items() if outcome.state is not State.PENDING
)


def asked_for(entry: Entry, state: UrlState) -> bool:
    """Whether somebody asked for *entry*, which waits, though its URL was known: a spider that said
    ``dont_filter``, an operator.

    What ``start()`` yields every agent asks for that begins. So that is none of it, unless *state*
    says that one was sent, which this one follows (a retry).
    """
    if not entry.flags & _DONT_FILTER:
        return False
    return not entry.flags & _START or state.event in _ENDED


def due_again(revisits: Revisits, identity: bytes) -> None:
    """A page is not pending any more, and nobody has visited it: let it wait for its time, if it
    has a plan."""
    plan = revisits.get(identity)
    if plan is not None and not revisits.waits(identity, plan):
        revisits.forget(identity)
        revisits.take_over(identity, plan, waits=True)
