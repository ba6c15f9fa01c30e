"""The compressed-trie store of URLs: a set, and a map both ways, whatever happens to it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.seen_contract import SeenContract, some_urls
from support.trie_stores import build_at_once, small, use_few_ids

from scrapy_spider_suite.errors import (
    JobError,
    JobInUseError,
    StoreWriteError,
    UnknownUrlError,
)
from scrapy_spider_suite.frontier.entries import Entry, state_key
from scrapy_spider_suite.seen import segments
from scrapy_spider_suite.seen.segments import LOW, MAX_KEY
from scrapy_spider_suite.seen.trie_store import TrieStore
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import HostRecord
from scrapy_spider_suite.store.url_states import UrlStates
from scrapy_spider_suite.urls.normalize import host_of

URLS = [f"http://host{number % 23}.t/page/{number}" for number in range(300)]


@pytest.fixture(autouse=True, scope="module")
def at_once() -> Iterator[None]:
    """Build in this process; `test_builds` has the real ones."""
    with pytest.MonkeyPatch.context() as patch:
        build_at_once(patch)
        yield


class TestTrieStore(SeenContract):
    """The store with nothing else."""

    def open(self, path: Path) -> TrieStore:
        """With few URLs to a range and few in memory."""
        return small(path, memory=144 * 50)

    def settle(self, seen: object) -> None:
        """Write segments."""
        assert isinstance(seen, TrieStore)
        seen.flush()


class TestCollidingIds(TestTrieStore):
    """Four bits besides the slot: nearly every URL is a twin of another."""

    patch = pytest.MonkeyPatch()

    @classmethod
    def setup_class(cls) -> None:
        """See the class."""
        use_few_ids(cls.patch, 15)

    @classmethod
    def teardown_class(cls) -> None:
        """The others have all bits."""
        cls.patch.undo()


class PlainRows:
    """What a crawl asks with ``SUITE_SEEN_STORE = plain``: its ledger, and rows of its database."""

    def __init__(self, path: Path) -> None:
        self._store = RocksStore(path, memory=1 << 20)
        self._ledger = UrlStates(self._store, Counters.load(self._store), cache=1 << 10)

    def add(self, urls: Iterable[str]) -> list[str]:
        """Have *urls* pending."""
        new = [Entry(host_of(url), url) for url in dict.fromkeys(urls) if url not in self]
        for entry in new:
            record = self._store.record(entry.host) or HostRecord()
            self._ledger.add_pending(entry, record)
            self._store.put_record(entry.host, record)
        return [entry.url for entry in new]

    def __contains__(self, url: str) -> bool:
        return self._ledger.known(state_key(host_of(url), url))

    def __len__(self) -> int:
        return self._ledger.counters.pending

    def settle(self) -> None:
        """Write the batch."""
        self._ledger.counters.save(self._store)
        self._store.flush()

    def close(self) -> None:
        """End the crawl."""
        self.settle()
        self._store.close()


class TestPlainRows(SeenContract):
    """The plain store of a crawl."""

    def open(self, path: Path) -> PlainRows:
        """With a cache that holds some of them."""
        return PlainRows(path)

    def takes(self, url: str) -> bool:
        """Those of pages: of no other are there rows."""
        return url.startswith(("http://", "https://")) and "\udcff" not in url

    def settle(self, seen: object) -> None:
        """Write."""
        assert isinstance(seen, PlainRows)
        seen.settle()


@pytest.mark.parametrize("mask", [LOW, 255])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_against_a_dict(
    data: st.DataObject, mask: int, tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Ids for life, both ways, prefixes, and removal, over flushes, splits, and restarts."""
    use_few_ids(monkeypatch, mask)
    path = tmp_path_factory.mktemp("dict") / "seen"
    store = small(path, memory=144 * data.draw(st.sampled_from([20, 10_000])))
    known: dict[str, int] = {}
    for _ in range(data.draw(st.integers(1, 8))):
        batch = data.draw(st.lists(some_urls(), max_size=40))
        new = [url for url in dict.fromkeys(batch) if url not in known]
        assert store.add(batch) == new
        known |= {url: store.id(url) for url in new}
        what = data.draw(st.sampled_from(["flush", "reopen", "remove", "poll"]))
        if what == "remove":
            prefix = data.draw(st.sampled_from(["http://a.t/", "https://", "http://a.t/a", "\x00"]))
            gone = [url for url in known if url.startswith(prefix)]
            assert store.remove(prefix) == len(gone)
            for url in gone:
                with pytest.raises(UnknownUrlError):
                    store.url(known.pop(url))
        elif what == "reopen":
            store.close()
            store = small(path)
        else:
            getattr(store, what)()
        assert len(store) == len(known) == len(set(known.values()))
        assert {url: store.id(url) for url in known} == known
        assert [store.url(ident) for ident in known.values()] == list(known)
        for prefix in ("", "http://a.t/", "http://www", "https://a.t:8080/a"):
            found = list(store.iter(prefix))
            assert sorted(found) == sorted(url for url in known if url.startswith(prefix))
    store.close()


def test_a_range_is_split_and_ids_stay(tmp_path: Path) -> None:
    """Between hosts, and inside of a host that is larger than a range."""
    one_host = [f"http://large.t/{number}" for number in range(200)]
    with small(tmp_path) as store:
        store.add(URLS[:30])
        ids = [store.id(url) for url in URLS[:30]]
        store.add(URLS + one_host)
        store.flush()
        stats = store.stats()
        assert stats.ranges >= 5
        assert stats.segments == stats.ranges
        assert stats.fresh == 0
        assert [store.id(url) for url in URLS[:30]] == ids
        assert sorted(store) == sorted(URLS + one_host)
        assert sorted(store.iter("http://large.t/1")) == sorted(
            url for url in one_host if url.startswith("http://large.t/1")
        )


