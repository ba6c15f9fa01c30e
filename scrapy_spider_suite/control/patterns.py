"""What refetch and retry are asked for: a reason, a pattern of URLs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scrapy_spider_suite.errors import ActionError
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.urls.host_patterns import HostPattern, PatternKind
from scrapy_spider_suite.urls.normalize import host_of, normalize
from scrapy_spider_suite.urls.normalizer import Normal


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
