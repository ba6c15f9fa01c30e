"""Tests of messages over UDP in virtual time, on a network that loses, doubles and delays."""

from __future__ import annotations

import logging
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.message_transport_contract import message_of, refused

from scrapy_spider_suite.cluster.messages import Message, MessagePacker, PackedMessage, WireError
from scrapy_spider_suite.cluster.transports.udp import BOUNDS, UdpPeers
from scrapy_spider_suite.cluster.transports.udp_protocol import (
    COMMON_MAX,
    DATAGRAM_MAX,
    NumberSet,
    Packet,
    PacketKind,
    PacketSealer,
    ReceiptReport,
)

KEY = bytes(range(32))
SMALL = BOUNDS._replace(packed=110)
HOUR = 3_600.0


class Node:
    """An agent: `outbox` and `kept` are its disk, the rest its process."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.world = name, world
        self.outbox: dict[int, tuple[str, bytes]] = {}
        self.kept: set[bytes] = set()
        self.incarnation = 0
        self.start()

    def start(self) -> None:
        """A process; what another one had in memory is lost."""
        self.incarnation += 1
        self.unkept: list[Message] = []
        self.on_the_way: set[int] = set()
        others = [name for name in self.world.names if name != self.name]
        self.exchange = UdpPeers(
            self.name, others, KEY, self.world.window, self.unlisted, self.world.draw.randbytes
        )
        self.exchange.received, self.exchange.acknowledged = self.received, self.acknowledged
        self.packer = MessagePacker(self.name, self.incarnation, SMALL)

    def received(self, message: Message) -> None:
        """Its rows are kept later."""
        self.unkept.append(message)
        connections = sum(node.incarnation for node in self.world.nodes.values())
        assert len(self.unkept) <= self.world.window * connections

    def unlisted(self, by: str) -> None:
        """All have the same list."""
        raise AssertionError(by)

    def keep(self) -> None:
        """Now, and it says so."""
        for message in self.unkept:
            self.kept.update(message.rows)
            self.exchange.acknowledge(message.receipt, self.world.now)
        self.unkept.clear()

    def acknowledged(self, to: str, first: int, last: int) -> None:
        """They may be forgotten, if they are kept indeed."""
        for number in [n for n in self.outbox if first <= n <= last and self.outbox[n][0] == to]:
            assert self.outbox.pop(number)[1] in self.world.nodes[to].kept

    def post(self) -> None:
        """Send what there is room for."""
        for to in {to for to, _ in self.outbox.values()}:
            rows = [
                (number, row)
                for number, (whose, row) in self.outbox.items()
                if whose == to and number not in self.on_the_way
            ]
            while rows and self.exchange.room(to):
                message = self.packer.pack(rows[:20], 1)
                assert self.exchange.send(to, message)
                self.on_the_way |= {number for number, _ in rows[: message.rows]}
                del rows[: message.rows]


class World:
    """Agents, and what is between them."""

    def __init__(self, names: str, seed: int, *, loss: float = 0.0, doubled: float = 0.0,
                 late: float = 0.0, window: int = 16) -> None:  # fmt: skip
        self.draw = Random(seed)
        self.loss, self.doubled, self.late, self.window = loss, doubled, late, window
        self.now = 1_000.0
        self.names = names
        self.nodes: dict[str, Node] = {}
        for name in names:
            self.nodes[name] = Node(name, self)
        self.seen: list[tuple[str, bytes]] = []
        self.datagrams = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Let *what* happen."""
        heappush(self._events, (when, next(self._number), what))

    def write(self, sender: str, to: str, rows: int) -> None:
        """Put rows for *to* into the outbox of *sender*."""
        outbox = self.nodes[sender].outbox
        for _ in range(rows):
            number = len(outbox) + 1
            outbox[number] = to, f"{sender}{to}{number}".encode() * 5

    def carry(self, to: str, datagram: bytes) -> None:
        """Deliver it some time, or not, or twice."""
        assert len(datagram) <= COMMON_MAX
        self.datagrams += 1
        self.seen.append((to, datagram))
        copies = 1 + (self.draw.random() < self.doubled)
        for _ in range(copies):
            if self.draw.random() >= self.loss:
                delay = 0.002
                if self.draw.random() < self.late:
                    delay = self.draw.uniform(0.003, 0.3)
                self.at(self.now + delay, lambda: self.deliver(to, datagram))

    def deliver(self, to: str, datagram: bytes) -> None:
        """It comes to the process that is there then."""
        self.nodes[to].exchange.receive(datagram, self.now)

    def run(self, end: Callable[[], bool], keep: float = 0.3) -> float:
        """Until *end*; nodes keep what they have every *keep* seconds. How long it took."""
        began = self.now

        def keeping() -> None:
            for node in self.nodes.values():
                node.keep()
            self.at(self.now + keep, keeping)

        self.at(self.now + keep, keeping)
        standing = 0
        while not end():
            before = self.now
            self._step()
            standing = standing + 1 if self.now == before else 0
            assert standing < 200, "time stands still"
            assert self.now < began + 2 * HOUR, "it never ends"
        self._events = sorted(event for event in self._events if event[2] is not keeping)
        return self.now - began

    def _step(self) -> None:
        for node in self.nodes.values():
            node.post()
            for to, datagram in node.exchange.due(self.now):
                self.carry(to, datagram)
        wakes = [node.exchange.wake() for node in self.nodes.values()]
        times = [self._events[0][0], *(max(self.now, w) for w in wakes if w is not None)]
        self.now = min(times)
        while self._events and self._events[0][0] <= self.now:
            heappop(self._events)[2]()

    def all_told(self) -> bool:
        """Whether no outbox has anything left."""
        return not any(node.outbox for node in self.nodes.values())

    def meddle(self) -> None:
        """Play something back, to anybody, or change it."""
        if self.seen:
            to, datagram = self.draw.choice(self.seen)
            kind = self.draw.randrange(4)
            if kind == 0:
                to = self.draw.choice(self.names)
            elif kind == 1:
                place = self.draw.randrange(len(datagram))
                datagram = datagram[:place] + bytes([datagram[place] ^ 1]) + datagram[place + 1 :]
            elif kind == 2:
                datagram = self.draw.randbytes(self.draw.randrange(100))
            self.deliver(to, datagram)


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(0, 4), st.sampled_from([0.0, 0.05, 0.3]))
def test_nothing_is_lost(seed: int, restarts: int, loss: float) -> None:
    """With losses, doubles, late ones, restarts and strangers: all arrives, nothing else does."""
    world = World("abc", seed, loss=loss, doubled=0.05, late=0.1)
    sent: dict[str, set[bytes]] = {name: set() for name in "abc"}
    for sender, to, rows in [("a", "b", 90), ("a", "c", 30), ("b", "a", 40), ("c", "b", 40)]:
        world.write(sender, to, rows)
    for node in world.nodes.values():
        for to, row in node.outbox.values():
            sent[to].add(row)
    for _ in range(restarts):
        name = world.draw.choice("abc")
        world.at(world.now + world.draw.uniform(0.0, 2.0), world.nodes[name].start)
    for _ in range(40):
        world.at(world.now + world.draw.uniform(0.0, 3.0), world.meddle)
    world.run(world.all_told)
    assert {name: node.kept for name, node in world.nodes.items()} == sent


