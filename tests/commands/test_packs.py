"""``scrapy packs``: what is in packs, a page of them, all of them, what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from scrapy.exceptions import UsageError
from support.loaded_modules import loaded_by
from support.packs import body, fetch, hand_in, plan
from support.packs_command import Packs, write

from scrapy_spider_suite.packs import Link, PackWriter
from scrapy_spider_suite.packs.cdxj import timestamp
from scrapy_spider_suite.packs.pack_file import is_pack


def test_ls(packs: Packs, folders: list[Path]) -> None:
    """Packs of all folders, or the pages that are asked for."""
    rows = packs("ls", *folders, "--json").rows
    assert [(row["pages"], row["state"]) for row in rows] == [(3, "closed"), (2, "closed")]
    assert (rows[0]["from"], rows[0]["to"]) == ("2026-11-18T11:06:41Z", "2026-11-18T11:08:20Z")
    assert rows[0]["bytes"] == next(folders[0].glob("*.warc.*[!j]")).stat().st_size
    said = packs("ls", SUITE_PACKS_DIR=str(folders[1]))
    assert said.lines[0].split() == ["name", "pages", "bytes", "from", "to", "state"]
    assert len(said.lines) == 2
    said = packs("ls", "--pages", *folders)
    assert len(said.lines) == 5
    line = "2026-11-18T11:06:44Z\t404\ttext/plain\thttps://sub.other.test/4?a=b"
    both = ["--host", "SUB.other.test.", "--status", "404", "--status", "3xx"]
    for wanted in (["--host", "*.other.test"], ["--status", "4xx"], ["--mime", "text/p*"], both):
        assert packs("ls", "--pages", *folders, *wanted).lines == [line]
    assert packs("ls", "--pages", *folders, "--host", "other.test").out == b""
    again = packs("ls", "--pages", *folders, "--from", "2026-11-18T11:08", "--json").rows
    assert [(row["url"], row["mime"]) for row in again] == [
        ("http://www.example.com/1", "warc/revisit")
    ]
    assert packs("ls", "--pages", *folders, "--to", "2026-10").out == b""


def test_get(packs: Packs, folders: list[Path]) -> None:
    """The body on stdout, as it was at a time, of a revisit, too; 1 if it is not there."""
    one = "http://www.example.com/1"
    assert packs("get", one, *folders).out == body(1)
    assert packs("get", "HTTP://www.example.com:80/2", *folders).out == body(2)
    assert packs("get", one, *folders, "--at", "2026-11-18T11:06:41", "--json").rows[0] == {
        **packs("get", one, *folders, "--at", "2026-11-18T11:07", "--json").rows[0],
        "revisit": False,
        "time": "2026-11-18T11:06:41.250Z",
        "status": 200,
    }
    assert packs("get", one, *folders, "--json").rows[0]["revisit"]
    said = packs("get", one, *folders, "--headers")
    assert said.out.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/html")
    assert said.out.endswith(b"\r\n\r\n")
    said = packs("get", "http://www.example.com/3", *folders, "--record")
    assert said.out.startswith(b"WARC/1.1\r\nWARC-Type: response\r\n")
    assert said.out.endswith(body(3) + b"\r\n\r\n")
    said = packs("get", "http://www.example.com/3", *folders, "--links")
    assert said.lines == ["http://www.example.com/4\ta", "http://a.test/\tframe\tnofollow"]
    for missing in (["http://www.example.com/9"], [one, "--at", "2026-11-17"]):
        said = packs("get", missing[0], *folders, *missing[1:])
        assert (said.code, said.out) == (1, b"")
        assert "is not in these packs" in said.err


def test_cat(packs: Packs, folders: list[Path]) -> None:
    """All records, one after another, and what is damaged on stderr."""
    said = packs("cat", *folders)
    assert said.code == 0
    assert said.out.count(b"WARC/1.1\r\n") == 2 + 5 * 3
    assert said.out.startswith(b"WARC/1.1\r\nWARC-Type: warcinfo")
    pack = next(path for path in folders[0].iterdir() if not path.name.endswith(".cdxj"))
    data = pack.read_bytes()
    pack.write_bytes(data[:-10])
    said = packs("cat", pack)
    assert said.code == 1
    assert f"{pack}: damaged" in said.err
    assert packs("verify", *folders).code == 1


def test_verify(packs: Packs, folders: list[Path]) -> None:
    """Every finding in a line; 1 if there is one."""
    said = packs("verify", *folders)
    assert (said.code, said.lines) == (0, ["2 packs: everything is as it was written"])
    index = next(folders[1].glob("*.cdxj"))
    index.write_bytes(index.read_bytes().splitlines(keepends=True)[0])
    said = packs("verify", *folders, "--json")
    assert said.code == 1
    assert [(row["kind"], row["path"]) for row in said.rows] == [("index", str(index))]
    assert "a page is not in the index" in packs("verify", folders[1]).lines[0]


def test_links(packs: Packs, folders: list[Path]) -> None:
    """With kinds and nofollow, of the pages that are asked for."""
    said = packs("links", *folders, "--host", "sub.other.test")
    page = "https://sub.other.test/4?a=b"
    assert said.lines == [f"{page}\thttp://www.example.com/5\ta\t-",
                          f"{page}\thttp://a.test/\tframe\tnofollow"]  # fmt: skip
    rows = packs("links", *folders, "--json").rows
    assert len(rows) == 10
    assert rows[1]["nofollow"] is True


def test_sample(packs: Packs, folders: list[Path]) -> None:
    """As many as asked for, the same ones each time."""
    first = packs("links", *folders, "--sample", "2", "--json").rows
    assert len({(row["page"], row["time"]) for row in first}) == 2
    assert packs("links", *folders[::-1], "--sample", "2", "--json").rows == first


def test_while_it_is_written(packs: Packs, tmp_path: Path) -> None:
    """What is on disk is there, and nothing is wrong with it."""
    writer = PackWriter(plan(tmp_path))
    try:
        hand_in(writer, fetch(1))
        writer.flush().result()
        assert packs("ls", tmp_path, "--json").rows[0]["state"] == "open"
        assert packs("get", "http://www.example.com/1", tmp_path).out == body(1)
        assert packs("cat", tmp_path).code == packs("verify", tmp_path).code == 0
        assert len(packs("links", tmp_path).lines) == 2
    finally:
        writer.close()


def test_a_pack_without_an_index(packs: Packs, folders: list[Path]) -> None:
    """Is read all the same."""
    before = packs("ls", "--pages", *folders).out
    for path in folders[1].glob("*.cdxj"):
        path.unlink()
    assert sorted(packs("ls", "--pages", *folders).lines) == sorted(before.decode().splitlines())


@pytest.mark.parametrize("damage", ["line", "cut"])
def test_a_damaged_index(
    damage: str, packs: Packs, folders: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Is named, and costs no page."""
    before = sorted(packs("ls", "--pages", *folders).lines)
    for folder in folders:
        [index] = folder.glob("*.cdxj")
        data = index.read_bytes()
        index.write_bytes(data.replace(b" {", b" <", 1) if damage == "line" else data[:-20])
    assert sorted(packs("ls", "--pages", *folders).lines) == before
    assert caplog.text.count("cdxj is damaged") == 2
    export = packs("export", *folders, "--warc-gz", folders[0].parent / "x.warc.gz", "--json")
    assert (export.code, export.rows[0]["pages"]) == (0, 5)
    for line in before:
        assert packs("get", line.rpartition("\t")[2], *folders).code == 0
    assert [row["made"] for row in packs("merge", *folders, "--json").rows] == [1, 1]
    assert packs("verify", *folders).code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected one of ls, get, cat"),
        (["none"], "expected one of"),
        (["ls"], "which packs"),
        (["cat"], "which packs"),
        (["get"], "required: URL"),
        (["get", "u", ".", "--at", "2026-02-30"], "there is no such time"),
        (["ls", ".", "--status", "20"], "expected a status"),
        (["ls", ".", "--from", "now"], "expected a time"),
    ],
)
def test_wrong_usage(packs: Packs, arguments: list[str], said: str) -> None:
    """In a line."""
    with pytest.raises(UsageError, match=said):
        packs(*arguments)


