"""``pause`` and ``resume``. The pause is kept in the job: a crawl started again stays paused."""

from __future__ import annotations

from collections.abc import Callable

from scrapy_spider_suite.operate.actions import Action
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.operate.restrictions import keep_pause, lift_pause, paused_by
from scrapy_spider_suite.operate.verb import (
    ACT_EXITS,
    Invocation,
    JobVerb,
    Question,
    Result,
    add_act_options,
)


def _plan(then: str) -> Callable[[Invocation], Question]:
    return lambda call: Question(future_job=then)


def pause(target: JobTarget, action: Action) -> Result:
    """Send nothing more; what is under way is fetched to its end."""
    action.expect()
    before = paused_by(target.kv)
    if before:
        return f"it was paused already: {before}", {"paused": True, "changed": False}
    keep_pause(target.kv, action)
    target.pause(paused=True)
    how = "what is under way is finished" if target.running else "a crawl that is started waits"
    return f"paused; {how}", {"paused": True, "changed": True}


def resume(target: JobTarget, action: Action) -> Result:
    """Continue."""
    action.expect()
    if not paused_by(target.kv):
        return "it was not paused", {"paused": False, "changed": False}
    lift_pause(target.kv)
    target.pause(paused=False)
    return "the crawl goes on", {"paused": False, "changed": True}


VERBS = (
    JobVerb(
        "pause", "send nothing more until `resume`", add_options=add_act_options,
        plan=_plan("the crawl that begins a job there waits"), apply=pause,
        urgent=True, stands="pause",
        about=(
            "What is under way is fetched to its end. The crawl neither ends nor times out while\n"
            "it is paused. A pause is kept in the job: a crawl that is started again stays\n"
            "paused. Where DIR holds no job yet, the crawl that begins one there waits at once."
        ),
        examples=('pause -j crawls/news --why "maintenance of the proxy"',), exits=ACT_EXITS,
    ),
    # It stands until the next pause: an agent that was removed, and comes back, has the pause in
    # its job.
    JobVerb(
        "resume", "continue a paused crawl", add_options=add_act_options,
        plan=_plan("the crawl that begins a job there goes on"), apply=resume,
        urgent=True, stands="pause",
        examples=("resume -j crawls/news",), exits=ACT_EXITS,
    ),
)  # fmt: skip
