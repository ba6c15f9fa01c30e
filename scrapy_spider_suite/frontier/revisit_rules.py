"""When a page is visited again: change rate, price of a visit, ETag and Last-Modified.

The change rate is estimated from visits (Cho, Garcia-Molina, ACM TOIT 3(3), 2003). The interval
follows from the rate and one *price*, the seconds of freshness that a visit has to bring (Cho,
Garcia-Molina, ACM TODS 28(4), 2003; Azar et al., PNAS 2018). Times are wall times, rates 1/s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import exp, expm1, inf, log, log2, sqrt

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from scrapy_spider_suite.frontier.outcomes import parse_http_date

DAY = 86_400.0
CHANGES_MAX = 16  # changes of a page that are remembered; with a new one the oldest fade

_LOWEST, _BINS = -4 * 34, 4 * 34 + 1  # from once in 500 years to once a second
_RATES: npt.NDArray[np.float64] = 2.0 ** (np.arange(_LOWEST, _LOWEST + _BINS) / 4)
_PRODUCTS = np.geomspace(1e-6, 40, 4_000)
_WORTHS = -(np.expm1(-_PRODUCTS) + _PRODUCTS * np.exp(-_PRODUCTS))
SPREAD = 7.5
_WEIGHT = 1 / log(SPREAD) ** 2
_STEPS = 60


class Mode(Enum):
    OFF = "off"
    FIXED = "fixed"
    ADAPTIVE = "adaptive"


class History(Struct, frozen=True, array_like=True):
    """What the visits to a page have found."""

    last: float  # time of the last visit
    quiet: float = 0.0  # seconds without a change
    dated: float = 0.0  # changes with a known time (fading)
    changed: tuple[float, ...] = ()  # seconds of intervals in which it changed at least once

    def visited(self, now: float, *, changed: bool, modified: float | None = None) -> History:
        """The history with another visit; *modified*: Last-Modified, if the page has one."""
        interval = max(1.0, now - self.last)
        if not changed:
            return replace(self, last=now, quiet=self.quiet + interval)
        if modified is not None and self.last < modified <= now:
            # Quiet since then; and that it changed then is all that counts.
            found = replace(self, quiet=self.quiet + now - modified, dated=self.dated + 1)
        else:
            found = replace(self, changed=(*self.changed, interval))
        if found.dated + len(found.changed) > CHANGES_MAX:
            fade = 1 - 1 / CHANGES_MAX
            found = History(now, found.quiet * fade, found.dated * fade, found.changed[1:])
        return replace(found, last=now)

    def rate(self, prior: float) -> float:
        """The most likely changes a second; the prior is log-normal around *prior*, by `SPREAD`."""
        if not (self.quiet or self.dated or self.changed):
            return prior
        low, high = float(_RATES[0]), float(_RATES[-1])
        for _ in range(_STEPS):
            rate = sqrt(low * high)
            # The derivative of the log-likelihood by the logarithm of the rate, which falls.
            rising = self.dated - rate * self.quiet - log(rate / prior) * _WEIGHT
            for interval in self.changed:
                product = rate * interval
                rising += product / expm1(product) if product < 700 else 0.0
            if rising > 0:
                low = rate
            else:
                high = rate
            if high < low * 1.002:
                break
        return sqrt(low * high)


def interval_for(rate: float, price: float) -> float:
    """After how many seconds a visit is worth *price*; infinite if it never is."""
    wanted = rate * price
    if wanted >= 1:
        return inf
    # Where 1 - (1 + x) exp(-x), which is at most x² / 2, is what is wanted.
    low = sqrt(2 * wanted)
    high = low + 4 - 2 * log(1 - wanted)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if -(expm1(-middle) + middle * exp(-middle)) < wanted:
            low = middle
        else:
            high = middle
        if high - low < 1e-4 * low:
            break
    return (low + high) / 2 / rate


@dataclass(frozen=True, slots=True)
class RevisitPolicy:
    """Times in seconds; *prior*: changes a second. ``least`` and ``most`` bound intervals."""

    mode: Mode = Mode.OFF
    seconds: float = 7 * DAY  # of ``fixed``
    least: float = 3600.0
    most: float = 90 * DAY
    prior: float = 1 / (30 * DAY)

    def interval(self, history: History, price: float) -> float | None:
        if self.mode is Mode.OFF:
            return None
        if self.mode is Mode.FIXED:
            return self.seconds
        wanted = interval_for(history.rate(self.prior), price)
        return min(self.most, max(self.least, wanted))


class ChangeRates:
    """How many pages change how often: in bins of a quarter octave, 1 kB whatever the crawl."""

    def __init__(self, bins: Sequence[int] = ()) -> None:
        self._bins = np.zeros(len(_RATES), np.int64)
        self._bins[: len(bins)] = bins

    @property
    def bins(self) -> list[int]:
        """To be kept as a row of the job, and given back."""
        numbers: list[int] = self._bins.tolist()
        return numbers

    def __len__(self) -> int:
        return int(self._bins.sum())

    def changed(self, old: float | None, new: float | None) -> None:
        """A page whose rate was *old* now has *new*; None: it is new, or is no longer visited."""
        if old is not None:
            self._bins[_bin(old)] -= 1
        if new is not None:
            self._bins[_bin(new)] += 1

    def price(self, visits: float, least: float = 0.0, most: float = inf) -> float:
        """The price at which pages are worth *visits* a second; *least*, *most* bound intervals."""
        low, high = 1e-3, float(1 / _RATES[0])
        if visits <= 0:
            return high
        for _ in range(_STEPS):
            price = sqrt(low * high)
            wanted = np.interp(_RATES * price, _WORTHS, _PRODUCTS, right=inf) / _RATES
            if float((self._bins / np.clip(wanted, max(1.0, least), most)).sum()) > visits:
                low = price
            else:
                high = price
            if high < low * 1.001:
                break
        return high


def _bin(rate: float) -> int:
    return min(len(_RATES) - 1, max(0, round(4 * log2(rate) - _LOWEST)))


@dataclass(slots=True)
class RevisitShare:
    """Whose turn it is: a share of *weight* (0 to 1) is for revisits, while new pages wait, too."""

    weight: float
    _owed: float = 0.0

    def next(self) -> bool:
        """True: a revisit; False: a new page."""
        self._owed += self.weight
        if self._owed < 1:
            return False
        self._owed -= 1
        return True


@dataclass(slots=True)
class VisitBudget:
    """How many visits there may be by now at a steady *rate*; a twentieth of a round is kept."""

    left: float = 0.0
    _at: float | None = None

    def refill(self, now: float, pages: int, interval: float) -> None:
        """It is *now*; each of *pages* may be visited once in *interval* seconds, on average."""
        gone = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        self.left = min(self.left + gone * pages / interval, max(16.0, pages / 20))


@dataclass(frozen=True, slots=True)
class LastmodTrust:
    """How far a host's lastmod is to be trusted; ``true`` of ``made`` visits saw a change."""

    made: float = 0.0
    true: float = 0.0

    def checked(self, *, changed: bool) -> LastmodTrust:
        """With another one that was looked into; the last twenty or so count."""
        fade = 1.0 if self.made < 20 else 0.95
        return LastmodTrust(self.made * fade + 1, self.true * fade + changed)

    def due(self, lastmod: float | None, history: History, due: float, now: float) -> float:
        """When a page with *lastmod* is due: at once if it changed since, else at *due*."""
        credible = self.made < 5 or self.true >= self.made / 2
        if lastmod is None or not history.last < lastmod <= now or not credible:
            return due
        return min(due, now)


