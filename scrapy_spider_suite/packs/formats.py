"""The formats by their names, and the names of packs."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from scrapy_spider_suite.errors import PackError
from scrapy_spider_suite.packs.container import Container
from scrapy_spider_suite.packs.lzop import LzopContainer
from scrapy_spider_suite.packs.members import GzipContainer, ZstdContainer

FORMATS: Final[dict[str, Callable[[], Container]]] = {
    "lzo": LzopContainer,
    "gz": GzipContainer,
    "zst": ZstdContainer,
}
"""``SUITE_PACKS_FORMAT``."""

USES: Final = {
    "lzo": "`lzop -dc FILE` or `scrapy packs cat FILE` prints its WARC, and "
    "`scrapy packs export --warc-gz FILE` makes a file that every WARC tool opens",
    "gz": "every WARC tool opens it",
    "zst": "FastWARC opens it, and `zstd -dc FILE` prints its WARC for other tools",
}
"""How tools of others read a pack of each format."""

OPEN: Final = ".open"
"""What the name of a pack ends with while it is written."""

_NAME = re.compile(r".+\.warc\.(lzo|gz|zst)(\.open)?")


def container(form: str) -> Container:
    """Return the format of that name. Raises `PackError`: there is none."""
    if form not in FORMATS:
        raise PackError(f"no format for packs: {form!r}; there are {', '.join(FORMATS)}")
    return FORMATS[form]()


def format_of(path: Path) -> str:
    """Return the name of the format of a pack, by the file's name. Raises `PackError`: none."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise PackError(f"not a pack (*.warc.lzo, *.warc.gz, *.warc.zst): {path}")
    return match[1]


def is_pack(path: Path) -> bool:
    """Return whether that is the name of a pack, open ones included."""
    return _NAME.fullmatch(path.name) is not None


def pack_name(
    name: str, time: float, serial: int, agent: str, form: str, *, kind: str = "warc"
) -> str:
    """Return ``NAME-TIME-SERIAL-AGENT.KIND.FORM``. *time* in seconds since the epoch."""
    stamp = f"{datetime.fromtimestamp(time, UTC):%Y%m%d%H%M%S}"
    return f"{plain(name)}-{stamp}-{serial:05d}-{plain(agent)}.{kind}.{form}"


def final(path: Path) -> Path:
    """Return *path* without ``.open``."""
    return path.with_name(path.name.removesuffix(OPEN))


def plain(name: str) -> str:
    """Return *name* in letters, digits, ``_`` and ``.``: a hyphen stands between the parts."""
    return re.sub(r"[^A-Za-z0-9_.]+", "_", name).strip(".")[:80] or "crawl"
