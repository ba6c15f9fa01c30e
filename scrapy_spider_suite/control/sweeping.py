"""Takes a host out of a job at rest, with what `drop` does not touch: every file, every row.

`drop` forgets what is the host's own, beside a running crawl too. What others keep of it is left
there: pages that it led to, link statistics, logs. This goes through all of it, rewrites what names
the host, and looks at the end what still does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from scrapy_spider_suite.analysis.link_stats import ROWS, LinkStats
from scrapy_spider_suite.control.asking import ask
from scrapy_spider_suite.control.site import Site, lying_still, taken
from scrapy_spider_suite.control.traces import (
    Names,
    clean_fetches,
    clean_log,
    count_fetches,
    named_in,
)
from scrapy_spider_suite.errors import JobError, JobInUseError
from scrapy_spider_suite.fetch.fetch_log import LOG_FOLDER as FETCHES
from scrapy_spider_suite.store.job_directory import HISTORY_FILE as CHRONICLE
from scrapy_spider_suite.store.job_directory import JobFile
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rocks_store import FAMILIES
from scrapy_spider_suite.store.rows import UrlState

_ANSWERS: Final = b"control\0"
_SHOWN: Final = 60
_BACKLOG: Final = 10_000
"""Rows that are changed in one batch."""


@dataclass(slots=True)
class Swept:
    """What was taken out of a job.

    Attributes:
        hosts: how many were dropped.
        urls: URLs that were dropped with them.
        referrers: URLs of other hosts that were found there: where is forgotten.
        links: hosts and pairs of hosts of the link statistics.
        fetches: lines of the fetch log that were theirs, or named them.
        actions: lines of the audit log, in which a digest stands in their place.
        left: where they are still named.
    """

    hosts: int = 0
    urls: int = 0
    referrers: int = 0
    links: int = 0
    fetches: int = 0
    actions: int = 0
    left: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Surveyed:
    """What `sweep` would take out of a job, as far as it can be counted before; see `Swept`."""

    hosts: int = 0
    urls: int = 0
    links: int = 0
    fetches: int = 0


def survey(folder: Path, host: str) -> Surveyed:
    """Count what `sweep` would find, beside a running crawl too; nothing is changed. `JobError`s.
    """
    names, found = Names(host), Surveyed()
    with StoreReader(folder) as reader:
        own = {name for name, _ in reader.hosts() if names.takes(name)}
        found.hosts = len(own)
        found.urls = sum(1 for name in {*own, names.name} for _ in reader.urls(name))
        stats = LinkStats(reader.store.kv(ROWS))
        found.links = sum(1 for name, _ in stats.hosts() if names.takes(name))
        found.links += sum(1 for edge in stats.edges() if any(map(names.takes, edge[:2])))
    try:
        found.fetches = count_fetches(folder / FETCHES, names)
    except OSError as error:
        raise JobError(f"{folder.parent}: {error}") from error
    return found


def sweep(folder: Path, host: str, who: str, why: str, wait: float) -> Swept:
    """Take *host*, or ``*.example.com``, out of the job whose ``suite`` folder is *folder*.

    The same call again goes on where a kill was. Raises `JobError`s: above all a job that a crawl
    is using, and one that cannot be written.
    """
    swept, names = Swept(), Names(host)
    with _still(folder) as site:
        found = {name for name, _ in site.store.records() if names.takes(name)}
    for name in sorted({*found, names.name}):  # one without a row may have seeds, or a robots.txt
        _drop(folder, name, swept, who, why, wait)
    swept.hosts = len(found)
    with _still(folder) as site:
        _sweep_store(site, names, swept)
    with _still(folder):  # its list of tables, which names keys, is begun anew
        pass
    try:
        with (folder / "lock").open("a+") as lock:
            if not taken(lock):
                raise _in_use(folder)
            for path in (folder / "store").glob("LOG*"):  # what the database did, with keys
                path.unlink()
            swept.fetches = clean_fetches(folder / FETCHES, names)
            swept.actions = clean_log(folder / "audit.jsonl", names)
            clean_log(folder / CHRONICLE, names)
            # Tables are compressed: their rows were looked at.
            swept.left += named_in(folder, names, lambda path: path.suffix == ".sst")
    except OSError as error:
        raise JobError(f"{folder.parent}: {error}") from error
    return swept


def _drop(folder: Path, host: str, swept: Swept, who: str, why: str, wait: float) -> None:
    answer = ask(folder, "drop", {"subject": host}, who=who, why=why, wait=wait)
    if answer is None or not answer.ok:
        said = "no answer in time" if answer is None else answer.said
        raise JobError(f"{host} could not be dropped: {said}")
    swept.urls += sum(answer.facts.get(state, 0) for state in ("pending", "done", "failed"))
    swept.left += answer.facts.get("not_removed", [])


@contextmanager
def _still(folder: Path) -> Iterator[Site]:
    """The job, which no crawl is using."""
    if JobFile.read(folder) is None:
        raise JobError(f"{folder.parent} holds no job of scrapy-spider-suite")
    with lying_still(folder) as site:
        if site is None:
            raise _in_use(folder)
        yield site


def _in_use(folder: Path) -> JobInUseError:
    return JobInUseError(f"{folder.parent} is in use by a crawl: stop it first")


def _sweep_store(site: Site, names: Names, swept: Swept) -> None:
    """Let no row name them, and rewrite the files in which rows were that did."""
    store = site.store
    for _ in _referrers(site, names):
        swept.referrers += 1
        if store.backlog > _BACKLOG:
            site.commit()
    swept.links = LinkStats(store.kv(ROWS)).forget(names.takes)
    control = store.kv(_ANSWERS[:-1].decode())
    for key, value in list(control.items()):
        if names.pattern.search(key) or names.pattern.search(value):
            control.delete(key)
    site.commit()
    if store.archive is not None:
        store.archive.urls.flush()  # the log of what came last, which rows were removed from
    eraser = store.erase_keys([(family, b"", b"\xff" * 64) for family in FAMILIES])
    eraser.join()
    swept.left += [eraser.failure] if eraser.failure else []
    swept.left += _named_rows(store.every_row(), names)


def _referrers(site: Site, names: Names) -> Iterator[None]:
    """Forget that URLs were found on such hosts, one with each step.

    Rows are those of the moment of the call, so batches may be written meanwhile.
    """
    store = site.store
    for entry in store.all_rows():
        if names.takes_url(entry.referrer):
            entry.referrer = ""
            store.put_row(entry)
            yield
    yield from site.frontier.extraction.waiting.forget_referrers(names.takes_url)
    yield from site.frontier.planner.revisits.forget_referrers(names.takes_url)
    for key, packed in store.every_state(b""):
        if not names.pattern.search(packed):
            continue
        state = UrlState.from_bytes(packed)
        if names.takes_url(state.via):
            store.put_state(key, replace(state, via="").to_bytes())
            yield


def _named_rows(rows: Iterable[tuple[str, bytes, bytes]], names: Names) -> Iterator[str]:
    for family, key, value in rows:
        if names.pattern.search(key) or names.pattern.search(value):
            table = key.partition(b"\0")[0].decode("utf-8", "replace") if family == "kv" else family
            yield f"a row of the store, in {table[:_SHOWN]}"
