"""``scrapy packs redact``: no byte is left, all else is as it was, whenever it is killed."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import sys
import warnings
from pathlib import Path

import pytest
from scrapy.exceptions import UsageError
from support.packs import NOW, body, fetch, hand_in, head, plan
from support.packs_command import Packs

from scrapy_spider_suite.errors import PackError
from scrapy_spider_suite.packs import Link, PackWriter, RefersTo, merge_indexes, open_packs, verify
from scrapy_spider_suite.packs.pack_file import FORMATS, packs_to_upload
from scrapy_spider_suite.packs.redaction import RECEIPTS, RedactionTarget, redact
from scrapy_spider_suite.packs.upload import UploadTarget, upload_pack
from scrapy_spider_suite.packs.warc import sha1_digest

HOST = "secret.test"
WORDS = b"what nobody shall read"


def fill(folder: Path, form: str) -> None:
    """Four packs: a host that is to go, pages that lead to it, revisits of it, others."""
    was = RefersTo(f"http://{HOST}/1", NOW + 1, sha1_digest(WORDS * 9))
    naming = gzip.compress(b"see http://secret.test/1 there", mtime=0)
    for number in range(4):
        writer = PackWriter(plan(folder, form), clock=lambda n=number: NOW + n)
        for one in (
            fetch(number),
            fetch(number, WORDS * 9, url=f"http://{HOST}/{number}", head=head(len(WORDS) * 9)),
            fetch(number + 10, links=[Link(f"http://{HOST}/9"), Link("http://b.test/")],
                  via=f"http://{HOST}/1", request=b"GET / HTTP/1.1\r\nHost: www.example.com\r\n"
                  b"Referer: http://secret.test/1\r\n\r\n"),
            fetch(number + 20, url=f"http://copy.test/{number}", original=was),
            fetch(number + 30, url=f"http://my{HOST}/{number}"),
        ):  # fmt: skip
            hand_in(writer, one)
        if number == 3:
            hand_in(writer, fetch(40, naming, head=head(
                len(naming), "Content-Encoding: gzip\r\n")))  # fmt: skip
        writer.close()
    merge_indexes(folder)


def everything(folder: Path) -> bytes:
    """All that is in a folder, names and compressed parts included."""
    found = b"\n".join(str(path).encode() + path.read_bytes() for path in folder.iterdir()
                       if path.is_file())  # fmt: skip
    for record in open_packs(folder).records():
        found += record.to_bytes()
    return found


def left(folder: Path) -> int:
    """How often the host, or its text, is found."""
    data = everything(folder)
    return len(re.findall(rb"(?<![\w.-])secret\.test", data)) + data.count(WORDS)


@pytest.mark.parametrize("form", FORMATS)
def test_a_host(packs: Packs, tmp_path: Path, form: str) -> None:
    """Nothing of it, and all else."""
    fill(tmp_path, form)
    before = {page.record.id: page.record for page in open_packs(tmp_path)}
    counted = packs("redact", tmp_path, "--host", HOST, "--dry-run", "--json").rows[0]
    assert (counted["pages"], counted["revisits"], counted["mentions"]) == (4, 4, 1)
    assert len(open_packs(tmp_path).history(f"http://{HOST}/1")) == 1
    row = packs("redact", tmp_path, "--host", HOST, "--yes", "--json").rows[0]
    assert (row["pages"], row["revisits"], row["notes"], row["packs"]) == (4, 4, 12, 4)
    assert left(tmp_path) == 0
    assert list(verify(tmp_path)) == []
    found = open_packs(tmp_path)
    pages = list(found)
    assert len(pages) == 4 * 3 + 1
    assert all(page.record == before[page.record.id] for page in pages)
    assert [link.url for link in pages[1].links] == ["http://b.test/"]
    page = found.get("http://www.example.com/3")
    assert page is not None
    assert page.body == body(3)
    assert page.links
    assert found.get(f"http://{HOST}/1") is None
    # The one page that names it in what it says goes only when that is asked for.
    row = packs("redact", tmp_path, "--host", HOST, "--mentions", "--dry-run", "--json").rows[0]
    assert (row["done"], row["pages"], row["mentions"], row["packs"]) == (False, 0, 1, 1)
    row = packs("redact", tmp_path, "--host", HOST, "--mentions", "--yes", "--json").rows[0]
    assert (row["pages"], row["mentions"], row["packs"]) == (0, 1, 1)
    assert found.get("http://www.example.com/40") is None
    assert (tmp_path / "redactions.jsonl").read_bytes().count(b"\n") == 2
    assert list(verify(tmp_path)) == []


def test_a_url(packs: Packs, tmp_path: Path) -> None:
    """That one alone."""
    fill(tmp_path, "lzo")
    row = packs("redact", tmp_path, "--url", f"http://{HOST}/2", "--yes", "--json").rows[0]
    assert (row["pages"], row["revisits"]) == (1, 0)
    assert open_packs(tmp_path).get(f"http://{HOST}/2") is None
    assert open_packs(tmp_path).get(f"http://{HOST}/3") is not None
    assert list(verify(tmp_path)) == []


@pytest.mark.parametrize("form", ["lzo", "gz"])
def test_a_kill_at_every_step(tmp_path: Path, form: str) -> None:
    """Each call that changes the folder is one to be killed after; the next call ends it."""
    whole = tmp_path / "whole"
    fill(whole, form)
    others = {page.record.id for page in open_packs(whole)
              if page.url.startswith(("http://www", "http://my"))}  # fmt: skip
    step = 0
    while True:
        step += 9
        folder = tmp_path / str(step)
        folder.mkdir()
        for path in whole.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        killed = _killed_at(folder, step)
        assert {page.record.id for page in open_packs(folder)} >= others
        assert {finding.kind for finding in verify(folder)} <= {"index"}
        redact(folder, RedactionTarget(host=HOST), NOW, lambda done: None)
        assert left(folder) == 0
        assert list(verify(folder)) == []
        assert {page.record.id for page in open_packs(folder)} == others
        if not killed:
            break
    assert step > 18  # it was killed several times before


def test_a_damaged_index(tmp_path: Path) -> None:
    """Is made anew: rewritten without its damage it would look sound, and lack pages."""
    fill(tmp_path, "gz")
    first, second = sorted(tmp_path.glob("*.warc.gz.cdxj"))[:2]
    first.write_bytes(first.read_bytes()[:-20])
    second.write_bytes(b"nonsense\n")
    # Of a pack that is not written anew, too, and in its middle, which nobody reads at first.
    writer = PackWriter(plan(tmp_path, "gz"), clock=lambda: NOW + 9)
    for number in (51, 52, 53):
        hand_in(writer, fetch(number))
    writer.close()
    third = sorted(tmp_path.glob("*.warc.gz.cdxj"))[-1]
    lines = third.read_bytes().splitlines(keepends=True)
    third.write_bytes(b"".join([lines[0], lines[1].replace(b"offset", b"oafset"), lines[2]]))
    redact(tmp_path, RedactionTarget(host=HOST), NOW, lambda done: None)
    assert list(verify(tmp_path)) == []
    assert left(tmp_path) == 0
    assert open_packs(tmp_path).get("http://www.example.com/52") is not None


def test_what_is_missing(packs: Packs, tmp_path: Path) -> None:
    """A pack that somebody took away is named, and its index does not name the host any more."""
    fill(tmp_path, "gz")
    gone = sorted(tmp_path.glob("*.warc.gz"))[0]
    gone.unlink()
    for options in (["--dry-run"], ["--yes"]):
        said = packs("redact", tmp_path, "--host", HOST, "--json", *options)
        assert (said.code, said.rows[0]["away"]) == (4 * ("--yes" in options), [str(gone)])
    assert left(tmp_path) == 0


def test_a_kill_forgets_nothing_that_is_away(tmp_path: Path) -> None:
    """Whichever step it comes after, the call that ends it names what was uploaded."""
    far, whole = tmp_path / "far", tmp_path / "whole"
    for number in range(2):
        writer = PackWriter(plan(whole, "gz"), clock=lambda n=number: NOW + n)
        hand_in(writer, fetch(number, url=f"http://{HOST}/{number}"))
        hand_in(writer, fetch(number))
        writer.close()
    pack, kept = packs_to_upload(whole)
    assert upload_pack(pack, UploadTarget(str(far)), NOW, keep=False)
    assert upload_pack(kept, UploadTarget(str(far)), NOW, keep=True)
    step = 0
    while True:
        step += 1
        folder = tmp_path / str(step)
        shutil.copytree(whole, folder)
        killed = _killed_at(folder, step)
        if not killed:
            break
        receipt = redact(folder, RedactionTarget(host=HOST), NOW, lambda done: None)
        assert receipt.away == [str(far / pack.name)]
        assert receipt.uploaded == [str(far / kept.name)]
        [row] = map(json.loads, (folder / RECEIPTS).read_bytes().splitlines())
        assert (row["away"], "unfinished" in row) == (receipt.away, False)
        assert row["uploaded"] == receipt.uploaded
    assert step > 9


@pytest.mark.parametrize("line", [b"", b"{", b"[1]\n", b'{"unfinished": true, "away": ["x"]}\n'])
def test_receipts_of_others_stay(tmp_path: Path, line: bytes) -> None:
    """What another subject has begun, and what is no receipt."""
    fill(tmp_path, "gz")
    (tmp_path / RECEIPTS).write_bytes(line)
    assert redact(tmp_path, RedactionTarget(host=HOST), NOW, lambda done: None).away == []
    lines = (tmp_path / RECEIPTS).read_bytes().splitlines()
    assert [*line.splitlines(), lines[-1]] == lines
    assert json.loads(lines[-1])["pages"] == 4


def _killed_at(folder: Path, step: int) -> bool:
    """Redact in a process that is killed before its *step*-th change of a file; was it?"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the child uses none
        child = os.fork()
    if not child:
        count = 0

        def change(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal count
            if event in ("os.rename", "os.remove", "os.truncate", "os.rmdir") or (
                event == "open" and str(arguments[1]) in ("wb", "xb")
            ):
                count += 1
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(change)
        try:
            redact(folder, RedactionTarget(host=HOST), NOW, lambda done: None)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_what_is_being_written(packs: Packs, tmp_path: Path) -> None:
    """Stays, and is named; later it goes, too."""
    writer = PackWriter(plan(tmp_path))
    hand_in(writer, fetch(1, url=f"http://{HOST}/1"))
    writer.flush().result()
    said = packs("redact", tmp_path, "--host", HOST, "--yes", "--json")
    assert (said.code, len(said.rows[0]["open"])) == (4, 1)
    writer.close()
    assert packs("redact", tmp_path, "--host", HOST, "--yes").code == 0
    assert open_packs(tmp_path).get(f"http://{HOST}/1") is None


def test_not_by_mistake(packs: Packs, tmp_path: Path) -> None:
    """It asks; and a pack alone is no folder."""
    fill(tmp_path, "gz")
    with pytest.raises(UsageError, match="--yes"):
        packs("redact", tmp_path, "--host", HOST)
    assert left(tmp_path)
    assert packs("redact", next(tmp_path.glob("*.gz")), "--host", HOST, "--yes").code == 2


@pytest.mark.parametrize("empty", [
    ("--host", ""), ("--host", "."), ("--host", "*."), ("--host", "*"), ("--url", ""),
    ("--url", "/"), ("--url", "a"), ("--url", "http://"),
])  # fmt: skip
def test_nothing_is_no_subject(packs: Packs, tmp_path: Path, empty: tuple[str, str]) -> None:
    """Every record that has no URL of some kind has an empty one: nothing goes for that."""
    fill(tmp_path, "gz")
    before = everything(tmp_path)
    kind, name = empty
    if kind == "--host":
        with pytest.raises(UsageError, match="expected a host"):
            packs("redact", tmp_path, *empty, "--yes")
    else:
        said = packs("redact", tmp_path, *empty, "--yes")
        assert (said.code, said.err.count("\n")) == (2, 1)
    with pytest.raises(PackError, match="expected a host"):
        RedactionTarget(**{kind.strip("-"): name})
    with pytest.raises(PackError, match="expected a host"):
        RedactionTarget(HOST, f"http://{HOST}/")
    assert everything(tmp_path) == before


def test_what_was_uploaded(packs: Packs, tmp_path: Path) -> None:
    """What is elsewhere is named, and not found here any more; what is here as well goes up again.
    """
    here, far = tmp_path / "here", tmp_path / "far"
    fill(here, "gz")
    first, *others = packs_to_upload(here)
    for pack in (first, *others):
        assert upload_pack(pack, UploadTarget(str(far)), NOW, keep=pack != first)
    before = len(open_packs(here).history(f"http://{HOST}/0"))
    copies = [str(far / pack.name) for pack in others]
    said = packs("redact", here, "--host", HOST, "--dry-run", "--json")
    assert (said.code, said.rows[0]["away"]) == (0, [str(far / first.name)])
    assert said.rows[0]["uploaded"] == copies
    said = packs("redact", here, "--host", HOST, "--yes", "--json")
    assert (said.code, said.rows[0]["away"]) == (4, [str(far / first.name)])
    assert said.rows[0]["uploaded"] == copies
    assert [each in (here / RECEIPTS).read_text() for each in copies] == [True] * len(copies)
    assert (before, len(open_packs(here).history(f"http://{HOST}/0"))) == (1, 0)
    assert packs_to_upload(here) == others
    for pack in others:
        assert upload_pack(pack, UploadTarget(str(far)), NOW, keep=True)
        assert (far / pack.name).read_bytes() == pack.read_bytes()
    assert packs("redact", far, "--host", HOST, "--yes").code == 0
    assert left(far) == 0
