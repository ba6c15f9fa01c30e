"""The ``a`` and ``area`` elements of a page as the tree of libxml2 2.14 has them, without a tree.

libxml2 finds tags as the HTML standard does (§13.2.5), but builds elements by rules of its own: an
element ends by its end tag, by a start tag of a table of pairs, or at the end of the page. A page
whose elements those rules decide in any other than the plain cases is given back: the tree tells.
"""

from __future__ import annotations

import re
from typing import Final

from scrapy_spider_suite.urls.extract import unescape, unescape_text

Anchor = tuple[str, str, str, str | None]
"""The name of an element, its ``href``, its text with that of its children, its ``rel``."""

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
