"""Removes a host from every file and row of a job at rest.

`drop` deletes the host's own rows, also in a running crawl. `redact_job` also rewrites the rows and
logs that name the host elsewhere, then searches all files for the name.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Final, cast

from backports import zstd

from scrapy_spider_suite.analysis.link_stats import ROWS, LinkStats
from scrapy_spider_suite.errors import JobError, JobInUseError
from scrapy_spider_suite.fetch import fetch_log
from scrapy_spider_suite.operate.job_target import JobTarget, job_at_rest, take_job_lock
from scrapy_spider_suite.operate.verb import AskJob
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
_OVERLAP: Final = 600  # more bytes than a name and the characters around it


class HostNames:
    """Spellings of *host*, or of ``*.example.com`` and all hosts below."""

    def __init__(self, host: str) -> None:
        self.name = host.removeprefix("*.")
        self._below = host != self.name
        self.pattern = host_mentions(host, reverse_host(self.name))
        self.digest = b"sha256:" + hashlib.sha256(f"host {host}".encode()).hexdigest().encode()

    def matches(self, host: str) -> bool:
        return host == self.name or (self._below and host.endswith(f".{self.name}"))

    def matches_url(self, url: str) -> bool:
        return "://" in url and self.matches(host_of(url))

    def matches_field(self, field: bytes) -> bool:
        """Whether *field* of the fetch log is a URL on such a host."""
        return self.matches(fetch_log.host_in_field(field).decode())


def _clean_fetches(folder: Path, names: HostNames) -> int:
    """Delete the lines of such hosts from the fetch log in *folder*, and the referrers that name
    them; return the number of lines changed. Raises `OSError`: a file is as it was."""

    def cleaned(line: bytes) -> bytes:
        fields = line.split(b" ")
        if len(fields) < 11 or line.startswith(b"#"):
            return line
        if names.matches_field(fields[_URL]):
            return b""
        if names.matches_field(fields[_VIA]):
            fields[_VIA] = b"-"
        return b" ".join(fields)

    fetch_log.remove_leftovers(folder)
    for path in fetch_log.uncompressed(folder):
        fetch_log.compress_file(path)
    paths = [*fetch_log.closed_files(folder), folder / fetch_log.ACTIVE]
    return sum(_rewrite(path, names, cleaned) for path in paths)


def _files_naming(folder: Path, names: HostNames) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        # Tables are compressed: their rows were looked at.
        if path.is_file() and path.suffix != ".sst":
            found = names.pattern.search(os.fsencode(path.name))
            with _opened(path) as file:
                if found or _holds(file, names):
                    yield str(path.relative_to(folder.parent))


def _rewrite(path: Path, names: HostNames, change: Callable[[bytes], bytes]) -> int:
    """Put the lines of *path* through *change*; return how many are different now."""
    if not path.exists():
        return 0
    with _opened(path) as file:
        if not _holds(file, names):
            return 0
    count, compressed = 0, path.suffix == fetch_log.ZST
    with files.replacing_file(path) as new, _opened(path) as source:
        made = zstd.ZstdFile(new, "wb", level=fetch_log.ZSTD_LEVEL) if compressed else None
        with cast(BinaryIO, made or new.open("wb")) as target:
            for line in source:
                kept = change(line)
                count += kept != line
                target.write(kept)
    return count


def _opened(path: Path) -> BinaryIO:
    if path.suffix == fetch_log.ZST:
        return cast(BinaryIO, zstd.ZstdFile(path, "rb"))
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _holds(file: BinaryIO, names: HostNames) -> bool:
    """Whether *file* names such hosts, as far as it can be decompressed."""
    rest = b""
    with suppress(zstd.ZstdError, EOFError, gzip.BadGzipFile):
        while data := file.read(_STEP):
            if names.pattern.search(rest + data):
                return True
            rest = data[-_OVERLAP:]
    return False


_SHOWN: Final = 60
_BACKLOG: Final = 10_000  # rows that are changed in one batch


@dataclass(slots=True)
class JobReceipt:
    hosts: int = 0  # that were dropped
    urls: int = 0  # of these hosts
    referrers: int = 0  # URLs of other hosts of which the referrer was removed
    links: int = 0  # hosts and pairs of hosts of the link statistics
    fetches: int = 0  # lines of the fetch log that were theirs, or named them
    actions: int = 0  # lines of the audit log that have a digest now
    left: list[str] = field(default_factory=list)  # places that still name the host


def count_traces(folder: Path, host: str) -> dict[str, int]:
    """Count what `redact_job` would remove, beside a running crawl too. Raises `JobError`s."""
    names = HostNames(host)
    with StoreReader(folder) as reader:
        own = {name for name, _ in reader.store.records() if names.matches(name)}
        urls = sum(1 for name in {*own, names.name} for _ in reader.urls(name))
        stats = LinkStats(reader.store.kv(ROWS))
        links = sum(1 for name, _ in stats.hosts() if names.matches(name))
        links += sum(1 for edge in stats.edges() if any(map(names.matches, edge[:2])))

    def fits(fields: list[bytes]) -> bool:
        return names.matches_field(fields[_URL]) or names.matches_field(fields[_VIA])

    try:
        log = fetch_log.FetchLogReader(folder / fetch_log.LOG_FOLDER)
        fetches = sum(1 for _ in log.lines(fetch_log.FetchFilter(names.name.encode(), fits)))
    except OSError as error:
        raise JobError(f"{folder.parent}: {error}") from error
    return {"hosts": len(own), "urls": urls, "links": links, "fetches": fetches}


def redact_job(folder: Path, host: str, who: str, why: str, wait: float, ask: AskJob) -> JobReceipt:
    """Remove *host*, or ``*.example.com``, from the job whose ``suite`` folder is *folder*.

    The same call again resumes after a kill. Raises `JobError`s: a crawl uses the job, or it
    cannot be written.
    """
    receipt, names = JobReceipt(), HostNames(host)
    with _job_at_rest(folder) as target:
        found = {name for name, _ in target.store.records() if names.matches(name)}
    receipt.hosts = len(found)
    for name in sorted({*found, names.name}):  # one without a row may have seeds, or a robots.txt
        answer = ask(folder, "drop", {"subject": name}, who=who, why=why, wait=wait)
        if answer is None or not answer.ok:
            said = "no answer in time" if answer is None else answer.said
            raise JobError(f"{name} could not be dropped: {said}")
        receipt.urls += sum(answer.facts.get(state, 0) for state in ("pending", "done", "failed"))
        receipt.left += answer.facts.get("not_removed", [])
    with _job_at_rest(folder) as target:
        _redact_store(target, names, receipt)
    with _job_at_rest(folder):  # its list of tables, which names keys, is begun anew
        pass
    try:
        with (folder / "lock").open("a+") as lock:
            if not take_job_lock(lock):
                raise _in_use(folder)
            for path in (folder / "store").glob("LOG*"):  # what the database did, with keys
                path.unlink()
            receipt.fetches = _clean_fetches(folder / fetch_log.LOG_FOLDER, names)
            receipt.actions, _ = (
                _rewrite(path, names, lambda line: names.pattern.sub(names.digest, line))
                for path in (folder / "audit.jsonl", folder / CHRONICLE)
            )
            receipt.left += _files_naming(folder, names)
    except OSError as error:
        raise JobError(f"{folder.parent}: {error}") from error
    return receipt


@contextmanager
def _job_at_rest(folder: Path) -> Iterator[JobTarget]:
    JobFile.require(folder)
    with job_at_rest(folder) as target:
        if target is None:
            raise _in_use(folder)
        yield target


def _in_use(folder: Path) -> JobInUseError:
    return JobInUseError(f"{folder.parent} is in use by a crawl: stop it first")


def _redact_store(target: JobTarget, names: HostNames, receipt: JobReceipt) -> None:
    store = target.store
    for _ in _redact_referrers(target, names):
        receipt.referrers += 1
        if store.backlog > _BACKLOG:
            target.commit()
    receipt.links = LinkStats(store.kv(ROWS)).forget(names.matches)
    for key, value in list(target.kv.items()):
        if names.pattern.search(key) or names.pattern.search(value):
            target.kv.delete(key)
    target.commit()
    if store.archive is not None:
        store.archive.urls.flush()  # the log of what came last, which rows were removed from
    eraser = store.erase([(family, b"", b"\xff" * 64) for family in FAMILIES])
    eraser.join()
    receipt.left += [eraser.failure] if eraser.failure else []
    for family, key, value in store.every_row():
        if names.pattern.search(key) or names.pattern.search(value):
            table = key.partition(b"\0")[0].decode("utf-8", "replace") if family == "kv" else family
            receipt.left.append(f"a row of the store, in {table[:_SHOWN]}")


def _redact_referrers(target: JobTarget, names: HostNames) -> Iterator[None]:
    """Remove such hosts as referrers, one with each step; batches may be written meanwhile."""
    store = target.store
    for entry in store.all_rows():
        if names.matches_url(entry.referrer):
            entry.referrer = ""
            store.put_row(entry)
            yield
    yield from target.frontier.stored_links.waiting.forget_referrers(names.matches_url)
    yield from target.frontier.commit.planner.revisits.forget_referrers(names.matches_url)
    for key, packed in store.states(b""):
        if names.pattern.search(packed) and names.matches_url(
            (state := UrlState.from_bytes(packed)).via
        ):
            store.put_state(key, replace(state, via="").to_bytes())
            yield
