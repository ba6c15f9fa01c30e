"""Stores of what was seen, and a cache before them; imported at first use (they bring numpy)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy_spider_suite.seen.fingerprint_cache import FingerprintCache
    from scrapy_spider_suite.seen.sieve import Sieve, SieveSet
    from scrapy_spider_suite.seen.trie_store import TrieStore

__all__ = ["FingerprintCache", "Sieve", "SieveSet", "TrieStore"]

_MODULES = {
    "FingerprintCache": "fingerprint_cache",
    "Sieve": "sieve",
    "SieveSet": "sieve",
    "TrieStore": "trie_store",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
