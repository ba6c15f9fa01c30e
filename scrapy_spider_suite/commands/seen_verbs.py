"""The verbs of ``scrapy seen``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from scrapy import Request
from scrapy.utils.request import fingerprint
from w3lib.url import canonicalize_url

from scrapy_spider_suite.errors import JobError, UnknownUrlError
from scrapy_spider_suite.runtime.text import counted, printable
from scrapy_spider_suite.seen.sieve import Sieve, waiting_in
from scrapy_spider_suite.seen.sorted_set import SetManifest
from scrapy_spider_suite.seen.trie_store import TrieStore
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.urls.normalize import normalize

_TRIE, _SIEVE = "seen-trie", "seen-sieve"  # of the dupefilters, which know URLs by other names
PLACES = (f"{FOLDER}/seen", _TRIE, f"{FOLDER}/sieve", _SIEVE)
"""Where a job directory may have a store: that of a crawl, that of a dupefilter."""
_NO_URLS = "a sieve holds fingerprints, and no URLs"


def folder_of(folder: str | None, jobdir: str | None) -> Path:
    """The folder of the store that is meant. Raises JobError if the job has none."""
    if folder is not None:
        return Path(folder)
    job = Path(str(jobdir))
    found = [job / place for place in PLACES if (job / place / "lock").exists()]
    if not found:
        raise JobError(f"{jobdir} has no store of seen URLs")
    return found[0]


def _manifest(folder: Path) -> SetManifest | None:
    """That of a sieve; None if there is none. Raises JobError if the sieve has nothing to show."""
    found = SetManifest.read(folder)
    if found is None and any(folder.glob("waiting-*.log")):
        raise JobError(
            f"{folder} is a sieve that was not flushed yet: "
            "what it was given waits in its log, which is not looked into"
        )
    return found


def _sieve(folder: Path, *, repair: bool = False) -> Sieve | None:
    """The sieve in *folder*, to be looked at or mended; None if there is a trie."""
    manifest = _manifest(folder)
    if manifest is None:
        return None
    return Sieve(folder, bits=manifest.words * 64, own_log=False, readonly=not repair)


def _stats(folder: Path, argument: str, options: argparse.Namespace) -> int:
    if (sieve := _sieve(folder)) is not None:
        row = asdict(sieve.stats())
        del row["waiting"]  # lies with whoever uses it
        _facts(row | {"damaged": list(row["damaged"])}, options)
        return 0
    with TrieStore(folder, readonly=True, verify=None) as store:
        stats = store.stats()
        row = asdict(stats) | {"bytes_a_url": round(stats.bytes_a_url, 1)}
        row["damaged"] = sorted(store.damaged)
    _facts(row, options)
    return 0


def _get(folder: Path, argument: str, options: argparse.Namespace) -> int:
    spellings = list(_spellings(folder, argument))
    waiting = set(waiting_in(folder))  # before the sieve, where it is when it is no more here
    if waiting or _manifest(folder) is not None:
        sieve = None if SetManifest.read(folder) is None else _sieve(folder)
        for key, url in spellings:
            if key in waiting or (sieve is not None and key in sieve):
                _facts({"url": url}, options)
                return 0
        return _no(_not_in(folder, argument), options)
    with TrieStore(folder, readonly=True) as store:
        for _, url in spellings:
            if url in store:
                _facts({"url": url, "id": store.id(url)}, options)
                return 0
    return _no(_not_in(folder, argument), options)


def _spellings(folder: Path, url: str) -> Iterator[tuple[str | bytes, str]]:
    """What *url* may be known by in *folder*, and how it is written there: as it is given, in
    normal form, or as a GET request is to a dupefilter with Scrapy's fingerprinter."""
    yield url, url
    normal = normalize(url)
    if normal is not None:
        yield normal, normal
    with suppress(ValueError):  # no URL that Scrapy would ask for
        if folder.resolve().name == _TRIE:
            canonical = canonicalize_url(url)
            yield canonical, canonical
        elif folder.resolve().name == _SIEVE:
            yield fingerprint(Request(url)), url


def _not_in(folder: Path, url: str) -> str:
    if folder.parent.name == FOLDER:  # of a crawl, whose database has rows besides
        return f"{url} is not in {folder}; what else its job knows of it: scrapy frontier why URL"
    if folder.resolve().name == _SIEVE:
        return f"{url} was not seen as a GET request of Scrapy's fingerprinter"
    return f"{url} was not seen"


def _id(folder: Path, argument: str, options: argparse.Namespace) -> int:
    if not argument.isascii() or not argument.isdigit():
        raise JobError(f"{argument!r} is no id: expected a whole number")
    if _manifest(folder) is not None:
        raise JobError(f"{folder}: {_NO_URLS}")
    with TrieStore(folder, readonly=True) as store:
        try:
            url = store.url(int(argument))
        except UnknownUrlError as error:
            return _no(str(error), options)
    _facts({"url": url, "id": int(argument)}, options)
    return 0


def _ls(folder: Path, argument: str, options: argparse.Namespace) -> int:
    if _manifest(folder) is not None:
        raise JobError(f"{folder}: {_NO_URLS}")
    with TrieStore(folder, readonly=True) as store:
        for url in islice(store.iter(argument), options.limit or None):
            print(json.dumps(url) if options.json else printable(url))
    return 0


def _check(folder: Path, argument: str, options: argparse.Namespace) -> int:
    if (sieve := _sieve(folder, repair=options.repair)) is not None:
        return _check_sieve(sieve, options)
    with TrieStore(folder, readonly=not options.repair) as store:
        findings = store.check(repair=options.repair)
    for finding in findings:
        if options.json:
            print(json.dumps(asdict(finding)))
        else:
            done = "done: " if finding.repaired else "--repair: "
            urls = counted(finding.urls, "URL")
            print(f"{finding.file}: {finding.what}; {urls}. {done}{finding.remedy}")
    if not options.json and not findings:
        print("everything is as it was written")
    return 1 if findings and not options.repair else 0


def _check_sieve(sieve: Sieve, options: argparse.Namespace) -> int:
    found = sieve.check()
    if options.repair:
        sieve.repair()
    sieve.close()
    for what in found:
        done = "done: what could be read was written anew" if options.repair else "--repair"
        print(json.dumps({"what": what, "repaired": options.repair}) if options.json else
              f"{what}; {done}; what was in it counts as new")  # fmt: skip
    if not options.json and not found:
        print("everything is as it was written")
    return 1 if found and not options.repair else 0


def _facts(row: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Print one *row*: as JSON, else a line for each of its values."""
    if options.json:
        print(json.dumps(row))
        return
    for key, value in row.items():
        text = ", ".join(value) if isinstance(value, list) else printable(str(value))
        print(f"{key.replace('_', ' '):<12} {text or '-'}")


def _no(why: str, options: argparse.Namespace) -> int:
    print(json.dumps({"error": why}) if options.json else printable(why))
    return 1


VERBS: dict[str, Callable[[Path, str, argparse.Namespace], int]] = {
    "stats": _stats,
    "get": _get,
    "id": _id,
    "ls": _ls,
    "check": _check,
}
