"""The normaliser of a job, for those who look at it from outside."""

from __future__ import annotations

import sys
from dataclasses import replace

from scrapy_spider_suite.crawl.crawl_policy import TWINS_TABLE, NoStats, make_normalizer
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.explaining.terms import Terms
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.urls.normalizer import Normalizer


def normalizer_of_job(store: RocksStore) -> Normalizer:
    """The normaliser of the last crawl of the job of *store*; of one that kept no terms, the plain.

    Raises `SettingsError` if the project's own normaliser is not to be had here.
    """
    terms = Terms.load(store.kv("terms"))
    if terms is None:
        return Normalizer()
    return make_normalizer(terms.settings, store.kv(TWINS_TABLE), NoStats(), terms.domains)


def normalizer_to_look(terms: Terms, store: RocksStore | None) -> Normalizer:
    """The normaliser of a crawl by *terms*; a project's own is done without if it is not here."""
    kv = None if store is None else store.kv(TWINS_TABLE)
    try:
        return make_normalizer(terms.settings, kv, NoStats(), terms.domains)
    except SettingsError as error:
        print(f"scrapy frontier: {error}: judged without it", file=sys.stderr)
        bare = replace(terms.settings, normalizer="")
        return make_normalizer(bare, kv, NoStats(), terms.domains)
