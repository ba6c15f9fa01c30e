"""The normaliser of a crawl, made from its settings: options, rules, the project's own, twins."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakKeyDictionary

from scrapy.utils.misc import load_object

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.urls.normalize import normalize
from scrapy_spider_suite.urls.normalizer import Normalizer, Options, Plugin, Rules, UrlRules
from scrapy_spider_suite.urls.scope import Scope
from scrapy_spider_suite.urls.twins import Twins

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_spider_suite.settings.suite import SuiteSettings
    from scrapy_spider_suite.store.interface import KV

logger = logging.getLogger(__name__)

STORE: Final = "twins"
"""The family in which a job keeps the evidence of twins."""
_TRIED: Final = 1_000
"""Results of the project's normaliser that are handed to it once more, to see if they stay."""


class Stats(Protocol):
    """As much of a stats collector as is needed."""

    def inc_value(self, key: str, count: int = 1) -> None:
        """Add *count* to the stat *key*."""
        ...


class NoStats:
    """`Stats` outside of a crawl, where there are none."""

    def inc_value(self, key: str, count: int = 1) -> None:
        """See `Stats`."""


_of_crawler: WeakKeyDictionary[Crawler, Normalizer] = WeakKeyDictionary()


class Guarded:
    """Calls *own*, a project's normaliser, and lets nothing of it stop a crawl.

    What it makes of a URL is brought into plain normal form. If it raises, or returns what is no
    web address, the URL stays as it was.

    Stats: ``suite/normalizer/errors``, ``suite/normalizer/invalid``, ``suite/normalizer/dropped``,
    ``suite/normalizer/unstable``.
    """

    def __init__(self, own: Plugin, name: str, stats: Stats) -> None:
        self._own = own
        self._name = name
        self._stats = stats
        self._told: set[str] = set()
        self._tried = 0

    def __call__(self, url: str) -> str | None:
        """The URL that it makes of *url*; None if it is to be dropped."""
        found = self._ask(url)
        if found is None:
            self._stats.inc_value("suite/normalizer/dropped")
        elif found != url and self._tried < _TRIED:
            self._tried += 1
            if self._ask(found) != found:
                self._stats.inc_value("suite/normalizer/unstable")
                self._warn("makes yet another URL of its own result", url)
        return found

    def _ask(self, url: str) -> str | None:
        try:
            found = self._own(url)
        except Exception:  # whatever a project's code does, the crawl goes on
            self._stats.inc_value("suite/normalizer/errors")
            self._warn("raised", url, trace=True)
            return url
        if found is None:
            return None
        normal = normalize(found) if isinstance(found, str) else None
        if normal is None:
            self._stats.inc_value("suite/normalizer/invalid")
            self._warn("returned no web address", url)
            return url
        return normal

    def _warn(self, what: str, url: str, *, trace: bool = False) -> None:
        if what not in self._told:
            self._told.add(what)
            logger.warning(
                "SUITE_NORMALIZER = %r %s, given %s (if it does so again, that is only counted: "
                "suite/normalizer/…)", self._name, what, url, exc_info=trace,
            )  # fmt: skip


def make_normalizer(
    settings: SuiteSettings, kv: KV | None, stats: Stats, domains: Collection[str] | None = None
) -> Normalizer:
    """The normaliser that *settings* ask for; the plain one outside of the broad profile.

    *kv* holds the evidence of twins, None where there is none; *domains* are the spider's allowed
    ones. Raises `SettingsError`.
    """
    if settings.profile != "broad":
        return Normalizer()
    general = Options.of(settings.normal_form, settings.drop_parameters)
    plugin = None
    if settings.normalizer:
        plugin = Guarded(_load(settings.normalizer), settings.normalizer, stats)
    rules = Rules(general, UrlRules(settings.url_rules))
    made = Normalizer(rules, plugin, twins_of(settings, kv))
    made.scope = Scope(domains) if domains else None
    return made


def twins_of(settings: SuiteSettings, kv: KV | None) -> Twins | None:
    """The twins that *kv* has evidence of, if *settings* ask for them."""
    if settings.profile == "broad" and settings.prefer_https and kv is not None:
        return Twins(kv)
    return None


def _load(path: str) -> Plugin:
    """The callable at *path*; of a class an instance. Raises `SettingsError`."""
    try:
        own = load_object(path)
        if isinstance(own, type):
            own = own()
    except Exception as error:  # importing a project's module may raise anything
        raise SettingsError(f"SUITE_NORMALIZER = {path!r}: {error}") from error
    if not callable(own):
        raise SettingsError(f"SUITE_NORMALIZER = {path!r}: expected a callable, or a class of such")
    found: Plugin = own
    return found


def normalizer_of(crawler: Crawler | None) -> Normalizer:
    """The normaliser that *crawler*'s core has made; the plain one without a core."""
    found = None if crawler is None else _of_crawler.get(crawler)
    return found or Normalizer()


def register(crawler: Crawler, normalizer: Normalizer) -> None:
    """Let the components of *crawler* have *normalizer*."""
    _of_crawler[crawler] = normalizer
