"""What becomes of a URL, and how long its host waits for it.

A URL is unknown, then pending, leased, and at last done or failed. Each `Event` says which state
it leads to, whose business another attempt is, and what the host is told. A host waits by
back-off, Retry-After, pace and bandwidth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum
from functools import lru_cache

from msgspec import Struct


class State(StrEnum):
    """Where a URL stands (*leased* exists in memory only)."""

    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"


class Retry(StrEnum):
    NOBODY = "nobody"
    STORE = "store"
    """The frontier tries again (its own URLs): pending, up to SUITE_RETRY_TIMES, then failed."""
    HOST = "host"  # the URL is not to blame: pending again, without counting an attempt


class Health(StrEnum):
    WELL = "well"
    OVERLOADED = "overloaded"  # growing back-off, or Retry-After
    UNREACHABLE = "unreachable"
    """Growing back-off; after SUITE_DEAD_HOST_FAILURES in a row the host is given up."""
    NONE = "none"  # says nothing (nothing touched the wire, or it was our own doing)


@dataclass(frozen=True, slots=True)
class Outcome:
    meaning: str
    state: State
    retry: Retry
    health: Health

    def after(self, attempts: int, retry_times: int, *, ours: bool) -> State:
        """The state after *attempts*; of those that are not *ours* Scrapy makes new requests."""
        if self.retry is Retry.HOST:
            return State.PENDING
        if self.retry is Retry.STORE:
            return State.PENDING if ours and attempts <= retry_times else State.FAILED
        return self.state


_DONE, _FAILED, _PENDING = State.DONE, State.FAILED, State.PENDING
_OVERLOADED = _PENDING, Retry.STORE, Health.OVERLOADED
_UNREACHABLE = _PENDING, Retry.STORE, Health.UNREACHABLE
_GIVEN_UP = _FAILED, Retry.NOBODY, Health.NONE  # though the host did nothing
_PUT_OFF = _PENDING, Retry.HOST, Health.NONE  # though neither the URL nor the host did anything


class Event(StrEnum):
    """How one attempt ended, and what becomes of the URL: name, then the fields of `Outcome`.

    Stored by position: add at the end, never reorder.
    """

    outcome: Outcome

    def __new__(
        cls, value: str, meaning: str = "", state: State = State.FAILED,
        retry: Retry = Retry.NOBODY, health: Health = Health.WELL,
    ) -> Event:  # fmt: skip
        event = str.__new__(cls, value)
        event._value_ = value
        event.outcome = Outcome(meaning, state, retry, health)
        return event

    SUCCESS = "success", "2xx, and the items are through the pipelines", _DONE
    NOT_STORED = (
        "not_stored",
        "2xx, and a pipeline dropped the item, or SUITE_STORE_FILTER does not want the page", _DONE,
    )
    CALLBACK_ERROR = "callback_error", "the callback raised", _DONE
    PIPELINE_ERROR = (
        "pipeline_error",
        "a pipeline raised something other than DropItem, or a feed could not take an item",
        _FAILED,
    )
    DISK_FULL = (
        "disk_full",
        "a pipeline, a feed or the store found the disk full, read-only, broken: the crawl pauses",
        _PENDING, Retry.HOST,
    )
    REDIRECT = "redirect", "3xx; the target is a new link", _DONE
    REPLACED = "replaced", "a middleware returned another request in its place", _DONE
    CLIENT_ERROR = "client_error", "4xx other than 408 and 429", _FAILED
    TOO_MANY_REQUESTS = "too_many_requests", "429", *_OVERLOADED
    UNAVAILABLE = "unavailable", "503", *_OVERLOADED
    SERVER_ERROR = "server_error", "408, and 5xx other than 503", _PENDING, Retry.STORE
    TIMEOUT = "timeout", "no complete answer in DOWNLOAD_TIMEOUT", *_UNREACHABLE
    REFUSED = "refused", "connection refused", *_UNREACHABLE
    CONNECTION_LOST = (
        "connection_lost", "connection failed, reset, closed, or TLS broke", *_UNREACHABLE,
    )
    BAD_RESPONSE = (
        "bad_response", "the answer was not HTTP, or its body not gzip", _PENDING, Retry.STORE,
    )
    DATA_LOSS = "data_loss", "the body was cut short", _PENDING, Retry.STORE
    TOO_LARGE = "too_large", "larger than DOWNLOAD_MAXSIZE, or cancelled", _FAILED
    DNS = "dns", "the name servers gave no answer", *_UNREACHABLE
    NO_SUCH_HOST = "no_such_host", "the name does not exist", *_GIVEN_UP
    PRIVATE_ADDRESS = (
        "private_address",
        "the host's address is not public (SUITE_ALLOW_PRIVATE_ADDRESSES)", *_GIVEN_UP,
    )
    IGNORED = "ignored", "a middleware raised IgnoreRequest", *_GIVEN_UP
    ROBOTS = "robots", "forbidden by robots.txt", *_GIVEN_UP
    ROBOTS_UNAVAILABLE = (
        "robots_unavailable", "robots.txt cannot be fetched now (RFC 9309 §2.3.1.4)", *_PUT_OFF,
    )
    TOO_MANY_HOPS = "too_many_hops", "the eleventh redirect in a row", _FAILED
    REDIRECT_LOOP = "redirect_loop", "redirects to itself again", _FAILED
    UNSUPPORTED = "unsupported", "no download handler for the scheme", *_GIVEN_UP
    DROPPED = (
        "dropped", "a request_scheduled handler dropped the request that replaced it", *_GIVEN_UP,
    )
    BUDGET = "budget", "the host's page budget is used up (SUITE_HOST_MAX_PAGES)", *_GIVEN_UP
    HOST_DEAD = "host_dead", "the host was given up (SUITE_DEAD_HOST_FAILURES)", *_GIVEN_UP
    OUT_OF_FILES = "out_of_files", "the process has no file descriptor left", *_PUT_OFF
    INTERRUPTED = "interrupted", "the crawl was stopped in the middle", *_PUT_OFF
    DOWNLOAD_ERROR = "download_error", "any other download error", _PENDING, Retry.STORE
    BARRED = (
        "barred", "the host is blocked or outside its hours (SUITE_OVERRIDES, block)", *_PUT_OFF,
    )
    DOMAIN_BUDGET = (
        "domain_budget",
        "the page budget of the registered domain is used up (SUITE_DOMAIN_MAX_PAGES)", *_GIVEN_UP,
    )
    DOMAIN_HOSTS = (
        "domain_hosts",
        "the registered domain has as many hosts as it may have (SUITE_DOMAIN_MAX_HOSTS)",
        *_GIVEN_UP,
    )
    MEDIA_TYPE = "media_type", "2xx of a media type that is not wanted (SUITE_MEDIA_TYPES)", _FAILED
    TRAP = (
        "trap", "the URL is in a trap that was found after it was queued (SUITE_TRAPS)", *_GIVEN_UP,
    )
    NOT_THERE = (
        "not_there",
        "4xx other than 408 and 429, for a URL that nobody linked to (SUITE_GUESS_URLS)", _FAILED,
    )
    FILTERED = "filtered", "SUITE_FETCH_FILTER does not want the URL", *_GIVEN_UP
    NOT_PARSED = "not_parsed", "2xx, and SUITE_PARSE_FILTER does not want the page", _DONE
    UNREADABLE = (
        "unreadable",
        "its pack was gone or damaged when its links were to be read (SUITE_READ_LINKS)",
        *_GIVEN_UP,
    )
    ELSEWHERE = (
        "elsewhere",
        "the host belongs to another agent, and the request cannot be sent to it", *_GIVEN_UP,
    )


@lru_cache(1_000)
def event_of_status(status: int) -> Event:
    """The event of an HTTP status; 304 (a conditional request) counts as success."""
    if status < 300 or status == 304:
        return Event.SUCCESS
    if status < 400:
        return Event.REDIRECT
    if status == 429:
        return Event.TOO_MANY_REQUESTS
    if status == 503:
        return Event.UNAVAILABLE
    if status == 408 or status >= 500:
        return Event.SERVER_ERROR
    return Event.CLIENT_ERROR


FIRST_GUESS = 20_000.0  # bytes of an answer, before there was one
_WEIGHT = 1 / 32  # of the newest answer in the mean
_CREDIT = 1.0  # seconds whose bytes may be saved up by receiving less


@dataclass(slots=True)
class BandwidthLimit:
    """*rate* in bytes per second; 0 is no limit. Times are monotonic seconds."""

    rate: float = 0.0
    mean: float = FIRST_GUESS
    _debt: float = 0.0  # bytes for which time has not gone by yet
    _at: float = 0.0

    def wait(self, now: float) -> float:
        """Seconds until another request may go out."""
        self.charge(0.0, now)
        return max(0.0, self._debt / self.rate) if self.rate else 0.0

    def book(self, now: float) -> float:
        """A request goes out; return the bytes that it has paid, for `settle`."""
        self.charge(self.mean, now)
        return self.mean

    def settle(self, booked: float, size: int, now: float) -> None:
        """What paid *booked* brought *size* bytes."""
        self.charge(size - booked, now)
        self.mean += (size - self.mean) * _WEIGHT

    def charge(self, size: float, now: float) -> None:
        paid = self.rate * (now - self._at)
        self._at = now
        # Without a limit nothing is owed, now or when there is one again.
        self._debt = max(-self.rate * _CREDIT, self._debt - paid) + size if self.rate else 0.0


LONGEST_WISH = 14 * 86400.0  # seconds; a longer Retry-After is a mistake, or outlives the crawl


@dataclass(frozen=True, slots=True)
class Pace:
    """How one host may be visited: seconds between visits, how many at once, URLs a visit."""

    delay: float
    concurrency: int = 1
    burst: int = 1


@dataclass(frozen=True, slots=True)
class BackOff:
    """Seconds to wait; *refused*: the base after a refused connection, where that is shorter."""

    base: float = 5.0
    longest: float = 3600.0
    dead_after: int = 5
    refused: float = math.inf

    def after(self, failures: int, event: Event | None = None) -> float:
        """Seconds to wait after *failures* in a row: the base for *event*, doubled each time."""
        base = min(self.base, self.refused) if event is Event.REFUSED else self.base
        return min(self.longest, base * 2.0 ** min(failures - 1, 30))


class HostVerdict(Struct, frozen=True):
    failures: int
    wait: float = 0.0
    why: str = ""
    dead: bool = False


def judge_host(
    event: Event, failures: int, rules: BackOff, retry_after: float | None,
    back_offs: int | None = None,
) -> HostVerdict:  # fmt: skip
    """What *event* means after *failures* in a row: the longer of back-off and *retry_after*.

    *back_offs*: how many there are in a row with this one, if some failures came together.
    """
    health = event.outcome.health
    if health is Health.NONE:
        return HostVerdict(failures)
    if health is Health.WELL:
        return HostVerdict(0)
    failures += 1
    wait = rules.after(failures if back_offs is None else back_offs, event)
    why = f"back-off after {event.value}"
    if retry_after is not None and retry_after >= wait:
        wait, why = min(retry_after, max(wait, LONGEST_WISH)), "Retry-After"
    dead = health is Health.UNREACHABLE and failures >= rules.dead_after
    return HostVerdict(failures, wait, why, dead)


def parse_retry_after(value: str, wall: float) -> float | None:
    """Seconds by a ``Retry-After`` header, at most `LONGEST_WISH`; None if it is invalid."""
    value = value.strip()
    if value.isascii() and value.isdigit():
        return min(float(value[:12]), LONGEST_WISH)
    when = parse_http_date(value)
    return None if when is None else min(max(0.0, when - wall), LONGEST_WISH)


def parse_http_date(text: str) -> float | None:
    """Seconds since the epoch of an HTTP-date (RFC 9110 §5.6.7); None if it is invalid."""
    try:
        when = parsedate_to_datetime(text)
        if when.tzinfo is None:  # the obsolete asctime form names no zone: it is UTC
            when = when.replace(tzinfo=UTC)
        return when.timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
