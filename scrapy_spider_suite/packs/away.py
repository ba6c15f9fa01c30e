"""Which packs have been uploaded, and where to: a small file beside each, ``NAME.uploaded``.

The pack itself may be gone then; its index stays, so that its pages are still known of.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from scrapy_spider_suite.packs.formats import OPEN, is_pack, plain
from scrapy_spider_suite.packs.packfile import INDEX
from scrapy_spider_suite.runtime import files

MARK: Final = ".uploaded"


class Uploaded(NamedTuple):
    """An upload that was found to be whole.

    *url*: where the pack is. *size* in bytes, *md5* of them in hexadecimal digits; *time* as in
    WARC records.
    """

    url: str
    size: int
    md5: str
    time: str


def mark_of(pack: Path) -> Path:
    """Return the name of the file that says of *pack* that it has been uploaded."""
    return pack.with_name(f"{pack.name}{MARK}")


def uploaded(pack: Path) -> Uploaded | None:
    """Return what is known of the upload of *pack*; None if it has not been uploaded yet."""
    found = _read(pack)
    try:
        return Uploaded(str(found["url"]), int(found["size"]), str(found["md5"]),
                        str(found["time"]))  # fmt: skip
    except (ValueError, TypeError, KeyError):  # then it is uploaded once more
        return None


def begun(pack: Path) -> str:
    """Return the URL under which something is *pack*'s own, whole or not; "" if there is none."""
    return str(_read(pack).get("url", ""))


def _read(pack: Path) -> dict[str, Any]:
    """What the mark of *pack* holds; nothing if there is none, or it is damaged."""
    try:
        found = json.loads(mark_of(pack).read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def mark(pack: Path, done: Uploaded) -> None:
    """Note that *pack* has been uploaded. Raises `OSError`."""
    files.replace(mark_of(pack), json.dumps(done._asdict()).encode() + b"\n")


def begin(pack: Path, url: str) -> None:
    """Note that what is at *url* is *pack*'s own from now on. Raises `OSError`."""
    files.replace(mark_of(pack), json.dumps({"url": url}).encode() + b"\n")


def unmark(pack: Path) -> None:
    """Note that *pack* is to be uploaded once more, if it was. Raises `OSError`."""
    if mark_of(pack).exists():
        begin(pack, begun(pack))


def waiting(
    folder: Path, agent: str = "", *, keep: bool = True, target: str = ""
) -> list[Path]:
    """Return the closed packs of *folder*, or of an *agent*, that wait to be uploaded, by name.

    *target* is the URL of the folder where they are to be, "" for any. Unless they are to be kept,
    also those that are there and still here: a kill came between. Raises `OSError`.
    """
    ending = f"-{plain(agent)}.warc." if agent else ".warc."
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
    found = (folder / name for name in sorted(names) if ending in name and is_pack(Path(name)))
    return [path for path in found
            if not path.name.endswith(OPEN) and not (keep and _is_at(path, target))]  # fmt: skip


def _is_at(pack: Path, target: str) -> bool:
    done = uploaded(pack)
    return done is not None and target in ("", done.url.removesuffix(f"/{pack.name}"))


def packs_away(folder: Path) -> Iterator[tuple[Path, Uploaded]]:
    """Yield every pack that was uploaded from *folder* and is not there any more. `OSError`."""
    for path in sorted(folder.glob(f"*{MARK}")):
        pack = path.with_name(path.name.removesuffix(MARK))
        done = uploaded(pack)
        if done is not None and is_pack(pack) and not pack.exists():
            yield pack, done


def packs_missing(folder: Path) -> Iterator[Path]:
    """Yield every pack of *folder* that is gone, not uploaded, though its index is here. `OSError`.
    """
    for index in sorted(folder.glob(f"*{INDEX}")):
        pack = index.with_name(index.name.removesuffix(INDEX))
        # Looked at in this order: it may be closed, or uploaded and deleted, meanwhile.
        names = (pack, pack.with_name(pack.name + OPEN), pack)
        if is_pack(pack) and not any(map(Path.exists, names)) and uploaded(pack) is None:
            yield pack