def test_a_good_network() -> None:
    """Without losses nothing is sent twice, and what is sent is little more than the messages."""
    world = World("ab", 1, window=64)
    world.write("a", "b", 800)
    world.run(world.all_told)
    a, b = (world.nodes[name].exchange.counters for name in "ab")
    assert a.sent == a.acknowledged == b.received == b.receipts
    assert a.resent == b.repeated == refused(a) == refused(b) == a.remade == 0
    assert world.datagrams < 1.5 * a.sent


def test_losses_cost_little() -> None:
    """With one in twenty lost, reordered and doubled, what is sent again is of that order."""
    good, bad = World("ab", 2), World("ab", 2, loss=0.05, doubled=0.05, late=0.05)
    times = []
    for world in (good, bad):
        world.write("a", "b", 800)
        times.append(world.run(world.all_told))
    a, b = (bad.nodes[name].exchange.counters for name in "ab")
    assert a.resent < 0.2 * a.sent
    assert b.repeated < 0.25 * b.received
    assert times[1] < 3 * times[0]


def test_a_receiver_that_is_away() -> None:
    """It is asked less and less often, and noticed when it is back."""
    world = World("ab", 3, loss=1.0)
    world.write("a", "b", 500)
    back = world.now + HOUR
    world.at(back, lambda: setattr(world, "loss", 0.0))
    world.run(lambda: world.now >= back, keep=60)
    assert world.datagrams < HOUR / 8
    assert world.nodes["a"].exchange.room("b") == 0
    assert world.run(world.all_told) < 60


