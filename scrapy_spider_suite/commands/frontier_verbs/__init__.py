"""The verbs of ``scrapy frontier``, a module each (or one for a few that belong together).

A module is imported when one of its verbs is asked for, all of them for the list of verbs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy_spider_suite.commands.frontier_verbs.verb import Verb

MODULES = {
    "status": "status",
    "hosts": "hosts",
    "why": "why",
    "test": "trying",
    "urls": "urls",
    "set": "setting",
    "add": "add",
    "refetch": "renewing",
    "retry": "renewing",
    "pause": "pausing",
    "resume": "pausing",
    "block": "blocking",
    "unblock": "blocking",
    "blocks": "blocking",
    "drop": "dropping",
    "audit": "audit",
    "snapshot": "snapshot",
    "upgrade": "upgrade",
    "log": "log",
    "report": "report",
    "check": "check",
    "settings": "settings",
}
"""Verb -> the module here whose `VERBS` has it, in the order in which the help lists them."""


def find(name: str) -> Verb | None:
    """The verb called *name*, or None."""
    if name not in MODULES:
        return None
    module = import_module(f"{__name__}.{MODULES[name]}")
    verbs: tuple[Verb, ...] = module.VERBS
    return next(verb for verb in verbs if verb.name == name)


def overview() -> str:
    """Every verb in a line, and what holds for all of them."""
    verbs = [verb for name in MODULES if (verb := find(name)) is not None]
    lines = [f"  {f'{v.name} {v.arguments}'.strip():<26} {v.summary}" for v in verbs]
    return (
        "Verbs:\n" + "\n".join(lines) + "\n\n"
        "`scrapy frontier VERB --help` has the options of a verb, and examples.\n\n"
        "Exit codes: 0 done, 1 the answer is no (see the verb), 2 wrong usage or an unusable job,\n"
        "3 no answer in time."
    )
