"""The verbs of ``scrapy frontier``; a module is imported when one of its verbs is needed."""

from __future__ import annotations

from importlib import import_module

from scrapy_spider_suite.operate.verb import Apply, JobVerb

MODULES = {
    "blocks": "control", "check": "upkeep", "log": "log", "audit": "log", "manifest": "log",
    "history": "history", "report": "report", "settings": "settings", "status": "status",
    "top": "top", "runs": "runs", "hosts": "status", "urls": "status", "why": "why", "test": "why",
    "block": "control", "unblock": "control", "drop": "drop", "add": "enqueue",
    "refetch": "enqueue", "retry": "enqueue", "pause": "control", "resume": "control",
    "set": "control", "snapshot": "upkeep",
}  # fmt: skip
"""The module of each verb, in the order of the help: verbs that only read come first."""
_UNLISTED = {"drain": "control", "view": "view"}
"""For `scrapy cluster drain`, and for views of a crawl of several agents."""
ABOUT = """\
`scrapy frontier VERB --help` has the options of a verb, and examples.

Exit codes: 0 done, 1 the answer is no (see the verb), 2 wrong usage or an unusable job,
3 no answer in time, 4 done in part (`drop`)."""


def find_verb(name: str) -> JobVerb | None:
    module = MODULES.get(name) or _UNLISTED.get(name)
    if module is None:
        return None
    verbs: tuple[JobVerb, ...] = import_module(f"{__name__}.{module}").VERBS
    return next(verb for verb in verbs if verb.name == name)


def actions() -> dict[str, Apply]:
    """The functions that carry out actions, by verb."""
    verbs = filter(None, map(find_verb, (*MODULES, *_UNLISTED)))
    return {verb.name: verb.apply for verb in verbs if verb.apply is not None}
