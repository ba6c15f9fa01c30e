"""A drop-in for Scrapy's ``LinkExtractor``: the same arguments and links, in less time.

The links of a page are read without a tree, unless the spider has made one already or only the tree
tells them: libxml2 2.14 finds tags as the HTML standard does (§13.2.5), but builds elements by its
own rules. ``restrict_xpaths``, ``restrict_css`` and other ``tags`` or ``attrs`` than Scrapy's
defaults are left to Scrapy's extractor.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urljoin
from weakref import WeakKeyDictionary

from lxml import etree  # type: ignore[import-untyped]
from scrapy.http import HtmlResponse, TextResponse
from scrapy.link import Link
from scrapy.linkextractors import IGNORED_EXTENSIONS
from scrapy.linkextractors.lxmlhtml import LxmlLinkExtractor
from scrapy.utils.misc import arg_to_iter, rel_has_nofollow
from scrapy.utils.response import get_base_url
from w3lib.html import strip_html5_whitespace
from w3lib.url import safe_url_string

from scrapy_spider_suite.urls.extract import unescape, unescape_text

__all__ = ["IGNORED_EXTENSIONS", "LinkExtractor", "read_anchors"]

# Before, libxml2 found tags by rules of its own.
_READS_MARKUP: Final = etree.LIBXML_VERSION >= (2, 14)
_ARGUMENTS: Final = inspect.signature(LxmlLinkExtractor)
_TEXT: Final = etree.XPath("string()")

# What neither joining nor escaping changes: the usual schemes and ports, no parameters, no empty
# query or fragment, no "'" in a query. Joined, it follows what is the same for all of its kind.
_QUERY: Final = r"(?:\?[A-Za-z0-9._~!$&()*+,;=:@%/?-]+)?"
_FRAGMENT: Final = r"\#[A-Za-z0-9._~!$&'()*+,;=:@%/?-]+"
_EASY: Final = re.compile(
    rf"""(https?://(?:[a-z0-9-]{{1,63}}\.)+[a-z]{{1,63}}(?::[1-9][0-9]{{1,3}})?
          (?:/[A-Za-z0-9._~!$&'()*+,=:@%/-]*{_QUERY}(?:{_FRAGMENT})?)?)
       | (/(?!/) | (?:\.\.?/)+ | (?=[A-Za-z0-9_]))
         ((?!\.)[A-Za-z0-9._~!$&'()*+,=@%/-]*{_QUERY}(?:{_FRAGMENT})?)
       | ({_FRAGMENT})""",
    re.VERBOSE,
)
# No link extractor keeps these schemes.
_UNUSED_SCHEME: Final = re.compile(r"(?ai:javascript|mailto|tel|data):")

Anchor = tuple[str, str, str, str | None]
"""The name of an element, its ``href``, its text with that of its children, its ``rel``."""

# Several rules of a spider read the same page.
_read: WeakKeyDictionary[TextResponse, list[Anchor] | None] = WeakKeyDictionary()


class LinkExtractor(LxmlLinkExtractor):
    """Takes the arguments of ``scrapy.linkextractors.LinkExtractor`` and returns its links."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        bound = _ARGUMENTS.bind(*args, **kwargs)
        bound.apply_defaults()
        tags, attrs = (set(arg_to_iter(bound.arguments[name])) for name in ("tags", "attrs"))
        parser = self.link_extractor
        self._tags = frozenset(name for name in ("a", "area") if parser.scan_tag(name))
        process = bound.arguments["process_value"]
        self._process: Callable[[Any], Any] | None = process if callable(process) else None
        # What follows the last dot of a path that may have one of the extensions.
        self._suffixes = frozenset(each[each.rfind(".") :] for each in self.deny_extensions)
        self._is_scrapys = bool(
            self.restrict_xpaths
            or not tags <= {"a", "area"}
            or attrs != {"href"}
            or not parser.scan_attr("href")
        )

    def extract_links(self, response: TextResponse) -> list[Link]:
        """The links of *response* that the arguments allow, in the order of the page."""
        if self._is_scrapys or not isinstance(response, HtmlResponse):
            return super().extract_links(response)
        return self._process_links(self._make_links(response, _anchors(response)))

    def _make_links(self, response: TextResponse, anchors: list[Anchor]) -> list[Link]:
        joiner, parser, process = _Joiner(response), self.link_extractor, self._process
        links: list[Link] = []
        known: set[str] = set()
        for name, href, text, rel in anchors:
            if name not in self._tags:
                continue
            if parser.strip:
                href = strip_html5_whitespace(href)
            url = joiner.join(href) if process is None else joiner.join_processed(href, process)
            if url is None or (parser.unique and url in known):
                continue
            known.add(url)
            links.append(Link(url, text, nofollow=rel is not None and rel_has_nofollow(rel)))
        return links

    def _link_allowed(self, link: Link) -> bool:
        url = link.url
        path = url.partition("#")[0].partition("?")[0]
        if (
            self.allow_domains
            or self.deny_domains
            or not url.startswith(("http://", "https://"))
            or path[path.rfind(".") :].lower() in self._suffixes
            or ";" in path
        ):
            return super()._link_allowed(link)
        return (
            (not self.allow_res or any(each.search(url) for each in self.allow_res))
            and not any(each.search(url) for each in self.deny_res)
            and (not self.restrict_text or any(e.search(link.text) for e in self.restrict_text))
        )


def _anchors(response: HtmlResponse) -> list[Anchor]:
    if _READS_MARKUP and response._cached_selector is None:
        if response not in _read:
            _read[response] = read_anchors(response.text)
        if (found := _read[response]) is not None:
            return found
    # A spider may have changed its tree.
    elements = response.selector.root.iter("a", "area")
    return [
        (each.tag, href, _TEXT(each), each.get("rel"))
        for each in elements
        if (href := each.get("href")) is not None
    ]


class _Joiner:
    """Makes the URLs of the references of one page as Scrapy's link extractor does."""

    def __init__(self, response: TextResponse) -> None:
        self._base = get_base_url(response)
        self._page = response.url
        self._encoding = response.encoding
        self._before: dict[str, str] = {}
        self._joined: dict[str, str | None] = {}

    def join(self, href: str) -> str | None:
        """The absolute URL of *href*; None if there is none, or one that is never a link."""
        if href in self._joined:
            return self._joined[href]
        url = self._joined[href] = self._join_new(href)
        return url

    def _join_new(self, href: str) -> str | None:
        easy = _EASY.fullmatch(href)
        if easy is None:
            return None if _UNUSED_SCHEME.match(href) else self.join_processed(href)
        absolute, begin, rest, fragment = easy.groups()
        if absolute is not None:
            return href
        if fragment is not None:
            begin, rest = "#", fragment[1:]
        elif "/." in rest or ("//" in href and begin != "/"):
            return self.join_processed(href)
        before = self._before.get(begin)
        if before is None:
            joined = self.join_processed(begin + "x")
            if joined is None:
                return None
            before = self._before[begin] = joined[:-1]
        return before + rest

    def join_processed(self, href: str, process: Callable[[Any], Any] | None = None) -> str | None:
        """The URL of *href*, after *process*; None if there is none."""
        try:
            value = urljoin(self._base, href)
        except ValueError:
            return None
        if process is not None:
            value = process(value)
            if value is None:
                return None
        try:
            url = safe_url_string(value, encoding=self._encoding)
        except ValueError:
            return None
        return urljoin(self._page, url)


_SPACE: Final = r"[\t\n\f\r ]"
_NAME: Final = r"[a-zA-Z][^\t\n\f\r />]*+"
_NAME_ENDS: Final = r"(?=[\t\n\f\r />])"
# A quote that is not closed, and more attributes than any page has, match nothing. No "/" of "/>".
_ATTRIBUTES: Final = (
    r"(?:[\t\n\f\r ]++|/(?!>)|[^\t\n\f\r />][^\t\n\f\r />=]*+"
    rf"(?:{_SPACE}*+={_SPACE}*+"
    r"""(?:"[^"]*+"|'[^']*+'|(?!["'])[^\t\n\f\r >]*+)"""
    rf"|(?!{_SPACE}*+=))){{0,256}}"
)
# How most tags are written.
_PLAIN: Final = r"""(?:[\t\n ]+(?!href=|rel=)[a-z-]+="[^"]*+"){0,8}"""
_REST: Final = rf"(?:{_PLAIN}>|{_ATTRIBUTES}/?>)"
# Their contents are text up to their end tag; plaintext has none.
_TEXT_ELEMENTS: Final = "script|style|textarea|title|xmp|iframe|noembed|noframes|plaintext"
_OUTER: Final = "html|head|body"
_COMMON: Final = r"(?:p|div|span|li|td|tr|ul|code|h[1-6]|em|pre|d[dtl]|br|img|i|b|strong)"
_OTHER: Final = "|".join(
    (
        r"/(?!html>)[a-z0-9]+>",
        rf"{_COMMON}{_NAME_ENDS}{_REST}",
        rf"(?!(?ai:a|area|{_TEXT_ELEMENTS}|{_OUTER}){_NAME_ENDS}){_NAME}{_REST}",
        # A misplaced <body/> ends the element that it is in.
        rf"(?ai:{_OUTER}){_NAME_ENDS}{_ATTRIBUTES}>",
        rf"/(?!(?ai:html){_NAME_ENDS}){_NAME}{_ATTRIBUTES}/?>",
        r"(?!!--)[!?][^>]*+>",
        r"/(?:>|[^a-zA-Z>][^>]*+>)",
        r"(?![a-zA-Z!?/])",
    )
)
# Passes over at most so many tags that are no links, which bounds what a match has to remember. The
# rest matches if there is nothing that it can name, so no match ever fails.
_TAGS: Final = re.compile(
    rf"[^<]*+(?:<(?:{_OTHER})[^<]*+){{0,400}}"
    rf"""(?:<(?:a{_PLAIN}[\t\n ]+href="([^"]*+)"{_PLAIN}>([^<]*+)</a>"""
    rf"|((?ai:a|area|{_TEXT_ELEMENTS})){_NAME_ENDS}({_ATTRIBUTES})(/?)>"
    rf"|(!--|/(?ai:html){_NAME_ENDS})))?"
)
_PLAIN_LINK, _TAG, _COMMENT_OR_END = 2, 5, 6  # the last group of each

_ATTRIBUTE: Final = re.compile(
    rf"[\t\n\f\r /]*+(?:([^\t\n\f\r />][^\t\n\f\r />=]*+)(?:{_SPACE}*+={_SPACE}*+"
    r"""(?:"([^"]*+)"|'([^']*+)'|([^\t\n\f\r >"'][^\t\n\f\r >]*+))?)?)?"""
)
_CONTENT: Final = re.compile(
    r"([^<]*+(?:<(?![a-zA-Z!?/])[^<]*+){0,99})"
    rf"<(?:(/?)({_NAME}){_ATTRIBUTES}(/?)>|!--)"
)
_COMMENT_ENDS: Final = re.compile("--!?>")
_LINK: Final = re.compile(rf"<(?ai:a|area){_NAME_ENDS}")
_SCRIPT: Final = re.compile(rf"<(?ai:script){_NAME_ENDS}")
_TEXT_ENDS: Final = {
    name: re.compile(rf"</(?ai:{name}){_NAME_ENDS}") for name in _TEXT_ELEMENTS.split("|")
}

# Elements within a link, by libxml2's tables: those that are always empty, ...
_EMPTY: Final = frozenset(
    (
        *("area", "base", "basefont", "br", "col", "frame", "hr", "img", "input", "isindex"),
        *("link", "meta", "param"),
    )
)
# ... those whose start tags end the innermost elements of some kinds, ...
_HEADINGS: Final = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
_ENDED_BY: Final = dict.fromkeys(("div", "hr", *_HEADINGS), frozenset("p")) | {
    "p": _HEADINGS | frozenset(("b", "big", "i", "p", "s", "small", "strike", "tt", "u"))
}
# ... and those, rare there, that end a link, or others than these.
_OF_THE_TREE: Final = frozenset(
    (
        *_TEXT_ELEMENTS.split("|"),
        *_OUTER.split("|"),
        *("address", "blockquote", "caption", "center", "col", "colgroup", "dd", "dir", "dl"),
        *("dt", "fieldset", "form", "frame", "frameset", "legend", "li", "listing", "menu", "ol"),
        *("optgroup", "option", "pre", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "ul"),
    )
)
_MAX_DEPTH: Final = 50


def read_anchors(page: str) -> list[Anchor] | None:
    """The elements with an ``href`` in the text of a *page*, in order; None: only the tree tells.
    """
    if "\0" in page:
        page = page.replace("\0", "")
    if "\r" in page:
        page = page.replace("\r\n", "\n").replace("\r", "\n")
    anchors: list[Anchor] = []
    at, size, match_at = 0, len(page), _TAGS.match
    while at < size:
        match = match_at(page, at)
        assert match is not None
        kind, begin, at = match.lastindex, at, match.end()
        if kind == _PLAIN_LINK:
            href, text = match.group(1, 2)
            if "&" in href:
                href = unescape(href)
            if "&" in text:
                text = unescape_text(text)
            anchors.append(("a", href, text, None))
        elif kind == _TAG:
            name, attributes, closed = match.group(3, 4, 5)
            name = name.lower()
            if name not in ("a", "area"):
                end = at if closed else _end_of_text(name, page, at)
                if end is None:
                    return None
                at = end
            elif (found := _link_attributes(attributes)) is not None:
                within = "" if closed or name == "area" else _read_text(page, at)
                if within is None:
                    return None
                anchors.append((name, found[0], within, found[1]))
        elif kind == _COMMENT_OR_END:
            if match[6] != "!--":
                # libxml2 begins another tree here, which nobody looks at.
                return None if _LINK.search(page, at) else anchors
            end = _end_of_comment(page, at)
            if end is None:
                return None
            at = end
        elif at == begin:
            return None  # a tag that is cut off, or one that ends what it is in
    return anchors


def _link_attributes(attributes: str) -> tuple[str, str | None] | None:
    href = rel = None
    for name, double, single, bare in _ATTRIBUTE.findall(attributes):
        name = name.lower()
        if name == "href" and href is None:
            href = unescape(double or single or bare)
        elif name == "rel" and rel is None:
            rel = unescape(double or single or bare)
    return None if href is None else (href, rel)


def _end_of_comment(page: str, at: int) -> int | None:
    if page.startswith((">", "->"), at):
        return page.index(">", at) + 1
    end = _COMMENT_ENDS.search(page, at)
    return None if end is None else end.end()


def _end_of_text(name: str, page: str, at: int) -> int | None:
    end = None if name == "plaintext" else _TEXT_ENDS[name].search(page, at)
    if end is None:
        return None
    if name == "script":
        # A script within a comment within a script has an end tag of its own.
        comment = page.find("<!--", at, end.start())
        if comment >= 0 and _SCRIPT.search(page, comment, end.start()):
            return None
    return end.start()


def _read_text(page: str, at: int) -> str | None:
    """The text of the ``a`` whose start tag ends *at*; None if only the tree tells it."""
    texts: list[str] = []
    inside: list[str] = []
    while (match := _CONTENT.match(page, at)) is not None:
        text, ends, name, closed = match.groups()
        texts.append(text)
        at = match.end()
        if name is None:
            end = _end_of_comment(page, at)
            if end is None:
                return None
            at = end
            continue
        name = name.lower()
        if name == "a" and (not inside or (ends and "div" not in inside)):
            return "".join([unescape_text(text) if "&" in text else text for text in texts])
        if ends:
            if name in _EMPTY:
                continue
            # The end tag of a parent ends the link; a div is ended by nothing within it.
            if name not in inside:
                return None
            while (last := inside.pop()) != name:
                if last == "div":
                    return None
        else:
            if name == "a" or name in _OF_THE_TREE or len(inside) == _MAX_DEPTH:
                return None
            ended = _ENDED_BY.get(name, ())
            while inside and inside[-1] in ended:
                inside.pop()
            if not closed and name not in _EMPTY:
                inside.append(name)
    return None
