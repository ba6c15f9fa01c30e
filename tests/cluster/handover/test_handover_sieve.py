"""Hosts go from one agent's sieve into another's: against a dictionary, whatever is killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from errno import ENOSPC
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.handover_sides import Side, drain, hand_over, label, units_of
from support.virtual_crawl import WALL, entry

from scrapy_spider_suite.cluster.handover import dump, load
from scrapy_spider_suite.cluster.handover.handover_file import (
    HandoverWriter,
    ItemKind,
    UnitSet,
)
from scrapy_spider_suite.cluster.handover.load import HostLoad
from scrapy_spider_suite.crawl.queue.frontier import UrlEdits
from scrapy_spider_suite.errors import HandoverFileError, JobError, StoreWriteError
from scrapy_spider_suite.frontier.entries import UNITS, Flag, slot_of, state_key
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.seen.fingerprints import fingerprint
from scrapy_spider_suite.seen.sorted_set import SetManifest
from scrapy_spider_suite.store.counters import wrong_rows
from scrapy_spider_suite.store.rows import UrlState
from scrapy_spider_suite.store.seen_index import SieveIndex

DROPPED, PRINTS, SIEVE = ItemKind.DROPPED, ItemKind.PRINTS, ItemKind.SIEVE
PAGE = "http://elsewhere.t/"
HOSTS = [f"h{n}.t" for n in range(5)]
CUTS = ("", "pack", "called off", "back", "take", "forget")


def settle(side: Side) -> None:
    """Have nothing wait for the sieve any more."""
    drain(side.context().drain_sieve())
    side.frontier.flush()


def link(side: Side, *urls: str, seed: bool = False) -> None:
    """Links of a page, or seeds, which are looked up at once."""
    referrer = "" if seed else PAGE
    side.frontier.admission.schedule([entry(url, referrer=referrer) for url in urls], side.now)
    side.frontier.flush()


def end(side: Side, url: str, *, done: bool) -> None:
    """A page that is pending is fetched, or fails."""
    hands, host = side.context(), url.split("/")[2]
    (queued,) = [each for each in side.store.rows(host, b"", 1_000) if each.url == url]
    assert hands.edits.remove(queued)
    event, status = (Event.SUCCESS, 200) if done else (Event.TIMEOUT, 0)
    record = hands.residents.records.touch(host)
    hands.states.conclude(queued, record, event, status, WALL)
    side.frontier.flush()


def ask(side: Side, url: str) -> bool:
    """An operator, or a spider that says ``dont_filter``, asks for a URL; not for what waits."""
    data = side.store.state(state_key(url.split("/")[2], url))
    state = None if data is None else UrlState.from_bytes(data)
    if state is not None and state.state is State.PENDING:
        return False
    asked = entry(url, flags=int(Flag.DONT_FILTER))
    if state is None:
        side.frontier.admission.schedule([asked], side.now)
    else:
        assert UrlEdits(side.frontier, side.store).requeue(asked, state, side.now)
    side.frontier.flush()
    return True


def state_of(side: Side, url: str) -> str:
    """What the store says."""
    data = side.store.state(state_key(url.split("/")[2], url))
    return "" if data is None else UrlState.from_bytes(data).state.value


def half_of(slot: int) -> int:
    """Which half of the units a slot is in; they lie among each other."""
    return slot // 4096 % 2


class Two:
    """Two agents, of which each has one half of the units, and a plain dictionary of all URLs."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.draw = Random(seed)
        self.sides = [Side(folder / str(n), sieve=True) for n in range(2)]
        self.owners = [0, 0]
        self.known: dict[str, str] = {}
        self.asked: set[str] = set()  # what waits since somebody asked for it
        self.torn = False  # whether both have something of a half
        self.twice = Counter[str]()  # pages that count as done though they wait, by their hosts
        self.counts = Counter[str]()

    def half_of(self, url: str) -> int:
        """Which half of the units a URL lies in."""
        return half_of(slot_of(url.split("/")[2]))

    def new_name(self, what: str) -> str:
        """One that was not used before."""
        self.counts[what] += 1
        return f"{what}{self.counts[what]}"

    def some(self, half: int | None = None) -> list[str]:
        """Some URLs, of that half."""
        urls = [f"http://{self.draw.choice(HOSTS)}/{self.draw.randrange(40)}" for _ in range(15)]
        return [url for url in urls if half is None or self.half_of(url) == half]

    def find(self, number: int, urls: list[str]) -> None:
        """A page at an agent leads to those URLs."""
        link(self.sides[number], *urls, seed=self.draw.random() < 0.3)
        for url in urls:
            self.known.setdefault(url, "pending")

    def ask(self, number: int, urls: list[str]) -> None:
        """Somebody asks an agent for those URLs; it need not be the one that knows them."""
        for url in urls:
            if ask(self.sides[number], url):
                self.known[url] = "pending"
                self.asked.add(url)

    def ask_early(self, number: int, urls: list[str]) -> None:
        """The same of an agent that has not heard of them, and is to have them."""
        for url in urls:
            if state_of(self.sides[number], url) == "":
                self.twice[url.split("/")[2]] += self.known.get(url) == "done"
                self.ask(number, [url])

    def act(self) -> None:
        """Something happens."""
        what = self.draw.choice(["find", "find", "end", "end", "settle", "ask"])
        number = self.draw.randrange(2)
        if what == "find":
            for half, owner in enumerate(self.owners):
                self.find(owner, self.some(half))
        elif what == "settle":
            settle(self.sides[number])
        elif what == "ask":
            for half, owner in enumerate(() if self.torn else self.owners):
                self.ask(owner, [url for url in self.some(half)[:3] if url in self.known])
        else:
            side = self.sides[number]
            waiting = [url for urls in side.queues().values() for url in urls]
            for url in self.draw.sample(waiting, min(7, len(waiting))):
                # What comes late from the other side would have it fetched once more.
                late = self.torn and url in self.asked
                if self.owners[self.half_of(url)] == number and not late:
                    done = self.draw.random() < 0.7
                    end(side, url, done=done)
                    self.asked.discard(url)
                    self.known[url] = "done" if done else "failed"

    # Moving

    def kill(self, number: int) -> None:
        """The process of an agent dies, and another one begins."""
        old = self.sides[number]
        self.sides[number] = old.reopened(self.folder / self.new_name("killed"))
        old.close()

    def move(self, half: int, cut: str) -> None:
        """A half of the units goes to the other agent; to begin with it is *cut* short."""
        sender = self.owners[half]
        units = units_of("ring", [unit for unit in range(UNITS) if half_of(unit) == half])
        if cut:
            self.fail(units, half, sender, cut)
        self.bring(units, sender, 1 - sender)
        self.owners[half], self.torn = 1 - sender, False

    def fail(self, units: UnitSet, half: int, sender: int, cut: str) -> None:
        """An attempt that is cut short, by a kill or since others are members."""
        file_id, receiver = self.new_name("p"), 1 - sender
        path, of = self.folder / file_id, label(units.numbers, file_id)
        pack = self.sides[sender].dump(units).pack(path, of)
        if cut == "pack":
            self.do(pack, sender, cut=True)
            self.kill(sender)
        else:
            self.do(pack, sender)
            take = self.sides[receiver].load(units, path, of).merge()
            self.do(take, receiver, cut=cut != "forget")
            if cut == "take":
                self.kill(receiver)
                self.do(self.sides[receiver].load(units, path, of).merge(), receiver)
            if cut == "forget":
                self.do(self.sides[sender].dump(units).forget(file_id), sender, cut=True)
                self.kill(sender)
                self.owners[half], self.torn = receiver, True
                for _ in range(4):
                    self.act()
                settle(self.sides[receiver])
        self.do(self.sides[sender].dump(units).keep(file_id), sender)
        if cut == "back":
            self.bring(units, receiver, sender)

    def bring(self, units: UnitSet, sender: int, receiver: int) -> None:
        """All of it goes; URLs for it come to the receiver meanwhile."""
        file_id = self.new_name("p")
        path, of = self.folder / file_id, label(units.numbers, file_id)
        self.do(self.sides[sender].dump(units).pack(path, of), sender)
        half = half_of(min(units.numbers))
        if self.owners[half] == sender:
            self.find(receiver, self.some(half))
            self.ask_early(receiver, self.some(half)[:5])
        load = self.sides[receiver].load(units, path, of)
        for waits in load.merge():
            if self.owners[half] == sender and not waits and self.draw.random() < 0.2:
                self.find(receiver, self.some(half))
                self.ask_early(receiver, self.some(half)[:3])
            if self.draw.random() < 0.3:
                self.sides[receiver].frontier.flush()
        self.sides[receiver].frontier.flush()
        assert load.done
        self.do(self.sides[sender].dump(units).forget(file_id), sender)

    def do(self, steps: Iterator[bool], number: int, *, cut: bool = False) -> None:
        """All of the steps, or some, and what they write."""
        drain(islice(steps, self.draw.randrange(1, 25) if cut else None))
        self.sides[number].frontier.flush()

    # What is true

    def check(self) -> None:
        """Who has a unit knows all of it, and nobody else anything."""
        for side in self.sides:
            settle(side)
            assert list(wrong_rows(side.store)) == []
        for url, state in self.known.items():
            owner = self.owners[self.half_of(url)]
            assert state_of(self.sides[owner], url) == state, (url, owner)
            assert state_of(self.sides[1 - owner], url) == "", (url, owner)
        for who, side in enumerate(self.sides):
            own = {u: s for u, s in self.known.items() if self.owners[self.half_of(u)] == who}
            queued = [url for urls in side.queues().values() for url in urls]
            assert Counter(queued) == Counter(url for url, s in own.items() if s == "pending")
            per_host = Counter((url.split("/")[2], state) for url, state in own.items())
            for host, number in self.twice.items():
                if self.owners[half_of(slot_of(host))] == who:
                    per_host[host, "done"] += number
            totals = Counter[str]()
            for (_, state), number in per_host.items():
                totals[state] += number
            counters, records = side.frontier.counters, dict(side.store.records())
            for state in ("pending", "done", "failed"):
                assert getattr(counters, state) == totals[state], state
                for host, record in records.items():
                    assert getattr(record, state) == per_host[host, state], (host, state)
            assert counters.events.get(Event.SUCCESS, 0) == totals["done"]
            assert {host for host, _ in per_host} <= records.keys()

    def close(self) -> None:
        """End the runs."""
        for side in self.sides:
            side.close()


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1 << 30), cuts=st.permutations(CUTS).map(lambda cuts: cuts[:3]))
def test_it_is_a_dictionary_wherever_it_lies(seed: int, cuts: list[str]) -> None:
    """URLs are found, fetched and fail; halves of them go there and back, with kills between."""
    with TemporaryDirectory() as name:
        two = Two(Path(name), seed)
        for cut in cuts:
            for _ in range(6):
                two.act()
            two.move(two.draw.randrange(2), cut)
        two.act()
        two.check()
        two.close()


