"""The links of a page: normal URLs, each once, in document order; or as edges of a graph.

Tags are found in one linear pass by the tokenizer of the HTML standard (§13.2.5), without a tree: a
page decides what a tree costs. On purpose, the contents of noscript, noframes, noembed, iframe and
template are markup, and a script ends at its first end tag. The encoding is found in the order of
the standard (§13.2.3), with UTF-8 or windows-1252 at its end.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from html import unescape as html_unescape
from html.entities import html5
from typing import Final, NamedTuple
from urllib.parse import quote_from_bytes

from msgspec import Struct
from w3lib.encoding import (
    html_body_declared_encoding,
    http_content_type_encoding,
    read_bom,
    resolve_encoding,
    to_unicode,
)

from scrapy_spider_suite.urls.normalize import MAX_LENGTH, RAW_FACTOR, LinkResolver, Unusable

MAX_ATTRIBUTES: Final = 256
"""Attributes of one tag that are told apart; past them, the tag ends at the next ``>``."""

MAX_TAG: Final = 1 << 16  # bytes of a tag that are searched for attributes

_BATCH: Final = 400
"""Tags passed over in one step: bounds what the regular expression engine remembers."""

_SPACE: Final = r"[\t\n\f\r ]"
_NAME_ENDS: Final = r"(?=[\t\n\f\r />])"
_NAME: Final = r"[a-zA-Z][^\t\n\f\r />]*"


def _any_case(name: str) -> str:
    return "".join(f"[{letter}{letter.upper()}]" for letter in name) + _NAME_ENDS


# An unclosed quote runs to the end of the page, as in the standard. Every loop below can end at
# the end of the page, so no match ever fails late and nothing is tried twice.
_VALUE: Final = r"""(?:"[^"]*(?:"|\Z)|'[^']*(?:'|\Z)|[^\t\n\f\r >"'][^\t\n\f\r >]*)?"""
_QUOTED: Final = r"""(?:"[^"]*"|'[^']*')"""
_ATTRIBUTES: Final = (
    rf"(?:[\t\n\f\r /]*[^\t\n\f\r />][^=>]*(?:={_SPACE}*{_VALUE})?){{0,{MAX_ATTRIBUTES}}}[^>]*"
)
# The first alternative is how most tags are written, and takes a third of the time.
_PLAIN: Final = r"""(?: [a-z-]+="[^"]*"){0,8}>"""
_REST: Final = rf"(?:{_PLAIN}|{_ATTRIBUTES}(?:>|\Z))"


def _text_element(name: str, *, may_be_empty: bool = False) -> str:
    """A pattern for the element *name*, whose content is text up to its end tag."""
    empty = "(?<=/)>|" if may_be_empty else ""
    ends = rf"(?:.*?</{_any_case(name)}|.*\Z)"
    return rf"{_any_case(name)}{_ATTRIBUTES}(?:{empty}>{ends}|\Z)"


_LINKING: Final = "(?:{})".format(
    "|".join(map(_any_case, ("a", "link", "meta", "area", "frame", "iframe", "base")))
)
# The most common tags that are neither linking nor text elements: tried first, for speed only.
_COMMON: Final = r"(?:p|div|span|li|td|tr|ul|code|h[1-6]|em|pre|d[dtl]|br)"

_OTHER: Final = "|".join(
    (
        r"/[a-z]+>",
        rf"{_COMMON}{_NAME_ENDS}{_REST}",
        "(?!{})(?:{}|{})".format(
            _LINKING,
            "|".join(
                (
                    _text_element("script"),
                    _text_element("style", may_be_empty=True),
                    _text_element("textarea"),
                    _text_element("title", may_be_empty=True),
                    _text_element("xmp"),
                    _any_case("plaintext") + ".*",
                )
            ),
            _NAME + _REST,
        ),
        rf"/{_NAME}{_REST}",
        r"!--(?:-?>|.*?--!?>|.*\Z)",
        r"[!?/][^>]*(?:>|\Z)",
        r"(?![a-zA-Z!?/])",
    )
)

TAGS: Final = re.compile(
    rf"""[^<]*(?:<(?!a )(?:{_OTHER})[^<]*){{0,{_BATCH}}}"""
    rf"""(?:<(?:a(?:{_SPACE}+(?!href|rel)[a-z-]+={_QUOTED}){{0,8}}{_SPACE}+href=({_QUOTED})"""
    rf"""({_ATTRIBUTES})(?:(>)|\Z)|({_LINKING})({_ATTRIBUTES})(?:(>)|\Z)))?""".encode(),
    re.DOTALL,
)
"""Each match passes over markup and may end with one linking tag. Its ``lastindex`` tells which:

- ``LINK``: an ``a`` whose ``href`` comes before any ``rel``, plainly written: group 1 is the quoted
  value of its ``href``, group 2 all that follows it;
- ``TAG``: any other: group 4 is its name, group 5 all its attributes;
- else there is none, or the page was cut off in the middle of it.
"""
LINK: Final = 3
TAG: Final = 6

# Matches without a name, too: else the search would begin again at each byte of a run of slashes
# that no name follows (64 kB of them took 80 s).
_ATTRIBUTE: Final = re.compile(
    rb"""[\t\n\f\r /]*(?:([^\t\n\f\r />][^\t\n\f\r />=]*)"""
    rb"""(?:[\t\n\f\r ]*=[\t\n\f\r ]*"""
    rb"""(?:"([^"]*)(?:"|\Z)|'([^']*)(?:'|\Z)|([^\t\n\f\r >"'][^\t\n\f\r >]*))?)?)?"""
)

_REFERENCE: Final = re.compile(r"&(?:#(?:[0-9]+|[xX][0-9a-fA-F]+);?|[A-Za-z][A-Za-z0-9]*[;=]?)")
# No name has more than 32 characters.
_TEXT_REFERENCE: Final = re.compile(
    r"&(?:#(?:[0-9]+|[xX][0-9a-fA-F]+);?|[A-Za-z][A-Za-z0-9]{1,31};?)"
)


def attributes(raw: bytes) -> dict[bytes, bytes]:
    """The attributes in *raw*, the inside of a tag: lower-case names, raw values, the first wins.
    """
    found = _ATTRIBUTE.findall(raw[:MAX_TAG])
    return {
        name.lower(): double or single or bare for name, double, single, bare in found[::-1] if name
    }


def unescape(value: str) -> str:
    """An attribute's *value* with its character references resolved (HTML standard, §13.2.5.72).

    Unlike in text, a name without semicolon is no reference before ``=``, a letter or a digit.
    """
    return _REFERENCE.sub(_referred, value) if "&" in value else value


def unescape_text(text: str) -> str:
    """The *text* of an element with its character references resolved."""
    return _TEXT_REFERENCE.sub(
        lambda match: _referred(match) if match[0][1] == "#" else html_unescape(match[0]), text
    )


def _referred(match: re.Match[str]) -> str:
    text = match[0]
    if text[1] != "#":
        return html5.get(text[1:], text)
    digits = text[2:].rstrip(";").lstrip("xX").lstrip("0") or "0"
    # No character needs more than seven digits; what has a million is not worth converting.
    if len(digits) > 7:
        return "\ufffd"
    code = int(digits, 16) if text[2] in "xX" else int(digits)
    if 0xA0 <= code < 0xD800 or 0x20 <= code < 0x7F:
        return chr(code)
    # Python leaves out control characters and noncharacters, the standard does not.
    return html_unescape(f"&#{code};") or chr(code)


# Python's names of the encodings of the Encoding Standard, as w3lib resolves their labels. In the
# plain ones markup can be read as it is: ASCII bytes are ASCII, and the second byte of a character
# is never a quote, a bracket, a slash or white space.
_PLAIN_ENCODINGS: Final = frozenset(
    [
        *("utf-8", "gb18030", "big5hkscs", "euc_jp", "cp932", "cp949"),
        *("koi8-r", "koi8-u", "mac-roman", "cp866", "cp874"),
        *(f"cp125{number}" for number in range(9)),
        *(f"iso8859-{number}" for number in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)),
    ]
)
# The others are rewritten as UTF-8 first.
_WIDE: Final = frozenset(("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"))
_ESCAPED: Final = frozenset(("iso2022_jp", "iso2022_kr"))

