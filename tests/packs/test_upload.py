"""Uploading packs: whole or not at all, remembered, tried again, and deleted only afterwards."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile
from support import forks
from support.packs import NOW
from support.uploads import Flaky, there, write

from scrapy_spider_suite.errors import PackError, PackUploadedError, PackUploadError
from scrapy_spider_suite.packs import open_packs, verify
from scrapy_spider_suite.packs.pack_file import (
    Uploaded,
    find_upload,
    index_path,
    mark_uploaded,
    packs_away,
    packs_to_upload,
    upload_url,
)
from scrapy_spider_suite.packs.upload import UploadTarget, UploadThread, upload_pack

pytestmark = pytest.mark.usefixtures("flaky")


@pytest.mark.parametrize("url", ["memory://news/a", "{}/far/away", "file://{}/far"])
@pytest.mark.parametrize("keep", [True, False])
def test_a_pack_with_its_index(tmp_path: Path, url: str, keep: bool) -> None:
    """Both are there, as they are here; the pack is deleted only if it is not to be kept."""
    url, folder = url.format(tmp_path), tmp_path / "packs"
    pack = write(folder, 1, 2)
    both = {path.name: path.read_bytes() for path in (pack, index_path(pack))}
    assert packs_to_upload(folder) == [pack]
    done = upload_pack(pack, UploadTarget(url), NOW, keep=keep)
    assert there(url) == both
    assert done == find_upload(pack)
    assert done is not None
    assert (done.url, done.size) == (f"{url}/{pack.name}", len(both[pack.name]))
    assert packs_to_upload(folder) == []
    assert pack.exists() is keep
    assert index_path(pack).exists()
    assert [path for path, _ in packs_away(folder)] == ([] if keep else [pack])
    # What is there is a folder of packs for whoever brings it back.
    system, path = fsspec.core.url_to_fs(url)
    system.get(path, str(tmp_path / "back"), recursive=True)
    assert list(verify(tmp_path / "back")) == []


@pytest.mark.parametrize("damage", ["", "no line\n"])
def test_a_damaged_index_is_made_anew(tmp_path: Path, damage: str) -> None:
    """Before the pack goes, of which nobody could make one any more."""
    pack = write(tmp_path / "packs", 1, 2)
    index_path(pack).write_text(damage)
    assert upload_pack(pack, UploadTarget("memory://far"), NOW, keep=False)
    with pytest.raises(PackUploadedError, match=f"memory://far/{pack.name}"):
        open_packs(pack.parent).get("http://www.example.com/1")


def test_pages_of_a_pack_that_is_away(tmp_path: Path) -> None:
    """Are known of, and where they are is said; the others are read."""
    first, second = write(tmp_path, 1), write(tmp_path, 2)
    upload_pack(first, UploadTarget("memory://far"), NOW, keep=False)
    packs = open_packs(tmp_path)
    assert len(packs.history("http://www.example.com/1")) == 1
    with pytest.raises(PackUploadedError, match=f"memory://far/{first.name}"):
        packs.get("http://www.example.com/1")
    assert packs.get("http://www.example.com/2") is not None
    assert [page.path for page in packs] == [second]
    assert [path for path, _ in packs.away()] == [first]
    assert list(verify(tmp_path)) == []


def test_what_arrives_broken_is_not_marked(tmp_path: Path, flaky: type[Flaky]) -> None:
    """Cut off, or with a bit flipped: an error, the pack stays, and there is none of that name."""
    pack = write(tmp_path, 1)

    def cut(here: str, path: str) -> None:
        flaky.store[path].truncate(20)

    def flip(here: str, path: str) -> None:
        flaky.store[path].getbuffer()[9] ^= 1

    for breaks, words in ((cut, ": 20 bytes of"), (flip, "MD5")):
        flaky.breaks = breaks
        with pytest.raises(PackUploadError, match=words):
            upload_pack(pack, UploadTarget("flaky://far"), NOW, keep=False)
        assert pack.exists()
        assert not find_upload(pack)
        assert there("flaky://far") == {}
    flaky.breaks = None
    assert upload_pack(pack, UploadTarget("flaky://far"), NOW, keep=False)
    assert sorted(there("flaky://far")) == sorted([pack.name, index_path(pack).name])


class Bucket(Flaky):
    """An object store: what is put there is whole, and it names its sum."""

    protocol = "gs"
    sums: ClassVar[dict[str, str]] = {}

    def put_file(self, lpath: str, rpath: str, *args: Any, **more: Any) -> None:
        """Store it."""
        self.store[rpath] = MemoryFile(self, rpath, Path(lpath).read_bytes())

    def info(self, path: str, **more: Any) -> dict[str, Any]:
        """Size and sum."""
        return {**super().info(path, **more), **self.sums}

    def open(self, *args: Any, **more: Any) -> Any:
        """Nobody is to read it back."""
        raise AssertionError

    mv = makedirs = open


def test_an_object_store_names_its_sums(tmp_path: Path) -> None:
    """Nothing is renamed there, or read back; an MD5 sum that it names is compared."""
    pack = write(tmp_path, 1)
    fsspec.register_implementation("gs", Bucket, clobber=True)
    Bucket.sums["md5Hash"] = "AAAAAAAAAAAAAAAAAAAAAA=="
    with pytest.raises(PackUploadError, match="MD5 0000"):
        upload_pack(pack, UploadTarget("gs://bucket/a"), NOW, keep=False)
    assert pack.exists()
    assert Bucket.store == {}
    Bucket.sums.clear()
    assert upload_pack(pack, UploadTarget("gs://bucket/a"), NOW, keep=False)
    assert not pack.exists()


class Told:
    """What became of packs, and a clock that waiting moves on."""

    def __init__(self) -> None:
        self.done: list[Path] = []
        self.failed: list[str] = []
        self.waits: list[float] = []
        self.idle = threading.Event()

    def __call__(self, pack: Path, what: Uploaded | Exception) -> None:
        """Hear of one."""
        if isinstance(what, Exception):
            self.failed.append(str(what))
        else:
            self.done.append(pack)

    def rest(self, event: threading.Event, seconds: float | None) -> None:
        """Wait in virtual time."""
        if seconds is None:
            self.idle.set()
            event.wait()
        elif not event.is_set():
            self.waits.append(seconds)
            Flaky.now += seconds


def test_a_target_that_fails_for_an_hour(tmp_path: Path, flaky: type[Flaky]) -> None:
    """Is asked again ever less often, twelve times an hour at the end, and has everything then."""
    flaky.away_until = 3600.0
    packs = [write(tmp_path, number) for number in (1, 2, 3)]
    told = Told()
    uploads = UploadThread(
        tmp_path, "a", UploadTarget("flaky://far"), keep=False, report=told, rest=told.rest
    )
    assert told.idle.wait(20)
    assert sorted(told.done) == packs
    assert 3600 <= flaky.now < 3600 + 300
    assert told.waits[:4] == [2, 4, 8, 16]
    assert max(told.waits) == 300
    assert 10 < len(told.failed) < 25
    assert "503 Slow Down" in told.failed[0]
    more = write(tmp_path, 4)
    told.idle.clear()
    uploads.notify()
    assert told.idle.wait(20)
    assert told.done[-1] == more
    assert uploads.finish(20) == []
    assert not list(tmp_path.glob("*.lzo"))


def test_the_end_does_not_wait_for_ever(tmp_path: Path, flaky: type[Flaky]) -> None:
    """One more attempt; what is left is for the next run, which goes on with it."""
    flaky.away_until = 3600.0
    pack = write(tmp_path, 1)
    told = Told()
    waiting_now = threading.Event()

    def rest(event: threading.Event, seconds: float | None) -> None:
        waiting_now.set()
        event.wait(20)

    uploads = UploadThread(
        tmp_path, "a", UploadTarget("flaky://far"), keep=False, report=told, rest=rest
    )
    assert waiting_now.wait(20)
    assert uploads.finish(20) == [pack]
    assert len(told.failed) == 2
    flaky.away_until = 0.0
    again = UploadThread(tmp_path, "a", UploadTarget("flaky://far"), keep=False, report=told)
    assert again.finish(20) == []
    assert told.done == [pack]


def test_an_upload_that_hangs_is_left(tmp_path: Path, flaky: type[Flaky]) -> None:
    """The end of the crawl waits as long as it may, and nothing of it counts."""
    let_go, hangs = threading.Event(), threading.Event()

    def hang(here: str, path: str) -> None:
        hangs.set()
        let_go.wait(20)

    flaky.breaks = hang
    pack = write(tmp_path, 1)
    uploads = UploadThread(tmp_path, "a", UploadTarget("flaky://far"), keep=False, report=Told())
    assert hangs.wait(20)
    assert uploads.finish(0.05) == [pack]
    assert pack.exists()
    let_go.set()
    assert uploads.finish(20) == []


def test_what_is_replaced_meanwhile_goes_up_again(tmp_path: Path, flaky: type[Flaky]) -> None:
    """A pack that is redacted while it is under way is not marked with what was sent."""
    pack = write(tmp_path, 1)

    def replace(here: str, path: str) -> None:
        flaky.breaks = None
        new = pack.with_name("new")
        new.write_bytes(pack.read_bytes())
        os.replace(new, pack)

    flaky.breaks = replace
    assert upload_pack(pack, UploadTarget("flaky://far"), NOW, keep=False) is None
    assert pack.exists()
    assert packs_to_upload(tmp_path) == [pack]
    pack.write_bytes(pack.read_bytes() + b"\0")  # other bytes than are there by now
    assert upload_pack(pack, UploadTarget("flaky://far"), NOW, keep=False)
    assert there("flaky://far")[pack.name][-1:] == b"\0"


def test_another_file_of_that_name_is_left_alone(tmp_path: Path) -> None:
    """Two agents of one name must not cost pages; what is to go up again does replace it."""
    pack, far = write(tmp_path / "here", 1), tmp_path / "far"
    far.mkdir()
    (far / pack.name).write_bytes(b"of another agent")
    with pytest.raises(PackUploadError, match="SUITE_AGENT_NAME"):
        upload_pack(pack, UploadTarget(str(far)), NOW, keep=False)
    assert (far / pack.name).read_bytes() == b"of another agent"
    (far / pack.name).unlink()
    assert upload_pack(pack, UploadTarget(str(far)), NOW, keep=True)
    write(tmp_path / "other", 2).replace(pack)
    mark_uploaded(pack, Uploaded(upload_url(pack)))
    assert packs_to_upload(tmp_path / "here") == [pack]
    assert upload_pack(pack, UploadTarget(str(far)), NOW, keep=True)
    assert (far / pack.name).read_bytes() == pack.read_bytes()


def test_only_ones_own_packs(tmp_path: Path) -> None:
    """Of an agent; open ones and those that another process has in hand are left alone."""
    pack = write(tmp_path, 1)
    other = tmp_path / "news-20261122000000-00001-b.warc.gz"
    other.write_bytes(b"")
    (tmp_path / "news-20261122000000-00002-a.warc.gz.open").write_bytes(b"")
    assert packs_to_upload(tmp_path, "a") == [pack]
    assert packs_to_upload(tmp_path) == [other, pack]
    pack.with_name(f"{pack.name}.uploaded").write_text("{")  # damaged: once more, rather than lost
    assert packs_to_upload(tmp_path, "a") == [pack]
    assert packs_to_upload(tmp_path / "none") == []


@pytest.mark.parametrize("url", ["nonsense://a/b", "nonsense://"])
def test_what_no_library_knows(url: str) -> None:
    """Is said at once."""
    with pytest.raises(PackError, match="nonsense"):
        UploadTarget(url)


KILLED = """
import os, signal, sys
from pathlib import Path
from scrapy_spider_suite.packs.pack_file import packs_to_upload
from scrapy_spider_suite.packs.upload import UploadTarget, upload_pack
step, count = int(sys.argv[3]), 0
def change(event, arguments):
    global count
    if event in ("os.rename", "os.remove") or (event == "open" and str(arguments[1])[0] in "wx"):
        count += 1
        if count == step:
            os.kill(os.getpid(), signal.SIGKILL)
