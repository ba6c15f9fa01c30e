"""The verbs of ``scrapy packs``; a module is imported when one of its verbs is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy_spider_suite.commands.packs_verbs.verb import Verb

MODULES = {
    "ls": "listing",
    "get": "getting",
    "cat": "getting",
    "verify": "verifying",
    "links": "linking",
    "export": "exporting",
    "redact": "redacting",
}
"""Verb -> the module here whose `VERBS` has it, in the order in which the help lists them."""


def find(name: str) -> Verb | None:
    """The verb called *name*, or None."""
    if name not in MODULES:
        return None
    verbs: tuple[Verb, ...] = import_module(f"{__name__}.{MODULES[name]}").VERBS
    return next(verb for verb in verbs if verb.name == name)


def overview() -> str:
    """Every verb in a line, and what holds for all of them."""
    verbs = [verb for name in MODULES if (verb := find(name)) is not None]
    lines = [f"  {f'{v.name} {v.arguments}'.strip():<26} {v.summary}" for v in verbs]
    return (
        "Verbs:\n" + "\n".join(lines) + "\n\n"
        "PATH is a pack or a folder of packs, of which there may be several (one of each agent);\n"
        "without one it is SUITE_PACKS_DIR of the project. A crawl may be writing there.\n\n"
        "`scrapy packs VERB --help` has the options of a verb, and examples.\n\n"
        "Exit codes: 0 done, 1 the answer is no (see the verb), 2 wrong usage or no packs."
    )
