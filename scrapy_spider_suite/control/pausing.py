"""``pause`` and ``resume``. A pause is kept in the job: a crawl that is started again stays paused.

Whoever pauses a crawl at night does not want a supervisor to start it again. What is under way is
fetched to its end, with its robots.txt and media.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.control.actions import Action
from scrapy_spider_suite.control.operator import Result
from scrapy_spider_suite.control.site import Site
from scrapy_spider_suite.store.interface import KV

OPERATOR = "the operator"
"""The reason for such a pause, as the scheduler and the status file name it."""
_KEY = b"paused"


def pause(site: Site, action: Action) -> Result:
    """Send nothing more."""
    action.expect()
    before = paused_by(site.kv)
    if before:
        return f"it was paused already: {before}", {"paused": True, "changed": False}
    site.kv.put(_KEY, msgpack.packb([action.who, action.when, action.why]))
    site.pause(paused=True)
    how = "what is under way is finished" if site.running else "a crawl that is started waits"
    return f"paused; {how}", {"paused": True, "changed": True}


def resume(site: Site, action: Action) -> Result:
    """Go on."""
    action.expect()
    if not paused_by(site.kv):
        return "it was not paused", {"paused": False, "changed": False}
    site.kv.delete(_KEY)
    site.pause(paused=False)
    return "the crawl goes on", {"paused": False, "changed": True}


def paused_by(kv: KV, *, comment: bool = True) -> str:
    """Who paused the job and, with their *comment*, why; "" if nobody did."""
    data = kv.get(_KEY)
    if data is None:
        return ""
    who, _, why = msgpack.unpackb(data)
    return f"{who}: {why}" if why and comment else str(who)


def reasons(kv: KV, known: Iterable[str], *, comment: bool = True) -> list[str]:
    """Why a job is paused: an operator by name, and what else of *known* reasons there is."""
    operator = paused_by(kv, comment=comment)
    found = [f"{OPERATOR} ({operator})"] if operator else []
    return found + [each for each in known if each != OPERATOR]
