"""Takes a host out of a job at rest: every file, every row, also those that `drop` leaves.

`drop` deletes the host's own rows, also in a running crawl. Other rows and logs may name the host:
pages that it led to, link statistics, the fetch log. `redact_job` rewrites them, then searches all
files for the name.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, cast

from backports import zstd

from scrapy_spider_suite.analysis.link_stats import ROWS, LinkStats
from scrapy_spider_suite.errors import JobError, JobInUseError
from scrapy_spider_suite.fetch import fetch_log
from scrapy_spider_suite.fetch.fetch_log import (
    LOG_FOLDER,
    FetchFilter,
    FetchLogReader,
    host_in_field,
)
from scrapy_spider_suite.operate.actions import Answer
from scrapy_spider_suite.operate.job_target import JobTarget, job_at_rest, take_job_lock
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.store.job_directory import HISTORY_FILE as CHRONICLE
from scrapy_spider_suite.store.job_directory import JobFile
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rocks_store import FAMILIES
from scrapy_spider_suite.store.rows import UrlState
from scrapy_spider_suite.urls.hosts import host_mentions, reverse_host
from scrapy_spider_suite.urls.normalize import host_of

_URL, _VIA = 4, 5
_STEP: Final = 1 << 20
_OVERLAP: Final = 600
"""Bytes of which a name with what stands around it has fewer."""


class HostNames:
    """What is to go: *host*, or ``*.example.com`` with all below; how it is spelled where."""

    def __init__(self, host: str) -> None:
        self.name = host.removeprefix("*.")
        self._below = host != self.name
        self.pattern = host_mentions(host, reverse_host(self.name))
        digest = hashlib.sha256(f"host {host}".encode()).hexdigest()
        self.digest = f"sha256:{digest}".encode()

    def takes(self, host: str) -> bool:
        """Whether *host* is to go."""
        return host == self.name or (self._below and host.endswith(f".{self.name}"))

    def takes_url(self, url: str) -> bool:
        """Whether *url*, in normal form, is of such a host."""
        return "://" in url and self.takes(host_of(url))


def clean_fetches(folder: Path, names: HostNames) -> int:
    """Take the lines of such hosts out of the fetch log in *folder*, and as where others were
    found; return how many lines that were. Raises `OSError`: a file is as it was."""

    def cleaned(line: bytes) -> bytes:
        fields = line.split(b" ")
        if len(fields) < 11 or line.startswith(b"#"):
            return line
        if names.takes(host_in_field(fields[_URL]).decode()):
            return b""
        if names.takes(host_in_field(fields[_VIA]).decode()):
            fields[_VIA] = b"-"
        return b" ".join(fields)

    fetch_log.remove_leftovers(folder)
    for path in fetch_log.uncompressed(folder):
        fetch_log.compress_file(path)
    paths = [*fetch_log.closed_files(folder), folder / fetch_log.ACTIVE]
    return sum(_rewrite(path, names, cleaned) for path in paths if path.exists())


def count_fetches(folder: Path, names: HostNames) -> int:
    """Return how many lines `clean_fetches` would change. Raises `OSError`."""

    def fits(fields: list[bytes]) -> bool:
        return any(names.takes(host_in_field(fields[each]).decode()) for each in (_URL, _VIA))

    log = FetchLogReader(folder)
    return sum(1 for _ in log.lines(FetchFilter(names.name.encode(), fits)))


def clean_log(path: Path, names: HostNames) -> int:
    """Let a digest stand for the names of such hosts in a log; return in how many lines.

    Raises `OSError`: it is as it was.
    """
    if not path.exists():
        return 0
    return _rewrite(path, names, lambda line: names.pattern.sub(names.digest, line))


def named_in(folder: Path, names: HostNames, skipped: Callable[[Path], bool]) -> Iterator[str]:
    """Yield the files below *folder* in whose names or content they are, decompressed or not."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not skipped(path):
            found = names.pattern.search(os.fsencode(path.name))
            with _opened(path) as file:
                if found or _holds(file, names):
                    yield str(path.relative_to(folder.parent))


def _rewrite(path: Path, names: HostNames, change: Callable[[bytes], bytes]) -> int:
    """Put *path* through *change*, line by line; return how many lines are others now."""
    with _opened(path) as file:
        if not _holds(file, names):
            return 0
    count = 0
    with files.replacing_file(path) as new, _opened(path) as source, _made(new, path) as target:
        for line in source:
            kept = change(line)
            count += kept != line
            target.write(kept)
    return count


def _opened(path: Path) -> BinaryIO:
    if path.suffix == fetch_log.ZST:
        return cast(BinaryIO, zstd.ZstdFile(path, "rb"))
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _made(new: Path, path: Path) -> BinaryIO:
    if path.suffix == fetch_log.ZST:
        return cast(BinaryIO, zstd.ZstdFile(new, "wb", level=fetch_log.ZSTD_LEVEL))
    return new.open("wb")


def _holds(file: BinaryIO, names: HostNames) -> bool:
    """Whether they are anywhere in *file*; what cannot be decompressed is not looked at."""
    rest = b""
    with suppress(zstd.ZstdError, EOFError, gzip.BadGzipFile):
        while data := file.read(_STEP):
            if names.pattern.search(rest + data):
                return True
            rest = data[-_OVERLAP:]
    return False


