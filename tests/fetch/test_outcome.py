"""Tests of how a look-up ends."""

from __future__ import annotations

import pytest
from pycares import errno

from scrapy_spider_suite.errors import (
    NoSuchHostError,
    PrivateAddressError,
    ResolveError,
    ResolveTimeoutError,
)
from scrapy_spider_suite.fetch.address_rules import AddressPolicy
from scrapy_spider_suite.fetch.resolver import (
    TRANSIENT,
    UNREACHABLE,
    LookupResult,
    allowed_lookup,
    failed_lookup,
)


@pytest.mark.parametrize(
    ("code", "error", "keep"),
    [
        (errno.ARES_ENOTFOUND, NoSuchHostError, 300.0),
        (errno.ARES_ENODATA, NoSuchHostError, 300.0),
        (errno.ARES_EBADNAME, NoSuchHostError, 300.0),
        (errno.ARES_ESERVFAIL, ResolveError, TRANSIENT),
        (errno.ARES_EREFUSED, ResolveError, TRANSIENT),
        (errno.ARES_ETIMEOUT, ResolveTimeoutError, TRANSIENT),
        (errno.ARES_ECONNREFUSED, ResolveError, UNREACHABLE),
        (errno.ARES_ECANCELLED, ResolveError, 0.0),
        (errno.ARES_ENOMEM, ResolveError, 0.0),
        (99, ResolveError, 0.0),
    ],
)
def test_failures(code: int, error: type[Exception], keep: float) -> None:
    """The servers' failures are kept shorter than missing names, our own troubles not at all."""
    outcome = failed_lookup("a.example", code, negative_ttl=300.0)
    assert (outcome.error, outcome.seconds) == (error, keep)
    assert outcome.message.startswith("a.example: ")


@pytest.mark.parametrize("code", sorted(errno.errorcode))
def test_every_code_of_cares_has_an_outcome(code: int) -> None:
    """Nothing is kept longer than the negative TTL, whatever c-ares says."""
    assert failed_lookup("a.example", code, negative_ttl=0.5).seconds <= 0.5


def test_judged_drops_what_is_refused() -> None:
    """Refused addresses are left out, the others keep their order."""
    addresses = ("2606:4700::1", "10.0.0.1", "1.1.1.1", "127.0.0.1")
    outcome = allowed_lookup("a.example", addresses, 60.0, AddressPolicy(False))
    assert outcome == LookupResult(("2606:4700::1", "1.1.1.1"), 60.0)


def test_judged_refuses_all() -> None:
    """If no address is left, the error says what is wrong with the first."""
    outcome = allowed_lookup("a.example", ("10.0.0.1", "127.0.0.1"), 60.0, AddressPolicy(False))
    assert outcome.error is PrivateAddressError
    assert outcome.message == "a.example: 10.0.0.1 is a private address"


@pytest.mark.parametrize(
    ("host", "address", "kind"), [("10.0.0.1", "10.0.0.1", "private"), ("[::1]", "::1", "loopback")]
)
def test_a_host_that_is_its_address_is_said_once(host: str, address: str, kind: str) -> None:
    """In the form of the address."""
    outcome = allowed_lookup(host, (address,), 60, AddressPolicy())
    assert outcome.message == f"{address} is a {kind} address"
