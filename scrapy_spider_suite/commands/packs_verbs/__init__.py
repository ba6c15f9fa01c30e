"""The verbs of ``scrapy packs``; a module is imported when one of its verbs is asked for."""

from __future__ import annotations

MODULES = {
    "ls": "read_verbs", "get": "read_verbs", "cat": "read_verbs", "verify": "upkeep_verbs",
    "links": "read_verbs", "search": "read_verbs", "index": "read_verbs", "export": "upkeep_verbs",
    "graph": "upkeep_verbs", "merge": "upkeep_verbs", "upload": "upkeep_verbs",
    "redact": "upkeep_verbs",
}  # fmt: skip
"""The module of each verb, in the order of the help."""

ABOUT = """\
PATH is a pack or a folder of packs. Several may be given, such as one of each agent. The
default is SUITE_PACKS_DIR of the project. A crawl may be writing there.

`scrapy packs VERB --help` has the options of a verb, and examples.

Exit codes: 0 done, 1 the answer is no (see the verb), 2 wrong usage or no packs."""
