"""Heads that llhttp refuses, mended."""

from __future__ import annotations

import pytest

from scrapy_spider_suite.fetch.http_messages import (
    MalformedResponseError,
    content_length,
    head_end,
    repair_head,
)


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (b"", -1),
        (b"A: b\r\n", -1),
        (b"A: b\r\n\r\nbody\n\n", 8),
        (b"A: b\n\nbody\r\n\r\n", 6),
        (b"A: b\n\r\nbody", 7),
    ],
)
def test_head_end(data: bytes, end: int) -> None:
    """The first empty line ends it, however lines are ended."""
    assert head_end(data) == end


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (b"A : b", b"A: b\r\n"),
        (b"no colon", b""),
        (b": no name", b""),
        (b"two words: b", b""),
        (b"A: b\r\n\tc", b"A: b c\r\n"),
        (b"two words: b\r\n c", b""),
        (b"A: b\rc\x00d", b"A: b c d\r\n"),
    ],
)
def test_lines(line: bytes, kept: bytes) -> None:
    """What can be used is kept; a folded line goes where the line went that it belongs to."""
    head = b"HTTP/1.1 200 OK\r\nX: y\r\n" + line + b"\r\n\r\n"
    assert repair_head(head) == b"HTTP/1.1 200 OK\r\nX: y\r\n" + kept + b"\r\n"


def test_content_length() -> None:
    """Repetition is allowed, contradiction is not."""
    assert content_length([b"5", b"05, 5"]) == 5
    for bad in ([b"5", b"6"], [b""], [b"+5"], [b"0x5"], [b"-5"], [b"5 5"], [b"9" * 19]):
        with pytest.raises(MalformedResponseError):
            content_length(bad)
