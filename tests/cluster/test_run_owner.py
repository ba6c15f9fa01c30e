"""An owner of URLs, whatever comes and whenever it dies: each new URL is in one run, once."""

from __future__ import annotations

import tempfile
from collections import Counter
from itertools import count
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_spider_suite.cluster.assignment import Member
from scrapy_spider_suite.cluster.held_runs import LinkBox
from scrapy_spider_suite.cluster.mailbox import OwnerRouter
from scrapy_spider_suite.cluster.run_blobs import Links, Place, unpack_piece
from scrapy_spider_suite.cluster.run_owner import (
    OPEN_MAX,
    PARTITIONS,
    SLOTS,
    Draft,
    Manifest,
    Partition,
    Partitions,
    partition_of,
)
from scrapy_spider_suite.cluster.run_queue import URLS_MAX
from scrapy_spider_suite.cluster.url_table import EVENT_NUMBERS, fingerprint
from scrapy_spider_suite.errors import MessageError
from scrapy_spider_suite.frontier.entries import UNITS, Entry, Flag, slot_of, state_key
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.store.rows import pack_row, unpack_row
from scrapy_spider_suite.store.seen_transfer import LinkOrigin

NUMBER = 7
HOSTS = [host for n in range(600) if partition_of(host := f"h{n}.test") == NUMBER][:6]
ORIGIN = LinkOrigin(1, "http://from.test/")


def rows_of(urls: list[tuple[str, str]]) -> list[bytes]:
    """Rows for the owner with links to these hosts and paths."""
    box = LinkBox()
    router = OwnerRouter(box, lambda host, url: str(partition_of(host)), "")
    keys = [state_key(host, f"http://{host}/{path}") for host, path in urls]
    router.own_links([(ORIGIN, keys)])
    return box.take()[NUMBER] if urls else []