def test_no_packs(packs: Packs, tmp_path: Path) -> None:
    """In a line, too."""
    said = packs("ls", tmp_path / "none")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "neither a pack nor a folder of packs" in said.err


def test_times() -> None:
    """What is left out is the first moment, or the last."""
    assert timestamp("2026") == "20260101000000"
    assert timestamp("2024-02", last=True) == "20240229235959"
    assert timestamp("2026-12", last=True) == "20261231235959"
    assert timestamp("2026-11-22T10:15:07.5Z") == "20261122101507"
    assert timestamp("2026-11-22 10", last=True) == "20261122105959"


@pytest.mark.parametrize("verb", ["", "ls", "get", "cat", "verify", "links"])
def test_help(verb: str, packs: Packs) -> None:
    """With examples."""
    said = packs(*filter(None, [verb]), "--help")
    assert b"Examples:" in said.out if verb else b"Verbs:" in said.out


def test_loading_it_imports_little() -> None:
    """Scrapy does that at each start of any command."""
    loaded = loaded_by("import scrapy_spider_suite.commands.packs")
    assert not {"tqdm", "lzallright", "xxhash", "pyarrow", "ada_url"} & loaded


def test_links_are_pages_links(packs: Packs, tmp_path: Path) -> None:
    """A line break in a URL breaks no line."""
    writer = PackWriter(plan(tmp_path))
    hand_in(writer, fetch(1, links=[Link("http://a.test/\nb\tc")]))
    writer.close()
    assert packs("links", tmp_path).lines == [
        "http://www.example.com/1\thttp://a.test/%0Ab%09c\ta\t-"
    ]


