"""Responses from bytes, in whatever pieces they come and whatever they hold."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.fetch.http_messages import (
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    MAX_INTERIM,
    Framing,
    MalformedResponseError,
    ResponseBoundsError,
    ResponseReader,
    StreamEnd,
)

TOKENS = st.text("ABCdef-019", min_size=1, max_size=8).map(str.encode)
VALUES = st.text("abc =;/\"'", max_size=12).map(lambda text: text.strip().encode())


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def read(*pieces: bytes, method: str = "GET") -> ResponseReader:
    """Feed *pieces* to a new reader."""
    reader = ResponseReader()
    reader.no_body = method == "HEAD"
    for piece in pieces:
        reader.feed(piece)
    return reader


def chunked(pieces: list[bytes]) -> bytes:
    """Return *pieces* as chunks, and the last chunk."""
    return b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces if p) + b"0\r\n\r\n"


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut *data* at the positions *cuts* (modulo its length)."""
    marks = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(marks)]


@given(
    status=st.integers(200, 999).filter(lambda n: n not in (204, 304)),
    fields=st.lists(st.tuples(TOKENS, VALUES), max_size=6),
    body=st.lists(st.binary(max_size=40), max_size=4),
    framing=st.sampled_from(Framing),
    cuts=st.lists(st.integers(0, 10_000), max_size=12),
)
def test_what_was_sent_is_read_however_it_is_cut(
    status: int,
    fields: list[tuple[bytes, bytes]],
    body: list[bytes],
    framing: Framing,
    cuts: list[int],
) -> None:
    """Status, fields and body come out as they went in, in every framing and every splitting."""
    whole = b"".join(body)
    lines = [b"X-" + name + b": " + value for name, value in fields]
    if framing is Framing.LENGTH:
        lines.append(b"Content-Length: %d" % len(whole))
    elif framing is Framing.CHUNKED:
        lines.append(b"Transfer-Encoding: chunked")
    head = b"\r\n".join([b"HTTP/1.1 %d Reason" % status, *lines, b"", b""])
    wire = head + (chunked(body) if framing is Framing.CHUNKED else whole)
    reader = read(*split(wire, cuts))
    assert reader.done == (framing is not Framing.CLOSE)
    assert reader.keeps_alive == reader.done
    if framing is Framing.CLOSE:
        assert reader.close() is StreamEnd.CLOSED
    assert (reader.status, reader.version, reader.framing) == (status, "HTTP/1.1", framing)
    assert reader.body() == whole
    assert reader.size == len(whole)
    expected: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        expected.setdefault((b"X-" + name).title(), []).append(value)
    got = dict(reader.fields)
    got.pop(b"Content-Length", None)
    got.pop(b"Transfer-Encoding", None)
    assert got == expected


@given(st.lists(st.one_of(st.binary(max_size=60), st.sampled_from([
    b"HTTP/1.1 200 OK\r\n", b"\r\n\r\n", b"Transfer-Encoding: chunked\r\n", b"5\r\nhello\r\n",
    b"Content-Length: 3\r\n", b"A: b\r\n", b"\n\n", b"0\r\n\r\n", b"HTTP/1.1 100 x\r\n\r\n",
])), max_size=12))  # fmt: skip
def test_nonsense_never_raises_anything_else(pieces: list[bytes]) -> None:
    """Whatever a server sends, there is a response, or not yet, or one kind of error."""
    reader = ResponseReader()
    try:
        for piece in pieces:
            reader.feed(piece)
    except MalformedResponseError:
        pass
    assert reader.size == len(reader.body())
    assert isinstance(reader.close(), StreamEnd)


