"""A drop-in for Scrapy's ``LinkExtractor``: the same arguments and links, in less time.

The links of a page are read without a tree, unless the spider has made one already or only the tree
tells them. ``restrict_xpaths``, ``restrict_css`` and other ``tags`` or ``attrs`` than Scrapy's
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

from scrapy_spider_suite.urls.anchors import Anchor, read_anchors

__all__ = ["IGNORED_EXTENSIONS", "LinkExtractor"]

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
