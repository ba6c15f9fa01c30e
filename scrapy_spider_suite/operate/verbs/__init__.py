"""The verbs of ``scrapy frontier``: a verb is what its module here lists in ``VERBS``.

Nothing else names a verb. A module that has one verb has its name; it is then the only one that is
imported for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from scrapy_spider_suite.operate.verb import Apply, JobVerb


def find_verb(name: str) -> JobVerb | None:
    """The verb called *name*, or None."""
    if name in _modules():
        for verb in _verbs_in(name):
            if verb.name == name:
                return verb
    return all_verbs().get(name)


@cache
def all_verbs() -> Mapping[str, JobVerb]:
    """Every verb by its name."""
    return {verb.name: verb for module in _modules() for verb in _verbs_in(module)}


def actions() -> dict[str, Apply]:
    """What carries out an action, by its verb."""
    return {name: verb.apply for name, verb in all_verbs().items() if verb.apply is not None}


@cache
def _modules() -> list[str]:
    return sorted(module.name for module in iter_modules(__path__))


def _verbs_in(module: str) -> tuple[JobVerb, ...]:
    verbs: tuple[JobVerb, ...] = import_module(f"{__name__}.{module}").VERBS
    return verbs