_ESCAPE: Final = b"\x1b"
_BEYOND_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_SHIFTS: Final = re.compile(r"[\x0e\x0f\x1b]|[^\x00-\x7f]")
# What the standard's special-query percent-encode set leaves alone.
_QUERY_SAFE: Final = "!$%&()*+,-./:;=?@[\\]^_`{|}~"


class Markup:
    __slots__ = ("_encoding", "has_nul", "markup")

    def __init__(
        self, body: bytes, encoding: str | None = None, content_type: bytes | str | None = None
    ) -> None:
        declared, bom = read_bom(body)
        if declared is None:
            declared = _from_http(encoding, content_type, body)
        if declared is None and _ESCAPE in body:
            # The only encodings a meta can name in which ASCII bytes may not be ASCII.
            declared = _from_meta(body)
        if declared is not None and declared not in _PLAIN_ENCODINGS:
            body = body[len(bom or b"") :].decode(declared, "replace").encode()
        self.markup: Final = body
        # None: not known yet, and not needed before a value that is not ASCII.
        self._encoding = declared
        self.has_nul = b"\0" in body

    def read(self, value: bytes) -> str:
        """The text of an attribute *value*; bytes that are not text, and NUL, become U+FFFD."""
        if value.isascii():
            text = value.decode("ascii")
        else:
            encoding = self.encoding
            text = to_unicode(value, encoding if encoding in _PLAIN_ENCODINGS else "utf-8")
        if self.has_nul:
            text = text.replace("\0", "\ufffd")
        return unescape(text) if "&" in text else text

    def read_url(self, value: bytes) -> str:
        """The URL in *value*, its query in the page's encoding (URL standard, §4.4)."""
        if value.isascii() and b"&" not in value and not self.has_nul:
            return value.decode("ascii")
        text = self.read(value)
        if "?" not in text or (text.isascii() and self._encoding not in _ESCAPED):
            return text
        encoding = self.encoding
        if encoding.startswith("utf"):
            return text
        head, hash_sign, fragment = text.partition("#")
        path, mark, query = head.partition("?")
        own = _SHIFTS if encoding in _ESCAPED else _BEYOND_ASCII
        query = own.sub(lambda match: _in_query(match[0], encoding), query)
        return path + mark + query + hash_sign + fragment

    @property
    def encoding(self) -> str:
        if self._encoding is None:
            self._encoding = _from_meta(self.markup) or _guess(self.markup)
        return self._encoding


