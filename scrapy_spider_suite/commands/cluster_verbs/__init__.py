"""The verbs of ``scrapy cluster``; a module is imported when one of its verbs is asked for."""

from __future__ import annotations

MODULES = {
    "ls": "listing",
    "owner": "owner",
    "up": "starting",
    "drain": "leaving",
    "remove": "leaving",
    "adopt": "adopting",
    "release": "leaving",
    "forget": "leaving",
}
"""Verb -> the module here whose `VERBS` has it, in the order in which the help lists them."""

ABOUT = """\
The crawl is that of --crawl, else SUITE_CRAWL_NAME, else the only one in that Redis.
What is done to a crawl (pause, block, add, ...) is asked by `scrapy frontier VERB -j redis://...`.

`scrapy cluster VERB --help` has the options of a verb, and examples.

Exit codes: 0 done, 1 the answer is no (see the verb), 2 wrong usage, or no such Redis, crawl or
agent, 3 no answer in time."""
"""What holds for all of them."""
