"""The one normaliser of a crawl, and its spelling options, all off by default.

The options may change the page that is meant, so an operator asks for them, for all hosts or by
rules such as ``.shop.example  tracking=yes drop=oldid,diff_*``: the closest that names a field
decides it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from scrapy_spider_suite.urls.host_patterns import HostPattern, PatternKind, PatternTable
from scrapy_spider_suite.urls.hosts import Scope, is_public_suffix
from scrapy_spider_suite.urls.normalize import host_of, normalize
from scrapy_spider_suite.urls.twins import Twins

OPTION_WORDS: Final = ("tracking", "sessions", "query-order", "index", "www")
"""The options that are on or off."""

_SWITCH: Final = {"yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class SpellingOptions:
    tracking: bool = False
    sessions: bool = False
    query_order: bool = False  # sort parameters by name
    index: bool = False  # drop ``index.html`` and the like at the end of a path
    www: bool = False  # drop ``www.`` before a registered name
    drop: tuple[str, ...] = ()  # further parameters to drop, in lower case; ``*`` for any ending
    keep: tuple[str, ...] | None = None  # drop all other parameters; None keeps all

    @classmethod
    def from_words(cls, words: Iterable[str], drop: Iterable[str] = ()) -> SpellingOptions:
        on: dict[str, Any] = {word.replace("-", "_"): True for word in words}
        return cls(**on, drop=tuple(parameter_names(drop)))


NO_OPTIONS: Final = SpellingOptions()  # the plain normal form

_FIELDS: Final = tuple(field.name for field in fields(SpellingOptions))


def parameter_names(given: Iterable[str]) -> Iterator[str]:
    """The names of parameters in *given*, normal, in lower case. Raises `ValueError`."""
    for name in given:
        stem = name.removesuffix("*")
        if not stem.isprintable() or set(stem) & set("*&=#, "):
            raise ValueError(f"{name!r} is no name of a parameter")
        spelled = (normalize(f"http://a.example/?{stem}") or "").partition("?")[2]
        if not spelled:
            raise ValueError(f"{name!r} is no name of a parameter")
        yield spelled.lower() + name[len(stem) :]


class SpellingRules:
    def __init__(self, lines: Iterable[str] = ()) -> None:
        """Read a rule a line. Raises `ValueError` with the line and the fault."""
        self._rules: PatternTable[dict[str, Any]] = PatternTable()
        for number, line in enumerate(lines, 1):
            try:
                self._add(line.partition("#")[0].split())
            except ValueError as error:
                raise ValueError(f"rule {number}, {line.strip()[:80]!r}: {error}") from None

    def _add(self, words: list[str]) -> None:
        if not words:
            return
        pattern = HostPattern.parse(words[0])
        if pattern.kind in (PatternKind.PREFIX, PatternKind.RANGE):
            raise ValueError(f"{words[0]!r} is no host or .domain")
        if self._rules.get(pattern) is not None:
            raise ValueError(f"{pattern} has a rule already")
        self._rules.put(pattern, _parsed(words[1:]))

    def __len__(self) -> int:
        return len(self._rules)

    def for_host(self, host: str, general: SpellingOptions) -> SpellingOptions:
        """The options for *host*; *general* ones where no rule decides."""
        found = general
        for rule in reversed([*self._rules.for_host(host)]):
            found = replace(found, **rule)
        return found


def _parsed(words: list[str]) -> dict[str, Any]:
    if not words:
        raise ValueError("nothing to change: expected e.g. sessions=yes")
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        field = name.replace("-", "_")
        if not equals or field not in _FIELDS:
            allowed = ", ".join(each.replace("_", "-") for each in _FIELDS)
            raise ValueError(f"{word!r}: expected one of {allowed} and a value")
        if field in values:
            raise ValueError(f"{word!r}: {name} stands twice in the rule")
        if field in ("drop", "keep"):
            values[field] = tuple(parameter_names(filter(None, text.split(","))))
        elif text in _SWITCH:
            values[field] = _SWITCH[text]
        else:
            raise ValueError(f"{word!r}: expected yes or no")
    return values


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
    __slots__ = ("_exact", "_stems")

    def __init__(self, given: Iterable[str]) -> None:
        given = tuple(given)
        self._exact = frozenset(name for name in given if not name.endswith("*"))
        self._stems = tuple(name[:-1] for name in given if name.endswith("*"))

    def __contains__(self, name: str) -> bool:
        return name in self._exact or name.startswith(self._stems)


class Rewriter:
    """Rewrites normal URLs by *options*. Idempotent; the result is normal."""

    __slots__ = ("_dropped", "_index", "_kept", "_query", "_sessions", "_sorts", "_www")

    def __init__(self, options: SpellingOptions) -> None:
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
        if self._query and "?" in url:
            url = self._rewrite_query(url)
        if self._sessions and (";" in url or "/(" in url):
            url = _without_visit(url)
        if self._index and url[-1] != "/" and "?" not in url:
            cut = url.rfind("/") + 1
            if url[cut:].lower() in INDEX:
                url = url[:cut]
        if self._www and url.startswith(_WWW):
            url = _without_www(url)
        return url

    def _rewrite_query(self, url: str) -> str:
        path, _, query = url.partition("?")
        parts = query.split("&")
        kept = [part for part in parts if not self._drops(part)]
        if self._sorts:
            # Stable: several of one name keep their order.
            kept.sort(key=lambda part: part.partition("=")[0])
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


def _without_visit(url: str) -> str:
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
    while url.startswith(_WWW):
        head, _, rest = url.partition("www.")
        host = host_of(head + rest)
        if "." not in host or is_public_suffix(host):
            break
        url = head + rest
    return url


class RewriterTable:
    __slots__ = ("_by_host", "_by_options", "_general", "_rules", "is_plain")

    def __init__(
        self, general: SpellingOptions = NO_OPTIONS, rules: SpellingRules | None = None
    ) -> None:
        self._rules = rules if rules is not None else SpellingRules()
        self._general = general
        self.is_plain = general == NO_OPTIONS and not len(self._rules)
        """Whether nothing is ever rewritten."""
        self._by_host: dict[str, Rewriter] = {}
        self._by_options: dict[SpellingOptions, Rewriter] = {general: Rewriter(general)}

    def rewrite(self, url: str) -> str:
        if not len(self._rules):
            return self._by_options[self._general].rewrite(url)
        host = host_of(url)
        rewriter = self._by_host.get(host)
        if rewriter is None:
            if len(self._by_host) >= _REMEMBERED:
                self._by_host.clear()
            options = self._rules.for_host(host, self._general)
            rewriter = self._by_options.setdefault(options, Rewriter(options))
            self._by_host[host] = rewriter
        found = rewriter.rewrite(url)
        # Another host (without "www.", a shorter one) may have other rules.
        return found if found == url or host_of(found) == host else self.rewrite(found)


_ROUNDS: Final = 4  # rounds in which a rule and a twin may change each other's result

Normal = Callable[[str], str | None]  # returns the normal form of a URL, or None
Plugin = Callable[[str], str | None]
"""A normaliser of the project's own: from a normal URL to a normal URL, None to drop it."""


