"""``set``: another value for a setting, for as long as this crawl runs.

It is not kept: where a crawl is started from is the one place that says how it begins.
"""

from __future__ import annotations

from functools import partial

from scrapy_spider_suite.operate.actions import Action
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.operate.verb import Result, Work, in_a_thread


def set_value(site: JobTarget, action: Action) -> Result | Work:
    """Change one setting; with *dry*, only say whether that could be."""
    action.expect("name", "value", "dry")
    name, value = action.get("name", str), action.get("value", str)
    dry = action.get("dry", bool, default=False)
    if site.reads_long(name):
        return _after_reading(site, name, value, dry=dry)
    return _set(site, name, value, dry=dry)


def _after_reading(site: JobTarget, name: str, value: str, *, dry: bool) -> Work:
    yield from in_a_thread(partial(site.read_setting, name, value), 0.0)
    return _set(site, name, value, dry=dry)


def _set(site: JobTarget, name: str, value: str, *, dry: bool) -> Result:
    old, new = site.set(name, value, dry=dry)
    facts = {"name": name, "old": old, "new": new}
    if old == new:
        return f"{name} is {new} already", facts
    if dry:
        return f"{name} is {old} and would be {new} until this crawl ends", facts
    return f"{name} was {old} and is {new} until this crawl ends", facts