def _in_query(character: str, encoding: str) -> str:
    """*character* of a query in *encoding*; as a character reference if it has no bytes there.

    Encoding Standard: gb18030 has no bytes for U+E5E5 (§10.2.2), and the shifts of ISO-2022-JP
    stand for U+FFFD (§12.2.2).
    """
    if character == "\ue5e5" and encoding == "gb18030":
        return _as_reference(character)
    if character.isascii():
        return _as_reference("\ufffd")
    try:
        return quote_from_bytes(character.encode(encoding), safe=_QUERY_SAFE)
    except UnicodeEncodeError:
        return _as_reference(character)


def _as_reference(character: str) -> str:
    return f"%26%23{ord(character)}%3B"


def _from_http(encoding: str | None, content_type: bytes | str | None, body: bytes) -> str | None:
    if encoding is not None:
        found = _usable(resolve_encoding(encoding))
    elif content_type:
        found = _http_encoding(content_type)
    else:
        return None
    # Markup in these has a NUL in every other byte or more; without any, the header lies.
    if found in _WIDE:
        order = "be" if body[:1] == b"\0" else "le"
        return found[:-2] + order if b"\0" in body[:64] else None
    return found


@lru_cache(maxsize=256)
def _http_encoding(content_type: bytes | str) -> str | None:
    text = content_type if isinstance(content_type, str) else content_type.decode("latin-1")
    return _usable(http_content_type_encoding(text))