@pytest.mark.parametrize("value", [b"chunked\t", b"\tchunked", b"Chunked \t ", b"gzip,\tchunked\t"])
def test_blanks_around_the_coding(value: bytes) -> None:
    """Tabs are white space, too (RFC 9110 §5.6.3): chunk sizes are never taken for body."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: " + value + b"\r\n\r\n"
    reader = read(head, b"2\r\nab\r\n0\r\n\r\n")
    assert (reader.body(), reader.done, reader.keeps_alive) == (b"ab", True, True)


@pytest.mark.parametrize("field", [b"Transfer-Encoding : chunked", b"Content-Length \t: 12"])
def test_blanks_before_the_colon(field: bytes) -> None:
    """They do not hide a field (RFC 9112 §5.1), least of all one that frames the body."""
    wire = b"2\r\nab\r\n0\r\n\r\n"
    reader = read(b"HTTP/1.1 200 OK\r\n" + field + b"\r\nContent-Type : a/b\r\n\r\n", wire)
    assert reader.body() == (b"ab" if b"chunked" in field else wire)
    assert (reader.done, reader.fields[b"Content-Type"]) == (True, [b"a/b"])


@pytest.mark.parametrize("head", [
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: identity\r\n",
    b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n",
])  # fmt: skip
def test_a_connection_with_doubtful_framing_is_not_used_again(head: bytes) -> None:
    """RFC 9112 §6.1 and §6.3: server and client may not mean the same end of the message."""
    body = b"ab" if b"identity" in head else b"2\r\nab\r\n0\r\n\r\n"
    reader = read(head + b"\r\n" + body)
    assert (reader.body(), reader.done, reader.keeps_alive) == (b"ab", True, False)


@pytest.mark.parametrize(
    ("status_line", "status", "version"),
    [
        (b"HTTP/1.1 200", 200, "HTTP/1.1"),
        (b"HTTP/1.1 200 ", 200, "HTTP/1.1"),
        (b"HTTP/1.1  404 Not Found", 404, "HTTP/1.1"),
        (b"HTTP/1.0 200 OK", 200, "HTTP/1.0"),
        (b"HTTP/2 200", 200, "HTTP/1.1"),
        (b"http/1.1 200 OK", 200, "HTTP/1.1"),
        (b"HTTP/1.1 503 \xc3\xa9\xff", 503, "HTTP/1.1"),
    ],
)
def test_status_lines(status_line: bytes, status: int, version: str) -> None:
    """Status lines as servers write them."""
    reader = read(status_line + b"\r\nContent-Length: 0\r\n\r\n")
    assert (reader.status, reader.version, reader.done) == (status, version, True)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 2000 OK",
        b"HTTP/1.1 099 OK",
        b"HTTP/1.1 OK",
        b"ICY 200 OK",
        b"<html>",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1x",
        b"HTTP/1.1 200 OK\r\nContent-Length:",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000,
    ],
)
def test_heads_that_are_refused(head: bytes) -> None:
    """No status, or a length that is none."""
    with pytest.raises(MalformedResponseError):
        read(head + b"\r\n\r\n")


def test_lengths_that_agree() -> None:
    """RFC 9110 §8.6: the same length twice is that length."""
    assert read(b"HTTP/1.1 200 OK\r\nContent-Length: 3, 03\r\n\r\nabc").body() == b"abc"


def test_chunks_beat_a_length() -> None:
    """RFC 9112 §6.3: with both, the body is chunked."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n"
    reader = read(head, chunked([b"abc"]))
    assert (reader.done, reader.body()) == (True, b"abc")


@pytest.mark.parametrize(
    ("coding", "framing"),
    [
        ("gzip", Framing.CLOSE),
        ("gzip, chunked", Framing.CHUNKED),
        ("Chunked", Framing.CHUNKED),
        ("identity", Framing.CLOSE),
    ],
)
def test_transfer_codings(coding: str, framing: Framing) -> None:
    """Only a last coding of chunked says where the body ends."""
    reader = read(f"HTTP/1.1 200 OK\r\nTransfer-Encoding: {coding}\r\n\r\n".encode())
    assert (reader.framing, reader.done) == (framing, False)


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc",
        CHUNKED + chunked([b"ab"]) + b"HTTP/1.1 200 OK\r\n",
        CHUNKED + chunked([b"ab"]) + b"\x00\x01",
    ],
    ids=["length", "second response", "chunked"],
)
def test_excess(wire: bytes) -> None:
    """Bytes behind the response are not part of it, and spoil the connection."""
    reader = read(wire)
    assert reader.body() == b"ab"
    assert (reader.done, reader.excess, reader.keeps_alive) == (True, True, False)


