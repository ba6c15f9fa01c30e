"""``scrapy packs merge``."""

from __future__ import annotations

from scrapy_spider_suite.commands.packs_verbs.common import add_paths, packs_of, paths_of
from scrapy_spider_suite.commands.verb import Call, Verb
from scrapy_spider_suite.errors import PackError
from scrapy_spider_suite.packs.folder_index import merge_indexes, repair_indexes


def _run(call: Call) -> int:
    for folder in paths_of(call):
        if not folder.is_dir():
            raise PackError(f"a folder has an index of its packs, {folder} is none")
    for folder in packs_of(call).paths:
        made = repair_indexes(folder)
        call.facts({"folder": str(folder), "made": made, "files": merge_indexes(folder)})
    return 0


VERBS = (
    Verb(
        "merge", "join the indexes of packs, so that a page of many is found soon", _run, add_paths,
        "[PATH...]",
        about=(
            "A crawl does it as packs are closed; this is for packs that were brought together.\n"
            "Their own indexes stay; a pack that has none, or a damaged one, gets another. Prints\n"
            "how many were made so, and of how many files the index of a folder consists now."
        ),
        examples=("merge crawls/news/packs",),
    ),
)  # fmt: skip