def test_a_receiver_that_speaks_is_sent_what_waits() -> None:
    """At once, and not when it is asked next."""
    world = World("ab", 3, loss=1.0)
    world.write("a", "b", 5)
    exchange = world.nodes["a"].exchange
    world.run(lambda: world.now > 60 and (exchange.wake() or 0) > world.now + 5, keep=1)
    world.loss = 0.0
    world.write("b", "a", 1)
    assert world.run(world.all_told) < 2


def test_who_does_not_answer() -> None:
    """That is known of it until it does; that it asks for something is no answer."""
    world = World("ab", 9, loss=1.0)
    world.write("a", "b", 3)
    a, began = world.nodes["a"].exchange, world.now
    world.run(lambda: world.now > began + 6, keep=1)
    hello = PacketSealer("b", ["a"], KEY).seal("a", Packet(PacketKind.HELLO, b"12345678"))
    a.receive(hello, world.now)
    assert a.silent(world.now - 5) == ["b"]
    assert not a.silent(began - 1)
    world.loss = 0.0
    world.run(world.all_told)
    assert not any(node.exchange.silent(world.now) for node in world.nodes.values())


def test_a_report_that_is_lost() -> None:
    """The sender asks by sending a message again: what is kept is told in the end."""
    world = World("ab", 4)
    world.write("a", "b", 3)
    a, b = world.nodes["a"], world.nodes["b"]
    world.run(lambda: bool(b.unkept), keep=HOUR)
    world.run(lambda: a.exchange.counters.sent > 1, keep=HOUR)
    b.keep()
    b.exchange.due(world.now + 1)  # and it comes to nothing
    world.run(world.all_told, keep=HOUR)
    assert b.exchange.counters.received == 1
    assert b.exchange.counters.repeated >= 1


def test_who_keeps_nothing_is_sent_no_more() -> None:
    """The window holds on both sides; whoever sends beyond it has to send again."""
    world = World("ab", 5, window=8)
    greedy = UdpPeers("a", ["b"], KEY, 32, print)
    greedy.acknowledged = lambda *_: None
    world.nodes["a"].exchange = greedy
    for number in range(1, 33):
        assert greedy.send("b", message_of("a", b"%d" % number, bounds=BOUNDS, first=number))
    b = world.nodes["b"]
    world.run(lambda: len(b.unkept) == 8 and b.exchange.counters.full > 20, keep=HOUR)
    world.run(lambda: greedy.room("b") == 32)
    assert len(b.kept) == 32


# What is refused