def done(side: Side, *urls: str) -> None:
    """Those URLs are fetched, and their rows have gone."""
    link(side, *urls)
    settle(side)
    for url in urls:
        end(side, url, done=True)
    settle(side)
    assert not any(side.store.get("states", entry(url).identity) for url in urls)


@pytest.mark.parametrize("kind", ["host-parity", "url-sum"])
def test_other_units_are_refused(tmp_path: Path, kind: str) -> None:
    """Fingerprints do not lie together there."""
    a = Side(tmp_path / "a", sieve=True)
    with pytest.raises(JobError, match=r"SUITE_SEEN_STORE = 'sieve'.*SUITE_ASSIGNMENT = 'ring'"):
        a.dump(units_of(kind))
    a.close()


def test_between_a_sieve_and_none(tmp_path: Path) -> None:
    """Who has none gets one; what comes with rows needs none of them for long."""
    a, b = Side(tmp_path / "a", sieve=True), Side(tmp_path / "b")
    urls = [f"http://h0.t/{n}" for n in range(4)]
    done(a, *urls[:3])
    link(a, urls[3])
    units, path = units_of("ring"), tmp_path / "file"
    drain(a.dump(units).pack(path, label()))
    with pytest.raises(HandoverFileError, match="no sieve here"):
        drain(b.load(units, path, label()).merge())

    def open_sieve() -> None:
        b.store.sieve = SieveIndex(tmp_path / "b" / "sieve", b.store.kv("sieve"))
        b.frontier.states.use_sieve(active=False)

    hands = b.context(open_sieve)
    drain(HostLoad(hands, units, path, label()).merge())
    assert [state_of(b, url) for url in urls] == ["done"] * 3 + ["pending"]
    assert (b.frontier.counters.done, b.store.get("states", entry(urls[0]).identity)) == (3, None)
    b.put("h1.t", 1, "done")
    b.put("h1.t", 2, "archived")
    c = Side(tmp_path / "c", sieve=True)
    hand_over(b, c, tmp_path)
    settle(c)
    for url in (*urls[:3], "http://h1.t/1", "http://h1.t/2"):
        assert state_of(c, url) == "done"
        assert c.store.state(entry(url).identity, sieved=False) is None
    assert c.frontier.counters.done == 5
    for side in (a, b, c):
        side.close()


