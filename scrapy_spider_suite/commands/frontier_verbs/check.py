"""``scrapy frontier check``: whether everything in the job agrees."""

from __future__ import annotations

import json

from scrapy_spider_suite.operate.verb import Invocation, Verb
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.store.job_reader import StoreReader


def _run(call: Invocation) -> int:
    wrong = 0
    with StoreReader(call.folder()) as reader:
        for line in reader.check():
            wrong += 1
            print(json.dumps(line) if call.json else line)
    if not call.json:
        said = f"{counted(wrong, 'thing is', 'things are')} wrong"
        print(said if wrong else "everything agrees")
    return 1 if wrong else 0


VERBS = (
    Verb(
        "check", "whether everything in the job agrees", _run,
        examples=("check -j crawls/news",), exits={1: "something is wrong"},
    ),
)  # fmt: skip
