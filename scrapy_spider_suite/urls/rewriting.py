"""Carries out the options of the normal form on normal URLs.

What a URL must hold for an option to matter (a query, a semicolon, ``www.``) is looked for first,
so that URLs which no option concerns cost some tenths of a microsecond.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from scrapy_spider_suite.urls.domains import is_public_suffix
from scrapy_spider_suite.urls.normalize import host_of, normalize
from scrapy_spider_suite.urls.options import NONE, Options, UrlRules

TRACKING: Final = (
    "utm_*", "gclid", "gclsrc", "gbraid", "wbraid", "dclid", "gad_source", "gad_campaignid",
    "srsltid", "_ga", "_gl", "fbclid", "fb_action_ids", "fb_action_types", "fb_source", "igshid",
    "igsh", "msclkid", "yclid", "ysclid", "_openstat", "twclid", "ttclid", "li_fat_id", "epik",
    "scclid", "rdt_cid", "mc_cid", "mc_eid", "mkt_tok", "_hsenc", "_hsmi", "hsctatracking",
    "oly_anon_id", "oly_enc_id", "vero_id", "vero_conv", "wickedid", "irclickid", "irgwc",
    "ml_subscriber", "ml_subscriber_hash", "s_cid", "wt.mc_id", "pk_*", "piwik_*", "mtm_*",
    "matomo_*", "at_campaign", "at_medium", "ncid",
)  # fmt: skip
"""Parameters that only tell a site how its visitor came; ``*`` stands for any ending."""

SESSIONS: Final = (
    "jsessionid", "phpsessid", "aspsessionid*", "cfid", "cftoken", "sessionid", "session_id",
    "sessid", "zenid", "oscsid", "xtcsid", "mscsid",
)  # fmt: skip
"""Parameters that name a visit, whatever their value."""

UNSURE: Final = ("sid", "session", "s_id")
"""Parameters that name a visit if their value looks like it: 16 letters or digits, or more."""

_IDENTIFIER: Final = r"(?=[A-Za-z._~!-]*[0-9])[0-9A-Za-z._~!-]{16,}"
_NAMES_OF_VISITS: Final = (
    r"(?:jsessionid|phpsessid|aspsessionid[a-z]*|sessionid|session_id|sessid|cfid|cftoken)"
)
# In a path: ";jsessionid=…", and the segment "(S(…))" of ASP.NET without cookies.
_IN_PATH: Final = re.compile(
    rf";{_NAMES_OF_VISITS}=[^;/]*|;(?:sid|session)={_IDENTIFIER}(?=[;/]|$)"
    r"|(?<=/)\((?:[a-z]\([0-9a-z_-]{20,}\))+\)/",
    re.IGNORECASE,
)
_IS_IDENTIFIER: Final = re.compile(_IDENTIFIER)

INDEX: Final = frozenset(
    f"{name}.{ending}"
    for name in ("index", "default")
    for ending in ("html", "htm", "xhtml", "shtml", "php", "phtml", "asp", "aspx", "jsp", "cfm")
)
"""File names, in lower case, that a server takes for the folder itself."""

_WWW: Final = ("http://www.", "https://www.")
_REMEMBERED: Final = 50_000
"""Hosts whose rewriter is kept; when there are more, all are forgotten and made anew."""


class _Names:
    """A set of names of parameters, some of which end in ``*``."""

    __slots__ = ("_exact", "_stems")

    def __init__(self, given: Iterable[str]) -> None:
        given = tuple(given)
        self._exact = frozenset(name for name in given if not name.endswith("*"))
        self._stems = tuple(name[:-1] for name in given if name.endswith("*"))

    def __contains__(self, name: str) -> bool:
        return name in self._exact or name.startswith(self._stems)


class Rewriter:
    """Carries out one set of *options*. ``rewrite`` is idempotent, and normal URLs stay normal."""

    __slots__ = ("_dropped", "_index", "_kept", "_query", "_sessions", "_sorts", "_www")

    def __init__(self, options: Options) -> None:
        dropped = (
            *options.drop,
            *(TRACKING if options.tracking else ()),
            *(SESSIONS if options.sessions else ()),
        )
        self._dropped = _Names(dropped)
        self._kept = None if options.keep is None else _Names(options.keep)
        self._sessions = options.sessions
        self._sorts = options.query_order
        self._index = options.index
        self._www = options.www
        self._query = bool(dropped) or options.query_order or options.keep is not None

    def rewrite(self, url: str) -> str:
        """The one spelling of a normal *url* that the options leave."""
        if self._query and "?" in url:
            url = self._of_query(url)
        if self._sessions and (";" in url or "/(" in url):
            url = _without_visit(url)
        if self._index and url[-1] != "/" and "?" not in url:
            cut = url.rfind("/") + 1
            if url[cut:].lower() in INDEX:
                url = url[:cut]
        if self._www and url.startswith(_WWW):
            url = _without_www(url)
        return url

    def _of_query(self, url: str) -> str:
        path, _, query = url.partition("?")
        parts = query.split("&")
        kept = [part for part in parts if not self._drops(part)]
        if self._sorts:
            kept.sort(key=_name)  # stable: several of one name keep their order
        if kept == parts:
            return url
        query = "&".join(filter(None, kept))
        return f"{path}?{query}" if query else path

    def _drops(self, part: str) -> bool:
        name, _, value = part.partition("=")
        name = name.lower()
        if name in self._dropped or (self._kept is not None and name not in self._kept):
            return True
        if self._sessions and name in UNSURE:
            return _IS_IDENTIFIER.fullmatch(value) is not None
        return False


def _name(part: str) -> str:
    return part.partition("=")[0]


def _without_visit(url: str) -> str:
    """*url* without session ids in its path."""
    path, mark, query = url.partition("?")
    start = path.index("/", 8)
    found = path[start:]
    while (shorter := _IN_PATH.sub("", found)) != found:
        # What was "..;jsessionid=1" is a dot segment now, and more may have come together.
        url = normalize(f"{path[:start]}{shorter}{mark}{query}") or url
        path, mark, query = url.partition("?")
        found = path[start:]
    return url


def _without_www(url: str) -> str:
    """*url* without ``www.``, unless nobody can have the rest of its host."""
    while url.startswith(_WWW):
        head, _, rest = url.partition("www.")
        host = host_of(head + rest)
        if "." not in host or is_public_suffix(host):
            break
        url = head + rest
    return url


class Rules:
    """The rewriters of one crawl: *general* options, and *rules* for some hosts."""

    __slots__ = ("_by_host", "_by_options", "_general", "_rules", "idle")

    def __init__(self, general: Options = NONE, rules: UrlRules | None = None) -> None:
        self._rules = rules if rules is not None else UrlRules()
        self._general = general
        self.idle = general == NONE and not len(self._rules)
        """Whether nothing is ever rewritten."""
        self._by_host: dict[str, Rewriter] = {}
        self._by_options: dict[Options, Rewriter] = {general: Rewriter(general)}

    def rewrite(self, url: str) -> str:
        """The one spelling of a normal *url*."""
        if not len(self._rules):
            return self._by_options[self._general].rewrite(url)
        host = host_of(url)
        rewriter = self._by_host.get(host)
        if rewriter is None:
            rewriter = self._rewriter_of(host)
        found = rewriter.rewrite(url)
        # Another host (without "www.", a shorter one) may have other rules.
        return found if found == url or host_of(found) == host else self.rewrite(found)

    def _rewriter_of(self, host: str) -> Rewriter:
        if len(self._by_host) >= _REMEMBERED:
            self._by_host.clear()
        options = self._rules.of_host(host, self._general)
        rewriter = self._by_options.setdefault(options, Rewriter(options))
        self._by_host[host] = rewriter
        return rewriter