def test_a_dropped_host_is_new_elsewhere_too(tmp_path: Path) -> None:
    """Its fingerprints go along, and nothing leads to them there either."""
    a, b = Side(tmp_path / "a", sieve=True), Side(tmp_path / "b", sieve=True)
    urls = [f"http://h0.t/{n}" for n in range(3)]
    done(a, *urls)
    assert a.store.sieve is not None
    a.store.sieve.forget_host("h0.t")
    a.context().edits.forget_host("h0.t", a.now)
    a.frontier.states.cache.clear()
    done(a, urls[0])
    hand_over(a, b, tmp_path)
    b = b.reopened()
    assert [state_of(b, url) for url in urls] == ["done", "", ""]
    assert b.frontier.counters.done == 1
    a.close()
    b.close()


def test_many_fingerprints_of_one_slot_go_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with rows a few at a time on either side."""
    for module in (dump, load):
        monkeypatch.setattr(module, "PIECE", 40)
    monkeypatch.setattr(dump, "_PRINTS", 16)
    a, b = Side(tmp_path / "a", sieve=True), Side(tmp_path / "b", sieve=True)
    urls = [f"http://{host}/{n}" for host in HOSTS[:2] for n in range(100)]
    done(a, *urls)
    link(a, "http://h0.t/200", "http://h1.t/200")
    link(b, *urls[::3])
    settle(b)
    hand_over(a, b, tmp_path)
    assert {state_of(b, url) for url in urls} == {"done"}
    assert b.queues() == {"h0.t": ["http://h0.t/200"], "h1.t": ["http://h1.t/200"]}
    assert (b.frontier.counters.done, a.frontier.counters.done) == (200, 0)
    assert a.store.sieve is not None
    assert len(a.store.sieve.sieve) == 0
    a.close()
    b.close()


PRINT = fingerprint(state_key("h0.t", "http://h0.t/1"), 16)
HOSTILE = [
    [[PRINTS, "", PRINT]], [[SIEVE, "", 64]], [[SIEVE, "", "128"]], [[SIEVE, ""]],
    [[SIEVE, "h0.t", 128]], [[SIEVE, "", 128], [PRINTS, "", b""]],
    [[SIEVE, "", 128], [PRINTS, "", PRINT[:8]]], [[SIEVE, "", 128], [PRINTS, "", PRINT + b"x"]],
    [[SIEVE, "", 128], [PRINTS, "", "text"]], [[SIEVE, "", 128], [PRINTS, "h0.t", PRINT]],
    [[SIEVE, "", 128], [PRINTS, "", fingerprint(state_key("h1.t", "http://h1.t/1"), 16)]],
    [[DROPPED, "h0.t", 0]], [[DROPPED, "h0.t", 1 << 32]], [[DROPPED, "h1.t", 1]],
    [[DROPPED, "h0.t", b"1"]], [[DROPPED, "", 1]],
]  # fmt: skip


def test_no_hostile_file_is_taken(tmp_path: Path) -> None:
    """Of an agent that lies about fingerprints."""
    b, path = Side(tmp_path / "b", sieve=True), tmp_path / "file"
    units = units_of("ring", [slot_of("h0.t")])
    of = label(units.numbers)
    b.frontier.flush()
    before = list(b.store.every_row())
    for items in HOSTILE:
        with HandoverWriter(path, of) as writer:
            for item in items:
                writer.put(item)
        with pytest.raises(HandoverFileError) as caught:
            drain(b.load(units, path, of).merge())
        assert "\n" not in str(caught.value)
        b.frontier.flush()
        assert list(b.store.every_row()) == before, items
    b.close()


def test_a_flush_that_failed_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever hands over, though nobody else goes on with it."""
    a, b = Side(tmp_path / "a", sieve=True), Side(tmp_path / "b", sieve=True)
    done(a, "http://h0.t/1")
    link(a, "http://h0.t/2")
    sifter = a.frontier.states.sieve_queue
    assert sifter is not None
    write, failed = SetManifest.write, list[Path]()

    def full(manifest: SetManifest, folder: Path) -> None:
        if not failed:
            failed.append(folder)
            raise OSError(ENOSPC, "No space left on device")
        write(manifest, folder)

    monkeypatch.setattr(SetManifest, "write", full)
    flush = sifter.begin()
    assert flush is not None
    with pytest.raises(StoreWriteError):
        flush.run()
    hand_over(a, b, tmp_path)
    assert [state_of(b, f"http://h0.t/{n}") for n in (1, 2)] == ["done", "pending"]
    a.close()
    b.close()
