"""The verbs of ``scrapy frontier``, a module each (or one for a few that belong together).

A module is imported when one of its verbs is asked for, all of them for the list of verbs.
"""

from __future__ import annotations

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
    "manifest": "manifest",
    "snapshot": "snapshot",
    "upgrade": "upgrade",
    "log": "log",
    "report": "report",
    "check": "check",
    "settings": "settings",
}
"""Verb -> the module here whose `VERBS` has it, in the order in which the help lists them."""

ABOUT = """\
`scrapy frontier VERB --help` has the options of a verb, and examples.

Exit codes: 0 done, 1 the answer is no (see the verb), 2 wrong usage or an unusable job,
3 no answer in time, 4 done in part (`drop`)."""
"""What holds for all of them."""
