"""Tests of messages: they come out as they went in, or are refused."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import msgpack
import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st
from support.message_transport_contract import message_of, rows_of

from scrapy_spider_suite.cluster.messages import (
    NAME_MAX,
    Acknowledgement,
    Message,
    MessageLimits,
    MessagePacker,
    pack_acknowledgements,
    unpack_acknowledgements,
    unpack_message,
)
from scrapy_spider_suite.errors import MessageError, MessageTooLargeError

BOUNDS = MessageLimits(packed=600, alone=4_000, raw=6_000)


@settings(max_examples=40)
@given(
    st.lists(st.binary(max_size=300) | st.sampled_from(rows_of(50)), min_size=1, max_size=60),
    st.integers(0, 2**64 - 1000), st.integers(0, 2**32 - 1), st.text("aä_-. ", min_size=1),
)
def test_round_trip(rows: list[bytes], first: int, epoch: int, name: str) -> None:
    """All rows come out, in order, in messages that keep to the bounds."""
    name = name[:30]
    packer = MessagePacker(name, 7, BOUNDS)
    left = list(enumerate(rows, first))
    came: list[bytes] = []
    while left:
        message = packer.pack(left, epoch)
        assert len(message.data) <= (BOUNDS.packed if message.rows > 1 else BOUNDS.alone)
        opened = unpack_message(message.data, BOUNDS)
        last = left[message.rows - 1][0]
        assert opened == Message(name, 7, epoch, left[0][0], last, opened.rows)
        assert opened.receipt == Acknowledgement(name, 7, message.first, message.last)
        came += opened.rows
        del left[: message.rows]
    assert came == rows


def test_messages_are_full() -> None:
    """How much fits is known from the messages before: the first ones are smaller."""
    draw = Random(1)
    urls = [f"https://www.{draw.randrange(10**6)}.test/{draw.random()}" for _ in range(3_000)]
    packer = MessagePacker("a", 1, MessageLimits(1_300, 8_000, 1 << 16))
    left = list(enumerate(map(str.encode, urls)))
    sizes = []
    while left:
        message = packer.pack(left, 1)
        sizes.append(len(message.data))
        del left[: message.rows]
    assert sum(sizes[5:-1]) > 0.85 * 1_300 * len(sizes[5:-1])


def test_rows_that_fit_nowhere() -> None:
    """The error names the row."""
    packer = MessagePacker("a", 1, MessageLimits(600, 4_000, 6_000))
    noise = Random(1).randbytes(5_000)
    with pytest.raises(MessageTooLargeError, match="row 3 of 5000 bytes does not fit"):
        packer.pack([(3, noise)], 1)
    with pytest.raises(MessageTooLargeError, match="row 4 of 6001 bytes does not fit"):
        packer.pack([(4, bytes(6_001))], 1)
    assert packer.pack([(5, bytes(5_900))], 1).rows == 1


@pytest.mark.parametrize("name", ["", "a\n", "a" * (NAME_MAX + 1), "\udcff"])
def test_names(name: str) -> None:
    """They are short and can be printed."""
    with pytest.raises(ValueError, match="is no name for an agent"):
        MessagePacker(name, 1, BOUNDS)


def damaged(**parts: object) -> bytes:
    """A message of two rows in which some parts are others."""
    values = {"version": 1, "name": "a", "incarnation": 1, "epoch": 1, "first": 1, "last": 2}
    values |= {"frame": zstd.compress(msgpack.packb([b"x", b"y"]))} | parts
    data: bytes = msgpack.packb(list(values.values()))
    return data


def frame(value: object) -> bytes:
    """The frame of *value*."""
    return zstd.compress(msgpack.packb(value))


def deep() -> bytes:
    """Arrays in arrays."""
    return zstd.compress(b"\x91" * 2_000 + b"\x90")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SL",
        damaged(version=2),
        damaged(first=2, last=1),
        damaged(last=1),
        damaged(last=3),
        damaged(name=b"a"),
        damaged(name="\n"),
        damaged(name=""),
        damaged(name="a" * 65),
        damaged(first=-1),
        damaged(epoch=1.5),
        damaged(more=1),
        damaged() + b"x",
        damaged(frame=b""),
        damaged(frame=b"none"),
        damaged(frame=frame([b"x", b"y"])[:-1]),
        damaged(frame=frame([b"x", b"y"]) + b"z"),
        damaged(frame=frame([])),
        damaged(frame=frame([b"x", b"y", b"z"])),
        damaged(frame=frame([b"x", "y"])),
        damaged(frame=frame([b"x", None])),
        damaged(frame=frame([b"x", msgpack.ExtType(1, b"")])),
        damaged(frame=frame({b"x": b"y"})),
        damaged(frame=frame(7)),
        damaged(frame=deep()),
        damaged(frame=zstd.compress(b"\xdd\xff\xff\xff\xff")),
    ],
)
def test_what_is_no_message(data: bytes) -> None:
    """It is refused, whatever it is."""
    with pytest.raises(MessageError) as caught:
        unpack_message(data, BOUNDS)
    assert not isinstance(caught.value, MessageTooLargeError)


def test_bombs() -> None:
    """What becomes large is decompressed no further than the bound; a window takes no memory."""
    large = MessageLimits(1 << 20, 1 << 20, 6_000)
    with pytest.raises(MessageTooLargeError, match="more than 6000 bytes, decompressed"):
        unpack_message(damaged(frame=zstd.compress(bytes(50 << 20))), large)
    with pytest.raises(MessageTooLargeError, match="a message of 4001 bytes"):
        unpack_message(bytes(4_001), BOUNDS)
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    wide = compressor.compress(msgpack.packb([b"x", b"y"])) + compressor.flush()
    with pytest.raises(MessageError, match="cannot be decompressed"):
        unpack_message(damaged(frame=wide), large)


@settings(max_examples=40)
@given(st.binary(max_size=200), st.integers(0, 60), st.binary(min_size=1, max_size=4))
def test_damage(tail: bytes, place: int, change: bytes) -> None:
    """No bytes raise anything else."""
    data = message_of("a", *rows_of(3), bounds=BOUNDS).data
    for each in (data[:place] + change + data[place + len(change) :], data[:place] + tail, tail):
        with suppress(MessageError):
            unpack_message(each, BOUNDS)
        with suppress(MessageError):
            unpack_acknowledgements(each)


def test_receipts() -> None:
    """They come out as they went in; others are refused."""
    receipts = [Acknowledgement("a", 2**64 - 1, 1, 9), Acknowledgement("a", 3, 10, 10)]
    data = pack_acknowledgements("bä", receipts)
    assert unpack_acknowledgements(data) == ("bä", [receipt[1:] for receipt in receipts])
    for bad in (b"", data[:-1], data[:4], data + b"x", b"\x92\xa0\x90", b"\x92\xa1a\x91\x91\x01"):
        with pytest.raises(MessageError):
            unpack_acknowledgements(bad)