def test_a_body_after_head_spoils_the_connection() -> None:
    """A server that answers HEAD with a body would have it read as the next response."""
    reader = read(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", method="HEAD")
    assert (reader.done, reader.body(), reader.keeps_alive) == (True, b"", False)


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\n", False),
        (b"HTTP/1.1 200 OK\r\nConnection: foo, close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n", True),
    ],
)
def test_keeps_alive(head: bytes, kept: bool) -> None:
    """RFC 9112 §9.3, by version and option."""
    assert read(head + b"Content-Length: 1\r\n\r\nx").keeps_alive is kept


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"timeout=5, max=100", 5), (b"max=1, Timeout = 7", 7), (b"x", None), (b"timeout=-1", None)],
)
def test_keep_alive_timeout(value: bytes, seconds: int | None) -> None:
    """What the server says about idle connections."""
    reader = read(b"HTTP/1.1 200 OK\r\nKeep-Alive: " + value + b"\r\nContent-Length: 0\r\n\r\n")
    assert reader.keep_alive_timeout == seconds


def feed_all(reader: ResponseReader, pieces: Iterable[bytes]) -> None:
    """Feed *pieces* to *reader*."""
    for piece in pieces:
        reader.feed(piece)


def drown(start: bytes, pieces: Iterable[bytes]) -> ResponseReader:
    """Feed *start* and *pieces* until the reader has had enough, as it must."""
    reader = read(start)
    with pytest.raises(ResponseBoundsError):
        feed_all(reader, pieces)
    return reader


@pytest.mark.parametrize(
    "piece",
    [b"A: b\r\n", b"x" * 100, b"\x00" * 1000, b" folded\r\n", b"A: " + b"b" * 9000 + b"\r\n"],
    ids=["fields", "one line", "zeros", "folds", "long fields"],
)
def test_endless_heads(piece: bytes) -> None:
    """A head has its bound, however it grows."""
    drown(b"HTTP/1.1 200 OK\r\n", repeat(piece, 4 * MAX_HEAD_BYTES // len(piece)))


def test_a_large_head_in_one_piece() -> None:
    """The bound holds for what one read brings, too."""
    with pytest.raises(ResponseBoundsError):
        read(b"HTTP/1.1 200 OK\r\nA: " + b"b" * MAX_HEAD_BYTES + b"\r\n\r\n")


def test_too_many_fields() -> None:
    """A thousand fields are enough for everybody."""
    with pytest.raises(ResponseBoundsError):
        read(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * (MAX_FIELDS + 1) + b"\r\n")


def test_endless_line_breaks() -> None:
    """Empty lines before a response are skipped, but they count."""
    assert read(b"\r\n\r\nHTTP/1.1 204 x\r\n\r\n").done
    drown(b"", repeat(b"\r\n" * 1000, 100))


def test_endless_interim_responses() -> None:
    """So are responses that only announce one."""
    interim = b"HTTP/1.1 102 Processing\r\n\r\n"
    read(*[interim] * MAX_INTERIM)
    with pytest.raises(ResponseBoundsError):
        read(*[interim] * (MAX_INTERIM + 1))


@pytest.mark.parametrize(
    "piece",
    [b"1;" + b"x" * 1000 + b"\r\na\r\n", b"0" * 1000],
    ids=["extensions", "zeros"],
)
def test_chunk_floods(piece: bytes) -> None:
    """A body must not be all framing."""
    assert drown(CHUNKED, repeat(piece, 200)).size < 200


def test_endless_trailers() -> None:
    """Nor all trailers."""
    drown(CHUNKED + b"0\r\n", repeat(b"X-Trailer: " + b"x" * 1000 + b"\r\n", 200))


def test_chunks_of_one_byte_are_legal() -> None:
    """Slow servers send them; their framing is five bytes for each."""
    reader = read(CHUNKED, chunked([b"x"] * 30_000))
    assert (reader.done, reader.size) == (True, 30_000)


def test_bytes_that_come_one_by_one() -> None:
    """They cost time in proportion to their number, and no object each."""
    wire = b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 60_000 + b"\r\n\r\n" + b"b" * 100_000
    reader = ResponseReader()
    feed_all(reader, (wire[i : i + 1] for i in range(len(wire))))
    assert reader.body() == b"b" * 100_000
    assert reader.body(99_998) == b"bb"


def test_the_end() -> None:
    """What the end of the connection means depends on what has come."""
    assert ResponseReader().close() is StreamEnd.NOTHING
    assert read(b"HTTP/1.1 2").close() is StreamEnd.CUT
    assert read(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab").close() is StreamEnd.CUT
    assert read(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").close() is StreamEnd.CUT
    assert read(b"HTTP/1.1 200 OK\r\n\r\n").close() is StreamEnd.CLOSED
