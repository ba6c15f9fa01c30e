"""The formats of rows: round trips, and what becomes of bytes that nobody wrote."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.frontier.entries import Entry, host_key, order_key, state_key
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.interface import MemoryStore
from scrapy_spider_suite.store.rows import (
    COUNT_MAX,
    PENDING,
    POLICY_MAX,
    HostRecord,
    UrlState,
    end_of_prefix,
    pack_row,
    row_packer,
    unpack_row,
)
from scrapy_spider_suite.urls.traps import Trap

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
urls = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=40)
counts = st.integers(0, COUNT_MAX)
times = st.floats(0, 1e13)
names = st.text(st.sampled_from("abcxyz0-."), min_size=1, max_size=20)


@st.composite
def host_records(draw: st.DrawFn) -> HostRecord:
    """Any record that a crawl may make."""
    record = HostRecord()
    record.next_fetch = draw(times)
    record.due = draw(st.none() | times)
    record.crawl_delay = draw(st.floats(0, 1e9))
    record.failures = draw(st.integers(0, 0xFFFF))
    record.dead = draw(st.sampled_from(["", *(event.value for event in Event)]))
    record.why = draw(st.sampled_from(["", "Retry-After", "back-off after timeout", "größer"]))
    record.pending, record.done = draw(counts), draw(counts)
    record.failed, record.attempts = draw(counts), draw(counts)
    record.counted = bool(record.pending or record.done or record.attempts) or draw(st.booleans())
    record.entered = draw(st.none() | st.integers(0, (1 << 15) - 2))
    record.head = draw(st.binary(max_size=10))
    record.address = draw(st.just("") | st.ip_addresses().map(str))
    if record.address:
        record.resolved_until = float(draw(st.integers(0, 0xFFFFFFFF)))
    return record


def fields(thing: object) -> dict[str, object]:
    """Every attribute of an object with slots."""
    return {name: getattr(thing, name) for name in type(thing).__slots__}  # type: ignore[attr-defined]


@given(host_records())
def test_host_records_come_back(record: HostRecord) -> None:
    """Every field, to the last bit."""
    assert fields(HostRecord.from_bytes(record.to_bytes())) == fields(record)


def test_a_host_counts_whatever_became_of_its_urls() -> None:
    """Its name does not exist: all that was queued has failed, and nothing was tried."""
    record = HostRecord()
    record.failed, record.counted = 3, True
    assert HostRecord.from_bytes(record.to_bytes()).counted


def test_a_new_record_is_small() -> None:
    """There is one for every host that was ever seen."""
    assert len(HostRecord().to_bytes()) <= 56


@given(
    st.sampled_from(State), st.none() | st.sampled_from(Event), st.integers(0, 255),
    st.integers(0, 999), counts, urls, st.integers(0, 63),
)  # fmt: skip
def test_url_states_come_back(
    state: State, event: Event | None, attempts: int, status: int, when: int, url: str, depth: int
) -> None:
    """Every field; the URL where there is one."""
    row = UrlState(state, event, attempts, status, when, url, depth=depth)
    assert UrlState.from_bytes(row.to_bytes()) == row


def test_url_states_clamp_what_does_not_fit() -> None:
    """A clock before 1970, a host that is tried for ever, or the status of a careless download
    handler must not stop a crawl.
    """
    row = UrlState(State.DONE, Event.SUCCESS, 300, 200, -5)
    assert UrlState.from_bytes(row.to_bytes()) == UrlState(State.DONE, Event.SUCCESS, 255, 200, 0)
    for status, stored in ((100_000, 65_535), (-1, 0)):
        row = UrlState.from_bytes(UrlState(State.DONE, None, 1, status).to_bytes())
        assert row.status == stored
    assert UrlState.from_bytes(UrlState(State.DONE, depth=64).to_bytes()).depth == 63
    assert len(PENDING) == 9


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    """Any entry that may be stored."""
    host, url = draw(names), draw(text)
    identity = draw(st.just(state_key(host, url)) | st.binary(min_size=1, max_size=70_000))
    return Entry(
        host, url, identity,
        priority=draw(st.integers(-(2**31), 2**31 - 1)), depth=draw(st.integers(0, 0xFFFF)),
        hops=draw(st.integers(0, 15)), hops_outside=draw(st.integers(0, 15)),
        flags=draw(st.integers(0, 127)),
        attempts=draw(st.integers(0, 255)), referrer=draw(text),
        referrer_policy=draw(st.integers(0, POLICY_MAX)),
        payload=draw(st.none() | st.binary(min_size=1, max_size=200)), key=b"k" * 10,
    )  # fmt: skip


@given(entries())
def test_queue_rows_come_back(entry: Entry) -> None:
    """Every field; an empty payload is none, an identity that follows from the URL is implied."""
    back = unpack_row(entry.host, entry.key, pack_row(entry))
    assert back.identity == entry.identity
    if entry.identity == state_key(entry.host, entry.url):
        assert back.stored_key == b""
        back.stored_key = entry.stored_key
    assert fields(back) == fields(entry)


@given(entries(), st.lists(st.tuples(urls, st.integers()), max_size=3))
def test_rows_of_links_are_those_of_their_entries(
    entry: Entry, links: list[tuple[str, int]]
) -> None:
    """What the links of a page have in common is packed once."""
    entry.url, entry.stored_key = "", b""
    pack = row_packer(entry)
    for entry.url, entry.priority in links:
        assert pack(entry.url.encode(), entry.priority) == pack_row(entry)


def test_long_urls_fit() -> None:
    """A data URL may be larger than 64 KiB, and so is the identity that is made of it."""
    url = "data:text/plain," + "x" * 100_000
    entry = Entry("slot", url, state_key("other", url), key=b"k" * 10)
    back = unpack_row("slot", entry.key, pack_row(entry))
    assert (back.url, back.identity) == (url, entry.identity)


def test_what_does_not_fit_is_clamped() -> None:
    """Depths, hops, attempts and priorities have an end; a page may ask for more."""
    entry = Entry(
        "h", "u", b"i", priority=10**12, depth=10**6, hops=10**6, attempts=10**6, hops_outside=10**6
    )
    back = unpack_row("h", b"k" * 10, pack_row(entry))
    assert (back.priority, back.depth, back.attempts) == (2**31 - 1, 65_535, 255)
    assert (back.hops, back.hops_outside) == (15, 15)


@given(st.integers(-(2**40), 2**40), st.integers(-(2**40), 2**40), st.integers(0, 2**48 - 2))
def test_order_keys_sort_by_priority_then_sequence(first: int, second: int, sequence: int) -> None:
    """High priorities leave first, equal ones in the order in which they came (U4)."""
    key, other = order_key(first, sequence), order_key(second, sequence + 1)
    assert len(key) == len(other) == 10
    low, high = (max(-0x7FFFFFFF, min(0x7FFFFFFF, n)) for n in (first, second))
    assert (key < other) == (low >= high)


@given(names, names, text)
def test_keys_of_a_host_lie_together(host: str, other: str, url: str) -> None:
    """Between its own key and `after` it lies nothing but what belongs to it."""
    key, other_key = state_key(host, url), state_key(other, url)
    assert host_key(host) <= key < end_of_prefix(host_key(host))
    assert (host_key(host) <= other_key < end_of_prefix(host_key(host))) == (host == other)


# What nobody wrote

READERS: dict[str, Callable[[bytes], object]] = {
    "host": HostRecord.from_bytes,
    "state": UrlState.from_bytes,
    "row": lambda data: unpack_row("h", b"k" * 10, data),
}
GOOD = {
    "host": HostRecord().to_bytes(),
    "state": PENDING,
    "row": pack_row(Entry("h", "http://h/", b"identity", payload=b"payload")),
}


@pytest.mark.parametrize("kind", READERS)
@given(st.binary(max_size=80))
@example(b"")
@example(b"\xff" * 60)
@example(pickle.dumps({"a": 1}))
def test_any_bytes_are_read_or_refused(kind: str, data: bytes) -> None:
    """Nothing but `JobDamagedError` comes of bytes that the suite did not write."""
    refused = ""
    try:
        READERS[kind](data)
    except JobDamagedError as error:
        refused = str(error)
    assert "\n" not in refused


@pytest.mark.parametrize("kind", READERS)
@given(st.integers(0, 60), st.integers(0, 255))
def test_a_changed_byte_is_read_or_refused(kind: str, at: int, value: int) -> None:
    """The same for rows that were almost right."""
    data = bytearray(GOOD[kind])
    data[at % len(data)] = value
    refused = "in one line"
    try:
        READERS[kind](bytes(data))
    except JobDamagedError as error:
        refused = str(error)
    assert refused


@pytest.mark.parametrize("kind", ["host", "row"])
def test_rows_that_are_cut_short_are_refused(kind: str) -> None:
    """Half a row is not a shorter row."""
    record = HostRecord()
    record.head = b"0123456789"
    data = record.to_bytes() if kind == "host" else GOOD["row"][: -len(b"payload")]
    with pytest.raises(JobDamagedError):
        READERS[kind](data[:-4])


def test_a_host_that_died_of_nothing_known_is_refused() -> None:
    """Its fate would have to be shown, and acted on."""
    record = HostRecord()
    record.dead = "boredom"
    with pytest.raises(JobDamagedError):
        HostRecord.from_bytes(record.to_bytes())


@pytest.mark.parametrize("field", ["next_fetch", "due", "crawl_delay"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_times_that_are_none_are_refused(field: str, value: float) -> None:
    """They would compare with nothing, and be waited for for ever."""
    record = HostRecord()
    setattr(record, field, value)
    with pytest.raises(JobDamagedError):
        HostRecord.from_bytes(record.to_bytes())


# Counters


def test_counters_come_back() -> None:
    store = MemoryStore()
    counters = Counters(7, 1, 2, 3, 4, 5, 6, 8.5, {Event.SUCCESS: 2, Event.ROBOTS: 3}, 9)
    counters.traps[Trap.PREFIX] = 6_729
    counters.endings[Event.TIMEOUT] = 3
    counters.save(store)
    assert Counters.load(store) == counters
    assert Counters.load(MemoryStore()) == Counters()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xc1", b"\x81", pickle.dumps({"events": {}}), msgpack.packb([]),
        msgpack.packb({"events": {"no such event": 1}, "seconds": 0.0}),
        msgpack.packb({"events": {}, "seconds": "long"}),
        msgpack.packb({"events": {}, "seconds": 0.0, "sequence": "x"}),
        msgpack.packb({"events": 5, "seconds": 0.0}),
        msgpack.packb({"events": {}, "seconds": 0.0, "traps": {"no such trap": 1}}),
    ],
)  # fmt: skip
def test_damaged_counters_are_refused(data: bytes) -> None:
    """A job whose sequence is lost would overwrite its own rows."""
    store = MemoryStore()
    store.kv("counters").put(b"counters", data)
    with pytest.raises(JobDamagedError):
        Counters.load(store)