target = UploadTarget(sys.argv[2])
for pack in packs_to_upload(Path(sys.argv[1])):
    target.require_free(pack)  # it loads what it needs
sys.addaudithook(change)
for pack in packs_to_upload(Path(sys.argv[1])):
    upload_pack(pack, target, 1e9, keep=False)
"""


@pytest.mark.slow
def test_a_kill_at_every_step(tmp_path: Path) -> None:
    """The pack is here, or it is there and known of; the next call does the rest."""
    for step in range(1, 40):
        here, far = tmp_path / f"here-{step}", tmp_path / f"far-{step}"
        pack = write(here, 1)
        data = pack.read_bytes()
        done = forks.run(
            KILLED, str(here), str(far), str(step), folder=tmp_path, environment={**os.environ}
        )
        found = far / pack.name
        if not pack.exists():
            assert found.read_bytes() == data
            assert upload_url(pack) == str(found)
        if found.exists():
            assert found.read_bytes() == data
        for left in packs_to_upload(here, keep=False):
            assert upload_pack(left, UploadTarget(str(far)), NOW, keep=False)
        assert not pack.exists()
        assert sorted(path.name for path in far.iterdir()) == sorted(
            [pack.name, index_path(pack).name]
        )
        if not done.returncode:
            break
        assert done.returncode == -signal.SIGKILL
    assert step > 6
