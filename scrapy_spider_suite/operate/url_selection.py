"""Which URLs a pattern, a reason or a list of an operator means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from scrapy_spider_suite.crawl.queue.frontier import UrlEdits
from scrapy_spider_suite.crawl.requests import seed_entry
from scrapy_spider_suite.errors import ActionError
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.operate.verb import ActionProgress
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.urls.host_patterns import HostPattern, PatternKind
from scrapy_spider_suite.urls.normalize import host_of, normalize
from scrapy_spider_suite.urls.normalizer import Normal
from scrapy_spider_suite.urls.url_lists import Seed


def parse_reason(text: str) -> Event:
    """The event called *text*. Raises `ActionError`."""
    try:
        return Event(text.replace("-", "_"))
    except ValueError:
        known = ", ".join(event.value for event in Event)
        raise ActionError(f"{text[:80]!r} is no reason; known: {known}") from None


def parse_pattern(
    text: str, normalizer: Normal = normalize
) -> tuple[HostPattern, Callable[[str], bool]]:
    """Whose URLs *text* means, and which of them: a host, a domain, a URL, a URL with ``*``.

    A URL means what the crawl's *normalizer* makes of it. Raises `ActionError`.
    """
    try:
        if "://" not in text:
            subject = HostPattern.parse(text)
            if subject.kind is PatternKind.RANGE:
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
    return HostPattern(PatternKind.HOST, host, host), lambda url: matches(url, [normal, *rest])


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


_HOSTS_A_PORTION = 200
"""Hosts that are looked at in one portion."""


def hosts_matching(
    rework: UrlEdits, subject: HostPattern, progress: ActionProgress
) -> Iterator[str | None]:
    """The hosts of *subject* that the job knows, from where *progress* is; None: a portion ends."""
    if subject.kind is not PatternKind.DOMAIN:
        yield subject.host
        return
    belongs = host_filter(subject)
    while rows := rework.hosts(progress.host, _HOSTS_A_PORTION):
        for name, _ in rows:
            if belongs(name):
                yield name
            progress.host = name
        yield None


def host_filter(subject: HostPattern) -> Callable[[str], bool]:
    """Whether a host belongs to *subject*, a domain or a host."""
    if subject.kind is PatternKind.DOMAIN:
        return lambda name: name == subject.host or name.endswith(subject.text)
    return lambda name: name == subject.host


def parse_subject(text: str) -> HostPattern:
    """The subject that *text* names. Raises `ActionError`."""
    try:
        return HostPattern.parse(text)
    except ValueError as error:
        raise ActionError(str(error)) from None


SPIDERS_OWN = (
    "of a spider's own request no callback is kept: `add` has its URL fetched for parse(), "
    "a crawl with a new JOBDIR begins anew"
)
"""What to do about a request that cannot be made again."""


def find_seed(
    store: RocksStore, seed: Seed, normal: Normal
) -> tuple[Entry | None, bytes | None]:
    """The entry of *seed* and its state; one whose scheme was guessed may be known with http."""
    urls = [seed.url]
    if seed.guessed:
        urls.append(seed.url.replace("https:", "http:", 1))
    for url in urls:
        entry, data = find_url(store, url, normal)
        if data is not None:
            return entry, data
    return None, None


def find_url(store: RocksStore, url: str, normal: Normal) -> tuple[Entry | None, bytes | None]:
    """The entry of *url* and its state: by its normal form, or as its server insists on it."""
    entry, data = seed_entry(url, normal), None
    if entry is not None:
        data = store.state(entry.identity)
    if data is None and (plain := seed_entry(url)) is not None:
        return plain, store.state(plain.identity)
    return entry, data