LONGEST = 512  # characters of a validator that are kept; a longer one is none

_ETAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"')


class Validators(Struct, frozen=True, array_like=True):
    """The entity tag and the date of a page, as its server wrote them; empty: none."""

    etag: str = ""
    last_modified: str = ""

    @classmethod
    def from_headers(cls, etag: bytes | None, last_modified: bytes | None) -> Validators:
        """From the values of ``ETag`` and ``Last-Modified``; invalid ones are left out."""
        tag = (etag or b"").decode("latin-1").strip()
        date = (last_modified or b"").decode("latin-1").strip()
        good = len(tag) <= LONGEST and _ETAG.fullmatch(tag) is not None
        return cls(tag if good else "", date if _seconds(date) is not None else "")

    def __bool__(self) -> bool:
        return bool(self.etag or self.last_modified)

    @property
    def modified(self) -> float | None:
        """When the page says that it last changed, in seconds (wall)."""
        return _seconds(self.last_modified)

    def headers(self) -> dict[bytes, bytes]:
        """Conditional request headers: both, as RFC 9110 §13.1.3 has it."""
        found = {}
        if self.etag:
            found[b"If-None-Match"] = self.etag.encode("latin-1")
        if self.last_modified:
            found[b"If-Modified-Since"] = self.last_modified.encode("latin-1")
        return found

    def renewed(self, answer: Validators) -> Validators:
        """With those of a 304, which may bring new ones (RFC 9110 §15.4.5)."""
        return Validators(answer.etag or self.etag, answer.last_modified or self.last_modified)


def _seconds(date: str) -> float | None:
    if not date or len(date) > LONGEST or not date.isascii() or not date.isprintable():
        return None
    return parse_http_date(date)
