"""Folders of files as hosts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scrapy_spider_suite.testing import FakeWeb, FakeWebConfig
from scrapy_spider_suite.testing.http import Request, ServerReply
from scrapy_spider_suite.testing.synthetic_site import FolderSite

Ask = Callable[..., Any]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small site, with something beside it that must not be served."""
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "site-2").mkdir()
    (tmp_path / "site-2" / "x.html").write_text("secret")
    site = tmp_path / "site"
    (site / "sub dir").mkdir(parents=True)
    (site / "empty").mkdir()
    (site / "index.html").write_text("<a href='sub%20dir/'>sub</a>")
    (site / "sub dir" / "index.htm").write_text("sub")
    (site / "caf\xe9.html").write_text("coffee")
    (site / "style.css").write_text("css")
    (site / "data.tar.gz").write_bytes(b"gz")
    (site / "noext").write_bytes(b"x")
    (site / "inside.html").symlink_to(site / "index.html")
    (site / "outside.txt").symlink_to(tmp_path / "secret.txt")
    (site / "folder-outside").symlink_to(tmp_path)
    os.mkfifo(site / "pipe")
    return site


def get(root: Path, path: str) -> ServerReply:
    """What the folder answers to a GET of *path*."""
    return FolderSite(root).answer(Request("GET", path, path, "docs.test", True, 0))


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        ("/", "text/html", "<a href='sub%20dir/'>sub</a>"),
        ("/index.html", "text/html", "<a href='sub%20dir/'>sub</a>"),
        ("/sub%20dir/", "text/html", "sub"),
        ("/caf%C3%A9.html", "text/html", "coffee"),
        ("/style.css", "text/css", "css"),
        ("/data.tar.gz", "application/gzip", "gz"),
        ("/noext", "application/octet-stream", "x"),
        ("/inside.html", "text/html", "<a href='sub%20dir/'>sub</a>"),
    ],
)
def test_files_are_served(root: Path, path: str, kind: str, body: str) -> None:
    """By path, with the type of their suffix and no charset."""
    answer = get(root, path)
    assert answer.status == 200
    assert f"Content-Type: {kind}\r\n".encode() in answer.data
    assert answer.data.endswith(b"\r\n\r\n" + body.encode())


@pytest.mark.parametrize(
    "path",
    [
        "/none.html", "/empty/", "/index.html/", "/../secret.txt", "/..%2fsecret.txt",
        "/%2e%2e/secret.txt", "/sub%20dir/../../secret.txt", "/outside.txt",
        "/folder-outside/secret.txt", "/folder-outside/", "//etc/passwd", "/%00", "/pipe",
        "/../site-2/x.html", "/index.html%00.css", "/" + "x" * 5000, "",
    ],
)  # fmt: skip
def test_the_rest_is_404(root: Path, path: str) -> None:
    """Nothing outside of the folder is read, however it is asked for, and nothing that blocks."""
    answer = get(root, path)
    assert answer.status in (301, 404)
    assert b"secret" not in answer.data


def test_a_folder_gets_its_slash(root: Path) -> None:
    """So that relative links in its index work."""
    answer = get(root, "/sub%20dir")
    assert answer.status == 301
    assert b"\r\nLocation: /sub%20dir/\r\n" in answer.data


def test_unreadable_files_are_403(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the disk says, the server lives on."""

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    answer = get(root, "/style.css")
    assert (answer.status, answer.data[-19:]) == (403, b"\nPermission denied\n")


def test_large_files_are_sent(tmp_path: Path, ask: Ask) -> None:
    """Through sockets, with HEAD too, and the connection is of use afterwards."""
    (tmp_path / "large.bin").write_bytes(bytes(range(256)) * 20_000)
    (tmp_path / "index.html").write_text("index")
    with FakeWeb(FakeWebConfig(hosts=0, sites={"docs.test": str(tmp_path)})) as web:
        assert web.ready.seeds == (web.url("docs.test"),)
        assert ask(web, web.url("docs.test")).body == b"index"
        answer = ask(web, web.url("docs.test", "/large.bin"))
        assert (answer.status, answer.body) == (200, bytes(range(256)) * 20_000)
        head = ask(web, web.url("docs.test", "/large.bin"), "HEAD")
        assert (head.fields["content-length"], head.body) == ("5120000", b"")
        assert [each.status for each in web.arrivals] == [200, 200, 200]