class Pair:
    """The exchange of b, and what a and others can make."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.b = UdpPeers("b", ["a", "c"], KEY, 16, print)
        self.b.received = self.messages.append
        self.a = PacketSealer("a", ["b", "c"], KEY)

    def answers(self) -> list[Packet]:
        """What b has to say to a."""
        return [self.a.open(datagram)[1] for to, datagram in self.b.due(1e9) if to == "a"]

    def connect(self, call: bytes) -> Packet:
        """Begin a connection; what its messages have to say."""
        self.b.receive(self.a.seal("b", Packet(PacketKind.HELLO, call)), 1.0)
        (welcome,) = [packet for packet in self.answers() if packet.kind is PacketKind.WELCOME]
        assert welcome.call == call
        return Packet(PacketKind.MESSAGE, call, welcome.answer)

    def seal(self, packet: Packet, number: int, message: PackedMessage) -> bytes:
        """A message over that connection."""
        return self.a.seal("b", packet._replace(number=number, body=message.data))


def test_replayed() -> None:
    """A genuine datagram of a connection that is over, or of none, is not taken."""
    pair = Pair()
    first = pair.connect(b"one     ")
    old = [pair.seal(first, n, message_of("a", b"x", bounds=BOUNDS, first=n + 1)) for n in (0, 1)]
    pair.b.receive(old[0], 1.0)
    pair.b.receive(old[0], 1.0)
    assert pair.b.counters.repeated == 1
    second = pair.connect(b"two     ")
    pair.b.receive(old[1], 1.0)  # the first connection holds until the second is used
    assert pair.b.counters.received == 2
    pair.b.receive(pair.seal(second, 0, message_of("a", b"y", bounds=BOUNDS)), 1.0)
    for again in (*old, *old):
        pair.b.receive(again, 2.0)
    assert pair.b.counters.replayed == 4
    assert [message.rows for message in pair.messages] == [(b"x",), (b"x",), (b"y",)]
    kinds = [packet.kind for packet in pair.answers()]
    assert kinds.count(PacketKind.STALE) == 1
    # The hello of the first connection, played back, leads to another connection of its name.
    third = pair.connect(b"one     ")
    assert third.answer not in (first.answer, second.answer)
    pair.b.receive(old[0], 3.0)
    other = Pair()  # another process of b
    other.b.receive(old[0], 1.0)
    assert pair.b.counters.replayed == 5
    assert other.b.counters.replayed == 1
    assert not other.messages


def test_what_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Each is counted under its name, and said once."""
    pair = Pair()
    link = pair.connect(b"12345678")
    good = pair.seal(link, 0, message_of("a", b"x", bounds=BOUNDS))
    caplog.set_level(logging.WARNING)
    bad = {
        "forged": [
            good[:-1] + bytes([good[-1] ^ 1]),
            good[:40] + bytes([good[40] ^ 1]) + good[41:],
            PacketSealer("a", ["b"], b"another key of the same length  ").seal("b", link),
            pair.a.seal("c", link),  # for another agent
            pair.seal(link, 1, message_of("c", b"x", bounds=BOUNDS)),  # of another agent
        ],
        "unknown": [PacketSealer("x", ["b"], KEY).seal("b", link)],
        "malformed": [
            b"", b"SD", bytes(100), good[:20],
            pair.a.seal("b", link._replace(number=2, body=b"no message")),
            pair.a.seal("b", Packet(PacketKind.REPORT, bytes(8))),
            pair.a.seal("b", Packet(9, bytes(8))),  # type: ignore[arg-type]
        ],
        "oversized": [bytes(DATAGRAM_MAX + 1)],
    }  # fmt: skip
    for _ in range(3):
        for datagrams in bad.values():
            for datagram in datagrams:
                pair.b.receive(datagram, 1.0)
    counters = pair.b.counters
    # Two came as messages of a connection: they were refused once, and were repetitions then.
    assert counters.forged == 3 * 5 - 2
    assert counters.unknown == 3
    assert counters.malformed == 3 * 7 - 2
    assert counters.oversized == 3
    assert counters.repeated == 4
    assert len(caplog.records) == 4
    assert not pair.messages
    pair.b.receive(good, 1.0)
    assert [message.rows for message in pair.messages] == [(b"x",)]


def stranger(call: bytes, key: bytes = KEY) -> tuple[UdpPeers, list[str]]:
    """Agent x, which has b on its list, and whose list has no x, as it hears."""
    heard: list[str] = []
    x = UdpPeers("x", ["b"], key, 16, heard.append, lambda count: call * count)
    assert x.send("b", message_of("x", b"row", bounds=BOUNDS))
    return x, heard