class Ground:
    """Blobs and a manifest, and the owner of the moment."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.blobs: dict[bytes, list[bytes]] = {}
        self.ids = count()
        self.commits, self.packed = 0, msgspec.msgpack.encode(Manifest())
        self.urls: Counter[str] = Counter()  # in runs
        self.rows: list[bytes] = []
        self.sizes: list[int] = []
        self.now = 0.0
        self.reopen()

    def reopen(self) -> None:
        """Another process owns the partition."""
        manifest = msgspec.msgpack.decode(self.packed, type=Manifest)
        self.partition = Partition(
            NUMBER, self.commits, manifest, self.folder, self.read, self.now
        )

    def read(self, place: bytes) -> bytes:
        """A piece."""
        found = Place.from_bytes(place)
        return self.blobs[found.blob][found.offset]

    def work(
        self, links: Links | None, *, hungry: bool, most: int = 16, dies: bool = False
    ) -> None:
        """One commit, or the owner dies before it."""
        if links is not None:
            self.partition.take(links, self.now)
        due = self.partition.due(self.now, hungry=hungry)
        runs = self.partition.cut(due, most)
        pieces: list[bytes] = []
        draft = Draft(self.partition, int(links is not None), runs)
        draft.pack(pieces)
        blob = next(self.ids).to_bytes(8, "big")
        self.blobs[blob] = pieces
        commit = draft.commit([Place(blob, n, len(piece)) for n, piece in enumerate(pieces)])
        if dies:
            self.reopen()
            self.work(links, hungry=hungry, most=most)
            return
        assert commit.number == self.commits + 1
        assert commit.open == self.partition.open
        self.commits, self.packed = commit.number, commit.manifest
        for _, slot, run in commit.runs:
            piece = self.read(run.place[1:]) if run.place[0] else run.place[1:]
            rows = [(host, row) for host, found in unpack_piece(slot, piece) for row in found]
            assert len(rows) == run.urls
            self.sizes.append(run.urls)
            for host, row in rows:
                assert slot_of(host) == slot
                data = row if isinstance(row, bytes) else row[0]
                self.rows.append(data)
                self.urls[unpack_row(host, b"", data).url] += 1
        self.partition.committed()

    def drain(self) -> None:
        """Cut all that waits."""
        while self.partition.open:
            self.work(None, hungry=True)


PATHS = st.tuples(st.sampled_from(HOSTS), st.integers(0, 30).map(str))
STEPS = st.lists(
    st.tuples(
        st.lists(PATHS, max_size=20), st.booleans(), st.integers(1, 4), st.booleans(),
        st.booleans(),
    ),
    max_size=25,
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(STEPS)
def test_each_url_is_in_one_run(steps: list[tuple[list[tuple[str, str]], bool, int, bool, bool]]) -> None:  # fmt: skip # noqa: E501
    """Owners die between what they do, and others go on with what was committed."""
    ground, wanted = Ground(), set[str]()
    for urls, hungry, most, dies, moves in steps:
        ground.now += 1.0
        wanted |= {f"http://{host}/{path}" for host, path in urls}
        ground.work(Links(rows_of(urls), []), hungry=hungry, most=most, dies=dies)
        if moves:
            ground.reopen()
    ground.drain()
    assert ground.urls == Counter(dict.fromkeys(wanted, 1))


def test_runs_are_full_or_old() -> None:
    """Of a slot with many URLs whole runs are cut; others wait, but not for ever."""
    ground, [host, other, *_] = Ground(), HOSTS
    many = [(host, str(n)) for n in range(2 * URLS_MAX + 30)]
    for at in range(0, len(many), 500):
        ground.work(Links(rows_of(many[at : at + 500]), []), hungry=False)
    ground.work(Links(rows_of([(other, "1")]), []), hungry=False)
    assert sorted(set(ground.sizes)) == [URLS_MAX]
    left = ground.partition.open
    assert left == len(many) + 1 - sum(ground.sizes)
    ground.now += OPEN_MAX
    ground.work(None, hungry=False)
    assert ground.partition.open == 0
    assert ground.urls.total() == len(many) + 1


def test_a_run_has_many_hosts() -> None:
    """Runs of a slot with two hosts have URLs of both, however many each has."""
    slots: dict[int, str] = {}
    pairs = ((slots.setdefault(slot_of(host), host), host)
             for n in range(60_000) if partition_of(host := f"x{n}.test") == NUMBER)  # fmt: skip
    one, other = next((a, b) for a, b in pairs if a != b)
    ground = Ground()
    urls = [(one, str(n)) for n in range(1_700)] + [(other, str(n)) for n in range(300)]
    ground.work(Links(rows_of(urls), []), hungry=True)
    assert ground.sizes == [URLS_MAX, URLS_MAX]
    assert ground.urls.total() == 2_000


@pytest.mark.parametrize("first", ["link", "request"])
def test_of_a_request_and_a_link_to_it_the_request_is_kept(first: str) -> None:
    """It has a callback, which a link has not."""
    ground, host, box = Ground(), HOSTS[0], LinkBox()
    url = f"http://{host}/1"
    router = OwnerRouter(box, lambda host, url: str(partition_of(host)), "")
    steps = {
        "link": lambda: router.own_links([(ORIGIN, [state_key(host, url)])]),
        "request": lambda: router.keeps(Entry(host, url, payload=b"callback"), anyway=True),
    }
    steps.pop(first)()
    for step in steps.values():
        router.reroute(lambda host, url: str(partition_of(host)))  # which forgets what was sent
        step()
    ground.work(Links(box.take()[NUMBER], []), hungry=True)
    assert ground.rows == [pack_row(Entry(host, url, payload=b"callback"))]


def test_who_asks_for_a_url_gets_it() -> None:
    """A known URL that an operator wants again is in a run once more; one of ``start()`` is not."""
    ground, host = Ground(), HOSTS[0]
    url = f"http://{host}/1"
    for flags in (0, int(Flag.DONT_FILTER), int(Flag.DONT_FILTER | Flag.START)):
        box = LinkBox()
        router = OwnerRouter(box, lambda host, url: str(partition_of(host)), "")
        assert not router.keeps(Entry(host, url, flags=flags))
        ground.work(Links(box.take()[NUMBER], []), hungry=True)
    assert ground.urls == {url: 2}


def test_endings_are_kept() -> None:
    """How a URL ended is known to whoever owns it next."""
    ground, host = Ground(), HOSTS[0]
    key = fingerprint(state_key(host, f"http://{host}/1"))
    ground.work(Links(rows_of([(host, "1")]), []), hungry=True)
    ending = (key, EVENT_NUMBERS[Event.SUCCESS], 200, 1_700_000_000)
    ground.work(Links([], [ending]), hungry=False)
    ground.reopen()
    found = ground.partition.table.ending(key)
    assert found is not None
    assert (found.event, found.status, found.when) == (Event.SUCCESS, 200, 1_700_000_000)


def test_foreign_rows_are_refused() -> None:
    """Nothing of them is taken."""
    ground = Ground()
    with pytest.raises(MessageError):
        ground.partition.take(Links([*rows_of([(HOSTS[0], "1")]), b"no row"], []), 0.0)
    assert ground.partition.open == 0


def test_a_partition_has_one_owner() -> None:
    """All its units; and partitions are spread."""
    members = [Member(name) for name in "abc"]
    owners = Partitions().table(members)
    assert len(owners) == UNITS
    by_partition = owners.reshape(PARTITIONS, SLOTS)
    assert (by_partition == by_partition[:, :1]).all()
    assert min(Counter(by_partition[:, 0].tolist()).values()) > PARTITIONS // 6