def _from_meta(body: bytes) -> str | None:
    found = _usable(html_body_declared_encoding(body))
    return "utf-8" if found in _WIDE else found


def _usable(name: str | None) -> str | None:
    if name in ("utf-16", "utf-32"):
        name += "-le"
    return name if name in _PLAIN_ENCODINGS or name in _WIDE or name in _ESCAPED else None


def _guess(body: bytes) -> str:
    """UTF-8 if *body* is valid UTF-8, but for a character cut at the end."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(body)
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


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
    """Of ``X-Robots-Tag`` headers for all robots, or for *robot*: a name holds to the next one."""
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


MAX_LINKS: Final = 10_000  # links of one page; reading stops at the last

ELEMENTS_PER_LINK: Final = 4
"""Reading stops, too, at this many elements for each link allowed: most then repeat others."""

_URL_ATTRIBUTE: Final = {b"a": b"href", b"area": b"href", b"frame": b"src", b"iframe": b"src"}


class ElementCounts(Struct, frozen=True):
    """``found``: elements of a page that name a URL; the others: those that added no link."""

    found: int = 0
    duplicate: int = 0
    too_long: int = 0
    not_http: int = 0
    malformed: int = 0
    nofollow: int = 0


class PageLinks(Struct, frozen=True):
    """The links of a page (a, area, frame, iframe, meta refresh) and its own words; normal URLs."""

    links: list[str]  # each once, in order, without ``rel=nofollow`` ones
    canonical: str | None  # the page's name for itself
    nofollow: bool  # asked by a robots ``meta`` or an ``X-Robots-Tag`` header; *noindex* likewise
    noindex: bool
    base: str  # base of relative links; empty if the page's own URL is not http or https
    refresh: str | None  # target of a meta refresh
    truncated: bool  # whether reading stopped at *max_links*
    counts: ElementCounts


class PageContext(Struct, frozen=True):
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
        self._truncated = self._one_by_one = False
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
        run: list[bytes] = []  # links that are to be added together
        for match in TAGS.finditer(self._page.markup):
            kind = match.lastindex
            if kind == LINK:
                value, rest = match[1][1:-1], match[2]
                if rest and b"rel" in rest.lower():
                    self._add_run(run)
                    self._link_element(value, attributes(rest))
                else:
                    run.append(value)
            elif kind == TAG:
                self._add_run(run)
                if (late := self._tag(match[4].lower(), match[5])) is not None:
                    return late
            if len(links) + len(run) >= self._max_links or self._found + len(run) >= most:
                self._add_run(run)
                if len(links) >= self._max_links or self._found >= most:
                    self._truncated = True
                    return None
        self._add_run(run)
        return None

    def _result(self) -> PageLinks:
        dropped = (
            self._too_long, self._unusable[Unusable.NOT_HTTP],
            self._unusable[Unusable.MALFORMED], self._rel_nofollow,
        )  # fmt: skip
        duplicate = self._found - len(self._links) - sum(dropped)
        return PageLinks(
            list(self._links), self._canonical, self._nofollow, self._noindex,
            base=self._resolver.base or "", refresh=self._refresh, truncated=self._truncated,
            counts=ElementCounts(self._found, duplicate, *dropped),
        )  # fmt: skip

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

    def _add_run(self, run: list[bytes]) -> None:
        """`_add` each link of *run*, and empty it."""
        if not run:
            return
        text, odd = b"".join(run), self._page.has_nul or max(map(len, run)) > self._max_raw
        if self._one_by_one or odd or b"&" in text or not text.isascii():
            for value in run:
                self._add(value)
            run.clear()
            return
        # Nothing is to be decoded: the links of nearly all pages.
        self._found += len(run)
        if b"#" in text:
            run[:] = [value.partition(b"#")[0] for value in run]
        # Most links of most pages repeat another, or differ from it in their fragment only.
        new = [value.decode("ascii") for value in dict.fromkeys(run) if value not in self._seen]
        self._seen.update(run)
        run.clear()
        for url in self._resolver.resolve_all(new):
            if not isinstance(url, str):
                self._unusable[url] += 1
            elif len(url) > self._max_length:
                self._too_long += 1
            else:
                self._links[url] = None

    def _add(self, value: bytes) -> str | None:
        if b"#" in value and b"&" not in value:
            value = value[: value.index(b"#")]
        if value in self._seen:
            self._found += 1
            return None
        if len(value) > self._max_raw:
            self._found += 1
            self._too_long += 1
            return None
        self._seen.add(value)
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

TEXT_MAX: Final = 500  # bytes of the text of a link that are read

_KINDS: Final = {b"area": "area", b"frame": "frame", b"iframe": "frame", b"meta": "refresh"}
# Linear in the page: nothing is searched for across a "<".
_TEXT: Final = re.compile(rb"<a\b[^<>]*>([^<]+)", re.I)


def extract_edges(body: bytes, page: PageContext) -> tuple[PageLinks, list[Edge]]:
    """The result of `extract`, and the page's edges in document order, the canonical one last.

    An edge occurs once for each kind, at most four times *max_links* in all. Never raises.
    """
    reader = _EdgeReader(body, page)
    found = reader.read()
    if reader.edges is None:
        edges = [(to, "a", found.nofollow) for to in found.links]
    else:
        edges = [(to, kind, no or found.nofollow) for (to, kind), no in reader.edges.items()]
    if found.canonical is not None:
        edges.append((found.canonical, "canonical", False))
    return found, edges


class _EdgeReader(MarkupReader):
    """*edges*: None until a link is of another kind than ``a``, or nofollow; few pages have any."""

    def _begin(self, base: str) -> None:
        super()._begin(base)
        self.edges: dict[tuple[str, str], bool] | None = None
        self._kind = "a"
        self._noted: set[tuple[bytes, str, bool]] = set()

    def _kinds(self) -> dict[tuple[str, str], bool]:
        if self.edges is None:
            self._one_by_one = True
            self.edges = dict.fromkeys([(to, "a") for to in self._links], False)
            self._noted = {(value, "a", False) for value in self._seen}
        return self.edges

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
        if self.edges is None and self._kind == "a":
            return super()._add(value)
        edges, before = self._kinds(), len(self._seen)
        to = super()._add(value)
        if len(self._seen) == before:  # met before, but maybe as another kind, or marked nofollow
            self._note(value, nofollow=False)
        else:
            self._noted.add((value, self._kind, False))
            if to is not None:
                edges[to, self._kind] = False
        return to

    def _add_reference(self, href: str) -> str | None:
        if self._kind != "a":
            self._kinds()
        to = super()._add_reference(href)
        if to is not None and self.edges is not None:
            self.edges[to, self._kind] = False
        return to

    def _note(self, value: bytes, *, nofollow: bool) -> None:
        """Note the link *value*, which was not resolved, or not as this kind."""
        edges, mark = self._kinds(), (value, self._kind, nofollow)
        if mark in self._noted:
            return
        self._noted.add(mark)
        to = self._resolved(value)
        if to is not None:
            edge = to, self._kind
            edges[edge] = edges.get(edge, True) and nofollow


def link_texts(
    body: bytes, encoding: str | None = None, content_type: bytes | str | None = None
) -> list[str]:
    """The texts of the links of an HTML page, each up to its first tag. Never raises."""
    page = Markup(body, encoding, content_type)
    texts = (page.read(text[:TEXT_MAX]).strip() for text in _TEXT.findall(page.markup))
    return [text for text in texts if text]
