"""The tags of a page that can name a URL, found in one linear pass over its bytes; its encoding.

The tokenizer of the HTML standard (§13.2.5), as far as finding tags needs it, without a tree: a
page decides what a tree costs. On purpose, the contents of noscript, noframes, noembed, iframe and
template are markup; a script ends at its first end tag; a self-closed ``<title/>`` or ``<style/>``
is empty. The encoding is found in the order of the standard (§13.2.3), with UTF-8 or windows-1252
at its end.
"""

from __future__ import annotations

import codecs
import re
from functools import lru_cache
from html import unescape as html_unescape
from html.entities import html5
from typing import Final
from urllib.parse import quote_from_bytes

from w3lib.encoding import (
    html_body_declared_encoding,
    http_content_type_encoding,
    read_bom,
    resolve_encoding,
    to_unicode,
)

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
    rf"""[^<]*(?:<(?:{_OTHER})[^<]*){{0,{_BATCH}}}"""
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
    return _TEXT_REFERENCE.sub(_referred_in_text, text)


def _referred_in_text(match: re.Match[str]) -> str:
    return _referred(match) if match[0][1] == "#" else html_unescape(match[0])


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
    """The bytes of a page as markup, and the decoder of its values.

    *encoding* is the caller's, *content_type* the HTTP header; unusable ones are ignored.
    """

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
        """The URL reference in *value*, with its query in the page's encoding.

        Browsers send the query in the page's encoding (URL standard, §4.4, query state), the path
        as UTF-8.
        """
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
