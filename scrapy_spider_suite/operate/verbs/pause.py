"""``pause`` and ``resume``. A pause is kept in the job: a crawl that is started again stays paused.

Whoever pauses a crawl at night does not want a supervisor to start it again. What is under way is
fetched to its end, with its robots.txt and media.
"""

from __future__ import annotations

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.operate.actions import Action
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.operate.restrictions import _PAUSED, paused_by
from scrapy_spider_suite.operate.verb import Result


def pause(site: JobTarget, action: Action) -> Result:
    """Send nothing more."""
    action.expect()
    before = paused_by(site.kv)
    if before:
        return f"it was paused already: {before}", {"paused": True, "changed": False}
    site.kv.put(_PAUSED, msgpack.packb([action.who, action.when, action.why]))
    site.pause(paused=True)
    how = "what is under way is finished" if site.running else "a crawl that is started waits"
    return f"paused; {how}", {"paused": True, "changed": True}


def resume(site: JobTarget, action: Action) -> Result:
    """Go on."""
    action.expect()
    if not paused_by(site.kv):
        return "it was not paused", {"paused": False, "changed": False}
    site.kv.delete(_PAUSED)
    site.pause(paused=False)
    return "the crawl goes on", {"paused": False, "changed": True}