def test_two_segments_for_a_range_at_most(tmp_path: Path) -> None:
    """However often something is flushed."""
    with TrieStore(tmp_path) as store:
        store.add(URLS)
        for number in range(12):
            store.flush()
            assert store.stats().segments <= 2
            store.add(f"http://new.t/{number}/{n}" for n in range(5))
        store.flush()
        assert store.stats().segments == 2
        assert len(list(tmp_path.glob("segment-*"))) == 2
        assert len(store) == len(URLS) + 60


def test_a_store_without_ids(tmp_path: Path) -> None:
    """It is smaller, and says why it knows no URL by its id; that is for life."""
    with TrieStore(tmp_path, ids=False) as store:
        store.add(URLS)
        store.flush()
        assert store.stats().ids == 0
        assert all(url in store for url in URLS)
    with TrieStore(tmp_path) as store, pytest.raises(JobError, match="made without ids"):
        store.url(store.id(URLS[0]))


def test_unknown_urls_and_ids(tmp_path: Path) -> None:
    """A KeyError that says what is not where."""
    with TrieStore(tmp_path) as store:
        store.add(URLS)
        with pytest.raises(KeyError, match=r"does not hold 'http://x\.t/'") as caught:
            store.id("http://x.t/")
        assert str(caught.value).startswith(str(tmp_path))
        for ident in (0, -1, 1 << 64, 12345, store.id(URLS[0]) ^ 1):
            with pytest.raises(UnknownUrlError, match=f"no URL with the id {ident}"):
                store.url(ident)
        assert 7 not in store


def test_a_url_that_is_too_long_is_refused_with_all_that_came_with_it(tmp_path: Path) -> None:
    """Nothing of a batch is added unless all of it can be."""
    with TrieStore(tmp_path) as store:
        with pytest.raises(ValueError, match="at most 65535"):
            store.add(["http://a.t/", "http://a.t/" + "x" * MAX_KEY])
        assert len(store) == 0
        longest = "http://a.t/" + "x" * (MAX_KEY - 11)
        assert store.add([longest]) == [longest]
        store.flush()
        assert longest in store


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """The second is told so; to look is allowed."""
    with TrieStore(tmp_path) as store:
        store.add(URLS)
        with pytest.raises(JobInUseError, match="open in another process"):
            TrieStore(tmp_path)
        with TrieStore(tmp_path, readonly=True) as other:
            assert sorted(other) == sorted(URLS)
            with pytest.raises(JobError, match="reading only"):
                other.add(["http://new.t/"])
        store.flush()
        assert len(store) == len(URLS)
    TrieStore(tmp_path).close()
    with pytest.raises(JobError, match="no store of URLs"):
        TrieStore(tmp_path / "nothing", readonly=True)


def test_a_full_disk_during_a_flush_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, serves on, and a later flush does it."""
    with small(tmp_path) as store:
        store.add(URLS[:200])

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(segments, "write_segment", full)
            with pytest.raises(StoreWriteError, match="No space left on device"):
                store.flush()
        assert "No space left" in store.trouble
        assert store.add(URLS) == URLS[200:]
        assert all(url in store for url in URLS)
        store.flush()
        assert store.trouble == ""
        assert sorted(store) == sorted(URLS)
    with small(tmp_path) as store:
        assert sorted(store) == sorted(URLS)


def test_what_is_due_is_built_by_and_by(tmp_path: Path) -> None:
    """The largest range first, half of the memory being taken; nobody asked for it."""
    with TrieStore(tmp_path, memory=144 * 10_000, split=3_000) as store:
        for start in range(0, 24_000, 100):
            store.add(f"http://host{n % 7}.t/{n}" for n in range(start, start + 100))
        store.wait()  # on a busy machine the builder is slower than this loop
        assert store.stats().segments
        assert not store.behind
        assert store.stats().fresh < 10_000
        assert len(store) == 24_000


def test_what_was_removed_leaves_the_files(tmp_path: Path) -> None:
    """Without anybody asking: the next steps of upkeep write the tries of its range anew."""
    with TrieStore(tmp_path) as store:
        store.add([f"http://a.t/{n}" for n in range(100)] + ["http://b.t/"])
        store.flush()
        assert store.remove("http://a.t/") == 100
        assert store.stats().removed == 100
        while store.poll():
            time.sleep(0.01)
        assert store.stats().removed == 0
        assert not store.poll()
        assert list(store) == ["http://b.t/"]


def test_removed_urls_come_again(tmp_path: Path) -> None:
    """Also when the removal is older than the restart, and the room is given back."""
    with small(tmp_path) as store:
        store.add(URLS)
        store.flush()
        store.add(["http://host1.t/new"])
        ident = store.id("http://host1.t/page/1")
        count = sum(url.startswith("http://host1.t/") for url in URLS) + 1
        assert store.remove("http://host1.t/") == count
        assert store.remove("http://host1.t/") == 0
        assert store.stats().removed == count - 1
    with small(tmp_path) as store:
        assert not list(store.iter("http://host1.t/"))
        assert store.add(["http://host1.t/page/1", "http://host1.t/new"])
        assert store.id("http://host1.t/page/1") == ident
        store.flush()
        while store.poll():
            pass
        assert store.stats().removed == 0
        assert len(store) == len(URLS) - count + 3
        assert store.url(ident) == "http://host1.t/page/1"
