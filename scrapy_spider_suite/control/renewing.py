"""``add``, ``refetch`` and ``retry``: URLs that become pending, for the first time or once more.

A portion is a few hundred rows; each is one batch, with how far it has come.

A URL that is fetched once more keeps its identity; it is counted as pending, no longer as done or
failed. Of the requests that a spider made itself only the fingerprint is kept, from which no
request can be made again: they are left as they are, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import IO

from scrapy_spider_suite.control.actions import Action
from scrapy_spider_suite.control.folder import ActionFolder
from scrapy_spider_suite.control.operator import Work
from scrapy_spider_suite.control.progress import Progress
from scrapy_spider_suite.control.reach import hosts_of
from scrapy_spider_suite.control.site import Site
from scrapy_spider_suite.crawl.requests import seed_entry
from scrapy_spider_suite.errors import ActionError
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.frontier.subjects import Kind, Subject
from scrapy_spider_suite.seeds.lines import LONGEST, SeedLines
from scrapy_spider_suite.seeds.lists import READ_ERRORS, ListFile, reason
from scrapy_spider_suite.seeds.sowing import Sower, planter
from scrapy_spider_suite.storage.records import UrlState, host_key
from scrapy_spider_suite.storage.rework import FIRST
from scrapy_spider_suite.storage.rocks import RocksStore
from scrapy_spider_suite.urls.normalize import host_of, normalize
from scrapy_spider_suite.urls.normalizer import Normal

_SOWING = 0.005
"""Seconds for which seeds are taken before they are written."""
_LINES = 50
_URLS = 50
_HOSTS = 200
_NOT_A_URL = 0xFF  # begins the identity of a spider's own request

SPIDERS_OWN = (
    "of a spider's own request no callback is kept: `add` has its URL fetched for parse(), "
    "a crawl with a new JOBDIR begins anew"
)
"""What to do about a request that cannot be made again."""

Wanted = Callable[[str, UrlState], bool]


def add(site: Site, action: Action) -> Work:
    """Make the URLs that came with *action* pending, unless they are known."""
    action.expect("first")
    plant = planter(site.frontier, site.now, FIRST if action.get("first", bool, False) else 0)
    sower = Sower(site.store, plant, SeedLines("URLs", normal=site.normal), f"add {action.id}")
    sower.resume([0, 0])
    try:
        with ListFile(ActionFolder(site.folder).open_urls(action.id)) as file:
            file.skip(sower.at)
            for block, _ in file.blocks():
                sower.feed(block)
                yield from _sown(site, sower)
    except READ_ERRORS as error:
        raise ActionError(f"the URLs that belong to it cannot be read: {reason(error)}") from None
    sower.end_of_text()
    yield from _sown(site, sower)
    sower.forget()
    sown = sower.sown
    said = f"{sown.seeds} URLs taken, {sown.new} of them new, {sown.bad} lines are no seeds"
    if sown.bad:
        said += f": {'; '.join(sown.first_bad)}"
    bad = {"no_web_addresses": sown.bad, "first_bad": sown.first_bad}
    return said, {"urls": sown.seeds + sown.bad, "new": sown.new, **bad}


def _sown(site: Site, sower: Sower) -> Iterator[None]:
    """Take what was fed to *sower*, in portions."""
    while sower.more:
        until = site.now() + _SOWING
        sower.take()
        while sower.more and site.now() < until:
            sower.take()
        sower.save()
        yield


def refetch(site: Site, action: Action) -> Work:
    """Make URLs that are done or failed pending: those of a pattern, or those that came with it."""
    action.expect("pattern", "first")
    priority = FIRST if action.get("first", bool, False) else 0
    progress = Progress(site.kv, action.id)
    if "pattern" in action.arguments:
        subject, wanted = parse_pattern(action.get("pattern", str), site.normal)
        yield from _walk(site, progress, subject, lambda url, _: wanted(url), priority)
    else:
        yield from _listed(site, action, progress, priority)
    progress.forget()
    return _renewed(progress, "are fetched again")


def retry(site: Site, action: Action) -> Work:
    """Make URLs that failed for one reason pending, of all hosts or of some."""
    action.expect("reason", "subject")
    reason = parse_reason(action.get("reason", str))
    subject = None
    if "subject" in action.arguments:
        subject, _ = parse_pattern(action.get("subject", str), site.normal)
    progress = Progress(site.kv, action.id)

    def wanted(url: str, state: UrlState) -> bool:
        return state.state is State.FAILED and state.event is reason

    yield from _walk(site, progress, subject, wanted, 0)
    progress.forget()
    return _renewed(progress, f"that failed ({reason.value.replace('_', ' ')}) are tried again")


def parse_reason(text: str) -> Event:
    """The event called *text*. Raises `ActionError`."""
    try:
        return Event(text.replace("-", "_"))
    except ValueError:
        known = ", ".join(event.value for event in Event)
        raise ActionError(f"{text[:80]!r} is no reason; known: {known}") from None


def parse_pattern(
    text: str, normalizer: Normal = normalize
) -> tuple[Subject, Callable[[str], bool]]:
    """Whose URLs *text* means, and which of them: a host, a domain, a URL, a URL with ``*``.

    A URL means what the crawl's *normalizer* makes of it. Raises `ActionError`.
    """
    try:
        if "://" not in text:
            subject = Subject.parse(text)
            if subject.kind is Kind.RANGE:
                raise ActionError("which hosts live in an address range is not known: name them")
            return subject, lambda url: True
        # Each half is spelled as URLs are kept; a star is none of their characters.
        head, *rest = text.split("*")
        normal = normalize(head) if rest else normalizer(head)
        if normal is None or (rest and head.count("/") < 3):
            raise ActionError(f"{text!r}: expected a URL, with * only after the host")
    except ValueError as error:
        raise ActionError(str(error)) from None
    host = host_of(normal)
    return Subject(Kind.HOST, host, host), lambda url: matches(url, [normal, *rest])


def matches(text: str, pieces: Sequence[str]) -> bool:
    """Whether *text* is made of *pieces*, one at least, in their order, with anything between them.

    Each is taken where it is found first: no pattern goes back, as a regular expression would.
    """
    first, *others = pieces
    if not others:
        return text == first
    *middle, last = others
    at, end = len(first), len(text) - len(last)
    if at > end or not text.startswith(first) or not text.endswith(last):
        return False
    for piece in middle:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


# Where the URLs come from


def _portions(site: Site, action: Action, progress: Progress) -> Iterator[list[str]]:
    """The lines that came with *action*, from where *progress* is."""
    try:
        file = ActionFolder(site.folder).open_urls(action.id)
    except OSError as error:
        raise ActionError(f"the URLs that belong to it cannot be read: {error.strerror}") from None
    with file:
        file.seek(progress.at)
        while raw := list(islice(_lines(file), _LINES)):
            progress.at = file.tell()
            lines = [line.decode("utf-8", "replace").strip() for line in raw]
            yield [line for line in lines if line]


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of *file*; one that is longer than any URL comes in pieces, which are none."""
    while line := file.readline(LONGEST):
        yield line


