"""What is at which target: other targets, other files, and file systems that do not rename."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import fsspec
import pytest
from support.packs import NOW
from support.uploads import Flaky, there, write

from scrapy_spider_suite.errors import PackUploadError
from scrapy_spider_suite.packs.folder_index import lock_indexes
from scrapy_spider_suite.packs.pack_file import Uploaded, find_upload, index_path, packs_to_upload
from scrapy_spider_suite.packs.upload import UploadTarget, upload_pack

pytestmark = pytest.mark.usefixtures("flaky")


@pytest.mark.parametrize("keep", [True, False])
def test_another_target(tmp_path: Path, keep: bool) -> None:
    """What is at one target is sent to the other before it is deleted; and back again."""
    pack = write(tmp_path, 1)
    data = pack.read_bytes()
    assert upload_pack(pack, UploadTarget("memory://a"), NOW, keep=True)
    assert packs_to_upload(tmp_path, target="memory://a") == []
    assert packs_to_upload(tmp_path, target="memory://b") == [pack]
    assert upload_pack(pack, UploadTarget("memory://b"), NOW, keep=True)
    done = upload_pack(pack, UploadTarget("memory://a"), NOW, keep=keep)
    assert there("memory://b") == there("memory://a")
    assert there("memory://a")[pack.name] == data
    assert done is not None
    assert done.url == f"memory://a/{pack.name}"
    assert pack.exists() is keep


def test_another_file_at_another_target(tmp_path: Path, flaky: type[Flaky]) -> None:
    """An attempt that failed elsewhere makes nothing there one's own."""
    flaky.away_until = 1.0
    pack = write(tmp_path / "here", 1)
    with pytest.raises(PackUploadError):
        upload_pack(pack, UploadTarget("flaky://a"), NOW, keep=False)
    far = tmp_path / "far"
    far.mkdir()
    (far / pack.name).write_bytes(b"of another agent")
    with pytest.raises(PackUploadError, match="SUITE_AGENT_NAME"):
        upload_pack(pack, UploadTarget(str(far)), NOW, keep=False)
    assert (far / pack.name).read_bytes() == b"of another agent"
    flaky.now = 1.0
    assert upload_pack(pack, UploadTarget("flaky://a"), NOW, keep=False)


def test_what_is_not_what_was_sent_is_not_deleted(tmp_path: Path) -> None:
    """The mark says what was sent: other bytes here are sent first."""
    pack = write(tmp_path, 1)
    assert upload_pack(pack, UploadTarget("memory://a"), NOW, keep=True)
    other = pack.read_bytes() + b"more"
    pack.write_bytes(other)
    assert upload_pack(pack, UploadTarget("memory://a"), NOW, keep=False)
    assert not pack.exists()
    assert there("memory://a")[pack.name] == other


def test_no_credentials_in_errors(tmp_path: Path, flaky: type[Flaky]) -> None:
    """Whose they are is for no log."""
    flaky.away_until = 1.0
    with pytest.raises(PackUploadError, match="to flaky://far: 503") as caught:
        upload_pack(write(tmp_path, 1), UploadTarget("flaky://token@far"), NOW, keep=True)
    assert "token" not in str(caught.value)


def test_an_index_is_made_while_nobody_redacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the pack that took the other's place meanwhile, never of the one before."""
    pack, other = write(tmp_path / "here", 1), write(tmp_path / "other", 2)
    index_path(pack).unlink()
    asked = Event()

    def asking(folder: Path, *, wait: bool = False) -> AbstractContextManager[bool]:
        asked.set()
        return lock_indexes(folder, wait=wait)

    monkeypatch.setattr("scrapy_spider_suite.packs.upload.lock_indexes", asking)
    done: list[Uploaded | None] = []
    go = Thread(
        target=lambda: done.append(upload_pack(pack, UploadTarget("memory://a"), NOW, keep=True))
    )
    with lock_indexes(pack.parent):
        go.start()
        assert asked.wait(20)
        assert not index_path(pack).exists()
        os.replace(other, pack)
        os.replace(index_path(other), index_path(pack))
        data = index_path(pack).read_bytes()
    go.join(20)
    assert done == [None]
    assert index_path(pack).read_bytes() == data
    assert packs_to_upload(pack.parent) == [pack]


def test_a_lost_index_is_made(tmp_path: Path) -> None:
    """It goes up with its pack."""
    pack = write(tmp_path, 1)
    before = index_path(pack).read_bytes()
    index_path(pack).unlink()
    assert upload_pack(pack, UploadTarget("memory://a"), NOW, keep=False)
    assert there("memory://a")[index_path(pack).name] == before == index_path(pack).read_bytes()


class Mover(Flaky):
    """One whose renaming does nothing onto a file, breaks a copy, or leaves what it copied."""

    protocol = "mover"
    how = ""

    def mv(self, path1: str, path2: str, *args: Any, **more: Any) -> None:
        """Rename, or not."""
        if self.how == "nothing" or (self.how == "not onto" and self.exists(path2)):
            return
        self.cp_file(path1, path2)
        if self.how == "flips":
            self.store[path2].getbuffer()[9] ^= 1
        if self.how != "leaves":
            self.rm_file(path1)


@pytest.fixture
def mover(monkeypatch: pytest.MonkeyPatch) -> type[Mover]:
    """It, as it should be."""
    fsspec.register_implementation("mover", Mover, clobber=True)
    monkeypatch.setattr(Mover, "how", "")
    return Mover


@pytest.mark.parametrize("how", ["nothing", "flips", "leaves"])
def test_what_has_not_got_its_name_is_not_deleted(
    tmp_path: Path, mover: type[Mover], how: str
) -> None:
    """A renaming that fails without a word, and a copy that is none; again, it goes up."""
    mover.how = how
    pack = write(tmp_path, 1)
    data = pack.read_bytes()
    with pytest.raises(PackUploadError, match=r"renamed|MD5"):
        upload_pack(pack, UploadTarget("mover://far"), NOW, keep=False)
    assert pack.exists()
    assert not find_upload(pack)
    mover.how = ""
    assert upload_pack(pack, UploadTarget("mover://far"), NOW, keep=False)
    found = there("mover://far")
    assert found[pack.name] == data
    assert not [name for name in found if name.endswith(".part")]


def test_what_is_there_is_replaced_where_nothing_is_renamed_onto_a_file(
    tmp_path: Path, mover: type[Mover]
) -> None:
    """As with WebHDFS: what was redacted takes the place of what was not."""
    mover.how = "not onto"
    pack = write(tmp_path, 1)
    assert upload_pack(pack, UploadTarget("mover://far"), NOW, keep=True)
    other = pack.read_bytes() + b"more"
    pack.write_bytes(other)
    assert upload_pack(pack, UploadTarget("mover://far"), NOW, keep=False)
    assert there("mover://far")[pack.name] == other


def test_a_folder_here_is_on_the_medium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is called."""
    synced: list[Path] = []
    monkeypatch.setattr("scrapy_spider_suite.packs.upload.files.sync_path", synced.append)
    pack = write(tmp_path / "here", 1)
    synced.clear()
    assert upload_pack(pack, UploadTarget(f"local://{tmp_path}/far"), NOW, keep=True)
    assert synced.count(tmp_path / "far") == 2
    assert tmp_path / "far" / f"{pack.name}.part" in synced
