"""``drain``: this agent hands over all it has to the other agents of its crawl, and ends."""

from __future__ import annotations

from scrapy_spider_suite.operate.actions import Action
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.operate.verb import JobVerb, Result


def drain(site: JobTarget, action: Action) -> Result:
    """Begin with it; it goes on for as long as it takes."""
    action.expect()
    site.drain()
    return "it hands over what it has, and ends then", {"draining": True}


VERBS = (
    # `scrapy cluster drain` asks one agent for it, and waits until the agent has left.
    JobVerb("drain", "have an agent hand over all it has, and end", apply=drain, listed=False),
)
