"""``scrapy packs``: look into packs of pages, beside a running crawl too, take some out or away."""

from __future__ import annotations

from scrapy_spider_suite.commands.base import VerbCommand


class Command(VerbCommand):
    """See ``scrapy packs --help``."""

    name = "packs"
    package = "scrapy_spider_suite.commands.packs_verbs"
    unusable = "no packs"
    faults = (OSError,)

    def syntax(self) -> str:
        return "VERB [ARGUMENT...] [PATH...] [options]"

    def short_desc(self) -> str:
        return "Look into packs of pages of scrapy-spider-suite, take pages out, remove some"
