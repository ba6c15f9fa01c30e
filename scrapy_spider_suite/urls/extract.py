"""The links of a page: normal URLs, each once, in document order; or as edges of a graph.

One regular expression passes over the bytes: work is linear in the page, memory in *max_links*.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from scrapy_spider_suite.urls.markup import LINK, TAG, TAGS, Markup, attributes
from scrapy_spider_suite.urls.normalize import MAX_LENGTH, RAW_FACTOR, LinkResolver, Unusable

# HTML standard, §4.2.5.3, "shared declarative refresh steps".
_REFRESH: Final = re.compile(
    r"""[\t\n\f\r ]*(?:[0-9]|(?=\.))[0-9.]*
        (?:[;,]|[\t\n\f\r ]) [\t\n\f\r ]*[;,]?[\t\n\f\r ]*
        (?:[uU][rR][lL][\t\n\f\r ]*=[\t\n\f\r ]*)?
        (?:"(?P<double>[^"]*)|'(?P<single>[^']*)|(?P<bare>.*))""",
    re.VERBOSE | re.DOTALL,
)

_SEPARATORS: Final = re.compile(r"[\s,;]+")
_AGENT: Final = re.compile(r"\s*([A-Za-z_-]+)\s*:(.*)", re.DOTALL)
# Directives of X-Robots-Tag that have a colon, which would else make them the name of a robot.
_WITH_VALUE: Final = frozenset(
    ("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview")
)


class RobotsDirectives(NamedTuple):
    noindex: bool
    nofollow: bool


def refresh_target(content: str) -> str | None:
    """The reference in the ``content`` of a ``meta`` refresh; None if it only reloads."""
    match = _REFRESH.match(content)
    if match is None:
        return None
    target = match["double"] or match["single"] or match["bare"] or ""
    return target.strip() or None


def parse_directives(directives: str) -> RobotsDirectives:
    """The directives of a robots ``meta``; ``none`` means both."""
    words = frozenset(_SEPARATORS.split(directives.lower()))
    none = "none" in words
    return RobotsDirectives(none or "noindex" in words, none or "nofollow" in words)


def header_directives(values: Iterable[str], robot: str) -> RobotsDirectives:
    """The directives in ``X-Robots-Tag`` headers for all robots, or for *robot* by name.

    ``googlebot: noindex, nofollow``: a name holds to the end of its header, or to the next name.
    """
    noindex = nofollow = False
    for value in values:
        mine = True
        for part in value.split(","):
            named = _AGENT.match(part)
            if named is not None and named[1].lower() not in _WITH_VALUE:
                mine = named[1].lower() == robot
                part = named[2]
            if mine:
                rules = parse_directives(part)
                noindex |= rules.noindex
                nofollow |= rules.nofollow
    return RobotsDirectives(noindex, nofollow)


MAX_LINKS: Final = 10_000
"""Links of one page; reading stops at the last."""

ELEMENTS_PER_LINK: Final = 4
"""Reading stops, too, at this many elements for each link allowed: most then repeat others."""

_URL_ATTRIBUTE: Final = {b"a": b"href", b"area": b"href", b"frame": b"src", b"iframe": b"src"}


@dataclass(frozen=True, slots=True)
class ElementCounts:
    """What became of the elements of a page that name a URL; ``found`` is their number.

    The others added no link: a repetition, too long, not http or https, no URL, or
    ``rel=nofollow``.
    """

    found: int = 0
    duplicate: int = 0
    too_long: int = 0
    not_http: int = 0
    malformed: int = 0
    nofollow: int = 0


@dataclass(frozen=True, slots=True)
class PageLinks:
    """The links of a page, and what the page says about itself. All URLs are normal.

    *links* are those of a, area, frame, iframe and meta refresh, each once, in document order,
    without ``rel=nofollow`` ones, but whatever *nofollow* says.
    """

    links: list[str]
    canonical: str | None  # the page's name for itself
    nofollow: bool  # asked by a robots ``meta`` or an ``X-Robots-Tag`` header; *noindex* likewise
    noindex: bool
    base: str  # base of relative links; empty if the page's own URL is not http or https
    refresh: str | None  # target of a meta refresh
    truncated: bool  # whether reading stopped at *max_links*
    counts: ElementCounts


@dataclass(frozen=True, slots=True)
class PageContext:
    """The facts about a page beside its body."""

    url: str  # where it was found
    content_type: bytes | str | None = None  # its Content-Type header
    encoding: str | None = None  # overrides the charset of *content_type*
    x_robots_tag: Sequence[str] = ()  # the values of that header
    robot: str = ""  # the product token of this robot (RFC 9309 §2.2.1)
    max_links: int = MAX_LINKS  # of the page
    max_url_length: int = MAX_LENGTH  # in characters; longer links are dropped


def extract(body: bytes, page: PageContext) -> PageLinks:
    """The links of the HTML page *body*. Never raises."""
    return MarkupReader(body, page).read()


class MarkupReader:
    """Reads one page: in one pass, unless its base comes after links that it is for."""

    def __init__(self, body: bytes, page: PageContext) -> None:
        robot = page.robot.lower()
        self._page = Markup(body, page.encoding, page.content_type)
        self._rules = header_directives(page.x_robots_tag, robot)
        self._robots = ("robots", robot) if robot else ("robots",)
        self._max_links = page.max_links
        self._max_length = page.max_url_length
        self._max_raw = page.max_url_length * RAW_FACTOR
        self._has_base = False
        self._begin(page.url)

    def _begin(self, base: str) -> None:
        self._resolver = LinkResolver(base)
        self._links: dict[str, None] = {}
        self._seen: set[bytes] = set()
        self._noindex, self._nofollow = self._rules
        self._canonical: str | None = None
        self._refresh: str | None = None
        self._found = self._too_long = self._rel_nofollow = 0
        self._truncated = False
        self._unusable = {Unusable.NOT_HTTP: 0, Unusable.MALFORMED: 0}

    def read(self) -> PageLinks:
        late = self._pass()
        if late is not None:  # rare
            self._begin(late)
            self._pass()
        return self._result()

    def _pass(self) -> str | None:
        """Read the page; return a base that came after links that it is for."""
        links, most = self._links, self._max_links * ELEMENTS_PER_LINK
        for match in TAGS.finditer(self._page.markup):
            kind = match.lastindex
            if kind == LINK:
                value, rest = match[1][1:-1], match[2]
                if rest and b"rel" in rest.lower():
                    self._link_element(value, attributes(rest))
                else:
                    self._add(value)
            elif kind == TAG and (late := self._tag(match[4].lower(), match[5])) is not None:
                return late
            if len(links) >= self._max_links or self._found >= most:
                self._truncated = True
                break
        return None

    def _result(self) -> PageLinks:
        kept = len(self._links)
        not_http = self._unusable[Unusable.NOT_HTTP]
        malformed = self._unusable[Unusable.MALFORMED]
        dropped = self._too_long + not_http + malformed + self._rel_nofollow
        counts = ElementCounts(
            found=self._found,
            duplicate=self._found - kept - dropped,
            too_long=self._too_long,
            not_http=not_http,
            malformed=malformed,
            nofollow=self._rel_nofollow,
        )
        return PageLinks(
            links=list(self._links),
            canonical=self._canonical,
            nofollow=self._nofollow,
            noindex=self._noindex,
            base=self._resolver.base or "",
            refresh=self._refresh,
            truncated=self._truncated,
            counts=counts,
        )

    def _tag(self, name: bytes, raw: bytes) -> str | None:
        found = attributes(raw)
        if name == b"meta":
            self._meta(found)
        elif name == b"link":
            if self._canonical is None and b"canonical" in self._words(found, b"rel"):
                self._canonical = self._resolved(found.get(b"href", b""))
        elif name == b"base":
            return self._set_base(found.get(b"href"))
        else:
            value = found.get(_URL_ATTRIBUTE[name])
            if value is not None:
                self._link_element(value, found)
        return None

    def _link_element(self, value: bytes, found: dict[bytes, bytes]) -> None:
        if b"rel" in found and b"nofollow" in self._words(found, b"rel"):
            self._found += 1
            self._rel_nofollow += 1
        else:
            self._add(value)

    def _add(self, value: bytes) -> str | None:
        if b"#" in value and b"&" not in value:
            value = value[: value.index(b"#")]
        # Most links of most pages repeat another, or differ from it in their fragment only.
        if value in self._seen:
            self._found += 1
            return None
        if len(value) > self._max_raw:
            self._found += 1
            self._too_long += 1
            return None
        self._seen.add(value)
        if value.isascii() and b"&" not in value and not self._page.has_nul:
            # Nothing is to be decoded: most links of nearly all pages.
            url = self._resolver.resolve(value.decode("ascii"))
            if isinstance(url, str) and len(url) <= self._max_length:
                self._found += 1
                self._links[url] = None
                return url
        return self._add_reference(self._page.read_url(value))

    def _add_reference(self, href: str) -> str | None:
        self._found += 1
        url = self._resolver.resolve(href)
        if isinstance(url, str):
            if len(url) <= self._max_length:
                self._links[url] = None
                return url
            self._too_long += 1
        else:
            self._unusable[url] += 1
        return None

    def _words(self, found: dict[bytes, bytes], name: bytes) -> list[bytes]:
        value = found.get(name, b"")
        return self._page.read(value).lower().encode().split() if value else []

    def _set_base(self, value: bytes | None) -> str | None:
        """Use the first base that has a *value* and is http or https; return it if it is late."""
        if self._has_base or value is None:
            return None
        self._has_base = True
        base = self._resolved(value)
        if base is None:
            return None
        self._resolver = LinkResolver(base)
        return base if self._found or self._canonical else None

    def _meta(self, found: dict[bytes, bytes]) -> None:
        content = found.get(b"content")
        if not content or len(content) > self._max_raw:
            return
        text = self._page.read
        if text(found.get(b"name", b"")).strip().lower() in self._robots:
            rules = parse_directives(text(content))
            self._noindex |= rules.noindex
            self._nofollow |= rules.nofollow
        if self._refresh is None and text(found.get(b"http-equiv", b"")).lower() == "refresh":
            target = refresh_target(self._page.read_url(content))
            if target is not None:
                self._refresh = self._add_reference(target)

    def _resolved(self, value: bytes) -> str | None:
        if not value or len(value) > self._max_raw:
            return None
        url = self._resolver.resolve(self._page.read_url(value))
        return url if isinstance(url, str) and len(url) <= self._max_length else None


Edge = tuple[str, str, bool]
"""A normal URL, the kind (``a``, ``area``, ``frame``, ``refresh``, ``canonical``), nofollow."""

TEXT_MAX: Final = 500
"""Bytes of the text of a link that are read."""

_KINDS: Final = {b"area": "area", b"frame": "frame", b"iframe": "frame", b"meta": "refresh"}
# Linear in the page: nothing is searched for across a "<".
_TEXT: Final = re.compile(rb"<a\b[^<>]*>([^<]+)", re.I)


def extract_edges(body: bytes, page: PageContext) -> tuple[PageLinks, list[Edge]]:
    """The result of `extract`, and the page's edges in document order, the canonical one last.

    An edge occurs once for each kind, at most four times *max_links* in all. Never raises.
    """
    reader = _EdgeReader(body, page)
    found = reader.read()
    edges = [(to, kind, no or found.nofollow) for (to, kind), no in reader.edges.items()]
    if found.canonical is not None:
        edges.append((found.canonical, "canonical", False))
    return found, edges


class _EdgeReader(MarkupReader):
    def _begin(self, base: str) -> None:
        super()._begin(base)
        self.edges: dict[tuple[str, str], bool] = {}
        self._kind = "a"
        self._noted: set[tuple[bytes, str, bool]] = set()

    def _tag(self, name: bytes, raw: bytes) -> str | None:
        self._kind = _KINDS.get(name, "a")
        late = super()._tag(name, raw)
        self._kind = "a"
        return late

    def _link_element(self, value: bytes, found: dict[bytes, bytes]) -> None:
        before = self._rel_nofollow
        super()._link_element(value, found)
        if self._rel_nofollow > before:
            self._note(value, nofollow=True)

    def _add(self, value: bytes) -> str | None:
        before = len(self._seen)
        to = super()._add(value)
        if len(self._seen) == before:  # met before, but maybe as another kind, or marked nofollow
            self._note(value, nofollow=False)
        else:
            self._noted.add((value, self._kind, False))
            if to is not None:
                self.edges[to, self._kind] = False
        return to

    def _add_reference(self, href: str) -> str | None:
        to = super()._add_reference(href)
        if to is not None:
            self.edges[to, self._kind] = False
        return to

    def _note(self, value: bytes, *, nofollow: bool) -> None:
        """Note the link *value*, which was not resolved, or not as this kind."""
        mark = value, self._kind, nofollow
        if mark in self._noted:
            return
        self._noted.add(mark)
        to = self._resolved(value)
        if to is not None:
            edge = to, self._kind
            self.edges[edge] = self.edges.get(edge, True) and nofollow


def link_texts(
    body: bytes, encoding: str | None = None, content_type: bytes | str | None = None
) -> list[str]:
    """The texts of the links of an HTML page, each up to its first tag. Never raises."""
    page = Markup(body, encoding, content_type)
    texts = (page.read(text[:TEXT_MAX]).strip() for text in _TEXT.findall(page.markup))
    return [text for text in texts if text]
