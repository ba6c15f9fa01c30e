"""The verbs of ``scrapy packs``; a module is imported when one of its verbs is asked for."""

from __future__ import annotations

MODULES = {
    "ls": "listing",
    "get": "getting",
    "cat": "getting",
    "verify": "verifying",
    "links": "linking",
    "search": "searching",
    "index": "searching",
    "export": "exporting",
    "graph": "graphing",
    "merge": "merging",
    "upload": "uploading",
    "redact": "redacting",
}
"""Verb -> the module here whose `VERBS` has it, in the order in which the help lists them."""

ABOUT = """\
PATH is a pack or a folder of packs, of which there may be several (one of each agent);
without one it is SUITE_PACKS_DIR of the project. A crawl may be writing there.

`scrapy packs VERB --help` has the options of a verb, and examples.

Exit codes: 0 done, 1 the answer is no (see the verb), 2 wrong usage or no packs."""
"""What holds for all of them."""
