"""Whether a job knows anything of a host, or of what lies below a URL: a name with a typo is told
apart by that from one of which all is gone."""

from __future__ import annotations

from pathlib import Path

from scrapy_spider_suite.control import blocks
from scrapy_spider_suite.control.audit import AuditLog
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.urls.host_patterns import HostPattern, PatternKind

KNOWN = "known"
"""The fact of a receipt that says whether there was anything to be dropped."""


def knows(store: RocksStore, folder: Path, subject: HostPattern) -> bool:
    """Whether *subject* was met, is blocked, or was dropped before: that may have to be done again.

    Of what lies below a URL the rows say it, but where a sieve stands for them. *folder* is the
    job's ``suite`` folder.
    """
    below = subject.kind is PatternKind.PREFIX
    met = store.record(subject.host) is not None and not (below and store.sieve is None)
    return met or _blocked(store, subject) or _dropped(folder, str(subject))


def unknown(store: RocksStore, subject: HostPattern) -> str:
    """What to say of *subject*, of which nothing is in the job."""
    if subject.kind is PatternKind.PREFIX and store.record(subject.host) is not None:
        return f"the job knows nothing below {subject}"
    return f"the job has never met the host {subject.host!r}"


def _blocked(store: RocksStore, subject: HostPattern) -> bool:
    found = (HostPattern.parse(each.subject) for each in blocks.stored(store.kv(blocks.STORE)))
    if subject.kind is PatternKind.PREFIX:
        return subject in found
    return any(each.host == subject.host for each in found)


def _dropped(folder: Path, subject: str) -> bool:
    """Whether that was dropped, also in part; rows of earlier releases do not say what was known.
    """
    return any(
        row.get("verb") == "drop" and row.get("ok") and isinstance(facts := row.get("facts"), dict)
        and facts.get("subject") == subject and facts.get(KNOWN)
        for row in AuditLog(folder).rows()
    )  # fmt: skip
