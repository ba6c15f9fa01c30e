"""``scrapy packs``: look into packs of pages, beside a running crawl too, take some out or away."""

from __future__ import annotations

from scrapy_spider_suite.commands.base import VerbCommand


class Command(VerbCommand):
    """See ``scrapy packs --help``."""

    name = "packs"
    arguments = "VERB [ARGUMENT...] [PATH...] [options]"
    summary = "Look into packs of pages of scrapy-spider-suite, take pages out, remove some"
    package = "scrapy_spider_suite.commands.packs_verbs"
    unusable = "no packs"
