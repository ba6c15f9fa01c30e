"""What a job keeps, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scrapy_spider_suite.settings import values as v
from scrapy_spider_suite.settings.declarations import FIXED, FREE, FROM_NOW_ON, setting


@dataclass(frozen=True, kw_only=True)
class Store:
    """What a job keeps, and how."""

    seen: Literal["trie", "sieve", "plain"] = setting(
        v.choice("trie", "sieve", "plain"), "trie", FROM_NOW_ON,
        "How it is known what was seen: URLs that are done in a compressed trie, a third of the "
        "room; fingerprints of them in a sieve, where links wait to be compared many at a time; "
        "or each with a row of the database. What is in a trie or a sieve stays there.",
    )
    seen_cache: int = setting(
        v.size(), 16 << 20, FREE,
        "Memory for fingerprints of what was seen a moment ago, 16 bytes each; 0 has none.",
    )
    sieve_bits: Literal["64", "128"] = setting(
        v.choice("64", "128"), "128", FIXED,
        "Bits of a fingerprint in a sieve: less room on disk, or less risk that two are taken for "
        "one.",
    )
    sieve_waiting: int = setting(
        v.integer(1024, unit="URLs"), 1 << 17, FREE,
        "URLs that a sieve holds in memory before it merges them with those on disk.",
    )
    sync: Literal["process", "power"] = setting(
        v.choice("process", "power"), "process", FREE,
        "What a commit survives: the end of the process, or a power failure too (slower).",
    )
    workbench_memory: int = setting(
        v.size(1 << 20), 64 << 20, FREE,
        "Memory for hosts that are kept ready; the others wait on disk.",
    )
    require_durable: bool = setting(
        v.boolean(), False, FROM_NOW_ON,
        "Refuse requests that cannot be stored, instead of keeping them in memory.",
    )
    storable: tuple[str, ...] = setting(
        v.dotted_paths(), (), FROM_NOW_ON,
        "Classes, beside the built-in ones, that requests in the job directory may hold.",
    )