def test_upload(packs: Packs, folders: list[Path], tmp_path: Path) -> None:
    """Where each pack is; `ls` and `get` say so, what is there is what was here."""
    far = tmp_path / "far"
    before = {path.name: path.read_bytes() for path in folders[0].iterdir()}
    said = packs("upload", folders[0], "--to", far, "--delete", "--json")
    assert (said.code, len(said.rows)) == (0, 1)
    assert {name: (far / name).read_bytes() for name in before} == before
    rows = packs("ls", *folders, "--json").rows
    assert {(row["state"], row["pages"]) for row in rows} == {("away", 3), ("closed", 2)}
    [row] = packs("ls", folders[0], "--json").rows
    assert row["uploaded"] == str(far / row["name"])
    assert row["uploaded"] in packs("ls", *folders).out.decode()
    got = packs("get", "http://www.example.com/1", *folders)
    assert got.code == 2
    assert str(far) in got.err
    for verb in (["links"], ["ls", "--pages"], ["cat"], ["export", "--dir", tmp_path / "out"]):
        said = packs(*verb, *folders)
        [line] = said.err.splitlines()
        assert (said.code, f"not here: 1, in {far}; their pages are left out" in line) == (0, True)
    assert packs("verify", *folders).code == 0
    assert packs("ls", far, "--json").rows[0]["state"] == "closed"
    assert packs("upload", folders[0], "--to", far).out == b""


def test_upload_asks_where_to(packs: Packs, folders: list[Path], tmp_path: Path) -> None:
    """The settings say it, or the option; what cannot be there is said, and stays here."""
    with pytest.raises(UsageError, match="SUITE_PACKS_UPLOAD"):
        packs("upload", *folders)
    (tmp_path / "file").touch()
    said = packs("upload", folders[0], SUITE_PACKS_UPLOAD=str(tmp_path / "file" / "x"))
    assert (said.code, said.out) == (1, b"")
    assert "file" in said.err
    settings = {"SUITE_PACKS_UPLOAD": str(tmp_path / "far"), "SUITE_PACKS_KEEP": False}
    assert packs("upload", next(filter(is_pack, folders[0].iterdir())), **settings).code == 0
    assert [path.suffix for path in sorted(folders[0].iterdir())][-1] == ".uploaded"


def test_upload_takes_no_password(packs: Packs, folders: list[Path]) -> None:
    """Nor shows it: it would be in marks, output and errors."""
    with pytest.raises(UsageError, match="FSSPEC_SFTP_PASSWORD") as caught:
        packs("upload", folders[0], "--to", "sftp://me:secret@127.0.0.1/packs")
    assert "secret" not in str(caught.value)
    with pytest.raises(UsageError, match="expected a URL"):
        packs("upload", folders[0], "--to", "s3:/news")
    assert not list(folders[0].glob("*.uploaded"))


def test_upload_to_a_folder_from_here_on(
    packs: Packs, folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark names it wherever one is; what is there already goes to another one, too."""
    monkeypatch.chdir(tmp_path)
    [first] = packs("upload", folders[0], "--to", "far", "--json").rows
    assert first["url"] == str(tmp_path / "far" / Path(first["pack"]).name)
    [second] = packs("upload", folders[0], "--to", "farther", "--delete", "--json").rows
    assert Path(second["url"]).read_bytes() == Path(first["url"]).read_bytes()
    assert Path(second["url"]).parent == tmp_path / "farther"
    assert not Path(first["pack"]).exists()


def test_a_pack_that_is_gone(packs: Packs, folders: list[Path]) -> None:
    """Is named by what looks for it, and by what leaves its pages out."""
    gone = next(filter(is_pack, folders[1].iterdir()))
    gone.unlink()
    said = packs("verify", *folders)
    assert (said.code, said.lines[0].startswith(f"{gone}: missing: ")) == (1, True)
    said = packs("get", "http://www.example.com/3", *folders)
    assert (said.code, said.out, said.err.count("\n")) == (2, b"", 1)
    assert f"{gone.name}, which is not in {folders[1]} any more: bring it back" in said.err
    said = packs("links", *folders)
    assert (said.code, f"missing: 1, {gone.name} first" in said.err) == (0, True)


def test_merge(packs: Packs, folders: list[Path]) -> None:
    """Of how many files the index consists; a pack has none to merge."""
    for number in range(4):
        write(folders[0], "gz", fetch(number))
    said = packs("merge", *folders, "--json")
    assert [row["files"] for row in said.rows] == [1, 1]
    assert packs("get", "http://www.example.com/3", *folders).code == 0
    assert packs("verify", *folders).code == 0
    assert packs("merge", next(filter(is_pack, folders[0].iterdir()))).code == 2