def _listed(site: Site, action: Action, progress: Progress, priority: int) -> Work:
    normal = site.normal
    for lines in _portions(site, action, progress):
        for line in lines:
            entry, data = known(site.store, line, normal)
            if entry is None or data is None:
                progress.count("unknown")
            else:
                entry.priority = priority
                _again(site, progress, entry, UrlState.from_bytes(data))
        progress.save()
        yield
    return "", {}


def known(store: RocksStore, url: str, normal: Normal) -> tuple[Entry | None, bytes | None]:
    """The entry of *url* and its state: by its normal form, or as its server insists on it."""
    entry, data = seed_entry(url, normal), None
    if entry is not None:
        data = store.state(entry.identity)
    if data is None and (plain := seed_entry(url)) is not None:
        return plain, store.state(plain.identity)
    return entry, data


def _walk(
    site: Site, progress: Progress, subject: Subject | None, wanted: Wanted, priority: int
) -> Work:
    """Go over the URLs of *subject*, of every host without one."""
    hosts = _all_hosts(site, progress) if subject is None else hosts_of(
        site.rework, subject, progress
    )  # fmt: skip
    for host in hosts:
        if host is None:
            progress.save()
            yield
            continue
        while rows := site.rework.urls(host, progress.url, _URLS):
            for name, state in rows:
                progress.url = name
                if name[0] == _NOT_A_URL:
                    progress.count("requests_of_the_spider", wanted(state.url, state))
                elif wanted(url := name.decode("utf-8", "replace"), state):
                    key = host_key(host) + name
                    _again(site, progress, Entry(host, url, key, priority=priority), state)
            progress.save()
            yield
        progress.url = b""
    return "", {}


def _all_hosts(site: Site, progress: Progress) -> Iterator[str | None]:
    """Hosts that have anything that failed; None: a portion ends."""
    while rows := site.rework.hosts(progress.host, _HOSTS):
        for name, record in rows:
            if record.failed:
                yield name
            progress.host = name
        yield None


def _again(site: Site, progress: Progress, entry: Entry, state: UrlState) -> None:
    if state.state is State.PENDING:
        progress.count("pending_already")
        return
    progress.count("hosts_given_up", site.rework.forgive(entry.host))
    taken = site.rework.again(entry, state, site.now(), site.wall())
    progress.count("urls" if taken else "hosts_too_many_for_their_domain")


def _renewed(progress: Progress, what: str) -> tuple[str, dict[str, int]]:
    counts = {"urls": 0} | {name: n for name, n in progress.counts.items() if n}
    others = "; ".join(
        f"{number} {name.replace('_', ' ')}" for name, number in counts.items() if name != "urls"
    )
    said = f"{counts['urls']} URLs {what}{f' ({others})' if others else ''}"
    return f"{said}; {SPIDERS_OWN}" if "requests_of_the_spider" in counts else said, counts
