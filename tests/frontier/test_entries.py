"""What waits in a host's queue."""

from __future__ import annotations

import gc

import pytest

from scrapy_spider_suite.frontier.entries import Entry, Flag, host_key, order_key, state_key
from scrapy_spider_suite.frontier.workbench import HostState


def test_the_identity_follows_from_host_and_url() -> None:
    """Unless there is another: a request with a body is not its URL."""
    assert Entry("a.t", "http://a.t/").identity == state_key("a.t", "http://a.t/")
    assert Entry("a.t", "http://a.t/", b"other").identity == b"other"


def test_keys_begin_with_the_slot() -> None:
    """The top 16 bits of xxh3, as the specification of the hash gives it for the empty string."""
    assert host_key("") == bytes.fromhex("2d06") + b"\0"
    assert state_key("a.t", "http://a.t/")[2:] == b"a.t\0http://a.t/"


def test_the_collector_does_not_walk_over_entries() -> None:
    """There are hundreds of thousands, in tuples of heaps: a walk would stop the crawl."""
    entry = Entry("a.t", "http://a.t/", flags=Flag.USER | Flag.VOLATILE)
    pair = (b"key", entry)
    gc.collect()
    assert not gc.is_tracked(entry)
    assert not gc.is_tracked(pair)
    host, other = HostState("a.t", 1.0, 1, 1), HostState("b.t", 1.0, 1, 1)
    assert not gc.is_tracked(host)
    assert host.front is not other.front
    host.front.append(pair)
    gc.collect()
    assert not gc.is_tracked(host.front)
    assert entry.volatile
    assert entry != Entry("a.t", "http://a.t/", flags=entry.flags)


def test_flags_are_stored_in_a_byte() -> None:
    """Each is one bit, and no two are the same."""
    bits = [flag for name, flag in vars(Flag).items() if name.isupper()]
    assert len(bits) == 8
    assert len(set(bits)) == len(bits)
    assert all(0 < bit < 256 and bit & (bit - 1) == 0 for bit in bits)


def test_sequences_have_an_end() -> None:
    """After 2**48 entries, which is said and not wrapped over."""
    assert order_key(0, 2**48 - 1) > order_key(0, 0)
    with pytest.raises(OverflowError):
        order_key(0, 2**48)


def test_an_entry_says_what_it_is() -> None:
    """In logs and in failing tests."""
    entry = Entry("a.t", "http://a.t/", priority=3, depth=2)
    assert repr(entry) == "<Entry http://a.t/ priority=3 depth=2>"
