"""Text, title and language of a page: encodings by browsers' rules (w3lib), the rest as resiliparse
has it. Extras ``[parquet]`` or ``[index]``.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple

import langcodes
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import detect_encoding
from resiliparse.parse.html import HTMLTree
from resiliparse.parse.lang import detect_fast
from w3lib.encoding import html_to_unicode

from scrapy_spider_suite.runtime.text import media_type

TEXT_MIN: Final = 60  # characters of text from which on its language is guessed
RANK_MAX: Final = 1200  # resiliparse's limit of a sure guess
HTML_MAX: Final = 4 << 20
OPEN_MAX: Final = 20_000
"""Unclosed elements; deeper markup gets no text, since resiliparse would take minutes."""

# MIME Sniffing Standard §7.1: what a resource begins with.
_MAGIC: Final = (
    (re.compile(rb"(?i)\s*(?:<!--.*?-->\s*)*<(?:!doctype html|html|head|body|title)\b",
                re.DOTALL), "text/html"),
    (re.compile(rb"\s*<\?xml"), "application/xml"),
    (re.compile(rb"%PDF-"), "application/pdf"),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"RIFF....WEBPVP", re.DOTALL), "image/webp"),
    (re.compile(rb"PK\x03\x04"), "application/zip"),
    (re.compile(rb"\x1f\x8b\x08"), "application/gzip"),
)  # fmt: skip
_HTML: Final = frozenset({"text/html", "application/xhtml+xml"})


class PageText(NamedTuple):
    """Unknown values are "". *mime*: by content. *language*: ISO 639-1, *languages*: ISO 639-3."""

    mime: str
    charset: str
    title: str
    text: str
    language: str
    languages: str


def extract_text(body: bytes, content_type: str) -> PageText:
    declared = media_type(content_type)
    mime = sniff(body, declared)
    if mime not in _HTML and not mime.startswith("text/"):
        return PageText(mime, "", "", "", "", "")
    charset, text = html_to_unicode(content_type or None, body[:HTML_MAX], auto_detect_fun=_guess)
    title = ""
    if mime in _HTML and text.count("<") - 2 * text.count("</") > OPEN_MAX:
        text = ""
    elif mime in _HTML:
        tree = HTMLTree.parse(text)
        title = " ".join((tree.title or "").split())
        text = extract_plain_text(tree, main_content=True, preserve_formatting=False)
    code = detect_fast(text[:20_000], cutoff=RANK_MAX)[0] if len(text) >= TEXT_MIN else "unknown"
    language = "" if code == "unknown" else str(code)
    return PageText(mime, charset.upper(), title, text, language, _three(language))


def sniff(body: bytes, declared: str) -> str:
    """Return the media type by the first bytes, or as *declared*; XHTML and feeds stay."""
    start = body[:1024].removeprefix(b"\xef\xbb\xbf")
    found = next((mime for magic, mime in _MAGIC if magic.match(start)), "")
    if declared in _HTML and found == "application/xml":  # XHTML, as it begins
        return declared
    if not found or (declared.endswith(("+xml", "/xml")) and found.endswith(("/xml", "/html"))):
        return declared
    return found


@lru_cache(maxsize=256)
def _three(language: str) -> str:
    with suppress(LookupError):
        return langcodes.Language.get(language).to_alpha3() if language else ""
    return ""


def _guess(body: bytes) -> str | None:
    with suppress(UnicodeDecodeError):
        body.decode()
        return "utf-8"
    return str(detect_encoding(body, html5_compatible=True)) or None