class Normalizer:
    """Calling it gives the normal form of a URL. Never raises, as long as *plugin* does not.

    In this order: normal form, *rules* and *twins*, *plugin*. A URL within *scope* never gets a
    host beyond it: a crawl of ``www.example.com`` alone would end.
    """

    __slots__ = ("_plugin", "_rules", "changed", "has_rules", "scope", "twins")

    def __init__(
        self, rules: RewriterTable | None = None, plugin: Plugin | None = None,
        twins: Twins | None = None,
    ) -> None:
        self._rules = None if rules is None or rules.is_plain else rules
        self._plugin = plugin
        self.has_rules = self._rules is not None or plugin is not None
        self.twins = twins
        self.scope: Scope | None = None
        self.changed = 0  # links that were respelled or dropped

    @property
    def is_plain(self) -> bool:
        return not (self.has_rules or self.twins)

    def __call__(self, url: str, base: str | None = None) -> str | None:
        normal = normalize(url, base)
        return normal if normal is None or self.is_plain else self.respell(normal)

    def links(self, urls: list[str]) -> list[str]:
        """The normal forms of plain normal *urls*, each once, in their order."""
        if self.is_plain:
            return urls
        found: dict[str, None] = {}
        for url in urls:
            spelled = self.respell(url)
            self.changed += spelled != url
            if spelled is not None:
                found[spelled] = None
        return list(found)

    def respell(self, url: str) -> str | None:
        url = self._respell_within_scope(url)
        if self._plugin is not None:
            found = self._plugin(url)
            if found is None or found == url:
                return found
            url = self._respell_within_scope(found)
        return url

    def _respell_within_scope(self, url: str) -> str:
        found = self._spelled(url)
        if self.scope is not None and found != url:
            begin, end = found.index("/", 8), url.index("/", 8)
            if found[:begin] != url[:end]:
                allows = self.scope.allows
                if allows(host_of(url)) and not allows(host_of(found)):
                    return url[:end] + found[begin:]
        return found

    def _spelled(self, url: str) -> str:
        rules, twins = self._rules, self.twins
        for _ in range(_ROUNDS):
            found = url if rules is None else rules.rewrite(url)
            if twins:
                found = twins.preferred(found)
            if found == url:
                break
            url = found
        return url

    def is_own_spelling(self, url: str, target: str) -> bool:
        """Whether *url* redirects to another spelling of itself: that is fetched as it is."""
        return not self.is_plain and url != target and self.respell(url) == self.respell(target)
