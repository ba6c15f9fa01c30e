"""Runs in blobs: read back piece by piece; damaged and foreign ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.cluster.run_blobs import BlobFolder, Place, pack_piece, unpack_piece
from scrapy_spider_suite.errors import BlobError
from scrapy_spider_suite.frontier.entries import slot_of

HOST = "a.test"
SLOT = slot_of(HOST)
ROWS = [b"first row", b"second"]


@given(st.lists(st.lists(st.binary(max_size=50), min_size=1, max_size=20), max_size=5))
def test_pieces_are_read_back(rows: list[list[bytes]]) -> None:
    """Rows in their order, whatever they hold."""
    hosts = [(HOST, each) for each in rows]
    assert unpack_piece(SLOT, pack_piece(SLOT, hosts)) == hosts


def test_a_piece_of_a_blob(tmp_path: Path) -> None:
    """Each is read alone, by its place."""
    folder = BlobFolder(str(tmp_path), "web")
    pieces = [pack_piece(SLOT, [(HOST, [row])]) for row in ROWS]
    places = [Place.from_bytes(place.to_bytes()) for place in folder.write(pieces)]
    assert len({place.blob for place in places}) == 1
    for place, row in zip(places, ROWS, strict=True):
        assert unpack_piece(SLOT, folder.read(place)) == [(HOST, [row])]
    assert not list(tmp_path.rglob("*.part"))
    folder.remove(places[0].blob)
    folder.remove(places[0].blob)
    with pytest.raises(BlobError, match="has no") as gone:
        folder.read(places[0])
    assert gone.value.missing


def test_what_is_damaged_or_foreign() -> None:
    """It is refused, with a reason."""
    piece = pack_piece(SLOT, [(HOST, ROWS)])
    for at in range(len(piece)):
        damaged = piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]
        with pytest.raises(BlobError):
            unpack_piece(SLOT, damaged)
        with pytest.raises(BlobError):
            unpack_piece(SLOT, piece[:at])
    with pytest.raises(BlobError, match="has the rows of slot"):
        unpack_piece(SLOT ^ 1, piece)
    with pytest.raises(BlobError, match=r"has the host 'b\.test'"):
        unpack_piece(SLOT, pack_piece(SLOT, [("b.test", ROWS)]))
    with pytest.raises(BlobError, match="cannot be read"):
        unpack_piece(SLOT, pack_piece(SLOT, [(HOST, [])]))


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    """One line says so, without a password."""
    (tmp_path / "file").write_text("")
    folder = BlobFolder(str(tmp_path / "file"), "web")
    with pytest.raises(BlobError, match="cannot be written"):
        folder.write([b"piece"])
    with pytest.raises(BlobError, match="cannot be read") as away:
        folder.read(Place(b"12345678", 0, 5))
    assert not away.value.missing