_ANSWERS: Final = b"control\0"
_SHOWN: Final = 60
_BACKLOG: Final = 10_000
"""Rows that are changed in one batch."""


@dataclass(slots=True)
class JobReceipt:
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
class JobTraces:
    """What `redact_job` would remove; see `JobReceipt`."""

    hosts: int = 0
    urls: int = 0
    links: int = 0
    fetches: int = 0


def count_traces(folder: Path, host: str) -> JobTraces:
    """Count what `redact_job` would remove, beside a running crawl too. Raises `JobError`s."""
    names, found = HostNames(host), JobTraces()
    with StoreReader(folder) as reader:
        own = {name for name, _ in reader.hosts() if names.takes(name)}
        found.hosts = len(own)
        found.urls = sum(1 for name in {*own, names.name} for _ in reader.urls(name))
        stats = LinkStats(reader.store.kv(ROWS))
        found.links = sum(1 for name, _ in stats.hosts() if names.takes(name))
        found.links += sum(1 for edge in stats.edges() if any(map(names.takes, edge[:2])))
    try:
        found.fetches = count_fetches(folder / LOG_FOLDER, names)
    except OSError as error:
        raise JobError(f"{folder.parent}: {error}") from error
    return found


class DropHost(Protocol):
    """Asks a job to drop a host; `executors.one_job.ask_job` is one."""

    def __call__(
        self, folder: Path, verb: str, arguments: Mapping[str, Any], *, who: str, why: str,
        wait: float,
    ) -> Answer | None: ...  # fmt: skip


def redact_job(
    folder: Path, host: str, who: str, why: str, wait: float, ask: DropHost
) -> JobReceipt:
    """Take *host*, or ``*.example.com``, out of the job whose ``suite`` folder is *folder*.

    The same call again goes on where a kill was. Raises `JobError`s: above all a job that a crawl
    is using, and one that cannot be written.
    """
    swept, names = JobReceipt(), HostNames(host)
    with _still(folder) as site:
        found = {name for name, _ in site.store.records() if names.takes(name)}
    for name in sorted({*found, names.name}):  # one without a row may have seeds, or a robots.txt
        _drop(ask, folder, name, swept, who, why, wait)
    swept.hosts = len(found)
    with _still(folder) as site:
        _sweep_store(site, names, swept)
    with _still(folder):  # its list of tables, which names keys, is begun anew
        pass
    try:
        with (folder / "lock").open("a+") as lock:
            if not take_job_lock(lock):
                raise _in_use(folder)
            for path in (folder / "store").glob("LOG*"):  # what the database did, with keys
                path.unlink()
            swept.fetches = clean_fetches(folder / LOG_FOLDER, names)
            swept.actions = clean_log(folder / "audit.jsonl", names)
            clean_log(folder / CHRONICLE, names)
            # Tables are compressed: their rows were looked at.
            swept.left += named_in(folder, names, lambda path: path.suffix == ".sst")
    except OSError as error:
        raise JobError(f"{folder.parent}: {error}") from error
    return swept


def _drop(
    ask: DropHost, folder: Path, host: str, swept: JobReceipt, who: str, why: str, wait: float
) -> None:
    answer = ask(folder, "drop", {"subject": host}, who=who, why=why, wait=wait)
    if answer is None or not answer.ok:
        said = "no answer in time" if answer is None else answer.said
        raise JobError(f"{host} could not be dropped: {said}")
    swept.urls += sum(answer.facts.get(state, 0) for state in ("pending", "done", "failed"))
    swept.left += answer.facts.get("not_removed", [])


@contextmanager
def _still(folder: Path) -> Iterator[JobTarget]:
    if JobFile.read(folder) is None:
        raise JobError(f"{folder.parent} holds no job of scrapy-spider-suite")
    with job_at_rest(folder) as site:
        if site is None:
            raise _in_use(folder)
        yield site


def _in_use(folder: Path) -> JobInUseError:
    return JobInUseError(f"{folder.parent} is in use by a crawl: stop it first")


def _sweep_store(site: JobTarget, names: HostNames, swept: JobReceipt) -> None:
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


def _referrers(site: JobTarget, names: HostNames) -> Iterator[None]:
    """Forget that URLs were found on such hosts, one with each step.

    Rows are those of the moment of the call, so batches may be written meanwhile.
    """
    store = site.store
    for entry in store.all_rows():
        if names.takes_url(entry.referrer):
            entry.referrer = ""
            store.put_row(entry)
            yield
    yield from site.frontier.stored_links.waiting.forget_referrers(names.takes_url)
    yield from site.frontier.planner.revisits.forget_referrers(names.takes_url)
    for key, packed in store.states(b""):
        if not names.pattern.search(packed):
            continue
        state = UrlState.from_bytes(packed)
        if names.takes_url(state.via):
            store.put_state(key, replace(state, via="").to_bytes())
            yield


def _named_rows(rows: Iterable[tuple[str, bytes, bytes]], names: HostNames) -> Iterator[str]:
    for family, key, value in rows:
        if names.pattern.search(key) or names.pattern.search(value):
            table = key.partition(b"\0")[0].decode("utf-8", "replace") if family == "kv" else family
            yield f"a row of the store, in {table[:_SHOWN]}"
