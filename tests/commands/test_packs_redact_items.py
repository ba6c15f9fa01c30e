"""``scrapy packs redact --items``: items that name a host go, all others are as they were."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest
from support.packs import NOW, fetch
from support.packs_command import Packs, write

from scrapy_spider_suite.packs import open_items, open_packs
from scrapy_spider_suite.packs.item_file import ItemFile

HOST = "secret.test"


def fill(folder: Path) -> list[dict[str, str]]:
    """Two files of items, in blocks; those that stay."""
    others = []
    (folder / "packs").mkdir()
    for number in range(2):
        file = ItemFile(folder / f"n-{number}-a.jsonl.gz", NOW)
        for block in range(3):
            items = [{"url": f"http://a.test/{number}/{block}", "text": "é"}]
            if number == 0 and block == 1:
                items += [{"url": f"http://{HOST}/{block}"}, {"text": f"see http://{HOST}/x there"}]
                others.append({"url": f"http://my{HOST}/"})
                items.append(others[-1])
            others.append(items[0])
            file.append(json.dumps(item).encode() + b"\n" for item in items)
        file.close()
    return others


def test_items(packs: Packs, tmp_path: Path) -> None:
    """Counted, then gone; a file without any keeps its bytes."""
    others = fill(tmp_path)
    untouched = (tmp_path / "n-1-a.jsonl.gz").read_bytes()
    arguments = ("redact", tmp_path / "packs", "--items", tmp_path, "--host", HOST, "--json")
    said = packs(*arguments, "--dry-run")
    assert (said.rows[1]["items"], len(list(open_items(tmp_path)))) == (2, len(others) + 2)
    said = packs(*arguments, "--yes")
    assert (said.code, said.rows[1]["items"], said.rows[1]["files"]) == (0, 2, 1)
    found = list(open_items(tmp_path))
    assert sorted(map(str, found)) == sorted(map(str, others))
    assert (tmp_path / "n-1-a.jsonl.gz").read_bytes() == untouched
    assert packs(*arguments, "--yes").rows[1]["files"] == 0


@pytest.mark.parametrize("what", [("--host", HOST), ("--url", f"https://{HOST}/a")])
def test_names_behind_escapes(packs: Packs, tmp_path: Path, what: tuple[str, str]) -> None:
    """In a line of JSON a name follows the letter of an escape, or stands in another URL."""
    (tmp_path / "packs").mkdir()
    file = ItemFile(tmp_path / "n-0-a.jsonl.gz", NOW)
    name = what[1]
    goes = [f"Contact:\n{name}", f"see\t{name}.", f"http://a.test/?u={quote(name, safe='')}&v=1"]
    stays = [f"n{name}x", f"http://a.test/?u=n{quote(name, safe='')}b"]
    file.append(json.dumps({"t": text}).encode() + b"\n" for text in (*goes, *stays))
    file.close()
    said = packs("redact", tmp_path / "packs", "--items", tmp_path, *what, "--yes", "--json")
    assert said.rows[1]["items"] == len(goes)
    assert [item["t"] for item in open_items(tmp_path)] == stays


def test_what_is_not_there(packs: Packs, tmp_path: Path) -> None:
    """Is said before anything is done."""
    write(tmp_path / "packs", "gz", fetch(1, url=f"http://{HOST}/"))
    for wrong in (["--items", tmp_path / "nope"], ["--job", tmp_path]):
        said = packs("redact", tmp_path / "packs", *wrong, "--host", HOST, "--yes")
        assert (said.code, said.out, said.err.count("\n")) == (2, b"", 1)
        assert str(wrong[1]) in said.err
    assert open_packs(tmp_path / "packs").get(f"http://{HOST}/") is not None


def test_what_is_open_or_damaged(packs: Packs, tmp_path: Path) -> None:
    """Open files are named; what cannot be read is left out of what is written anew."""
    others = fill(tmp_path)
    path = tmp_path / "n-0-a.jsonl.gz"
    data = bytearray(path.read_bytes())
    data[30] ^= 255
    path.write_bytes(data)
    opened = ItemFile(tmp_path / "n-2-a.jsonl.gz", NOW)
    opened.append([json.dumps({"url": f"http://{HOST}/"}).encode() + b"\n"])
    said = packs("redact", tmp_path / "packs", "--items", tmp_path, "--host", HOST, "--yes",
                 "--json")  # fmt: skip
    opened.abandon()
    assert (said.code, said.rows[1]["open"]) == (4, ["n-2-a.jsonl.gz.open"])
    assert (said.rows[1]["items"], said.rows[1]["damaged"] > 0) == (2, True)
    assert len(list(open_items(path, tmp_path / "n-1-a.jsonl.gz"))) == len(others) - 1
