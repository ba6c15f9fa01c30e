"""The tags of a page that can name a URL, found in one linear pass over its bytes.

This is the tokenizer of the HTML standard (§13.2.5), as far as telling tags from everything else
needs it: quoted and bare attribute values, comments, bogus comments, CDATA and doctypes, and the
elements whose content is text. No tree is built. A tree costs as much time as all of this, and a
page decides how much: 37 kB of unclosed ``<b id=..>`` make lexbor build 1.4 GB of nodes, 500 kB of
``<div>`` take it 12 s, 900 kB of attributes in one tag 17 s. Here every byte is looked at a bounded
number of times, whatever the page, and nothing is kept but the match at hand.

What differs from a browser's tree, on purpose, because a crawler is a browser without scripts and
frames: the contents of noscript, noframes, noembed, iframe and template are read as markup. What
differs for simplicity: a script ends at its first end tag even within ``<!-- <script>``; a
self-closed ``<title/>`` or ``<style/>`` (as drawing programs write them into SVG) is empty.

Works on the bytes of every encoding in which ASCII bytes mean ASCII outside multi-byte characters,
and in which ``" ' < = > /`` and white space never are the second byte of one.
"""

from __future__ import annotations

import re
from html import unescape as html_unescape
from html.entities import html5
from typing import Final

MAX_ATTRIBUTES: Final = 256
"""Attributes of one tag that are told apart; past them, the tag ends at the next ``>``."""

MAX_TAG: Final = 1 << 16
"""Bytes of a tag that are searched for attributes."""

_BATCH: Final = 400
"""Tags passed over in one step: bounds what the regular expression engine remembers."""

_SPACE: Final = r"[\t\n\f\r ]"
_NAME_ENDS: Final = r"(?=[\t\n\f\r />])"
_NAME: Final = r"[a-zA-Z][^\t\n\f\r />]*"


def _any_case(name: str) -> str:
    """A pattern for the tag *name* in any case, and nothing longer."""
    return "".join(f"[{letter}{letter.upper()}]" for letter in name) + _NAME_ENDS


# An unclosed quote runs to the end of the page, as in the standard. Every loop below can end at
# the end of the page, so no match ever fails late and nothing is tried twice.
_VALUE: Final = r"""(?:"[^"]*(?:"|\Z)|'[^']*(?:'|\Z)|[^\t\n\f\r >"'][^\t\n\f\r >]*)?"""
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
    rf"""[^<]*(?:<(?:{_OTHER})[^<]*){{0,{_BATCH}}}"""
    rf"""(?:<(?:a(?:{_SPACE}+(?!href|rel)[a-z-]+="[^"]*"){{0,8}}{_SPACE}+href="([^"]*)"({_ATTRIBUTES})"""
    rf"""(?:(>)|\Z)|({_LINKING})({_ATTRIBUTES})(?:(>)|\Z)))?""".encode(),
    re.DOTALL,
)
"""Each match passes over markup and may end with one linking tag. Its ``lastindex`` tells which:

- ``LINK``: an ``a`` whose ``href`` comes before any ``rel``, plainly written: group 1 is the value
  of its ``href``, group 2 all that follows it;
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


def attributes(raw: bytes) -> dict[bytes, bytes]:
    """The attributes in *raw*, the inside of a tag: lower-case names, raw values, first one wins.

    An attribute without a value has an empty one.
    """
    found = _ATTRIBUTE.findall(raw[:MAX_TAG])
    return {
        name.lower(): double or single or bare for name, double, single, bare in found[::-1] if name
    }


def unescape(value: str) -> str:
    """*value* of an attribute with its character references resolved (HTML standard, §13.2.5.72).

    Unlike in text, a name without its semicolon is no reference before ``=``, a letter or a digit:
    ``?a=1&copy=2`` stays as it is.
    """
    return _REFERENCE.sub(_referred, value) if "&" in value else value


def _referred(match: re.Match[str]) -> str:
    """What the character reference *match* stands for; itself if it is none."""
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
