"""What comes next, as the settings say: the order of a host's URLs, and the sliding window."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.utils.misc import load_object

from scrapy_spider_suite.analysis.ranks import Scores as ScoreFile
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.entries import BREADTH_FIRST, BestFirst, BottomUp, Entry, Order
from scrapy_spider_suite.frontier.windows import Window
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.store.interface import Store

if TYPE_CHECKING:
    from scrapy.statscollectors import StatsCollector

logger = logging.getLogger(__name__)

ScoreOfUrl = Callable[[str, int, str], float]


def order_of(settings: SuiteSettings, stats: StatsCollector) -> Order:
    """The order of SUITE_ORDER.

    Raises `SettingsError`: there is no function SUITE_SCORE, or SUITE_SCORES is no such file.
    """
    if settings.order == "bottom-up":
        return BottomUp(to_and_fro=settings.window == "leaf")
    if settings.order == "best-first":
        given = _function(settings.score) if settings.scores is None else _read(settings.scores)
        return BestFirst(Scores(given, stats))
    return BREADTH_FIRST


def window_of(settings: SuiteSettings, store: Store) -> Window | None:
    """The window of SUITE_WINDOW. Raises `SettingsError` if nothing can wait outside of it."""
    if settings.window != "none" and not store.durable:
        allowed = "'none' in the spider profile without JOBDIR, where all hosts are in memory"
        raise SettingsError.of("SUITE_WINDOW", settings.window, allowed)
    return Window.of(settings.window, settings.window_size)


class Ordering:
    """An order of which another may take the place: keys that were given stay as they are."""

    def __init__(self, order: Order) -> None:
        self.adopt(order)

    def adopt(self, order: Order) -> None:
        """Give keys by *order* from now on."""
        self.key = order.key


class Scores:
    """Calls the project's function; a URL that it fails for has the score 0.0, and is counted.

    Stats: ``suite/order/bad_scores``.
    """

    def __init__(self, score: ScoreOfUrl, stats: StatsCollector) -> None:
        self._score = score
        self._stats = stats

    def __call__(self, entry: Entry) -> float:
        """The score of *entry*."""
        try:
            return float(self._score(entry.url, entry.depth, entry.referrer))
        except Exception:  # the project's code, which may raise anything: no URL is lost for it
            if not self._stats.get_value("suite/order/bad_scores"):
                logger.exception(
                    "SUITE_SCORE failed for %s, whose score is 0 (others are only counted: "
                    "suite/order/bad_scores)", entry.url,
                )  # fmt: skip
            self._stats.inc_value("suite/order/bad_scores")
            return 0.0


def _read(path: Path) -> ScoreOfUrl:
    try:
        return ScoreFile.read(path).of_link
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise SettingsError(f"SUITE_SCORES = {str(path)!r} cannot be read: {error}") from None


def _function(path: str) -> ScoreOfUrl:
    try:
        found = load_object(path)
    except (ImportError, NameError) as error:
        raise SettingsError(f"SUITE_SCORE = {path!r} cannot be imported: {error}") from None
    if not callable(found):
        raise SettingsError.of("SUITE_SCORE", path, "the import path of a function")
    function: ScoreOfUrl = found
    return function
