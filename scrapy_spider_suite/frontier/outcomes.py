"""What becomes of a URL: one table, used by the code, the docs and a contract test.

A URL is unknown, then pending, leased, and at last done or failed. `OUTCOMES` says for each
`Event` which state it leads to, whose business another attempt is, what the host is told and
which stat counts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Where a URL stands (*leased* exists in memory only)."""

    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"


class Retry(StrEnum):
    """Whose business another attempt is."""

    NOBODY = "nobody"
    STORE = "store"
    """The frontier tries again (its own URLs): pending, up to SUITE_RETRY_TIMES, then failed."""
    HOST = "host"
    """The URL is not to blame: pending again, without counting an attempt."""


class Health(StrEnum):
    """What an event says about its host."""

    WELL = "well"
    OVERLOADED = "overloaded"
    """Growing back-off, or Retry-After."""
    UNREACHABLE = "unreachable"
    """Growing back-off; after SUITE_DEAD_HOST_FAILURES in a row the host is given up."""
    NONE = "none"
    """Says nothing (nothing touched the wire, or it was our own doing)."""


class Event(StrEnum):
    """How one attempt ended. Stored by position: add at the end, never reorder."""

    SUCCESS = "success"
    NOT_STORED = "not_stored"
    CALLBACK_ERROR = "callback_error"
    PIPELINE_ERROR = "pipeline_error"
    DISK_FULL = "disk_full"
    REDIRECT = "redirect"
    REPLACED = "replaced"
    CLIENT_ERROR = "client_error"
    TOO_MANY_REQUESTS = "too_many_requests"
    UNAVAILABLE = "unavailable"
    SERVER_ERROR = "server_error"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    CONNECTION_LOST = "connection_lost"
    BAD_RESPONSE = "bad_response"
    DATA_LOSS = "data_loss"
    TOO_LARGE = "too_large"
    DNS = "dns"
    NO_SUCH_HOST = "no_such_host"
    PRIVATE_ADDRESS = "private_address"
    IGNORED = "ignored"
    ROBOTS = "robots"
    ROBOTS_UNAVAILABLE = "robots_unavailable"
    TOO_MANY_HOPS = "too_many_hops"
    REDIRECT_LOOP = "redirect_loop"
    UNSUPPORTED = "unsupported"
    DROPPED = "dropped"
    BUDGET = "budget"
    HOST_DEAD = "host_dead"
    OUT_OF_FILES = "out_of_files"
    INTERRUPTED = "interrupted"
    DOWNLOAD_ERROR = "download_error"
    BARRED = "barred"
    DOMAIN_BUDGET = "domain_budget"
    DOMAIN_HOSTS = "domain_hosts"
    MEDIA_TYPE = "media_type"
    TRAP = "trap"
    NOT_THERE = "not_there"
    FILTERED = "filtered"
    NOT_PARSED = "not_parsed"
    UNREADABLE = "unreadable"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row of the table."""

    meaning: str
    state: State
    retry: Retry = Retry.NOBODY
    health: Health = Health.WELL

    def after(self, attempts: int, retry_times: int, *, ours: bool) -> State:
        """The state after *attempts* attempts; *ours*: the frontier made the URL.

        Scrapy's RetryMiddleware retries a spider's requests: its copies arrive as `Event.REPLACED`.
        """
        if self.retry is Retry.HOST:
            return State.PENDING
        if self.retry is Retry.STORE:
            return State.PENDING if ours and attempts <= retry_times else State.FAILED
        return self.state


_DONE, _FAILED, _PENDING = State.DONE, State.FAILED, State.PENDING


def _given_up(meaning: str) -> Outcome:
    """Failed, though the host did nothing."""
    return Outcome(meaning, State.FAILED, Retry.NOBODY, Health.NONE)


def _put_off(meaning: str) -> Outcome:
    """Pending, though neither the URL nor the host did anything."""
    return Outcome(meaning, State.PENDING, Retry.HOST, Health.NONE)


OUTCOMES: dict[Event, Outcome] = {
    Event.SUCCESS: Outcome("2xx, and the items are through the pipelines", _DONE),
    Event.NOT_STORED: Outcome(
        "2xx, and a pipeline dropped the item, or SUITE_STORE_FILTER does not want the page", _DONE
    ),
    Event.CALLBACK_ERROR: Outcome("the callback raised", _DONE),
    Event.PIPELINE_ERROR: Outcome(
        "a pipeline raised something other than DropItem, or a feed could not take an item", _FAILED
    ),
    Event.DISK_FULL: Outcome(
        "a pipeline, a feed or the store found the disk full, read-only, broken: the crawl pauses",
        _PENDING, Retry.HOST,
    ),
    Event.REDIRECT: Outcome("3xx; the target is a new link", _DONE),
    Event.REPLACED: Outcome("a middleware returned another request in its place", _DONE),
    Event.CLIENT_ERROR: Outcome("4xx other than 408 and 429", _FAILED),
    Event.TOO_MANY_REQUESTS: Outcome("429", _PENDING, Retry.STORE, Health.OVERLOADED),
    Event.UNAVAILABLE: Outcome("503", _PENDING, Retry.STORE, Health.OVERLOADED),
    Event.SERVER_ERROR: Outcome("408, and 5xx other than 503", _PENDING, Retry.STORE),
    Event.TIMEOUT: Outcome(
        "no complete answer in DOWNLOAD_TIMEOUT", _PENDING, Retry.STORE, Health.UNREACHABLE
    ),
    Event.REFUSED: Outcome("connection refused", _PENDING, Retry.STORE, Health.UNREACHABLE),
    Event.CONNECTION_LOST: Outcome(
        "connection failed, reset, closed, or TLS broke", _PENDING, Retry.STORE, Health.UNREACHABLE
    ),
    Event.BAD_RESPONSE: Outcome(
        "the answer was not HTTP, or its body not gzip", _PENDING, Retry.STORE
    ),
    Event.DATA_LOSS: Outcome("the body was cut short", _PENDING, Retry.STORE),
    Event.TOO_LARGE: Outcome("larger than DOWNLOAD_MAXSIZE, or cancelled", _FAILED),
    Event.DNS: Outcome(
        "the name servers gave no answer", _PENDING, Retry.STORE, Health.UNREACHABLE
    ),
    Event.NO_SUCH_HOST: _given_up("the name does not exist"),
    Event.PRIVATE_ADDRESS: _given_up(
        "the host's address is not public (SUITE_ALLOW_PRIVATE_ADDRESSES)"
    ),
    Event.IGNORED: _given_up("a middleware raised IgnoreRequest"),
    Event.ROBOTS: _given_up("forbidden by robots.txt"),
    Event.ROBOTS_UNAVAILABLE: _put_off("robots.txt cannot be fetched now (RFC 9309 §2.3.1.4)"),
    Event.TOO_MANY_HOPS: Outcome("the eleventh redirect in a row", _FAILED),
    Event.REDIRECT_LOOP: Outcome("redirects to itself again", _FAILED),
    Event.UNSUPPORTED: _given_up("no download handler for the scheme"),
    Event.DROPPED: _given_up("a request_scheduled handler dropped the request that replaced it"),
    Event.BUDGET: _given_up("the host's page budget is used up (SUITE_HOST_MAX_PAGES)"),
    Event.HOST_DEAD: _given_up("the host was given up (SUITE_DEAD_HOST_FAILURES)"),
    Event.OUT_OF_FILES: _put_off("the process has no file descriptor left"),
    Event.INTERRUPTED: _put_off("the crawl was stopped in the middle"),
    Event.DOWNLOAD_ERROR: Outcome("any other download error", _PENDING, Retry.STORE),
    Event.BARRED: _put_off("the host is blocked or outside its hours (SUITE_OVERRIDES, block)"),
    Event.DOMAIN_BUDGET: _given_up(
        "the page budget of the registered domain is used up (SUITE_DOMAIN_MAX_PAGES)"
    ),
    Event.DOMAIN_HOSTS: _given_up(
        "the registered domain has as many hosts as it may have (SUITE_DOMAIN_MAX_HOSTS)"
    ),
    Event.MEDIA_TYPE: Outcome(
        "2xx of a media type that is not wanted (SUITE_MEDIA_TYPES)", _FAILED
    ),
    Event.TRAP: _given_up("the URL is in a trap that was found after it was queued (SUITE_TRAPS)"),
    Event.NOT_THERE: Outcome(
        "4xx other than 408 and 429, for a URL that nobody linked to (SUITE_GUESS_URLS)",
        _FAILED,
    ),
    Event.FILTERED: _given_up("SUITE_FETCH_FILTER does not want the URL"),
    Event.NOT_PARSED: Outcome("2xx, and SUITE_PARSE_FILTER does not want the page", _DONE),
    Event.UNREADABLE: _given_up(
        "its pack was gone or damaged when its links were to be read (SUITE_READ_LINKS)"
    ),
    Event.ELSEWHERE: _given_up(
        "the host belongs to another agent, and the request cannot be sent to it"
    ),
}  # fmt: skip


def event_of_status(status: int) -> Event:
    """The event that an HTTP status stands for.

    304 (a conditional request) counts as success.
    """
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
