"""What other people's programs say of whole packs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.lzop import Lzop
from support.packs import body, fetch, gzipped, hand_in, head, plan

from scrapy_spider_suite.packs import PackWriter, RefersTo
from scrapy_spider_suite.packs.warc import sha1_digest

INDEXER = ("cdxj-indexer==1.5.0", "surt==0.3.1", "py3amf", "multipart")


def write(folder: Path, form: str) -> Path:
    """A pack of pages as they came, decoded ones, redirects and revisits."""
    found: list[Path] = []
    writer = PackWriter(plan(folder, form), closed=found.append)
    original = RefersTo(fetch(1).url, fetch(1).time, sha1_digest(body(1)))
    moved = head(0).replace(b"200 OK", b"301 Moved\r\nLocation: /x")
    odd = fetch(6, url="http://www.Example.com:80/A?b=2&a=1")
    fetches = [fetch(1), gzipped(2), fetch(3, b""), fetch(4, original=original),
               fetch(5, b"", head=moved), odd]  # fmt: skip
    for one in fetches:
        hand_in(writer, one)
    writer.close()
    return found[0]


def test_lzop_and_warcio_in_a_row(lzop: Lzop, tmp_path: Path) -> None:
    """``lzop -dc X | warcio index -`` and ``warcio check``."""
    path = write(tmp_path, "lzo")
    lzop.test(path)
    plain = tmp_path / "x.warc"
    plain.write_bytes(lzop("-dc", path))
    warcio = [sys.executable, "-m", "warcio.cli"]
    done = subprocess.run([*warcio, "index", "-"], input=plain.read_bytes(), check=True,
                          capture_output=True)  # fmt: skip
    assert len(done.stdout.splitlines()) == 1 + 6 * 3
    subprocess.run([*warcio, "check", str(plain)], check=True)


def test_the_tools_of_warcio_and_fastwarc_accept_gz(tmp_path: Path) -> None:
    """Both check every digest."""
    path = write(tmp_path, "gz")
    subprocess.run([sys.executable, "-m", "warcio.cli", "check", str(path)], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "fastwarc.cli", "check", str(path)], capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert "19 records were verified successfully" in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.long
def test_the_index_is_that_of_cdxj_indexer(tmp_path: Path) -> None:
    """pywb's indexer gives the same lines, but for the place of the links.

    It is installed beside the tests' dependencies, which come as wheels only: ``surt`` has none.
    """
    tools = tmp_path / "tools"
    environment = {**os.environ, "PIP_ONLY_BINARY": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tools, *INDEXER],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode and not os.environ.get("CI"):
        pytest.skip("cdxj-indexer cannot be installed: no network")
    assert not done.returncode, done.stderr
    path = write(tmp_path, "gz")
    done = subprocess.run(
        [sys.executable, "-c", "from cdxj_indexer.main import main; main()", "-s", str(path)],
        env={**os.environ, "PYTHONPATH": str(tools)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    ours = path.with_name(f"{path.name}.cdxj").read_text()
    assert list(map(fields, done.stdout.splitlines())) == list(map(fields, ours.splitlines()))


def fields(line: str) -> tuple[str, str, dict[str, str]]:
    """Key, time and what is said of the page, without its links."""
    key, stamp, text = line.split(" ", 2)
    return key, stamp, {n: v for n, v in json.loads(text).items() if n != "metadata"}