def test_who_is_not_listed_is_told() -> None:
    """Once a question, in no more bytes; what was said to an earlier process tells nothing."""
    pair = Pair()
    (x, heard), (later, hears) = (stranger(call) for call in (b"1", b"2"))
    ((to, hello),) = x.due(1.0)
    answer = pair.b.receive(hello, 1.0)
    assert to == "b"
    assert 0 < len(answer) <= len(hello)
    assert not pair.b.due(1e9)
    assert not later.receive(answer, 2.0)
    assert not x.receive(answer, 2.0)
    assert (heard, hears) == (["b"], [])
    assert pair.b.counters.unknown == 1
    assert not pair.b.receive(answer, 2.0)  # a reply has no reply


def test_who_has_another_key_is_told_nothing() -> None:
    """Nor is what was changed on its way, nor somebody who is told something."""
    pair = Pair()
    x, _ = stranger(b"1", b"another key of the same length  ")
    ((_, hello),) = x.due(1.0)
    assert not pair.b.receive(hello, 1.0)
    ((_, hello),) = stranger(b"1")[0].due(1.0)
    assert not pair.b.receive(hello[:8] + bytes([hello[8] ^ 1]) + hello[9:], 1.0)
    reply = PacketSealer("x", ["b"], KEY).seal("b", Packet(PacketKind.UNLISTED, b"1" * 8))
    assert not pair.b.receive(reply, 1.0)
    assert pair.b.counters.unknown == 3


@settings(max_examples=40)
@given(st.binary(max_size=120), st.integers(0, 200), st.integers(1, 255))
def test_damaged(junk: bytes, place: int, change: int) -> None:
    """No datagram that is not genuine does anything, and none raises."""
    pair = Pair()
    link = pair.connect(b"12345678")
    good = pair.seal(link, 0, message_of("a", b"some row or other", bounds=BOUNDS))
    place %= len(good)
    damaged = good[:place] + bytes([good[place] ^ change]) + good[place + 1 :]
    for datagram in (junk, damaged, good[:place], good + junk if junk else b""):
        pair.b.receive(datagram, 1.0)
    assert refused(pair.b.counters) == 4
    assert not pair.messages


def test_late_answers() -> None:
    """What is said of another connection changes nothing: welcome, stale, report."""
    world = World("ab", 6)
    world.write("a", "b", 5)
    a, b = world.nodes["a"], world.nodes["b"]
    world.run(lambda: bool(b.unkept), keep=HOUR)
    seal = PacketSealer("b", ["a"], KEY).seal
    everything = ReceiptReport(NumberSet(100), NumberSet(100)).pack()
    for packet in (
        Packet(PacketKind.WELCOME, b"another!", b"answered"),
        Packet(PacketKind.STALE, b"another!", b"answered"),
        Packet(PacketKind.REPORT, b"another!", b"answered", 0, everything),
        Packet(PacketKind.STALE, b"another!"),
    ):
        a.exchange.receive(seal("a", packet), world.now)
    assert a.exchange.counters.remade == a.exchange.counters.acknowledged == 0
    assert a.outbox


@settings(max_examples=40)
@given(st.lists(st.integers(0, 80), max_size=60))
def test_marks(numbers: list[int]) -> None:
    """They are a set of numbers, also as a report."""
    marks, reference = NumberSet(), set()
    for number in numbers:
        marks.add(number)
        reference.add(number)
        assert marks.below not in reference
    report = ReceiptReport.unpack(ReceiptReport(marks, NumberSet(3, 5)).pack())
    for number in range(100):
        assert (number in marks) == (number in reference) == (number in report.heard)
    assert [number for number in range(9) if number in report.kept] == [0, 1, 2, 3, 5]
    assert report.heard.highest == max(reference, default=-1)
    with pytest.raises(WireError):
        ReceiptReport.unpack(b"short")
